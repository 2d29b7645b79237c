"""What the chunks of a pack share: a rate code for each class, and tables of magnitudes.

One profile serves all chunks of a dtype.  A chunk adds one number of its own, a **tilt** that is
added to rate codes: tensors differ in how much they change, far less in how that depends on the
exponent.  Classes that nearly always change are saturated: rate codes below TILTED_FROM stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from skerry.codec.errors import FormatError
from skerry.codec.magnitudes import MagnitudeTable, fit_tables
from skerry.codec.rates import BITS_CHANGED, BITS_UNCHANGED, MAX_RATE, NEVER, Ints, rate_of
from skerry.codec.scan import ChunkDiff

MAX_TILT = 63
TILTED_FROM = 12  # a hazard of 1 for each word
_FIT_ROUNDS = 3
# Costs are whole multiples of 2^-28 bits: sums over a chunk's words stay below 2^53, so that they
# are exact in floating point and no platform decides otherwise between tilts.
_CHANGED = np.rint(BITS_CHANGED * 2**28)
_UNCHANGED = np.rint(BITS_UNCHANGED * 2**28)
# Among equals the smallest tilt comes first.
_TILTS = np.array(sorted(range(-MAX_TILT, MAX_TILT + 1), key=lambda tilt: (abs(tilt), tilt)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """`rates[c]`: the rate code of class c, NEVER if none of its words may change.

    `table_of[c]`: which magnitude table class c uses; 0 means that every step of it is one unit and
    no symbol is coded, i means `tables[i - 1]`.
    """

    rates: Ints
    table_of: Ints
    tables: tuple[MagnitudeTable, ...]

    def __post_init__(self) -> None:
        if int(self.table_of.max(initial=0)) > len(self.tables):
            raise FormatError(f"a class uses a magnitude table past the last, {len(self.tables)}")

    def tilted(self, tilt: int) -> Ints:
        """Return the rate codes of a chunk, shape [CLASSES]."""
        return _tilted(self.rates, tilt)

    def precision_of(self, classes: npt.NDArray[np.integer]) -> Ints:
        """Return the precision that each class's magnitudes are coded to, shape of `classes`."""
        precisions = np.array([0, *(table.precision for table in self.tables)], np.int64)
        found: Ints = precisions[self.table_of[classes]]
        return found


def fit(diffs: Sequence[ChunkDiff]) -> tuple[Profile, Ints]:
    """Return the profile that suits these chunks, and the tilt of each."""
    population = np.stack([diff.population for diff in diffs])
    changed = np.stack([diff.changed for diff in diffs])
    total_changed = changed.sum(axis=0)
    untilted = rates = rate_of(total_changed, population.sum(axis=0))
    tilts = np.zeros(len(population), np.int64)
    for _ in range(_FIT_ROUNDS if len(population) > 1 else 0):
        tilts = _best_tilts(population, changed, rates)
        # Rates and tilts can drift against each other; the middle chunk has none.
        tilts -= int(np.median(tilts))
        # A tilted chunk's words count for as many as the tilt makes them worth.
        weight = 2.0 ** (-tilts / 4)
        weighted = rate_of(total_changed, (population * weight[:, None]).sum(axis=0))
        rates = np.where(_is_fixed(untilted), untilted, np.maximum(weighted, TILTED_FROM))
    if len(population) > 1:
        tilts = _best_tilts(population, changed, rates)
    # Most steps are one unit; only the others are looked at one by one.
    longer = [np.flatnonzero(diff.magnitude > 1) for diff in diffs]
    table_of, tables = fit_tables(
        np.concatenate([diff.magnitude[at] for diff, at in zip(diffs, longer, strict=True)]),
        np.concatenate([diff.classes[at] for diff, at in zip(diffs, longer, strict=True)]),
        total_changed,
    )
    return Profile(rates=rates, table_of=table_of, tables=tables), tilts


def _tilted(rates: Ints, tilt: int | Ints) -> Ints:
    return np.where(
        _is_fixed(rates), rates, np.minimum(np.maximum(rates + tilt, TILTED_FROM), MAX_RATE)
    )


def _is_fixed(rates: Ints) -> npt.NDArray[np.bool_]:
    """Say which rate codes no tilt moves."""
    fixed: npt.NDArray[np.bool_] = (rates < TILTED_FROM) | (rates == NEVER)
    return fixed


def _best_tilts(population: Ints, changed: Ints, rates: Ints) -> Ints:
    used = np.flatnonzero(rates != NEVER)
    k = changed[:, used].astype(np.float64)
    rest = population[:, used].astype(np.float64) - k
    tilted = _tilted(rates[used, None], _TILTS)  # shape [classes, tilts]
    costs = k @ _CHANGED[tilted] + rest @ _UNCHANGED[tilted]  # shape [chunks, tilts]
    best: Ints = _TILTS[np.argmin(costs, axis=1)]
    return best
