"""Tables that code how far changed words moved, and how they are fitted to what was seen.

A table has a **precision**, see `steps`, and a frequency for each symbol; frequencies sum to TOTAL.
Neighbouring classes share a table wherever that is cheaper than two.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from skerry.codec.errors import FormatError
from skerry.codec.rates import TOTAL, Ints
from skerry.codec.scan import CLASSES
from skerry.codec.steps import MAX_PRECISION, U64, floor_log2, symbols_of, to_symbols

MAX_TABLES = 32
MAX_SYMBOLS = 1 << 14  # of a table: the most that BF16 needs at the highest precision
_MOST_SYMBOLS = TOTAL // 4  # more would leave too little for the frequencies' proportions
_BITS_PER_SYMBOL = 9  # about what the index spends on a symbol that occurs
_BITS_PER_TABLE = 24
_FEW_VALUES = 1 << 16  # up to here counting is quicker than sorting


@dataclass(frozen=True, kw_only=True)
class MagnitudeTable:
    """`frequencies`, shape [symbols], end in a symbol that occurs.  Raises FormatError."""

    precision: int
    frequencies: npt.NDArray[np.uint16]

    def __post_init__(self) -> None:
        if self.frequencies.dtype != np.uint16:
            raise TypeError(f"frequencies are uint16, found {self.frequencies.dtype}")
        total = int(self.frequencies.sum())
        if not 0 <= self.precision <= MAX_PRECISION:
            raise FormatError(f"a magnitude table of precision {self.precision}")
        if not 1 <= self.frequencies.size <= MAX_SYMBOLS or not self.frequencies[-1]:
            raise FormatError("a magnitude table ends in a symbol that never occurs")
        if total != TOTAL:
            raise FormatError(f"a magnitude table's frequencies sum to {total}, not {TOTAL}")

    @cached_property
    def starts(self) -> npt.NDArray[np.uint16]:
        """Where each symbol's interval starts, shape [symbols]."""
        starts = np.cumsum(self.frequencies, dtype=np.int64) - self.frequencies
        return starts.astype(np.uint16)

    @cached_property
    def symbol_of(self) -> npt.NDArray[np.uint16]:
        """The symbol of every slot, shape [TOTAL]."""
        return np.repeat(np.arange(self.frequencies.size, dtype=np.uint16), self.frequencies)


@dataclass(slots=True)
class _Group:
    """Classes that share a table: how often each magnitude occurs among them."""

    classes: list[int]
    values: U64
    counts: Ints
    precision: int = 0
    bits: float = 0.0

    def __post_init__(self) -> None:
        # Past its largest value's octave every precision is the same.
        exponent = floor_log2(self.values)
        enough = min(MAX_PRECISION, int(exponent[-1]) + 1)
        self.bits, self.precision = min(
            (_cost(self.values, exponent, self.counts, s), s) for s in range(enough + 1)
        )

    def merged(self, other: _Group) -> _Group:
        values, at = np.unique(np.concatenate([self.values, other.values]), return_inverse=True)
        counts = np.bincount(at, np.concatenate([self.counts, other.counts])).astype(np.int64)
        return _Group(self.classes + other.classes, values, counts)


def fit_tables(
    magnitudes: U64, classes: npt.NDArray[np.integer], changed: Ints
) -> tuple[Ints, tuple[MagnitudeTable, ...]]:
    """Return each class's table number, 0 for none, and the tables from number 1.

    `magnitudes` and `classes` are of the steps above one unit; `changed[c]` is how many steps class
    c has, those of one unit included.  A class that has no others needs no table.
    """
    groups = []
    for c in np.flatnonzero(np.bincount(classes, minlength=CLASSES)):
        values, counts = _tally(magnitudes[classes == c])
        if units := int(changed[c] - counts.sum()):
            values = np.concatenate([np.ones(1, np.uint64), values])
            counts = np.concatenate([[units], counts])
        groups.append(_Group([int(c)], values, counts))
    _merge(groups)
    table_of = np.zeros(CLASSES, np.int64)
    tables = []
    for number, group in enumerate(groups, 1):
        table_of[group.classes] = number
        symbols, _, _ = to_symbols(group.values, group.precision)
        seen = np.bincount(symbols, group.counts).astype(np.int64)
        tables.append(MagnitudeTable(precision=group.precision, frequencies=quantise(seen)))
    return table_of, tuple(tables)


def _tally(values: U64) -> tuple[U64, Ints]:
    """Return the values that occur, ascending, and how often each does."""
    if int(values.max()) >= _FEW_VALUES:
        return np.unique(values, return_counts=True)
    counts = np.bincount(values.astype(np.int64))
    seen = np.flatnonzero(counts)
    return seen.astype(np.uint64), counts[seen]


def _merge(groups: list[_Group]) -> None:
    """Merge neighbours, the best pair first, while that saves bits or tables are too many."""
    unions = [a.merged(b) for a, b in pairwise(groups)]
    while unions:
        saved = [groups[i].bits + groups[i + 1].bits - union.bits for i, union in enumerate(unions)]
        best = int(np.argmax(saved))
        if saved[best] <= 0 and len(groups) <= MAX_TABLES:
            return
        groups[best : best + 2] = [unions.pop(best)]
        if best > 0:
            unions[best - 1] = groups[best - 1].merged(groups[best])
        if best < len(unions):
            unions[best] = groups[best].merged(groups[best + 1])


def _cost(values: U64, exponent: Ints, counts: Ints, precision: int) -> float:
    """Return about how many bits the symbols, their raw bits and their table take."""
    symbols, _, widths = symbols_of(values, exponent, precision)
    if symbols[-1] >= MAX_SYMBOLS:
        return np.inf
    seen = np.bincount(symbols, counts).astype(np.int64)
    seen = seen[seen > 0]
    if seen.size > _MOST_SYMBOLS:
        return np.inf
    coded = seen @ np.log2(TOTAL / quantise(seen)) + counts @ widths
    # Rounded, so that no platform's last digit decides between precisions.
    return float(np.rint(coded)) + _BITS_PER_SYMBOL * seen.size + _BITS_PER_TABLE


def quantise(counts: Ints) -> npt.NDArray[np.uint16]:
    """Return frequencies with the sum TOTAL, at least 1 for every symbol that occurs."""
    frequencies = np.where(counts > 0, np.maximum(1, counts * TOTAL // counts.sum()), 0)
    # What rounding left over goes to the commonest symbol; what it took beyond TOTAL comes from
    # the commonest ones in turn, so that none is emptied.
    left = TOTAL - int(frequencies.sum())
    while left < 0:
        largest = np.argmax(frequencies)
        taken = min(-left, int(frequencies[largest]) // 2)
        frequencies[largest] -= taken
        left += taken
    frequencies[np.argmax(frequencies)] += left
    return frequencies.astype(np.uint16)
