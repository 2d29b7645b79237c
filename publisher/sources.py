"""Where the bytes of one checkpoint file come from: a file on disk, or arrays in memory.

A source never gives bytes of two states of a file: what it was opened as is compared with what it
is at every read and once more by `check`, before anything is committed.
"""

from __future__ import annotations

import mmap
import os
import stat
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from skerry.codec.digest import Bytes
from skerry.publisher.errors import CheckpointChanged, UnsafeEntry

CHUNK_BYTES = 8 * 1024 * 1024


class Source(Protocol):
    """One file's bytes."""

    @property
    def size(self) -> int: ...

    def read(self, start: int, stop: int) -> Bytes:
        """Return bytes `start` to `stop`, shape [stop - start].  Raises CheckpointChanged."""
        ...

    def chunks(self) -> Iterator[bytes]:
        """Yield the whole file in order, a bounded piece at a time."""
        ...

    def check(self) -> None:
        """Raise CheckpointChanged unless the file is what it was at first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stamp:
    """What tells two states of a file apart without reading it."""

    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> _Stamp:
        return cls(size=status.st_size, mtime_ns=status.st_mtime_ns, inode=status.st_ino)

    def __str__(self) -> str:
        return f"{self.size} bytes, mtime {self.mtime_ns} ns, inode {self.inode}"


class FileSource:
    """A plain file, mapped read-only when it is first read.  Links are refused."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode):
            raise UnsafeEntry(name=name, rule="not a plain file")
        self._stamp = _Stamp.of(status)
        self._map: Bytes | None = None

    @property
    def size(self) -> int:
        return self._stamp.size

    def read(self, start: int, stop: int) -> Bytes:
        self.check()  # reading a map beyond the end of a file that was cut kills the process
        return self._mapped()[start:stop]

    def chunks(self) -> Iterator[bytes]:
        for start in range(0, self.size, CHUNK_BYTES):
            yield self.read(start, min(start + CHUNK_BYTES, self.size)).tobytes()

    def whole(self) -> bytes:
        """Return all bytes by ordinary reading: small files need no map and keep no descriptor."""
        with open(self._open(), "rb") as file:
            data = file.read(self.size + 1)
        if len(data) != self.size:
            raise CheckpointChanged(
                name=self.name, expected=f"{self.size} bytes", found=f"{len(data)} bytes or more"
            )
        return data

    def check(self) -> None:
        try:
            found = _Stamp.of(os.lstat(self.path))
        except FileNotFoundError as error:
            raise CheckpointChanged(
                name=self.name, expected=str(self._stamp), found="no file"
            ) from error
        self._compare(found)

    def _open(self) -> int:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self._compare(_Stamp.of(os.fstat(descriptor)))
        except CheckpointChanged:
            os.close(descriptor)
            raise
        return descriptor

    def _compare(self, found: _Stamp) -> None:
        if found != self._stamp:
            raise CheckpointChanged(name=self.name, expected=str(self._stamp), found=str(found))

    def _mapped(self) -> Bytes:
        if self._map is None:
            if self.size == 0:
                self._map = np.empty(0, np.uint8)
            else:
                with open(self._open(), "rb") as file:
                    self._map = np.frombuffer(
                        mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ), np.uint8
                    )
        return self._map


@dataclass(slots=True, kw_only=True)
class ArraySource:
    """A file that exists only as its consecutive parts in memory.

    The caller keeps the arrays as they are until publishing has returned.
    """

    parts: Sequence[Bytes]
    _starts: list[int] = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self._starts, self.size = [], 0
        for part in self.parts:
            self._starts.append(self.size)
            self.size += part.size

    def read(self, start: int, stop: int) -> Bytes:
        if start == stop:
            return np.empty(0, np.uint8)
        first = bisect_right(self._starts, start) - 1
        part, offset = self.parts[first], start - self._starts[first]
        if stop - self._starts[first] <= part.size:
            return part[offset : stop - self._starts[first]]
        rest = self.read(self._starts[first] + part.size, stop)
        return np.concatenate([part[offset:], rest])

    def chunks(self) -> Iterator[bytes]:
        for part in self.parts:
            for start in range(0, part.size, CHUNK_BYTES):
                yield part[start : start + CHUNK_BYTES].tobytes()

    def check(self) -> None:
        """Arrays cannot tell: the promise is the caller's."""
