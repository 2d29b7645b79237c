"""What a step must cost at least, if positions and steps are told by the old exponent alone.

H = sum over classes c of  N_c * h(k_c / N_c)  +  k_c * H(step | c),  h the binary entropy: the
empirical entropy of the changed-or-not mask given the class, and of the signed ULP step given the
class, both over all weights at once and without any cost for parameters.  A coder that adapts to
tensors can fall a little below it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from skerry.codec.dtypes import DType, Words
from skerry.codec.scan import CLASSES, classes_of, population_of
from skerry.codec.steps import steps

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Bits for positions and for steps of `changed` words, given the old exponents."""

    positions: float
    steps: float
    changed: int

    @property
    def total(self) -> float:
        return self.positions + self.steps

    @property
    def bytes_per_changed(self) -> float:
        return self.total / 8 / self.changed if self.changed else 0.0


def conditioned_bits(tensors: Iterable[tuple[DType, Words, Words]]) -> Bound:
    """Return the bound over all tensors (dtype, old words, new words), pooled by dtype."""
    population: dict[str, npt.NDArray[np.int64]] = {}
    changed: dict[str, npt.NDArray[np.int64]] = {}
    moves: dict[str, list[npt.NDArray[np.uint64]]] = {}
    for dtype, old, new in tensors:
        classes = classes_of(old, dtype)
        at = np.flatnonzero(old != new)
        zero = np.zeros(CLASSES, np.int64)
        population[dtype.name] = population.get(dtype.name, zero) + population_of(classes)
        changed[dtype.name] = changed.get(dtype.name, zero) + population_of(classes[at])
        magnitude, down = steps(old[at], new[at], dtype)
        # Class, direction and magnitude in one number; magnitudes past 2^48 share a symbol.
        key = np.minimum(magnitude, np.uint64(1 << 48))
        key += (2 * classes[at].astype(np.uint64) + down) << np.uint64(55)
        moves.setdefault(dtype.name, []).append(key)
    positions = sum(_mask_bits(population[d], changed[d]) for d in population)
    step_bits = sum(_step_bits(np.concatenate(keys)) for keys in moves.values())
    total = sum(int(k.sum()) for k in changed.values())
    return Bound(positions=positions, steps=step_bits, changed=total)


def _mask_bits(population: npt.NDArray[np.int64], changed: npt.NDArray[np.int64]) -> float:
    n, k = population.astype(np.float64), changed.astype(np.float64)
    return float(-(_xlog2(k, n) + _xlog2(n - k, n)).sum())


def _step_bits(keys: npt.NDArray[np.uint64]) -> float:
    values, counts = np.unique(keys, return_counts=True)
    classes = (values >> np.uint64(56)).astype(np.int64)
    weights = counts.astype(np.float64)
    of_class = np.bincount(classes, weights, minlength=CLASSES).astype(np.float64)[classes]
    return float(-_xlog2(weights, of_class).sum())


def _xlog2(
    part: npt.NDArray[np.float64], whole: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return part * log2(part / whole), and 0 where part is 0."""
    share = np.divide(part, whole, out=np.ones_like(part), where=part > 0)
    return part * np.log2(share)
