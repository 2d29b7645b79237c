"""Stores that misbehave in ways that a sound one cannot be made to, and a clock to wait with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from threading import Lock

from skerry.bulletin.errors import AlreadyExists
from skerry.bulletin.patience import Patience
from skerry.bulletin.store import ObjectStore, in_ranges
from skerry.bulletin.stores.memory import MemoryStore

Hook = Callable[[str, str], None]


def nothing(verb: str, key: str) -> None:
    """The hook that lets everything pass."""


class FaultyStore:
    """Delegates every verb; `before` and `after` are told the verb and the key, and may raise.

    Raising in `before` is a request that never arrived, in `after` one whose reply was lost.
    """

    def __init__(
        self, inner: ObjectStore, *, before: Hook = nothing, after: Hook = nothing
    ) -> None:
        self.inner = inner
        self.before = before
        self.after = after

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        self.before("get", key)
        data = self.inner.get(key, limit_bytes=limit_bytes)
        self.after("get", key)
        return data

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        self.before("get_range", key)
        data = self.inner.get_range(key, start, stop)
        self.after("get_range", key)
        return data

    def stream(self, key: str, start: int, stop: int) -> Iterator[bytes]:
        return in_ranges(self.get_range, key, start, stop)

    def size(self, key: str) -> int:
        self.before("size", key)
        size = self.inner.size(key)
        self.after("size", key)
        return size

    def put_if_absent(self, key: str, data: bytes) -> None:
        self.before("put_if_absent", key)
        self.inner.put_if_absent(key, data)
        self.after("put_if_absent", key)

    def put(self, key: str, parts: Iterable[bytes]) -> int:
        self.before("put", key)
        size = self.inner.put(key, parts)
        self.after("put", key)
        return size

    def replace(self, key: str, data: bytes) -> None:
        self.before("replace", key)
        self.inner.replace(key, data)
        self.after("replace", key)

    def list_after(self, prefix: str, after: str = "") -> Iterator[str]:
        yield from self.inner.list_after(prefix, after)

    def delete(self, key: str) -> None:
        self.before("delete", key)
        self.inner.delete(key)
        self.after("delete", key)


class UnsafeStore(MemoryStore):
    """While `unsafe`, a conditional put of a taken key succeeds; the last one stays."""

    def __init__(self, *, unsafe: bool = True) -> None:
        super().__init__()
        self.unsafe = unsafe

    def put_if_absent(self, key: str, data: bytes) -> None:
        if self.unsafe:
            self.replace(key, data)
        else:
            super().put_if_absent(key, data)


class SilentStore(MemoryStore):
    """A conditional put of a taken key reports success although the first content stays."""

    def put_if_absent(self, key: str, data: bytes) -> None:
        try:
            super().put_if_absent(key, data)
        except AlreadyExists:
            return


class RacyStore(MemoryStore):
    """Honours the condition against a second writer and forgets it for the third."""

    def __init__(self) -> None:
        super().__init__()
        self._attempts: dict[str, int] = {}
        self._counting = Lock()

    def put_if_absent(self, key: str, data: bytes) -> None:
        with self._counting:
            attempt = self._attempts[key] = self._attempts.get(key, 0) + 1
        if attempt == 3:
            self.replace(key, data)
        else:
            super().put_if_absent(key, data)


class FakeTime:
    """A clock that only sleeping moves; `wake` is called after every sleep."""

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        self.now_s = 0.0
        self.sleeps: list[float] = []
        self._wake = wake

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.sleeps.append(seconds)
        self._wake()

    def patience(self, limit_s: float) -> Patience:
        return Patience(limit_s=limit_s, clock=self.clock, sleep=self.sleep)
