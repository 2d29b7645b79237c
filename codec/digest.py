"""Digests of objects and of weights: BLAKE3-256, printed as 64 lower-case hex digits.

Weights are hashed on a fixed grid, so that a digest depends on the values alone and never on
chunking, sharding or thread count:

* a **leaf** is 16 MiB of one tensor's bytes, counted from the tensor's start (the last may be
  short; a tensor without bytes has no leaf);
* `tensor digest = BLAKE3(name, dtype, shape, leaf digests)`, each field length-prefixed;
* `version digest = BLAKE3(tensor digests in the order of the names' UTF-8 bytes)`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from typing import NewType

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from skerry.codec.errors import FormatError

Digest = NewType("Digest", str)
Bytes = npt.NDArray[np.uint8]
Data = bytes | bytearray | memoryview | Bytes

LEAF_BYTES = 16 * 1024 * 1024
_TEXT = re.compile(r"[0-9a-f]{64}")


def parse_digest(text: object) -> Digest:
    """Return `text` as a digest.  Raises FormatError if it is anything else."""
    if not isinstance(text, str) or not _TEXT.fullmatch(text):
        raise FormatError(f"a digest is 64 lower-case hex digits, found {text!r:.80}")
    return Digest(text)


def digest_bytes(data: Data, threads: int | None = None) -> Digest:
    """Return the digest of one object; `threads` are those of DigestStream."""
    stream = DigestStream(threads)
    stream.update(data)
    return stream.digest()


class DigestStream:
    """The digest of bytes that arrive in pieces; `threads` None: of all usable CPUs."""

    def __init__(self, threads: int | None = None) -> None:
        self._hash = blake3(max_threads=blake3.AUTO if threads is None else threads)
        self.size = 0

    def update(self, data: Data) -> None:
        view = data.data if isinstance(data, np.ndarray) else memoryview(data)
        self._hash.update(view)
        self.size += view.nbytes

    def digest(self) -> Digest:
        return Digest(self._hash.hexdigest())


def leaf_count(nbytes: int) -> int:
    """Return how many leaves a tensor of `nbytes` bytes has."""
    return -(-nbytes // LEAF_BYTES)


def leaf_digests(data: Bytes) -> tuple[Digest, ...]:
    """Return the digests of all leaves of one tensor, given its bytes."""
    return tuple(
        digest_bytes(data[start : start + LEAF_BYTES]) for start in range(0, data.size, LEAF_BYTES)
    )


def tensor_digest(name: str, dtype: str, shape: Sequence[int], leaves: Sequence[Digest]) -> Digest:
    """Return the digest of one tensor.

    The hashed bytes are four fields, each a u64 little-endian length and that many bytes: the name
    (UTF-8), the dtype (ASCII), the dimensions (u64 little-endian each), the leaf digests (32 bytes
    each).
    """
    fields = (
        name.encode(),
        dtype.encode(),
        struct.pack(f"<{len(shape)}Q", *shape),
        b"".join(map(bytes.fromhex, leaves)),
    )
    return digest_bytes(b"".join(struct.pack("<Q", len(f)) + f for f in fields))


def version_digest(tensors: Mapping[str, Digest]) -> Digest:
    """Return the digest of a whole version, given its tensor digests by name."""
    ordered = sorted(tensors, key=str.encode)
    return digest_bytes(b"".join(bytes.fromhex(tensors[name]) for name in ordered))
