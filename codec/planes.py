"""The dense forms of a chunk: byte planes of the XOR under zstd, and the new words as they are."""

from __future__ import annotations

import numpy as np

from skerry.codec.compress import compress, decompress
from skerry.codec.dtypes import DType, Words
from skerry.codec.errors import FormatError


def encode_planes(old: Words, new: Words, level: int) -> bytes:
    """Return `old ^ new`, shape [n], as zstd over its byte planes, lowest byte first."""
    planes = (old ^ new).view(np.uint8).reshape(old.size, old.itemsize).T
    return compress(np.ascontiguousarray(planes).tobytes(), level)


def decode_planes(payload: bytes, old: Words, dtype: DType) -> Words:
    """Return the new words.  Raises FormatError unless the payload has exactly their size."""
    content = decompress(payload, old.nbytes)
    if len(content) != old.nbytes:
        raise FormatError(f"byte planes of {old.nbytes} bytes expected, {len(content)} found")
    planes = np.frombuffer(content, np.uint8).reshape(dtype.word, old.size)
    return old ^ np.ascontiguousarray(planes.T).view(dtype.numpy).reshape(old.shape)


def decode_raw(payload: bytes, old: Words, dtype: DType) -> Words:
    """Return the new words.  Raises FormatError unless the payload has exactly their size."""
    if len(payload) != old.nbytes:
        raise FormatError(f"{old.nbytes} raw bytes expected, {len(payload)} found")
    return np.frombuffer(payload, dtype.numpy)
