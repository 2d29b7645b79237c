"""Rivals that send the XOR of all words, zeros and all, and leave the rest to zstd."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from skerry.benchmarks.rival import Rival, pack, unpack
from skerry.codec.dtypes import Words


def xor(level: int, *, used_by: str, slow: bool = False) -> Rival:
    """Return the rival with this level of zstd."""

    def encode(old: Words, new: Words) -> list[bytes]:
        return [pack(old ^ new, level)]

    def apply(words: Words, parts: Sequence[bytes]) -> None:
        flat = words.reshape(-1)
        flat ^= np.frombuffer(unpack(parts[0]), words.dtype)

    return Rival(
        name=f"dense XOR + zstd-{level}", used_by=used_by, encode=encode, apply=apply, slow=slow
    )
