"""Writes install records: streamed to a temporary name, named only when complete and durable."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from skerry.codec.digest import Digest, DigestStream
from skerry.codec.strict_json import canonical
from skerry.codec.tensors import TensorChanges
from skerry.island_agent.files import TEMPORARY, rename
from skerry.island_agent.journal import ALIGNMENT, FORMAT, MAGIC, position_type
from skerry.island_agent.marker import Held
from skerry.island_agent.room import writing


class JournalWriter:
    """Writes one record, tensor by tensor, under a temporary name until `finish`.

    `nbytes` and `seconds` say what was written so far, and how long that took.  Raises DiskError.
    """

    def __init__(self, path: Path, *, run: Digest, origin: Held, target: Held) -> None:
        self._path = path
        self._temporary = path.with_suffix(TEMPORARY)
        self.nbytes = 0
        self.seconds = 0.0
        with self._at_disk(0):
            self._file: BinaryIO = self._temporary.open("wb")
        self._stream = DigestStream()
        self._tensors: list[list[object]] = []
        self._files: list[list[object]] = []
        self._head = {"run": run, "from": origin.to_json(), "to": target.to_json()}
        self._section(MAGIC + struct.pack("<Q", FORMAT))

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Drop whatever was not finished."""
        with suppress(OSError):  # what was buffered may not fit either; it is dropped anyway
            self._file.close()
        with suppress(OSError):
            self._temporary.unlink()

    def add_tensor(self, changes: TensorChanges, leaves: Mapping[int, Digest]) -> None:
        """Append the changed words of one tensor and the result digests of its touched leaves."""
        spec = changes.spec
        self._section(np.ascontiguousarray(changes.positions, position_type(spec)))
        self._section(np.ascontiguousarray(changes.old, spec.type.numpy))
        self._section(np.ascontiguousarray(changes.new, spec.type.numpy))
        self._section(np.array(sorted(leaves), "<u4"))
        self._section(b"".join(bytes.fromhex(leaves[index]) for index in sorted(leaves)))
        self._tensors.append([spec.name, changes.positions.size, len(leaves)])

    def add_file(self, name: str, old: bytes | None, new: bytes | None) -> None:
        """Append a side file's content before and after; None where there is no such file."""
        for content in (old, new):
            self._section(content or b"")
        sizes = [None if content is None else len(content) for content in (old, new)]
        self._files.append([name, *sizes])

    def finish(self) -> None:
        """Make the record durable and give it its name.  After this the install will happen."""
        footer = canonical({**self._head, "tensors": self._tensors, "files": self._files})
        self._write(footer)
        self._write(struct.pack("<Q", len(footer)))
        digest = bytes.fromhex(self._stream.digest())
        with self._at_disk(len(digest)):
            self._file.write(digest)
            self._file.flush()
            os.fsync(self._file.fileno())
            rename(self._temporary, self._path)

    def _section(self, data: bytes | npt.NDArray[np.unsignedinteger]) -> None:
        flat = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data.view(np.uint8)
        self._write(flat.data)
        self._write(bytes(-flat.size % ALIGNMENT))

    def _write(self, data: bytes | memoryview) -> None:
        with self._at_disk(len(data)):
            self._file.write(data)
            self._stream.update(data)

    @contextmanager
    def _at_disk(self, size: int) -> Iterator[None]:
        """Account for `size` bytes; the room needed is at least what there is of the record."""
        began = perf_counter()
        self.nbytes += size
        with writing(self._path.parent, "the install record, so far,", self.nbytes):
            yield
        self.seconds += perf_counter() - began
