"""The slots of the log that a relay hands on, and the neighbours that wait for the next one.

A slot is written once, so a record is kept for ever; but only one that the relay's own agent has
verified, or one before it that the next record kept names by its digest.  Everything else is
remembered for at most `fresh_s`, "not there yet" as well: so many neighbours cost the bulletin one
request in that time, and a wrong answer is forgotten as fast.  When the agent has met something
wrong, all that was kept is dropped: it may be of another run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock

from skerry.bulletin import keys
from skerry.bulletin.ahead import MOST_AT_ONCE
from skerry.bulletin.errors import NotFound
from skerry.bulletin.records import RECORD_LIMIT_BYTES, Record
from skerry.bulletin.state import LogState
from skerry.bulletin.store import ObjectStore
from skerry.codec.digest import Digest, digest_bytes
from skerry.island_agent.errors import NoRoom, Stopped
from skerry.island_agent.flights import Flights, Lane
from skerry.island_agent.recent import Recent
from skerry.island_agent.relay_cache import RelayCache

logger = logging.getLogger(__name__)

_PREFIX = "log-"
_REMEMBERED = 2 * MOST_AT_ONCE


class LogSlots:
    """Safe to use from several threads."""

    def __init__(
        self,
        upstream: ObjectStore,
        cache: RelayCache,
        *,
        fresh_s: float,
        most_waiters: int,
        on_news: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_news` is called when somebody found a record that the agent has not read yet."""
        self.head = -1  # the last slot that the agent has verified
        self.flights: Flights[bytes | None] = Flights()
        self._upstream = upstream
        self._cache = cache
        self._most_waiters = most_waiters
        self._on_news = on_news
        self._lock = Lock()
        self._recent: Recent[bytes | None] = Recent(fresh_s=fresh_s, most=_REMEMBERED, clock=clock)
        self._waiters: dict[int, set[Future[None]]] = {}
        self._waiting = 0
        self._closed = False
        self._bound = False  # what is kept is of the run upstream
        self._head_digest: Digest | None = None  # of the record in slot `head`

    @property
    def waiting(self) -> int:
        """How many neighbours wait for a record."""
        return self._waiting

    def known(self, seq: int) -> bytes | None:
        """Return a record without asking anybody for it."""
        return self.peek(seq)[1]

    def is_taken(self, seq: int) -> bool:
        """Say whether the agent has read a record in the slot, or one after it."""
        return seq <= self.head

    def kept(self, seq: int) -> bytes | None:
        """Return a verified record: the slot's answer for ever.  Reads a small file."""
        return self._cache.kept(_name(seq)) if self._bound else None

    def peek(self, seq: int) -> tuple[bool, bytes | None]:
        """Say whether the answer is known here, and which it is.  Reads a small file at most."""
        data = self.kept(seq)
        if data is not None:
            return True, data
        # Before the run is there, all of its slots are as free as the first.
        recent = self._recent.get(_name(seq if self._bound else 0))
        if recent is not None and (self._bound or recent[0] is None):
            return True, recent[0]
        # Nobody who follows the log asks for a slot that lies far behind its end.
        return 0 <= self.head < seq - MOST_AT_ONCE - 1, None

    def get(self, seq: int, *, fresh: bool = False) -> bytes | None:
        """Return the bytes in a slot, None when it is free.  Raises StoreError.

        `fresh` asks past what is remembered of free slots; it is how the relay's own agent looks.
        """
        known, data = self.peek(seq)
        if known and not (fresh and data is None):
            return data
        return self.flights.run(str(seq), lambda: self._look(seq, news=not fresh))

    def begin(self, seq: int, lane: Lane) -> Future[bytes | None]:
        """Do the same in a thread of `lane`; do not cancel it."""
        return self.flights.start(str(seq), lambda: self._look(seq, news=True), lane)

    def learned(self, state: LogState, records: Iterable[Record]) -> None:
        """Take over what the agent has verified, and wake whoever waited for it."""
        for record in records:
            self._keep(record.seq, record.to_bytes())
        if state.seq > self.head:
            with self._lock:
                self.head, self._head_digest = state.seq, state.head
            self._recent.clear()  # slots that were free
        self._wake(self.head)

    def doubt(self) -> None:
        """Drop what was kept: the agent has met something that is not what it should be."""
        self._bound = False
        self._recent.clear()
        self._cache.discard_small()

    def wait(self, seq: int) -> Future[None] | None:
        """Return what is done when there may be a record in the slot; None: too many wait.

        Whoever gives up cancels it.
        """
        waiter: Future[None] = Future()
        with self._lock:
            if seq <= self.head or self._closed:
                waiter.set_result(None)
                return waiter
            if self._waiting >= self._most_waiters:
                return None
            self._waiting += 1
            self._waiters.setdefault(seq, set()).add(waiter)
        waiter.add_done_callback(lambda done: self._left(seq, done))
        return waiter

    def close(self) -> None:
        """Let everybody go who waits."""
        self._closed = True
        self._wake(None)

    def _look(self, seq: int, *, news: bool) -> bytes | None:
        if self._closed:
            raise Stopped("a shutdown was asked for")
        if not self._bound:
            self.flights.run("bind", self._bind)
            if not self._bound:
                return None  # no run, no record
        kept = self.kept(seq)
        return self._fetch(seq, news=news) if kept is None else kept

    def _bind(self) -> bytes | None:
        """Drop what was kept of another run, once: slot 0 is the run's identity."""
        try:
            first = self._upstream.get(keys.log(0), limit_bytes=RECORD_LIMIT_BYTES)
        except NotFound:
            self._recent.note(_name(0), None)
            return None
        if self._cache.kept(_name(0)) != first:
            self._cache.discard_small()
            self._keep(0, first)
        self._bound = True
        return None

    def _fetch(self, seq: int, *, news: bool) -> bytes | None:
        key = keys.log(seq)
        try:
            data = self._upstream.get(key, limit_bytes=RECORD_LIMIT_BYTES)
        except NotFound:
            data = None
        if data is not None and self._is_verified(seq, data):
            self._keep(seq, data)
            return data
        self._recent.note(_name(seq), data)
        if data is not None and not self.is_taken(seq):
            self._wake(seq)
            if news:
                self._on_news()
        return data

    def _is_verified(self, seq: int, data: bytes) -> bool:
        """Say whether the chain that the agent has verified leads to these bytes."""
        with self._lock:
            head, named = self.head, self._head_digest
        if seq < head:
            after = self.kept(seq + 1)
            named = None if after is None else Record.parse(after).prev
        return seq <= head and digest_bytes(data) == named

    def _keep(self, seq: int, data: bytes) -> None:
        with suppress(NoRoom, OSError):  # then it is asked for again
            self._cache.keep(_name(seq), data)

    def _wake(self, last: int | None) -> None:
        """Wake who waits for slots up to `last`, None: everybody."""
        with self._lock:
            due = [seq for seq in self._waiters if last is None or seq <= last]
            waiters = [waiter for seq in due for waiter in self._waiters.pop(seq)]
            self._waiting -= len(waiters)
        for waiter in waiters:  # outside the lock: their callbacks take it
            if waiter.set_running_or_notify_cancel():
                waiter.set_result(None)

    def _left(self, seq: int, waiter: Future[None]) -> None:
        with self._lock:
            waiting = self._waiters.get(seq, set())
            if waiter in waiting:
                waiting.discard(waiter)
                self._waiting -= 1
            if not waiting:
                self._waiters.pop(seq, None)


def _name(seq: int) -> str:
    return f"{_PREFIX}{seq:020d}"
