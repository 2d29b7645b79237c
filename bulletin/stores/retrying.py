"""A store that is asked again when it did not answer.

Reads and writes of the same bytes are repeated; so is a conditional put that is known not to have
arrived.  One with an unknown outcome is its caller's business: only the log can tell what became
of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from skerry.bulletin.errors import StoreUnavailable, Unanswered
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores.retries import Retries

T = TypeVar("T")

_REPLAY_BYTES = 64 * 1024 * 1024


class Retrying:
    """See ObjectStore.  The parts of a put are kept for the next attempt up to 64 MiB."""

    def __init__(self, inner: ObjectStore, retries: Retries | None = None) -> None:
        self.inner = inner
        self.retries = retries or Retries()

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        return self.retries.reading().run(lambda: self.inner.get(key, limit_bytes=limit_bytes))

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        return self.retries.reading().run(lambda: self.inner.get_range(key, start, stop))

    def size(self, key: str) -> int:
        return self.retries.reading().run(lambda: self.inner.size(key))

    def stream(self, key: str, start: int, stop: int) -> Iterator[bytes]:
        position = start

        def pieces() -> Iterator[bytes]:
            nonlocal position
            for piece in self.inner.stream(key, position, stop):
                position += len(piece)
                yield piece

        yield from self._resumed(pieces, lambda: start < position == stop)

    def put_if_absent(self, key: str, data: bytes) -> None:
        attempts = self.retries.writing()
        attempts.run(lambda: self.inner.put_if_absent(key, data), on=StoreUnavailable)

    def put(self, key: str, parts: Iterable[bytes]) -> int:
        attempts = self.retries.writing()
        if isinstance(parts, Sequence):
            return attempts.run(lambda: self.inner.put(key, parts))
        replay = _Replay(parts)

        def attempt() -> int:
            try:
                return self.inner.put(key, replay.parts())
            except Unanswered as error:
                if replay.possible:
                    raise
                raise _Final(error) from None

        try:
            return attempts.run(attempt)
        except _Final as final:
            raise final.error from None

    def replace(self, key: str, data: bytes) -> None:
        self.retries.writing().run(lambda: self.inner.replace(key, data))

    def list_after(self, prefix: str, after: str = "") -> Iterator[str]:
        last = after

        def names() -> Iterator[str]:
            nonlocal last
            for name in self.inner.list_after(prefix, last):
                last = name
                yield name

        return self._resumed(names, lambda: False)

    def delete(self, key: str) -> None:
        self.retries.writing().run(lambda: self.inner.delete(key))

    def _resumed(self, source: Callable[[], Iterator[T]], done: Callable[[], bool]) -> Iterator[T]:
        """Yield from `source`, and go on from a new one where the last one broke off."""
        attempts = self.retries.reading()
        while not done():
            try:
                for item in source():
                    attempts.progressed()
                    yield item
            except Unanswered as error:
                delay_s = attempts.delay_after(error)
                if delay_s is None:
                    raise
                self.retries.sleep(delay_s)
            else:
                self.retries.budget.succeeded()
                return


class _Final(Exception):
    """An error that another attempt must not follow."""

    def __init__(self, error: Unanswered) -> None:
        super().__init__()
        self.error = error


class _Replay:
    """Parts that can be given out again while they are few and their source has not failed."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self.possible = True
        self._source = iter(parts)
        self._kept: list[bytes] = []
        self._bytes = 0

    def parts(self) -> Iterator[bytes]:
        yield from self._kept.copy()
        while True:
            try:
                part = next(self._source)
            except StopIteration:
                return
            except BaseException:
                self.possible = False  # what failed goes on as if it had ended
                raise
            self._bytes += len(part)
            if self._bytes > _REPLAY_BYTES:
                self.possible = False
                self._kept.clear()
            elif self.possible:
                self._kept.append(bytes(part))
            yield part
