"""What the model is calibrated with: costs linear in weights and changes, and prices of stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """fixed + of_weights * (bytes of weights) + of_changes * (changed words)."""

    fixed: float
    of_weights: float
    of_changes: float

    def at(self, weights_bytes: float, changed: float, speedup: float = 1.0) -> float:
        """Return the cost; `speedup` divides what grows with the work."""
        work = self.of_weights * weights_bytes + self.of_changes * changed
        return self.fixed + work / speedup


def fitted(points: Sequence[tuple[float, float, float]], *, grows: bool = True) -> Linear:
    """Return what is nearest to points (bytes of weights, changed words, cost) in relative terms.

    No part is negative: time does not run backwards.  One that would be is left out instead.
    `grows` is whether there is a part of the weights: what streams has none.
    """
    parts = np.array([[1.0, weights, changed] for weights, changed, _ in points])
    cost = np.array([value for *_, value in points])
    kept = [0, 1, 2] if grows else [0, 2]
    found = np.zeros(3)
    # Every point counts by its relative error: otherwise the largest alone would decide.
    scaled = parts / cost[:, None]
    scale = np.abs(scaled).max(axis=0)
    while kept:
        some = scaled[:, kept] / scale[kept]
        solution = np.linalg.lstsq(some, np.ones(len(cost)), rcond=None)[0] / scale[kept]
        if (solution >= 0).all():
            found[kept] = solution
            break
        kept.remove(kept[int(np.argmin(solution * scale[kept]))])
    fixed, of_weights, of_changes = map(float, found)
    return Linear(fixed=fixed, of_weights=of_weights, of_changes=of_changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """One machine's costs of a version.  Seconds are of all its cores at once.

    `bytes_per_changed` is a patch's size by density, ascending; requests are of one version.
    """

    publish_s: Linear
    publish_cpu_s: Linear
    follow_s: Linear
    follow_cpu_s: Linear
    publisher_bytes: Linear  # of memory, on top of the trainer's own weights
    agent_bytes: Linear
    bytes_per_changed: Sequence[tuple[float, float]]
    puts: float
    gets: float
    threads: int

    def patch_bytes(self, words: float, density: float) -> float:
        """Return the size of a patch, by the logarithm of its density between measured ones."""
        known, sizes = zip(*self.bytes_per_changed, strict=True)
        size = np.interp(np.log(density), np.log(known), sizes)
        return float(size) * words * density


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """A store's prices in dollars: of GB (10^9 bytes) that leave it, and of a million requests.

    `egress` are tiers of a month: up to so many GB, at so much a GB; the last has no end.
    """

    name: str
    source: str
    egress: Sequence[tuple[float, float]]
    put: float
    get: float

    def egress_a_day(self, gigabytes: float) -> float:
        """Return the dollars of so many GB every day of a month of 30 days."""
        left, dollars, below = 30 * gigabytes, 0.0, 0.0
        for upto, price in self.egress:
            some = min(left, upto - below)
            dollars += some * price
            left, below = left - some, upto
        return dollars / 30


_ENDLESS = 1e18  # JSON has no infinity

INTERNET = Prices(
    name="S3, over the internet",
    source="https://aws.amazon.com/s3/pricing/ (us-east-1)",
    egress=((10_000, 0.09), (50_000, 0.085), (150_000, 0.07), (_ENDLESS, 0.05)),
    put=5.0,
    get=0.4,
)
REGIONS = Prices(
    name="S3, between its regions",
    source="https://aws.amazon.com/s3/pricing/ (us-east-1)",
    egress=((_ENDLESS, 0.02),),
    put=5.0,
    get=0.4,
)
R2 = Prices(
    name="R2",
    source="https://developers.cloudflare.com/r2/pricing/",
    egress=((_ENDLESS, 0.0),),
    put=4.5,
    get=0.36,
)
EVERY_PRICE: Mapping[str, Prices] = {"internet": INTERNET, "regions": REGIONS, "r2": R2}
