"""Means over seeds, with the confidence that few of them allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

# Student's t at 97.5 %, by degrees of freedom: normal intervals would be too narrow for few seeds.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
MAX_SEEDS = len(_T) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean and its 95 % confidence interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.4g} (95 % {self.low:+.4g} to {self.high:+.4g})"


def interval(values: Sequence[float]) -> Interval:
    """Return Student's interval of 2 to 10 independent values; of one, there is none: NaN."""
    middle = mean(values)
    if len(values) < 2:
        return Interval(mean=middle, low=math.nan, high=math.nan)
    half = _T[len(values) - 2] * stdev(values) / math.sqrt(len(values))
    return Interval(mean=middle, low=middle - half, high=middle + half)


def quarters(values: Sequence[float]) -> tuple[float, float]:
    """Return the means of the first and of the last quarter, of one value each at least."""
    size = max(1, len(values) // 4)
    return mean(values[:size]), mean(values[-size:])
