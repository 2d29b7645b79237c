"""What the chunks of a pack share: a rate code for each class, and tables of magnitudes.

One profile serves all chunks of a dtype.  A chunk adds one number of its own, a **tilt** that is
added to every rate code: tensors differ in how much they change, far less in how that depends on
the exponent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from skerry.codec.errors import FormatError
from skerry.codec.rates import (
    BITS_CHANGED,
    BITS_UNCHANGED,
    MAX_RATE,
    NEVER,
    TOTAL,
    Ints,
    rate_of,
)
from skerry.codec.scan import CLASSES
from skerry.codec.steps import MAGNITUDE_SYMBOLS

MAX_TILT = 63
MAX_MAGNITUDE_TABLES = 32
_SAMPLES_PER_TABLE = 200  # below this a table costs more than the neighbour's misfit
_FIT_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """`rates[c]`: the rate code of class c, NEVER if none of its words may change.

    `table_of[c]`: which magnitude table class c uses; 0 means that every step of it is one unit and
    no symbol is coded, i means `magnitudes[i - 1]`: cumulative frequencies, shape
    [MAGNITUDE_SYMBOLS + 1], from 0 to TOTAL.
    """

    rates: Ints
    table_of: Ints
    magnitudes: tuple[Ints, ...]

    def tilted(self, tilt: int) -> Ints:
        """Return the rate codes of a chunk, shape [CLASSES]."""
        return np.where(self.rates == NEVER, NEVER, np.clip(self.rates + tilt, 0, MAX_RATE))


def fit(
    population: Ints, changed: Ints, symbols: Sequence[Ints], classes: Sequence[Ints]
) -> tuple[Profile, Ints]:
    """Return the profile that suits these chunks, and the tilt of each.

    `population` and `changed` have shape [chunks, CLASSES]; `symbols` and `classes` give each
    chunk's magnitude symbols and the class of each.
    """
    total_changed = changed.sum(axis=0)
    rates = rate_of(total_changed, population.sum(axis=0))
    tilts = np.zeros(len(population), np.int64)
    for _ in range(_FIT_ROUNDS if len(population) > 1 else 0):
        tilts = _best_tilts(population, changed, rates)
        # A tilted chunk's words count for as many as the tilt makes them worth.
        weight = 2.0 ** (-tilts / 4)
        rates = rate_of(total_changed, (population * weight[:, None]).sum(axis=0))
    if len(population) > 1:
        tilts = _best_tilts(population, changed, rates)
    table_of, tables = _magnitude_tables(np.concatenate(symbols), np.concatenate(classes))
    return Profile(rates=rates, table_of=table_of, magnitudes=tables), tilts


def _best_tilts(population: Ints, changed: Ints, rates: Ints) -> Ints:
    used = np.flatnonzero(rates != NEVER)
    k, rest = changed[:, used], (population - changed)[:, used]
    candidates = np.arange(-MAX_TILT, MAX_TILT + 1)
    costs = np.empty((candidates.size, len(population)))
    for i, tilt in enumerate(candidates):
        tilted = np.clip(rates[used] + tilt, 0, MAX_RATE)
        # Rounded to whole bits / 16, so that no platform's last digit decides between tilts.
        costs[i] = np.rint(16 * (k @ BITS_CHANGED[tilted] + rest @ BITS_UNCHANGED[tilted]))
    costs += np.abs(candidates)[:, None] / 1024  # among equals, the smallest tilt
    best: Ints = candidates[np.argmin(costs, axis=0)]
    return best


def _magnitude_tables(symbols: Ints, classes: Ints) -> tuple[Ints, tuple[Ints, ...]]:
    """Give a table to each run of neighbouring classes that has samples enough to pay for it."""
    counts = np.zeros((CLASSES, MAGNITUDE_SYMBOLS), np.int64)
    np.add.at(counts, (classes, symbols), 1)
    table_of = np.zeros(CLASSES, np.int64)
    varied = np.flatnonzero(counts[:, 1:].any(axis=1))
    groups: list[list[int]] = []
    for c in varied:
        if groups and counts[groups[-1]].sum() < _SAMPLES_PER_TABLE:
            groups[-1].append(int(c))
        elif len(groups) < MAX_MAGNITUDE_TABLES:
            groups.append([int(c)])
        else:
            groups[-1].append(int(c))
    if len(groups) > 1 and counts[groups[-1]].sum() < _SAMPLES_PER_TABLE:
        last = groups.pop()
        groups[-1] += last
    tables = []
    for i, group in enumerate(groups):
        table_of[group] = i + 1
        tables.append(cumulate(quantise(counts[group].sum(axis=0))))
    return table_of, tuple(tables)


def quantise(counts: Ints) -> Ints:
    """Return frequencies with the sum TOTAL, at least 1 for every symbol that occurs."""
    frequencies = np.where(counts > 0, np.maximum(1, counts * TOTAL // counts.sum()), 0)
    # What rounding left over goes to the commonest symbol; it is too big for that to empty it.
    frequencies[np.argmax(frequencies)] += TOTAL - frequencies.sum()
    return frequencies


def cumulate(frequencies: Ints) -> Ints:
    """Return cumulative frequencies, one item longer."""
    if frequencies.size != MAGNITUDE_SYMBOLS or int(frequencies.sum()) != TOTAL:
        raise FormatError(f"a magnitude table's frequencies sum to {int(frequencies.sum())}")
    return np.concatenate([[0], np.cumsum(frequencies)])


def lookup(cumulative: Ints) -> npt.NDArray[np.int64]:
    """Return the symbol of every slot, shape [TOTAL]."""
    return np.repeat(np.arange(MAGNITUDE_SYMBOLS), np.diff(cumulative))
