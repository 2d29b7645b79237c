"""A change as a signed step on the number line of its dtype.

Floats are laid out in numeric order: `ordinal = bits` for a positive sign and `~bits` with the sign
bit flipped back for a negative one, so that neighbours differ by one ULP and -0.0 precedes +0.0 by
one.  Other words are their own ordinal.  A step is taken modulo 2^w: magnitude m in 1..2^(w-1) and
direction.  Every pair of different words has exactly one step; no arithmetic on values happens.

Magnitudes are coded as a symbol and raw bits, to a **precision** of s bits: m < 2^(s+1) is symbol
m - 1; above, with j = floor(log2 m), the s bits below the highest make the symbol
2^(s+1) - 1 + (j - s - 1) * 2^s + those bits, and the j - s bits below them are raw.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from skerry.codec.dtypes import DType, Words
from skerry.codec.errors import FormatError
from skerry.codec.rates import Ints

U64 = npt.NDArray[np.uint64]

MAX_PRECISION = 12


def steps(old: Words, new: Words, dtype: DType) -> tuple[U64, npt.NDArray[np.bool_]]:
    """Return magnitudes and "downwards" of the steps from `old` to `new`, shape [n] each."""
    width = np.uint64(8 * dtype.word)
    mask = _mask(dtype)
    up = (_ordinal(new, dtype) - _ordinal(old, dtype)) & mask
    down = (up >> (width - np.uint64(1))).astype(np.bool_)
    return np.where(down, (~up + np.uint64(1)) & mask, up), down


def take_steps(old: Words, magnitude: U64, down: npt.NDArray[np.bool_], dtype: DType) -> Words:
    """Invert `steps`.  Raises FormatError for a magnitude that `steps` never gives."""
    half = np.uint64(1 << (8 * dtype.word - 1))
    if bool(((magnitude < 1) | (magnitude > half) | ((magnitude == half) & ~down)).any()):
        raise FormatError(f"a step of {dtype.name} is out of range")
    delta = np.where(down, ~magnitude + np.uint64(1), magnitude)
    ordinal = (_ordinal(old, dtype) + delta) & _mask(dtype)
    return _from_ordinal(ordinal, dtype)


def to_symbols(magnitude: U64, precision: Ints | int) -> tuple[Ints, U64, Ints]:
    """Return symbol, raw bits and their number for each magnitude, shape [n] each."""
    return symbols_of(magnitude, floor_log2(magnitude), precision)


def symbols_of(magnitude: U64, exponent: Ints, precision: Ints | int) -> tuple[Ints, U64, Ints]:
    """Do as `to_symbols` does where floor(log2 m) is known."""
    s = np.broadcast_to(np.asarray(precision, np.int64), magnitude.shape)
    width = np.maximum(exponent - s, 0)
    top = (magnitude >> width.astype(np.uint64)).astype(np.int64)  # below 2^(s+1)
    # With raw bits the top has its highest bit set; each octave then takes up 2^s symbols.
    symbol = top - 1 + (width << s)
    raw = magnitude & ((np.uint64(1) << width.astype(np.uint64)) - np.uint64(1))
    return symbol, raw, width


def widths_of(symbol: Ints, precision: Ints | int) -> Ints:
    """Return how many raw bits follow each symbol."""
    s = np.broadcast_to(np.asarray(precision, np.int64), symbol.shape)
    # symbol + 1 = top + width * 2^s with 2^s <= top < 2^(s+1) wherever width > 0.
    width: Ints = np.maximum((symbol + 1 >> s) - 1, 0)
    return width


def from_symbols(symbol: Ints, raw: U64, precision: Ints | int) -> U64:
    """Invert `to_symbols`.  Width and precision together must be below 64."""
    s = np.broadcast_to(np.asarray(precision, np.int64), symbol.shape)
    width = widths_of(symbol, s)
    top = symbol + 1 - (width << s)
    return (top.astype(np.uint64) << width.astype(np.uint64)) + raw


def _ordinal(words: Words, dtype: DType) -> U64:
    bits = words.astype(np.uint64)
    if dtype.kind != "float":
        return bits
    sign = np.uint64(1 << (8 * dtype.word - 1))
    return np.where(bits & sign, bits ^ (sign - np.uint64(1)), bits)


def _from_ordinal(ordinal: U64, dtype: DType) -> Words:
    # The map is an involution: it keeps the sign bit and flips the rest where that is set.
    if dtype.kind == "float":
        sign = np.uint64(1 << (8 * dtype.word - 1))
        ordinal = np.where(ordinal & sign, ordinal ^ (sign - np.uint64(1)), ordinal)
    return ordinal.astype(dtype.numpy)


def _mask(dtype: DType) -> np.uint64:
    return np.uint64((1 << (8 * dtype.word)) - 1)


def floor_log2(values: U64) -> Ints:
    """Exact for all 64 bits, which floating point is not."""
    result = np.zeros(values.shape, np.int64)
    rest = values.copy()
    for step in (32, 16, 8, 4, 2, 1):
        big = rest >> np.uint64(step) != 0
        result += np.where(big, step, 0)
        rest = np.where(big, rest >> np.uint64(step), rest)
    return result
