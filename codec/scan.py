"""What changed in a chunk: positions, each with its class and its rank within that class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from skerry.codec.dtypes import DType, Words
from skerry.codec.rates import Ints

CHUNK_WORDS = 1 << 20
CLASSES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkDiff:
    """The changes of one chunk in **class order**: by class, then by position.

    `population[c]` is how many words of the chunk have class c, `changed[c]` how many of those
    changed; `ranks` counts each change among the words of its class, `positions` among all words
    of the chunk.  `old` and `new` are the bits.  All but the first two have shape [changes].
    """

    population: Ints
    changed: Ints
    classes: npt.NDArray[np.uint8]
    ranks: Ints
    positions: Ints
    old: Words
    new: Words


def classes_of(words: Words, dtype: DType, *, contextual: bool = True) -> npt.NDArray[np.uint8]:
    """Return the class of every word: its exponent field, or 0 for all without context."""
    if not contextual or not dtype.class_mask:
        return np.zeros(words.shape, np.uint8)
    shifted = words >> words.dtype.type(dtype.class_shift)
    return (shifted & words.dtype.type(dtype.class_mask)).astype(np.uint8)


def population_of(classes: npt.NDArray[np.uint8]) -> Ints:
    """Return how many words each class has, shape [CLASSES]."""
    return np.bincount(classes, minlength=CLASSES)


def scan(old: Words, new: Words, dtype: DType, *, contextual: bool = True) -> ChunkDiff | None:
    """Compare two chunks of equal shape [n], bit by bit.  None when they are the same."""
    positions = np.flatnonzero(old != new)
    if not positions.size:
        return None
    classes = classes_of(old, dtype, contextual=contextual)
    by_class = np.argsort(classes[positions], kind="stable")
    positions = positions[by_class]
    changed = population_of(classes[positions])
    ranks = np.empty(positions.size, np.int64)
    start = 0
    for c in np.flatnonzero(changed):
        stop = start + int(changed[c])
        members = np.flatnonzero(classes == c)
        ranks[start:stop] = np.searchsorted(members, positions[start:stop])
        start = stop
    return ChunkDiff(
        population=population_of(classes),
        changed=changed,
        classes=classes[positions],
        ranks=ranks,
        positions=positions,
        old=old[positions],
        new=new[positions],
    )


def locate(classes: npt.NDArray[np.uint8], changed: Ints, ranks: Ints) -> Ints:
    """Invert the ranks of `scan`: return positions in class order, given how many each class has.

    Ranks must be below their class's population.
    """
    positions = np.empty(ranks.size, np.int64)
    start = 0
    for c in np.flatnonzero(changed):
        stop = start + int(changed[c])
        positions[start:stop] = np.flatnonzero(classes == c)[ranks[start:stop]]
        start = stop
    return positions
