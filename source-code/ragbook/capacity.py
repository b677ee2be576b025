"""How a cost grows with the number of passages: a line through what was measured, and its end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class Growth(NamedTuple):
    """A cost with a part that is always there and a part for each passage.

    Args:
        fixed: What is there without any passage, in the unit of the cost.
        per_passage: What each passage adds, in the same unit.
    """

    fixed: float
    per_passage: float

    def at(self, passages: float) -> float:
        """Return the cost of so many passages."""
        return self.fixed + self.per_passage * passages

    def passages_for(self, limit: float) -> float:
        """Return how many passages a limit of the cost allows: 0 to infinity."""
        left = limit - self.fixed
        if left < 0:
            return 0.0
        return left / self.per_passage if self.per_passage else math.inf


def fit(measured: Mapping[int, float]) -> Growth:
    """Fit a line to what was measured, so that its relative errors are small at every size.

    Least squares of (line - value) / value: without the division the largest size alone would set
    the line. Neither part is below 0, since no cost is.

    Args:
        measured: Number of passages to cost, at least two sizes; costs are above 0.

    Raises:
        ValueError: If there are fewer sizes, or a cost is not above 0.
    """
    if len(measured) < 2:
        raise ValueError(f"A line needs at least 2 sizes, got {len(measured)}.")
    sizes = np.array(list(measured), float)
    costs = np.array(list(measured.values()), float)
    if not (costs > 0).all():
        raise ValueError(f"Costs must be above 0, got {costs.min():g}.")
    parts = np.stack([1 / costs, sizes / costs], axis=1)
    target = np.ones(len(costs))
    both = np.linalg.lstsq(parts, target, rcond=None)[0]
    if (both >= 0).all():
        return Growth(*map(float, both))
    # With one of the two at 0, the other alone fits best at this.
    alone = parts.sum(axis=0) / (parts**2).sum(axis=0)
    options = [Growth(float(alone[0]), 0.0), Growth(0.0, float(alone[1]))]
    return min(options, key=lambda line: float(((parts @ line - target) ** 2).sum()))


def foretold(measured: Mapping[int, float]) -> float:
    """Return what a line through all but the largest size says of the largest.

    Args:
        measured: Number of passages to cost, at least three sizes.
    """
    largest = max(measured)
    return fit({size: cost for size, cost in measured.items() if size != largest}).at(largest)
