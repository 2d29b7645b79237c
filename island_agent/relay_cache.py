"""What a relay keeps on disk: objects under the name of their digest, the least recently used go.

Laws: what `open` returns was hashed by this process and is what its name says; files and what is
under way have at most `limit_bytes` together, and at least `spare_bytes` of the disk stay free.

    DIR/objects/<digest>        whole objects            DIR/incoming/<digest>.part   begun ones
    DIR/objects/<name>.sealed   small ones with their own digest at the end: records, checkpoints
    DIR/lock                    held by the process that has the cache open
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import weakref
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from skerry.codec.digest import Digest
from skerry.codec.errors import FormatError
from skerry.island_agent.errors import MirrorBusy, NoRoom
from skerry.island_agent.files import (
    SEAL_BYTES,
    TEMPORARY,
    digest_file,
    seal,
    unseal,
    write_atomically,
)

_BLOCK_BYTES = 4096  # what a small file takes
_MOST_ENTRIES = 262_144  # of which each takes some memory, however small its file
_SEALED = ".sealed"
_PART = ".part"
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(slots=True)
class _Entry:
    path: Path
    nbytes: int
    verified: bool


@dataclass(frozen=True, slots=True)
class Kept:
    """An open file of the cache; its bytes stay whole when the object is evicted.  Close it."""

    file: BinaryIO
    size: int


class RelayCache:
    """Safe to use from several threads; locks its directory until `close`."""

    def __init__(self, directory: Path, *, limit_bytes: int, spare_bytes: int = 0) -> None:
        """Raises MirrorBusy, with nothing changed, if another process has it open."""
        self.directory = directory
        self.incoming = directory / "incoming"
        self._objects = directory / "objects"
        self._limit_bytes = limit_bytes
        self._spare_bytes = spare_bytes
        self._lock = Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # the next to go first
        self._promised: dict[str, int] = {}  # bytes that are being written
        self._nbytes = 0
        directory.mkdir(parents=True, exist_ok=True)
        self._unlock = weakref.finalize(self, os.close, _locked(directory))
        for folder in (self.incoming, self._objects):
            folder.mkdir(exist_ok=True)
        self._take_stock()

    def close(self) -> None:
        """Let go of the directory.  Idempotent."""
        self._unlock()

    @property
    def nbytes(self) -> int:
        """Bytes that are kept or promised."""
        return self._nbytes

    def open(self, digest: Digest) -> Kept | None:
        """Return a verified object; None when it is not there or nobody has hashed it yet."""
        with self._lock:
            entry = self._entries.get(digest)
            if entry is None or not entry.verified:
                return None
            self._entries.move_to_end(digest)
            try:
                file = entry.path.open("rb")
            except OSError:
                self._drop(digest)
                return None
            return Kept(file, entry.nbytes)

    def holds(self, digest: Digest) -> bool:
        """Say whether a verified object is here."""
        with self._lock:
            entry = self._entries.get(digest)
            return entry is not None and entry.verified

    def part(self, digest: Digest) -> Path:
        """Return where an object lies while it is being made."""
        return self.incoming / f"{digest}{_PART}"

    def verify(self, digest: Digest) -> bool:
        """Hash what an earlier process left; what differs is removed.  Say whether it is kept."""
        with self._lock:
            entry = self._entries.get(digest)
        if entry is None:
            return False
        try:
            sound = entry.verified or digest_file(entry.path).digest() == digest
        except OSError:
            sound = False
        with self._lock:
            if self._entries.get(digest) is not entry:
                return False
            if sound:
                entry.verified = True
            else:
                self._drop(digest)
        return sound

    @contextmanager
    def room(self, digest: Digest, size: int) -> Iterator[Path]:
        """Hold room for an object while the body makes it, verified, at the path.

        What the body left half done in `incoming` may be resumed, until its room is needed.  Raises
        NoRoom, also when the disk fills up meanwhile.
        """
        part = self.part(digest)
        path = self._objects / digest
        with self._lock:
            self._make_room(digest, size, part)
        whole = False
        try:
            yield path
            whole = True
        except OSError as error:
            if error.errno not in _FULL:
                raise
            part.unlink(missing_ok=True)
            raise NoRoom(digest, needed=size, free=self._free()) from error
        finally:
            if not whole:
                path.unlink(missing_ok=True)
            with self._lock:
                self._nbytes -= self._promised.pop(digest)
                if whole:
                    self._enter(digest, _Entry(path, size, verified=True))
                if begun := _size(part):
                    self._enter(part.name, _Entry(part, begun, verified=False))
                    self._entries.move_to_end(part.name, last=False)

    def keep(self, name: str, data: bytes) -> None:
        """Keep a small object under a name of the relay's own.  Raises NoRoom or OSError."""
        name += _SEALED
        content = seal(data)
        path = self._objects / name
        with self._lock:
            if name in self._promised:
                return  # another thread is about to
            self._make_room(name, len(content))
        try:
            write_atomically(path, content)
            with self._lock:
                self._enter(name, _Entry(path, len(content), verified=True))
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise NoRoom(name, needed=len(content), free=self._free()) from error
        finally:
            with self._lock:
                self._nbytes -= self._promised.pop(name)

    def kept(self, name: str) -> bytes | None:
        """Return what `keep` kept; what has been damaged since is removed."""
        name += _SEALED
        with self._lock:
            entry = self._entries.get(name)
            if entry is None:
                return None
            self._entries.move_to_end(name)
        try:
            return unseal(entry.path.read_bytes(), name)
        except (OSError, FormatError):
            with self._lock:
                if self._entries.get(name) is entry:
                    self._drop(name)
            return None

    def open_kept(self, name: str) -> Kept | None:
        """Return an open file of what `keep` kept, which `kept` has just found to be sound."""
        name += _SEALED
        with self._lock:
            entry = self._entries.get(name)
        try:
            return None if entry is None else Kept(entry.path.open("rb"), entry.nbytes - SEAL_BYTES)
        except OSError:
            return None

    def discard_small(self) -> None:
        """Remove everything that `keep` kept: it is of another run."""
        with self._lock:
            for name in [n for n in self._entries if n.endswith(_SEALED)]:
                self._drop(name)

    def _take_stock(self) -> None:
        """Enter what an earlier process left, the oldest first; begun objects are the first."""
        found: list[tuple[bool, float, Path, int]] = []
        for folder in (self.incoming, self._objects):
            for path in folder.iterdir():
                if path.name.endswith(TEMPORARY) or path.is_symlink() or not path.is_file():
                    if not path.is_dir():
                        path.unlink()
                    continue
                stat = path.stat()
                found.append((folder != self.incoming, stat.st_mtime, path, stat.st_size))
        with self._lock:
            for _, _, path, size in sorted(found):
                self._enter(path.name, _Entry(path, size, verified=False))
            self._evict(0)  # a smaller limit than before

    def _make_room(self, name: str, size: int, part: Path | None = None) -> None:
        """Promise room for what replaces `name` and its begun part.

        Nothing is dropped unless what can be dropped is enough.
        """
        if name in self._promised:
            raise ValueError(f"{name} is being written")  # flights see to that
        own = [n for n in (name, "" if part is None else part.name) if n in self._entries]
        own_bytes = sum(_blocks(self._entries[n].nbytes) for n in own)
        needed = _blocks(size)
        promised = sum(self._promised.values())
        if promised + needed > self._limit_bytes:
            raise NoRoom(name, needed=size, free=max(0, self._limit_bytes - promised))
        writes = needed - (0 if part is None else _size(part))
        others = self._nbytes - promised - own_bytes
        if (free := self._free() - self._spare_bytes) + others < writes:
            raise NoRoom(name, needed=size, free=max(0, free + others))
        self._evict(needed - own_bytes, keep=own)
        while (free := self._free() - self._spare_bytes) < writes:
            if not self._drop_next(keep=own):  # somebody else took it meanwhile
                raise NoRoom(name, needed=size, free=max(0, free))
        for n in own:
            self._forget(n)
        self._promised[name] = needed
        self._nbytes += needed

    def _evict(self, needed: int, *, keep: Collection[str] = ()) -> None:
        """Drop what was not used for longest until `needed` bytes more are within the limit."""
        while (
            self._nbytes + needed > self._limit_bytes or len(self._entries) >= _MOST_ENTRIES
        ) and self._drop_next(keep=keep):
            pass

    def _drop_next(self, *, keep: Collection[str]) -> bool:
        name = next((name for name in self._entries if name not in keep), None)
        if name is not None:
            self._drop(name)
        return name is not None

    def _enter(self, name: str, entry: _Entry) -> None:
        self._entries[name] = entry
        self._entries.move_to_end(name)
        self._nbytes += _blocks(entry.nbytes)

    def _forget(self, name: str) -> None:
        entry = self._entries.pop(name, None)
        if entry is not None:
            self._nbytes -= _blocks(entry.nbytes)

    def _drop(self, name: str) -> None:
        path = self._entries[name].path
        self._forget(name)
        with suppress(OSError):
            path.unlink(missing_ok=True)

    def _free(self) -> int:
        return shutil.disk_usage(self.directory).free


def _locked(directory: Path) -> int:
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise MirrorBusy(f"{directory}: another process holds this directory") from error
    return lock


def _blocks(size: int) -> int:
    return max(size, _BLOCK_BYTES)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
