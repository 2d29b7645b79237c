"""What any encoding of a step must cost at least: given the old exponents, and without context."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np

from skerry.benchmarks.weights import Pair
from skerry.codec.bound import Bound, conditioned_bits
from skerry.codec.dtypes import DType, Words


def bounds(pair: Pair) -> tuple[Bound, Bound]:
    """Return what a step must cost given the old exponents, and without any context."""
    given = conditioned_bits((s.type, o.reshape(-1), n.reshape(-1)) for s, o, n in pair.words())
    moved: list[tuple[DType, Words, Words]] = []
    words: Counter[str] = Counter()
    changed: Counter[str] = Counter()
    for spec, old, new in pair.words():
        at = old != new
        moved.append((replace(spec.type, class_mask=0), old[at], new[at]))
        words[spec.dtype] += old.size
        changed[spec.dtype] += moved[-1][1].size
    positions = sum(_mask_bits(changed[dtype], words[dtype]) for dtype in words)
    # Of words that all changed, positions cost nothing.
    free = replace(conditioned_bits(moved), positions=positions)
    return given, free


def _mask_bits(changed: int, words: int) -> float:
    """Return the entropy of which `changed` of `words` changed, in bits."""
    parts = [part for part in (changed, words - changed) if part]
    return -sum(part * math.log2(part / words) for part in parts)


def count_changed(pair: Pair) -> int:
    return sum(int(np.count_nonzero(old != new)) for _, old, new in pair.words())
