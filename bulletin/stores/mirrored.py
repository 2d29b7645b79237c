"""One bulletin that several stores hold: written in one place, read from the nearest.

The first store is the bulletin; the others are copies of it, which may be late.  A copy is believed
no more than any store: what it serves is verified by whoever reads it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Lock
from typing import TypeVar

from skerry.bulletin.errors import NotFound, StoreError
from skerry.bulletin.store import ObjectStore

T = TypeVar("T")

_SMOOTHING = 0.3  # the weight of the newest latency
_PAUSE_S = 5.0  # without an answer a store is asked last for so long
_FORGOTTEN_S = 60.0  # and one that was not asked for so long is tried first, once


class Mirrored:
    """See ObjectStore.  A read that one store fails goes on with the next, from the byte reached.

    NotFound means that every store was asked and none has it.  From the first object that is
    written here everything is read from the first store alone: a writer that checks what it wrote
    must not be answered by a copy.
    """

    def __init__(
        self, stores: Sequence[ObjectStore], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if not stores:
            raise ValueError("expected at least one store")
        self._mirrors = [_Mirror(store, order, clock) for order, store in enumerate(stores)]
        self._first = stores[0]
        self._writing = False

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        return self._read(lambda store: store.get(key, limit_bytes=limit_bytes))

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        return self._read(lambda store: store.get_range(key, start, stop))

    def size(self, key: str) -> int:
        return self._read(lambda store: store.size(key))

    def stream(self, key: str, start: int, stop: int) -> Iterator[bytes]:
        errors = _Errors()
        position = start
        for mirror in self._nearest():
            try:
                for piece in mirror.store.stream(key, position, stop):
                    position += len(piece)
                    yield piece
            except StoreError as error:
                mirror.failed(error)
                errors.add(mirror, error)
            else:
                return
        raise errors.verdict()

    def put_if_absent(self, key: str, data: bytes) -> None:
        self._writing = True
        self._first.put_if_absent(key, data)

    def put(self, key: str, parts: Iterable[bytes]) -> int:
        self._writing = True
        return self._first.put(key, parts)

    def replace(self, key: str, data: bytes) -> None:
        self._first.replace(key, data)

    def list_after(self, prefix: str, after: str = "") -> Iterator[str]:
        """Yield what the first store that can list has: a copy may lag behind."""
        errors = _Errors()
        for mirror in self._mirrors[:1] if self._writing else self._mirrors:
            try:
                for name in mirror.store.list_after(prefix, after):
                    after = name
                    yield name
            except StoreError as error:
                errors.add(mirror, error)
            else:
                return
        raise errors.verdict()

    def delete(self, key: str) -> None:
        self._first.delete(key)

    def _read(self, ask: Callable[[ObjectStore], T]) -> T:
        errors = _Errors()
        for mirror in self._nearest():
            try:
                return mirror.timed(ask)
            except StoreError as error:
                errors.add(mirror, error)
        raise errors.verdict()

    def _nearest(self) -> list[_Mirror]:
        return self._mirrors[:1] if self._writing else sorted(self._mirrors, key=_Mirror.rank)


class _Errors:
    """What the stores said; what that means together."""

    def __init__(self) -> None:
        self._found: list[tuple[int, StoreError]] = []

    def add(self, mirror: _Mirror, error: StoreError) -> None:
        self._found.append((mirror.order, error))

    def verdict(self) -> StoreError:
        """Return the error of the first store; NotFound only when all of them say so."""
        self._found.sort(key=lambda found: (isinstance(found[1], NotFound), found[0]))
        return self._found[0][1]


class _Mirror:
    """A store and how fast it answers."""

    def __init__(self, store: ObjectStore, order: int, clock: Callable[[], float]) -> None:
        self.store = store
        self.order = order
        self._clock = clock
        self._latency_s: float | None = None
        self._asked_at = clock()
        self._asked_last_until = 0.0
        self._lock = Lock()

    def rank(self) -> tuple[bool, float, int]:
        with self._lock:
            now = self._clock()
            latency_s = self._latency_s or 0.0
            if now - self._asked_at > _FORGOTTEN_S:
                latency_s = 0.0
            return now < self._asked_last_until, latency_s, self.order

    def timed(self, ask: Callable[[ObjectStore], T]) -> T:
        start = self._clock()
        try:
            result = ask(self.store)
        except NotFound:
            self._answered(start)  # an answer like any other
            raise
        except StoreError as error:
            self.failed(error)
            raise
        self._answered(start)
        return result

    def failed(self, error: StoreError) -> None:
        with self._lock:
            self._asked_at = self._clock()
            if not isinstance(error, NotFound):
                self._asked_last_until = self._asked_at + _PAUSE_S

    def _answered(self, start: float) -> None:
        with self._lock:
            now = self._clock()
            before = now - start if self._latency_s is None else self._latency_s
            self._latency_s = before + _SMOOTHING * (now - start - before)
            self._asked_at = now
            self._asked_last_until = 0.0
