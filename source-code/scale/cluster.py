"""Ray: start it or connect to it, and send units of a corpus through its workers."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from .attempts import Attempts
from .embed import Embedder, Load
from .reading import Work, read_unit
from .sources import IngestError, one_line

READ_CPUS = 0.5
"""What a task that reads and splits is counted as: less than a model needs."""


def embedded_shards(
    left: list[dict[str, Any]],
    work: Work,
    load: Load,
    batch_size: int,
    workers: int,
    gpus: float,
) -> Iterator[dict[str, Any]]:
    """Send units through the workers; yield their shards with vectors, as they are done.

    Args:
        left: Units, as `embed.unit_item` makes them.
        work: What a worker has to know.
        load: Makes the model in a worker.
        batch_size: How many texts are embedded in one call.
        workers: How many processes embed.
        gpus: GPUs for each of them.

    Raises:
        IngestError: If Ray cannot go on.
    """
    import ray

    context = ray.data.DataContext.get_current()
    # One shard a block: what is larger would wait in a task until it is full.
    changed = {
        "target_max_block_size": 1,
        "enable_progress_bars": False,
        "print_on_execution_start": False,
    }
    before = {name: getattr(context, name) for name in changed}
    for name, value in changed.items():
        setattr(context, name, value)
    log = logging.getLogger("ray.data")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        attempts = ray.remote(num_cpus=0)(Attempts).remote()
        units = ray.data.from_items(left, override_num_blocks=len(left))
        # Reading is faster than any model on a CPU; each process that reads takes memory too.
        readers = ray.data.TaskPoolStrategy(size=2 * workers if gpus else (workers + 1) // 2)
        read = partial(read_unit, work=work)
        shards = units.flat_map(read, compute=readers, num_cpus=READ_CPUS)
        embedded = shards.map(
            Embedder,
            fn_constructor_args=(load, batch_size, attempts),
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(left))),
            num_cpus=1,
            num_gpus=gpus,
        )
        yield from embedded.iter_rows()
    except ray.exceptions.RayError as error:
        raise IngestError(_ray_fault(error)) from error
    finally:
        log.setLevel(level)
        for name, value in before.items():
            setattr(context, name, value)


def _ray_fault(error: BaseException) -> str:
    """Say in one sentence what Ray says on a page."""
    import ray

    if missing := re.findall(r"ModuleNotFoundError: (No module named .+)", str(error)):
        return (
            f"A worker lacks a package: {missing[-1].rstrip(' .')}. "
            "Install the same packages on every machine of the cluster."
        )
    cause = getattr(error, "cause", None) or error.__cause__ or error
    if isinstance(cause, ray.exceptions.OutOfMemoryError) or "OutOfMemory" in str(error):
        reason = "a worker had too little memory; use fewer --workers"
    elif causes := re.findall(r"^(?:\S*\.)?(\w+(?:Error|Exception): .+)$", str(error), re.M):
        reason = causes[-1].rstrip(" .")  # of Ray's page, the line about what went wrong
    else:
        reason = one_line(cause)
    return f"Ray could not go on: {reason}. Run it again to go on with what is missing."


@contextmanager
def started(address: str | None, workers: int | None) -> Iterator[int]:
    """Connect to Ray for the work of a `with` block; yield how many processes shall embed."""
    # `uv run` would make Ray pack the folder, and install everything anew for each worker.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's C++ writes about arguments of actors to the terminal.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    # A worker without GPUs sees none, so that not all of them fill the one there is.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
    try:
        import ray
        import ray.data
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise IngestError("Ingesting needs Ray. Install it: uv add 'ray[data]'.") from None
    if ray.is_initialized():
        yield workers or _cluster_workers(ray)
        return
    local = workers or _cpus()
    settings: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False}
    source_code = Path(__file__).resolve().parents[1]
    if address is None:
        # CPUs are what Ray counts, not what it takes: one embeds a worker, and some read.
        settings |= {"address": "local", "num_cpus": local + max(1, local // 4)}
    else:
        # Also of the book, whose profile may be what loads the model.
        folders = [source_code / name for name in ("scale", "retrievers", "ragbook")]
        packages = [str(folder) for folder in folders if folder.is_dir()]
        settings = {
            "address": address,
            "log_to_driver": False,
            "runtime_env": {"py_modules": packages},
        }
    ends = signal.getsignal(signal.SIGTERM)
    try:
        with warnings.catch_warnings(), _silent(), _importable(source_code):
            # Ray's processes are started by fork and exec, and use nothing of LanceDB's.
            warnings.filterwarnings("ignore", "lancedb fork support", RuntimeWarning)
            ray.init(**settings, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        where = f"No Ray cluster answers at {address!r}" if address else "Ray did not start"
        raise IngestError(f"{where}: {one_line(error)}.") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, ends)  # Ray's own prints a page
    try:
        yield local if address is None else workers or _cluster_workers(ray)
    finally:
        ray.shutdown()


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let processes that are started meanwhile import from a folder, as a copy is not installed."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{before}" if before else str(folder)
    try:
        yield
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


@contextmanager
def _silent() -> Iterator[None]:
    """Keep what Ray's C++ writes while it starts from the terminal; a fault is an exception too."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _cluster_workers(ray: Any) -> int:
    """Return how many processes can embed, with CPUs left for those that read."""
    cpus = ray.cluster_resources().get("CPU", 1)
    return max(1, int(cpus - max(1, cpus // 5)))


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
