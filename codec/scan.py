"""What changed in a chunk: positions, each with its class, its rank within that, and its step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from skerry.codec.dtypes import DType, Words
from skerry.codec.rates import Ints
from skerry.codec.steps import U64, steps

CHUNK_WORDS = 1 << 20
CLASSES = 256
_PAIRS_FROM = 1 << 18  # words from which counting pairs pays


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkDiff:
    """The changes of one chunk in **class order**: by class, then by position.

    `population[c]` is how many words of the chunk have class c, `changed[c]` how many of those
    changed; `ranks` counts each change among the words of its class; `magnitude` and `down` are the
    steps from old bits to new.  All but the first two have shape [changes].
    """

    population: Ints
    changed: Ints
    classes: npt.NDArray[np.uint8]
    ranks: npt.NDArray[np.uint32]
    magnitude: U64
    down: npt.NDArray[np.bool_]


def classes_of(words: Words, dtype: DType, *, contextual: bool = True) -> npt.NDArray[np.uint8]:
    """Return the class of every word: its exponent field, or 0 for all without context."""
    if not contextual or not dtype.class_mask:
        return np.zeros(words.shape, np.uint8)
    shifted = words >> words.dtype.type(dtype.class_shift)
    return (shifted & words.dtype.type(dtype.class_mask)).astype(np.uint8)


def population_of(classes: npt.NDArray[np.uint8]) -> Ints:
    """Return how many words each class has, shape [CLASSES]."""
    if classes.size < _PAIRS_FROM or classes.size % 2:
        return np.bincount(classes, minlength=CLASSES)
    # Counting pairs halves the work of `bincount`, which widens every item to 64 bits.
    pairs = np.bincount(classes.view(np.uint16), minlength=CLASSES**2)
    square = pairs.reshape(CLASSES, CLASSES)
    counts: Ints = square.sum(axis=0) + square.sum(axis=1)
    return counts


def members_of(classes: npt.NDArray[np.uint8], low: int, high: int) -> tuple[Ints, Ints]:
    """Return the positions of all words of classes `low` to `high`, in class order.

    Second, where in these each class begins, shape [CLASSES + 1].
    """
    # One wrapped subtraction and one comparison of bytes: far cheaper than a look-up each.
    positions = np.flatnonzero(classes - np.uint8(low) <= np.uint8(high - low))
    found = classes[positions]
    bounds = np.concatenate([[0], np.cumsum(population_of(found))])
    return positions[np.argsort(found, kind="stable")], bounds


def scan(old: Words, new: Words, dtype: DType, *, contextual: bool = True) -> ChunkDiff | None:
    """Compare two chunks of equal shape [n], bit by bit.  None when they are the same."""
    positions = np.flatnonzero(old != new)
    if not positions.size:
        return None
    classes = classes_of(old, dtype, contextual=contextual)
    by_class = np.argsort(classes[positions], kind="stable")
    positions = positions[by_class]
    changed = population_of(classes[positions])
    seen = np.flatnonzero(changed)
    members, bounds = members_of(classes, seen[0], seen[-1])
    ranks = np.empty(positions.size, np.uint32)
    start = 0
    for c in seen:
        stop = start + int(changed[c])
        ranks[start:stop] = np.searchsorted(
            members[bounds[c] : bounds[c + 1]], positions[start:stop]
        )
        start = stop
    magnitude, down = steps(old[positions], new[positions], dtype)
    return ChunkDiff(
        population=population_of(classes),
        changed=changed,
        classes=classes[positions],
        ranks=ranks,
        magnitude=magnitude,
        down=down,
    )


def locate(classes: npt.NDArray[np.uint8], of_class: Ints, ranks: Ints) -> Ints:
    """Invert the ranks of `scan`: return the position of each change, given class and rank.

    Ranks must be below their class's population.
    """
    if not of_class.size:
        return np.zeros(0, np.int64)
    members, bounds = members_of(classes, of_class.min(), of_class.max())
    positions: Ints = members[bounds[of_class] + ranks]
    return positions
