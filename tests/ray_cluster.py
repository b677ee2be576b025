"""One small Ray for all tests that need it, with two workers, no dashboard and no network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[str]:
    """Start Ray in this process; yields its address, for other processes to connect to."""
    # Before the import, which reads them.
    os.environ.update(
        {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            "OMP_WAIT_POLICY": "passive",
        }
    )
    ray = pytest.importorskip("ray")
    # Workers, also those of another driver, import what tests define by the module's name.
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), path]))
    context = ray.init(
        address="local",
        num_cpus=3,
        num_gpus=0,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=120 * 2**20,
    )
    if path is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = path
    yield context.address_info["address"]
    ray.shutdown()
