"""A bulletin that is read through a relay, and past it where the relay does not help.

A relay is believed no more than any store: its reader verifies what comes.  So that a relay that is
down, slow, stale or lying costs time and never an island, everything it fails at is asked of the
bulletin behind it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from threading import Lock
from typing import TypeVar

from skerry.bulletin import keys
from skerry.bulletin.errors import (
    NotFound,
    ObjectChanged,
    StoreError,
    StoreUnavailable,
    Tampered,
    TooSlow,
)
from skerry.bulletin.records import RECORD_LIMIT_BYTES
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores.relay_trust import RelayTrust, SharedLook
from skerry.codec.digest import DigestStream, digest_bytes

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST = keys.log(0)


class Relayed:
    """See ObjectStore.  Reads ask `relay` first; writes and lists are `behind`'s alone.

    Several relays are `Relayed(first, Relayed(second, bulletin))`.  `relay` ends a request that
    takes longer than `trust` allows with TooSlow: nobody else can.
    """

    def __init__(
        self,
        relay: ObjectStore,
        behind: ObjectStore,
        trust: RelayTrust | None = None,
        *,
        pinned: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Slot 0 is read past the relay: it says which run this is, and by whose key everything
        after it is verified.  Only where the bulletin does not answer a reader that has `pinned`
        the run's key takes the relay's, until the bulletin does: then another one is Tampered.
        """
        self._relay = relay
        self._behind = behind
        self._trust = trust or RelayTrust()
        self._clock = clock
        self._sleep = sleep
        self._pinned = pinned
        self._lock = Lock()
        self._away_until = 0.0
        self._bulletin: SharedLook = (
            behind._bulletin if isinstance(behind, Relayed) else SharedLook(clock())
        )

    def distrust(self) -> None:
        """Read past every relay for a while: something that was read was not what it should be."""
        self._leave(self._trust.bench_s, "it may have given wrong bytes")
        if isinstance(self._behind, Relayed):
            self._behind.distrust()

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        def ask(store: ObjectStore) -> bytes:
            return store.get(key, limit_bytes=limit_bytes)

        if key.startswith(keys.LOG_PREFIX):
            self._check_run()
        if key == _FIRST:
            return self._first(ask)
        data = self._asked(key, ask, limit_bytes)
        if data is not None and (digest := keys.named_digest(key)) is not None:
            if digest_bytes(data) == digest:
                return data
            self._lied(key)
            data = None
        if data is None:
            if key.startswith(keys.LOG_PREFIX):
                self._before_look()
            data = ask(self._behind)
            if key.startswith(keys.LOG_PREFIX) and self._usable():
                self._leave(self._trust.pause_s, f"it does not have {key}")  # nor those after it
        return data

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        def ask(store: ObjectStore) -> bytes:
            return store.get_range(key, start, stop)

        data = self._asked(key, ask, stop - start)
        return ask(self._behind) if data is None else data

    def size(self, key: str) -> int:
        size = self._asked(key, lambda store: store.size(key), 0)
        return self._behind.size(key) if size is None else size

    def stream(self, key: str, start: int, stop: int) -> Iterator[bytes]:
        """Yield from the relay, and from the byte reached on from behind it.

        Of an object that is read from its start and named by a digest the bytes are hashed on their
        way: the next read of one that differs goes past the relay.
        """
        if start == stop:
            self.get_range(key, start, stop)  # for its errors
            return
        position = start
        if self._usable():
            whole = DigestStream() if start == 0 else None
            for piece in self._relayed(key, start, stop):
                if whole is not None:
                    whole.update(piece)
                position += len(piece)
                yield piece
            if position == stop:
                digest = keys.named_digest(key)
                differs = whole is not None and digest is not None and whole.digest() != digest
                if differs and self._is_whole(key, stop):
                    self._lied(key)
                return
        yield from self._behind.stream(key, position, stop)

    def put_if_absent(self, key: str, data: bytes) -> None:
        self._behind.put_if_absent(key, data)

    def put(self, key: str, parts: Iterable[bytes]) -> int:
        return self._behind.put(key, parts)

    def replace(self, key: str, data: bytes) -> None:
        self._behind.replace(key, data)

    def list_after(self, prefix: str, after: str = "") -> Iterator[str]:
        return self._behind.list_after(prefix, after)

    def delete(self, key: str) -> None:
        self._behind.delete(key)

    def _asked(self, key: str, ask: Callable[[ObjectStore], T], nbytes: int) -> T | None:
        """Return the relay's answer, None where the bulletin has to be asked.

        Raises NotFound for a record that is not there yet, if the relay's word is good for that.
        """
        if key == _FIRST or not self._usable():
            return None
        deadline = self._deadline(nbytes if keys.named_digest(key) else 0)
        while True:
            try:
                return ask(self._relay)
            except NotFound:
                if self._is_believed(key):
                    raise
                return None
            except StoreError as error:
                if not self._awaited(error, deadline):
                    self._failed(key, error)
                    return None

    def _relayed(self, key: str, start: int, stop: int) -> Iterator[bytes]:
        """Yield what the relay has of a range, from `start` on; it may end early."""
        position = start
        deadline = self._deadline(stop - start)
        flowing_at: float | None = None  # since when bytes come, without the reader's own time
        while True:
            try:
                for piece in self._relay.stream(key, position, stop):
                    if not 0 < len(piece) <= stop - position:
                        self._lied(key)
                        return
                    position += len(piece)
                    came_at = self._clock()
                    flowing_at = came_at if flowing_at is None else flowing_at
                    allowed_s = self._trust.allowed_s(position - start)
                    late = came_at > min(deadline, flowing_at + allowed_s)
                    yield piece
                    if late and position < stop:
                        self._dawdled(key)
                        return
                    taken_s = self._clock() - came_at
                    deadline, flowing_at = deadline + taken_s, flowing_at + taken_s
            except NotFound:
                return
            except ObjectChanged:
                self._lied(key)  # no object of a bulletin that is streamed ever changes
                return
            except StoreError as error:
                if not self._awaited(error, deadline):
                    self._failed(key, error)
                    return
            else:
                return

    def _is_whole(self, key: str, size: int) -> bool:
        try:
            return self._relay.size(key) == size
        except StoreError:
            return True

    def _deadline(self, nbytes: int) -> float:
        return self._clock() + self._trust.allowed_s(nbytes)

    def _awaited(self, error: StoreError, deadline: float) -> bool:
        """Wait if the relay asks for that: it is fetching the object.  Say whether to go on."""
        if not isinstance(error, StoreUnavailable) or error.retry_after_s is None:
            return False
        delay_s = max(error.retry_after_s, 0.01)
        if self._clock() + delay_s > deadline:
            return False
        self._sleep(delay_s)
        return True

    def _first(self, ask: Callable[[ObjectStore], bytes]) -> bytes:
        try:
            return ask(self._behind)
        except (StoreUnavailable, TooSlow) as error:
            if not self._pinned or not self._usable():
                raise
            try:
                first = ask(self._relay)
            except StoreError:
                raise error from None
        with self._bulletin.lock:
            self._bulletin.first = first
        return first

    def _is_believed(self, key: str) -> bool:
        """Say whether the relay's word that `key` is not there is enough."""
        if not key.startswith(keys.LOG_PREFIX):
            return False
        with self._bulletin.lock:
            return self._clock() - self._bulletin.looked_at < self._trust.log_s

    def _before_look(self) -> None:
        """The last relay before the bulletin is about to ask it how far the log goes.

        Raises Tampered if a relay's first record turns out to be of another run.
        """
        if isinstance(self._behind, Relayed):
            return
        with self._bulletin.lock:
            self._bulletin.looked_at = self._clock()
            first = self._bulletin.first
        if first is None:
            return
        found = self._behind.get(_FIRST, limit_bytes=RECORD_LIMIT_BYTES)
        with self._bulletin.lock:
            if found == first:
                self._bulletin.first = None
            else:
                self._bulletin.found = found
        self._check_run()

    def _check_run(self) -> None:
        with self._bulletin.lock:
            first, found = self._bulletin.first, self._bulletin.found
        if first is not None and found is not None:
            expected, other = f"run {digest_bytes(found)}", f"run {digest_bytes(first)}"
            raise Tampered(f"{_FIRST} of a relay", expected=expected, found=other)

    def _usable(self) -> bool:
        with self._lock:
            return self._clock() >= self._away_until

    def _dawdled(self, key: str) -> None:
        self._leave(self._trust.bench_s, f"it takes too long for {key}")

    def _failed(self, key: str, error: StoreError) -> None:
        if isinstance(error, TooSlow):
            self._dawdled(key)
            return
        self._leave(self._trust.pause_s, f"no answer for {key}: {error}")

    def _lied(self, key: str) -> None:
        self._leave(self._trust.bench_s, f"wrong bytes for {key}")

    def _leave(self, seconds: float, why: str) -> None:
        with self._lock:
            self._away_until = max(self._away_until, self._clock() + seconds)
        logger.warning("relay left alone for %g s: %s", seconds, why)
