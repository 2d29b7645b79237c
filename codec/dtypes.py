"""The dtypes that safetensors knows, and how the codec cuts each one into words.

A **word** is the unit that a patch replaces.  Types narrower than a byte are handled as packed
bytes, complex numbers as one word of both parts.  Bits are compared, never values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.unsignedinteger]
Write = tuple[
    Words, npt.NDArray[np.int64], Words
]  # words, ascending positions, what becomes of them
Kind = Literal["float", "signed", "unsigned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DType:
    """One safetensors dtype.

    `bits` is the size of an element, `word` the size of a word in bytes.  A word's **class**, the
    context of the coder, is `(word >> class_shift) & class_mask`: the exponent field of a float
    (its upper eight bits where it is longer), zero for every other kind.
    """

    name: str
    bits: int
    word: int
    kind: Kind
    class_shift: int = 0
    class_mask: int = 0

    @property
    def numpy(self) -> np.dtype[np.unsignedinteger]:
        """The little-endian unsigned integer type of one word."""
        return np.dtype(f"<u{self.word}")


def _float(name: str, bits: int, exponent_bits: int, mantissa_bits: int) -> DType:
    kept = min(exponent_bits, 8)
    return DType(
        name=name,
        bits=bits,
        word=bits // 8,
        kind="float",
        class_shift=mantissa_bits + exponent_bits - kept,
        class_mask=(1 << kept) - 1,
    )


def _other(name: str, bits: int, kind: Kind = "unsigned") -> DType:
    return DType(name=name, bits=bits, word=max(bits // 8, 1), kind=kind)


DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        _other("BOOL", 8),
        _other("F4", 4),
        _other("F6_E2M3", 6),
        _other("F6_E3M2", 6),
        _other("U8", 8),
        _other("I8", 8, "signed"),
        _float("F8_E5M2", 8, 5, 2),
        _float("F8_E4M3", 8, 4, 3),
        _float("F8_E5M2FNUZ", 8, 5, 2),
        _float("F8_E4M3FNUZ", 8, 4, 3),
        _other("F8_E8M0", 8),
        _other("I16", 16, "signed"),
        _other("U16", 16),
        _float("F16", 16, 5, 10),
        _float("BF16", 16, 8, 7),
        _other("I32", 32, "signed"),
        _other("U32", 32),
        _float("F32", 32, 8, 23),
        _other("C64", 64),
        _float("F64", 64, 11, 52),
        _other("I64", 64, "signed"),
        _other("U64", 64),
    )
}
