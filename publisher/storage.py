"""Where a baseline's bytes are kept: in memory, or in a state directory that outlives the process.

A state directory is a cache.  It is believed only after its bytes were hashed and found to be what
the log says, so that it needs no journal: after a crash it is rebuilt.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from skerry.codec.digest import Bytes
from skerry.codec.layout import Layout
from skerry.publisher.errors import StateBusy, StateUnsuitable

_MARKER = "baseline.json"
_WEIGHTS = "weights"
_LOCK = "lock"


class Storage(Protocol):
    """Writable buffers, one per shard."""

    def allocate(self, layout: Layout) -> Mapping[str, Bytes]:
        """Return a buffer of each shard's size by name; what was there before is lost."""
        ...

    def recall(self, version: int, layout: Layout) -> Mapping[str, Bytes] | None:
        """Return the buffers kept for `version`, unverified, or None."""
        ...

    def kept(self) -> int | None:
        """Return the version that the buffers are said to hold, or None."""
        ...

    def begin(self) -> None:
        """The buffers are about to change: forget which version they hold."""
        ...

    def finish(self, version: int) -> None:
        """The buffers now hold `version`."""
        ...


class MemoryStorage:
    """Buffers that live as long as the process."""

    def allocate(self, layout: Layout) -> Mapping[str, Bytes]:
        return {shard.name: np.empty(shard.size, np.uint8) for shard in layout.shards}

    def recall(self, version: int, layout: Layout) -> Mapping[str, Bytes] | None:
        return None

    def kept(self) -> int | None:
        return None

    def begin(self) -> None:
        pass

    def finish(self, version: int) -> None:
        pass


class StateDirectory:
    """Mapped files below a directory of the publisher's own, locked while it is open."""

    def __init__(self, directory: Path) -> None:
        """Take the directory, made if need be.  Raises StateBusy, StateUnsuitable."""
        directory.mkdir(parents=True, exist_ok=True)
        if not (directory / _LOCK).exists() and any(directory.iterdir()):
            # What lies below it gets replaced and removed: never anybody else's files.
            rule = "expected a publisher's state directory, or an empty one"
            raise StateUnsuitable(f"{directory}: {rule}")
        lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._unlock = weakref.finalize(self, os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise StateBusy(f"{directory}: another publisher uses it") from error
        self._marker = directory / _MARKER
        self._weights = directory / _WEIGHTS
        self._buffers: Mapping[str, Bytes] = {}

    def close(self) -> None:
        """Let go of the directory.  Idempotent; also done when the object is collected."""
        self._unlock()

    def allocate(self, layout: Layout) -> Mapping[str, Bytes]:
        self.begin()
        self._buffers = {}
        if self._weights.exists():
            shutil.rmtree(self._weights)
        for shard in layout.shards:
            path = self._weights / shard.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                os.posix_fallocate(
                    file.fileno(), 0, shard.size
                )  # a full disk shows here, not later
        self._buffers = self._map(layout)
        return self._buffers

    def recall(self, version: int, layout: Layout) -> Mapping[str, Bytes] | None:
        if self.kept() != version:
            return None
        for shard in layout.shards:
            path = self._weights / shard.name
            if path.is_symlink() or not path.is_file() or path.stat().st_size != shard.size:
                return None
        self._buffers = self._map(layout)
        return self._buffers

    def kept(self) -> int | None:
        try:
            value = json.loads(self._marker.read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        version = value.get("version") if isinstance(value, dict) else None
        return version if isinstance(version, int) else None

    def begin(self) -> None:
        self._marker.unlink(missing_ok=True)

    def finish(self, version: int) -> None:
        for buffer in self._buffers.values():
            if isinstance(buffer, np.memmap):
                buffer.flush()
        temporary = self._marker.with_suffix(".new")
        temporary.write_text(json.dumps({"version": version}) + "\n")
        temporary.replace(self._marker)

    def _map(self, layout: Layout) -> Mapping[str, Bytes]:
        return {
            shard.name: np.memmap(self._weights / shard.name, np.uint8, "r+", shape=(shard.size,))
            for shard in layout.shards
        }
