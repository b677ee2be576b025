from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragbook.capacity import Growth, fit, foretold

SIZES = (1_000, 10_000, 100_000, 1_000_000)


@given(st.floats(0, 1e3), st.floats(1e-6, 1e3))
def test_a_line_is_found_again(fixed: float, per_passage: float) -> None:
    line = Growth(fixed, per_passage)
    measured = {size: line.at(size) for size in SIZES}
    found = fit(measured)
    for size in SIZES:
        assert found.at(size) == pytest.approx(measured[size], rel=1e-6)
    assert foretold(measured) == pytest.approx(measured[SIZES[-1]], rel=1e-6)


def test_a_cost_that_does_not_grow_has_no_part_for_a_passage() -> None:
    assert fit({1: 5.0, 10: 5.0, 100: 4.9}).per_passage == 0
    assert fit({1: 4.0, 10: 4.0}).fixed == pytest.approx(4)


def test_no_part_is_below_zero() -> None:
    # A straight line through these would begin at -1.
    line = fit({1: 1.0, 2: 3.0})
    assert line.fixed == 0
    # The least squares of (p - 1) / 1 and (2 p - 3) / 3: p (1 + 4/9) = 1 + 2/3.
    assert line.per_passage == pytest.approx((1 + 2 / 3) / (1 + 4 / 9))


def test_every_size_counts_the_same_by_its_share() -> None:
    # Unweighted, the line would miss the small sizes many times over to please the large one.
    measured = {1_000: 11.0, 10_000: 20.0, 100_000: 110.0, 1_000_000: 1200.0}
    line = fit(measured)
    assert all(abs(line.at(n) - cost) / cost < 0.15 for n, cost in measured.items())


def test_a_limit_allows_so_many_passages() -> None:
    line = Growth(fixed=10.0, per_passage=0.5)
    assert line.passages_for(110.0) == 200
    assert line.passages_for(9.0) == 0
    assert Growth(1.0, 0.0).passages_for(2.0) == math.inf


@pytest.mark.parametrize(
    ("measured", "message"),
    [({1: 1.0}, "at least 2 sizes, got 1"), ({1: 1.0, 2: 0.0}, "above 0, got 0")],
)
def test_what_has_no_line_is_refused(measured: dict[int, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(measured)
