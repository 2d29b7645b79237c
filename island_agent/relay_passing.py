"""What a relay hands on that no digest names: hints, and checkpoints signed by the run's key."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from skerry.bulletin import checkpoint, keys
from skerry.bulletin.errors import BulletinError, NotFound
from skerry.bulletin.hint import HINT_LIMIT_BYTES
from skerry.bulletin.signing import PublicKey
from skerry.bulletin.state import LogState
from skerry.bulletin.store import ObjectStore
from skerry.island_agent.errors import NoRoom
from skerry.island_agent.flights import Flights, Lane
from skerry.island_agent.recent import Recent
from skerry.island_agent.relay_cache import Kept, RelayCache
from skerry.island_agent.relay_log import LogSlots

logger = logging.getLogger(__name__)

_COST_LIMIT_BYTES = 1 << 20
_REMEMBERED = 1024


class Passing:
    """Safe to use from several threads.

    A hint, and that a checkpoint is not there, is remembered for `fresh_s`; a sound checkpoint is
    kept: its slot never gets another one.
    """

    def __init__(
        self,
        upstream: ObjectStore,
        cache: RelayCache,
        slots: LogSlots,
        *,
        fresh_s: float,
        pinned_key: PublicKey | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.flights: Flights[bytes | None] = Flights()
        self._upstream = upstream
        self._cache = cache
        self._slots = slots
        self._pinned_key = pinned_key
        self._recent: Recent[bytes | None] = Recent(fresh_s=fresh_s, most=_REMEMBERED, clock=clock)

    def get(self, key: str) -> bytes | None:
        """Return what may be handed on, None if there is nothing.  Raises StoreError."""
        return self.flights.run(key, lambda: self._find(key))

    def begin(self, key: str, lane: Lane) -> Future[bytes | None]:
        """Do the same in a thread of `lane`; do not cancel it."""
        return self.flights.start(key, lambda: self._find(key), lane)

    def open(self, key: str) -> Kept | None:
        """Return an open file of a checkpoint that `get` has just given, if it is kept."""
        if not key.startswith(keys.CHECKPOINT_PREFIX):
            return None
        return self._cache.open_kept(_name(keys.parse_checkpoint(key)))

    def _find(self, key: str) -> bytes | None:
        recent = self._recent.get(key)
        if recent is not None:
            return recent[0]
        if key.startswith(keys.CHECKPOINT_PREFIX):
            return self._checkpoint(key)
        limit = HINT_LIMIT_BYTES if key == keys.HINT else _COST_LIMIT_BYTES
        try:
            data = self._upstream.get(key, limit_bytes=limit)
        except NotFound:
            data = None
        self._recent.note(key, data)
        return data

    def _checkpoint(self, key: str) -> bytes | None:
        seq = keys.parse_checkpoint(key)
        first = self._slots.get(0)  # of this run, and so is then what is kept
        kept = self._cache.kept(_name(seq))
        if kept is not None:
            return kept
        try:
            data = self._upstream.get(key, limit_bytes=checkpoint.CHECKPOINT_LIMIT_BYTES)
        except NotFound:
            self._recent.note(key, None)
            return None
        try:
            begun = LogState(pinned_key=self._pinned_key).apply(first or b"")
            checkpoint.read(data, begun, seq=seq)
        except BulletinError as error:
            logger.warning("%s is not handed on: %s", key, error)
            self._recent.note(key, None)
            return None
        with suppress(NoRoom, OSError):
            self._cache.keep(_name(seq), data)
        return data


def _name(seq: int) -> str:
    return f"checkpoint-{seq:020d}"
