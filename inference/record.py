"""A weight update as one file, for an engine in another process on the same host.

    8 bytes   magic "SKRYUPDT"
    u64       length of the header
    header    canonical JSON: base, version, digest, tensors [name, dtype, shape, words]
    sections  per tensor: positions (i64), old words, new words
    32 bytes  BLAKE3 of everything before

Little-endian; header and sections are padded with zeros to 8 bytes.  Where sections lie follows
from the header, so it cannot lie about it.  Nothing is allocated for what a file claims to have:
everything is a view of the file.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from skerry.codec.digest import Bytes, Data, DigestStream, digest_bytes, parse_digest
from skerry.codec.errors import FormatError
from skerry.codec.header import MAX_TENSORS, tensor_bytes
from skerry.codec.names import check_tensor_name
from skerry.codec.strict_json import (
    as_int,
    as_list,
    as_object,
    as_text,
    canonical,
    check_fields,
    parse_json,
)
from skerry.codec.tensors import TensorChanges, TensorSpec
from skerry.inference.engine import WeightUpdate

MAGIC = b"SKRYUPDT"
_ALIGNMENT = 8
_DIGEST_BYTES = 32
_HEAD_BYTES = 16
_MAX_HEADER_BYTES = 256 * 1024 * 1024
_MAX_U63 = 2**63 - 1


def pieces(update: WeightUpdate) -> Iterator[memoryview]:
    """Yield the bytes of the record, its digest last.  One tensor's changes are held at a time."""
    stream = DigestStream()
    for piece in _content(update):
        stream.update(piece)
        yield piece.data if isinstance(piece, np.ndarray) else memoryview(piece)
    yield memoryview(bytes.fromhex(stream.digest()))


def read_record(path: Path) -> WeightUpdate:
    """Map and check a record.  Raises FormatError, or OSError."""
    with path.open("rb") as file:
        size = path.stat().st_size
        if size < _HEAD_BYTES + _DIGEST_BYTES:
            raise FormatError(f"update record: {size} bytes are too few")
        # A private mapping, because torch takes no memory that is read-only.
        mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    return parse_record(np.frombuffer(mapped, np.uint8))


def parse_record(data: Bytes) -> WeightUpdate:
    """Check a record's bytes and return the update.  Raises FormatError."""
    content = data[:-_DIGEST_BYTES]
    if data.size < _HEAD_BYTES + _DIGEST_BYTES:
        raise FormatError(f"update record: {data.size} bytes are too few")
    if bytes.fromhex(digest_bytes(content)) != data[-_DIGEST_BYTES:].tobytes():
        raise FormatError("update record: does not match the digest at its end")
    magic, length = struct.unpack("<8sQ", content[:_HEAD_BYTES].tobytes())
    if magic != MAGIC:
        raise FormatError(f"update record: expected {MAGIC!r}, found {magic!r}")
    if length > min(_MAX_HEADER_BYTES, content.size - _HEAD_BYTES):
        raise FormatError(f"update record: header of {length} bytes in {data.size}")
    text = content[_HEAD_BYTES : _HEAD_BYTES + length].tobytes()
    header = as_object(parse_json(text, "update record"), "update record")
    check_fields(header, "update record", "base", "version", "digest", "tensors")
    entries = as_list(header["tensors"], "tensors")
    if len(entries) > MAX_TENSORS:
        raise FormatError(f"update record: {len(entries)} tensors, the limit is {MAX_TENSORS}")
    sections = _Sections(content, _HEAD_BYTES + length + -length % _ALIGNMENT)
    changes = tuple(_changes(as_list(entry, "tensor"), sections) for entry in entries)
    if len({change.spec.name for change in changes}) != len(changes):
        raise FormatError("update record: a tensor is named twice")
    sections.finish()
    return WeightUpdate(
        base=as_int(header["base"], "base", 0, _MAX_U63),
        version=as_int(header["version"], "version", 0, _MAX_U63),
        digest=parse_digest(header["digest"]),
        changes=changes,
    )


def _content(update: WeightUpdate) -> Iterator[Data]:
    tensors = [
        [c.spec.name, c.spec.dtype, list(c.spec.shape), int(c.positions.size)]
        for c in update.changes
    ]
    header = canonical(
        {
            "base": update.base,
            "version": update.version,
            "digest": update.digest,
            "tensors": tensors,
        }
    )
    yield struct.pack("<8sQ", MAGIC, len(header)) + header + b"\0" * (-len(header) % _ALIGNMENT)
    for change in update.changes:
        word = change.spec.type.numpy
        for values, dtype in (
            (change.positions, np.dtype("<i8")),
            (change.old, word),
            (change.new, word),
        ):
            if values.shape != change.positions.shape:
                raise ValueError(f"{change.spec.name}: positions, old and new differ in shape")
            section = np.ascontiguousarray(values, dtype)
            yield section.view(np.uint8)
            yield b"\0" * (-section.nbytes % _ALIGNMENT)


def _changes(entry: Sequence[object], sections: _Sections) -> TensorChanges:
    if len(entry) != 4:
        raise FormatError("update record: a tensor is [name, dtype, shape, words]")
    name, dtype = as_text(entry[0], "tensor name"), as_text(entry[1], "dtype")
    check_tensor_name(name)
    shape = tuple(as_int(n, name, 0, _MAX_U63) for n in as_list(entry[2], name))
    nbytes = tensor_bytes(name, dtype, shape)
    spec = TensorSpec(name=name, dtype=dtype, shape=shape, file="", offset=0, nbytes=nbytes)
    count = as_int(entry[3], name, 0, spec.words)
    positions = sections.take(count, np.dtype("<i8")).view(np.int64)
    old, new = (sections.take(count, spec.type.numpy) for _ in range(2))
    if count and not (
        positions[0] >= 0
        and positions[-1] < spec.words
        and bool(np.all(positions[1:] > positions[:-1]))
    ):
        raise FormatError(f"{name}: positions do not ascend below {spec.words}")
    return TensorChanges(
        spec=spec,
        positions=positions,
        old=old.view(spec.type.numpy),
        new=new.view(spec.type.numpy),
    )


class _Sections:
    """Hands out the aligned sections of a record, in order, within bounds."""

    def __init__(self, data: Bytes, at: int) -> None:
        self._data = data
        self._at = at

    def take(self, count: int, dtype: np.dtype[np.generic]) -> npt.NDArray[np.unsignedinteger]:
        nbytes = count * dtype.itemsize
        padded = nbytes + -nbytes % _ALIGNMENT
        if padded > self._data.size - self._at:
            raise FormatError(f"update record: a section of {nbytes} bytes passes its end")
        taken = self._data[self._at : self._at + nbytes].view(dtype)
        if self._data[self._at + nbytes : self._at + padded].any():
            raise FormatError("update record: padding is not zero")
        self._at += padded
        return taken

    def finish(self) -> None:
        if self._at != self._data.size:
            raise FormatError(f"update record: {self._data.size - self._at} bytes too many")
