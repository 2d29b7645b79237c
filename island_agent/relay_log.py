"""The slots of the log that a relay hands on, and the neighbours that wait for the next one.

A slot is written once, so a record is kept for ever; but only one that the relay's own agent has
verified, or an older one that has the form of a record and fits those beside it.  What lies beyond
is remembered for at most `fresh_s`, "not there yet" as well: so many neighbours cost the bulletin
one request in that time, and a wrong answer is forgotten as fast.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock

from skerry.bulletin import keys
from skerry.bulletin.ahead import MOST_AT_ONCE
from skerry.bulletin.errors import NotFound, RecordInvalid
from skerry.bulletin.records import RECORD_LIMIT_BYTES, Record
from skerry.bulletin.state import LogState
from skerry.bulletin.store import ObjectStore
from skerry.codec.digest import digest_bytes
from skerry.island_agent.errors import NoRoom, Stopped
from skerry.island_agent.flights import Flights, Lane
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
        self._fresh_s = fresh_s
        self._most_waiters = most_waiters
        self._on_news = on_news
        self._clock = clock
        self._lock = Lock()
        self._remembered: OrderedDict[int, tuple[float, bytes | None]] = OrderedDict()
        self._waiters: dict[int, set[Future[None]]] = {}
        self._waiting = 0
        self._closed = False
        self._bound = False

    @property
    def waiting(self) -> int:
        """How many neighbours wait for a record."""
        return self._waiting

    def known(self, seq: int) -> bytes | None:
        """Return a record without asking anybody for it."""
        return self.peek(seq)[1]

    def is_kept(self, seq: int) -> bool:
        """Say whether the slot's answer is the same for ever."""
        return seq <= self.head

    def peek(self, seq: int) -> tuple[bool, bytes | None]:
        """Say whether the answer is known here, and which it is.  Reads a small file at most."""
        if not self._bound:
            return False, None
        data = self._cache.kept(_name(seq))
        if data is not None:
            return True, data
        remembered = self._memory(seq)
        if remembered is not None:
            return True, remembered[1]
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
        with self._lock:
            self.head = max(self.head, state.seq)
            for seq in [seq for seq in self._remembered if seq <= self.head]:
                del self._remembered[seq]
        self._wake(self.head)

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
        kept = self._cache.kept(_name(seq)) if self._bound else None
        return self._fetch(seq, news=news) if kept is None else kept

    def _bind(self) -> bytes | None:
        """Drop what was kept of another run, once: slot 0 is the run's identity."""
        try:
            first = self._upstream.get(keys.log(0), limit_bytes=RECORD_LIMIT_BYTES)
        except NotFound:
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
        with self._lock:
            behind = seq <= self.head
            if not behind:
                self._remembered[seq] = self._clock(), data
                self._remembered.move_to_end(seq)
                if len(self._remembered) > _REMEMBERED:
                    self._remembered.popitem(last=False)
        if data is not None and behind and self._fits(seq, data):
            self._keep(seq, data)
        elif data is not None and not behind:
            self._wake(seq)
            if news:
                self._on_news()
        return data

    def _fits(self, seq: int, data: bytes) -> bool:
        """Say whether bytes may be those of an old slot, as far as its neighbours tell."""
        try:
            record = Record.parse(data)
            after, before = self._cache.kept(_name(seq + 1)), self._cache.kept(_name(seq - 1))
            return (
                record.seq == seq
                and (after is None or Record.parse(after).prev == digest_bytes(data))
                and (before is None or record.prev == digest_bytes(before))
            )
        except RecordInvalid:
            return False

    def _keep(self, seq: int, data: bytes) -> None:
        with suppress(NoRoom, OSError):  # then it is asked for again
            self._cache.keep(_name(seq), data)

    def _memory(self, seq: int) -> tuple[float, bytes | None] | None:
        with self._lock:
            found = self._remembered.get(seq)
            if found is None or self._clock() - found[0] >= self._fresh_s:
                return None
            return found

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
