"""Strings of bits of mixed widths, least significant bit first."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from skerry.codec.rates import Ints

Fields = npt.NDArray[np.uint64]


def pack_fields(values: Fields, widths: Ints) -> npt.NDArray[np.uint8]:
    """Return the bits of all fields, one per item (0 or 1), each field's low bit first."""
    ends = np.cumsum(widths)
    total = int(ends[-1]) if ends.size else 0
    field = np.repeat(np.arange(widths.size), widths)
    place = np.arange(total) - (ends - widths)[field]
    return (values[field] >> place.astype(np.uint64) & np.uint64(1)).astype(np.uint8)


def unpack_fields(bits: npt.NDArray[np.uint8], widths: Ints) -> Fields:
    """Return the fields of the given widths (each at most 64) that `bits` begins with."""
    ends = np.cumsum(widths)
    total = int(ends[-1]) if ends.size else 0
    field = np.repeat(np.arange(widths.size), widths)
    place = np.arange(total) - (ends - widths)[field]
    values = np.zeros(widths.size, np.uint64)
    np.bitwise_or.at(values, field, bits[:total].astype(np.uint64) << place.astype(np.uint64))
    return values
