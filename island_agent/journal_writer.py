"""Writes install records: streamed to a temporary name, named only when complete and durable."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path
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


class JournalWriter:
    """Writes one record, tensor by tensor, under a temporary name until `finish`."""

    def __init__(self, path: Path, *, run: Digest, origin: Held, target: Held) -> None:
        self._path = path
        self._temporary = path.with_suffix(TEMPORARY)
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
        self._file.close()
        self._temporary.unlink(missing_ok=True)

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
        self._file.write(bytes.fromhex(self._stream.digest()))
        self._file.flush()
        os.fsync(self._file.fileno())
        rename(self._temporary, self._path)

    def _section(self, data: bytes | npt.NDArray[np.unsignedinteger]) -> None:
        flat = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data.view(np.uint8)
        self._write(flat.data)
        self._write(bytes(-flat.size % ALIGNMENT))

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._stream.update(data)
