"""What a rival is, and the zstd frames that most of them are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import zstandard

from skerry.codec.dtypes import Words

Encode = Callable[[Words, Words], list[bytes]]
Apply = Callable[[Words, Sequence[bytes]], None]


def always() -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """One encoding of what changed between two arrays of words of the same shape, of any rank.

    `apply` turns the old words into the new ones in place.  `scope` is what users hand to it: one
    tensor after the other, or a whole file at once.  `missing` says what is not installed here.
    """

    name: str
    used_by: str
    encode: Encode
    apply: Apply
    scope: Literal["tensor", "file"] = "tensor"
    slow: bool = False  # measured on a slice of the weights, or on this share of the slice
    slice_share: float = 1.0
    missing: Callable[[], str | None] = always

    def decode(self, old: Words, parts: Sequence[bytes]) -> Words:
        """Return the new words; `old` stays as it is."""
        new = old.copy()
        self.apply(new, parts)
        return new


def pack(data: Words, level: int) -> bytes:
    """Return one zstd frame."""
    return zstandard.ZstdCompressor(level=level).compress(data.data)


def unpack(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(data)
