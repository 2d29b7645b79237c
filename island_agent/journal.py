"""The install record: everything needed to redo or undo one patch install, in one file.

    8 bytes   magic "SKRYINST"
    u64       format, 1
    sections  per tensor: positions (u32, or u64 above 2^32 words), old words, new words,
              leaf numbers (u32), result leaf digests (32 bytes each)
              per side file: old content, new content
    footer    canonical JSON: run, from, to, tensors [name, words, leaves], files [name, old, new]
    u64       footer length
    32 bytes  BLAKE3 of everything before

Little-endian; every section is padded with zeros to 8 bytes.  Section offsets are not stored but
follow from the footer, so they cannot lie.  Header bytes are not here: both layouts, which hold
them, are durable before the record is.  The record exists under its name only when it is complete
and durable.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import overload

import numpy as np
import numpy.typing as npt

from skerry.codec.digest import (
    LEAF_BYTES,
    Bytes,
    Digest,
    digest_bytes,
    leaf_count,
    parse_digest,
)
from skerry.codec.errors import FormatError
from skerry.codec.layout import Layout, check_name
from skerry.codec.pack import leaf_range
from skerry.codec.strict_json import (
    as_int,
    as_list,
    as_object,
    as_text,
    check_fields,
    parse_json,
)
from skerry.codec.tensors import TensorChanges, TensorSpec
from skerry.island_agent.errors import JournalInvalid
from skerry.island_agent.marker import Held

MAGIC = b"SKRYINST"
FORMAT = 1
ALIGNMENT = 8
_DIGEST_BYTES = 32
_TRAILER_BYTES = 8 + _DIGEST_BYTES
_HEAD_BYTES = 16
_MAX_FOOTER_BYTES = 256 * 1024 * 1024
_MAX_SIDE_FILE_BYTES = 2**40


class Journal:
    """A complete, durable install record.  Its words are read from the file as they are needed."""

    def __init__(self, data: Bytes, layout: Layout) -> None:
        """Parse a record about the tensors of `layout`.  Raises JournalInvalid."""
        self._data = data
        self.written_s = 0.0  # that writing it took, where this process did
        try:
            self._parse({spec.name: spec for spec in layout.tensors})
        except FormatError as error:
            raise JournalInvalid(f"install record: {error}") from error

    @classmethod
    def open(cls, path: Path, layout: Layout) -> Journal:
        """Map and parse a record.  Raises JournalInvalid, or FileNotFoundError."""
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise JournalInvalid("install record: empty")
            mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        return cls(np.frombuffer(mapped, np.uint8), layout)

    @property
    def specs(self) -> Sequence[TensorSpec]:
        """The tensors that change."""
        return self._changes.specs

    @property
    def changes(self) -> Sequence[TensorChanges]:
        """The changed words of every tensor, one tensor in memory at a time."""
        return self._changes

    @property
    def changed(self) -> int:
        """How many words change."""
        return sum(item.positions.size for item in self._changes.stored)

    @property
    def nbytes(self) -> int:
        """The size of the record."""
        return self._data.size

    @property
    def changed_bytes(self) -> int:
        """How many bytes of weights change, in words."""
        return sum(item.new.nbytes for item in self._changes.stored)

    @property
    def touched_bytes(self) -> int:
        """How many bytes the leaves have that change."""
        ranges = (leaf_range(spec, i) for spec in self.specs for i in self.leaves[spec.name])
        return sum(stop - start for start, stop in ranges)

    def _parse(self, specs: Mapping[str, TensorSpec]) -> None:
        footer, end = self._footer()
        check_fields(footer, "footer", "run", "from", "to", "tensors", "files")
        self.run = parse_digest(footer["run"])
        self.origin = Held.from_json(footer["from"], "from")
        self.target = Held.from_json(footer["to"], "to")
        self.leaves: dict[str, dict[int, Digest]] = {}
        self.old_files: dict[str, bytes | None] = {}
        self.new_files: dict[str, bytes | None] = {}
        sections = _Sections(self._data, end)
        self._changes = _Changes(
            [
                self._tensor(as_list(item, "tensor"), specs, sections)
                for item in as_list(footer["tensors"], "tensors")
            ]
        )
        for item in as_list(footer["files"], "files"):
            self._side_file(as_list(item, "file"), sections)
        sections.finish()

    def _footer(self) -> tuple[Mapping[str, object], int]:
        size = self._data.size
        if size < _HEAD_BYTES + _TRAILER_BYTES:
            raise FormatError(f"{size} bytes are too few")
        content = self._data[:-_DIGEST_BYTES]
        if bytes.fromhex(digest_bytes(content)) != self._data[-_DIGEST_BYTES:].tobytes():
            raise FormatError("does not match the digest at its end")
        magic, version = struct.unpack("<8sQ", self._data[:_HEAD_BYTES].tobytes())
        if magic != MAGIC or version != FORMAT:
            raise FormatError(f"expected {MAGIC!r} format {FORMAT}, found {magic!r} {version}")
        (length,) = struct.unpack("<Q", content[-8:].tobytes())
        start = content.size - 8 - length
        if length > _MAX_FOOTER_BYTES or start < _HEAD_BYTES:
            raise FormatError(f"footer of {length} bytes in a record of {size}")
        text = content[start:-8].tobytes()
        return as_object(parse_json(text, "footer"), "footer"), start

    def _tensor(
        self, entry: Sequence[object], specs: Mapping[str, TensorSpec], sections: _Sections
    ) -> _Stored:
        if len(entry) != 3:
            raise FormatError("a tensor is [name, words, leaves]")
        name = as_text(entry[0], "tensor name")
        spec = specs.get(name)
        if spec is None or name in self.leaves:
            raise FormatError(f"tensor {name!r:.120} is unknown or given twice")
        count = as_int(entry[1], name, 1, spec.words)
        touched = as_int(entry[2], name, 1, leaf_count(spec.nbytes))
        stored = _Stored(
            spec,
            sections.take(count, position_type(spec)),
            sections.take(count, spec.type.numpy),
            sections.take(count, spec.type.numpy),
        )
        numbers = sections.take(touched, np.dtype("<u4"))
        digests = sections.take(touched * _DIGEST_BYTES, np.dtype("u1")).reshape(touched, -1)
        positions = stored.positions
        if int(positions[-1]) >= spec.words or not bool(np.all(positions[1:] > positions[:-1])):
            raise FormatError(f"{name}: positions are not ascending below {spec.words}")
        edges = np.arange(leaf_count(spec.nbytes) + 1) * (LEAF_BYTES // spec.type.word)
        filled = np.flatnonzero(np.diff(np.searchsorted(positions, edges)))
        if not np.array_equal(numbers, filled):
            raise FormatError(f"{name}: leaf numbers are not those of the positions")
        self.leaves[name] = {
            int(number): Digest(digest.tobytes().hex())
            for number, digest in zip(numbers, digests, strict=True)
        }
        return stored

    def _side_file(self, entry: Sequence[object], sections: _Sections) -> None:
        if len(entry) != 3:
            raise FormatError("a file is [name, old size, new size]")
        name = check_name(as_text(entry[0], "file name"))
        if name in self.new_files:
            raise FormatError(f"file {name!r:.120} is given twice")
        for size, contents in zip(entry[1:], (self.old_files, self.new_files), strict=True):
            known = 0 if size is None else as_int(size, name, 0, _MAX_SIDE_FILE_BYTES)
            content = sections.take(known, np.dtype("u1")).tobytes()
            contents[name] = None if size is None else content


class _Sections:
    """Hands out the aligned sections of a record, in order, within bounds."""

    def __init__(self, data: Bytes, end: int) -> None:
        self._data = data
        self._at = _HEAD_BYTES
        self._end = end

    def take(
        self, count: int, dtype: np.dtype[np.unsignedinteger]
    ) -> npt.NDArray[np.unsignedinteger]:
        nbytes = count * dtype.itemsize
        padded = nbytes + -nbytes % ALIGNMENT
        if padded > self._end - self._at:
            raise FormatError(f"section of {nbytes} bytes passes the footer", offset=self._at)
        taken = self._data[self._at : self._at + nbytes].view(dtype)
        if self._data[self._at + nbytes : self._at + padded].any():
            raise FormatError("padding is not zero", offset=self._at + nbytes)
        self._at += padded
        return taken

    def finish(self) -> None:
        if self._at != self._end:
            raise FormatError(f"{self._end - self._at} bytes belong to no section", offset=self._at)


class _Stored:
    """One tensor's sections, views of the file."""

    __slots__ = ("new", "old", "positions", "spec")

    def __init__(
        self,
        spec: TensorSpec,
        positions: npt.NDArray[np.unsignedinteger],
        old: npt.NDArray[np.unsignedinteger],
        new: npt.NDArray[np.unsignedinteger],
    ) -> None:
        self.spec, self.positions, self.old, self.new = spec, positions, old, new


class _Changes(Sequence[TensorChanges]):
    """The changes of every tensor; positions are widened when one is asked for."""

    def __init__(self, stored: Sequence[_Stored]) -> None:
        self.stored = stored

    @property
    def specs(self) -> Sequence[TensorSpec]:
        return [item.spec for item in self.stored]

    def __len__(self) -> int:
        return len(self.stored)

    @overload
    def __getitem__(self, index: int) -> TensorChanges: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TensorChanges]: ...
    def __getitem__(self, index: int | slice) -> TensorChanges | Sequence[TensorChanges]:
        if isinstance(index, slice):
            return _Changes(self.stored[index])
        item = self.stored[index]
        positions = item.positions.astype(np.int64)
        return TensorChanges(spec=item.spec, positions=positions, old=item.old, new=item.new)


def position_type(spec: TensorSpec) -> np.dtype[np.unsignedinteger]:
    return np.dtype("<u4") if spec.words <= 2**32 else np.dtype("<u8")
