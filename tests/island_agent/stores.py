"""Stores that lie, cut, lose or fail: wrappers around a real one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from skerry.bulletin.store import ObjectStore, in_ranges

PIECE_BYTES = 1000

Change = Callable[[str, int, bytes], bytes]


class TwistedStore:
    """Passes everything on, but `on_range` may change, cut or refuse what ranges bring."""

    def __init__(self, inner: ObjectStore, on_range: Change | None = None) -> None:
        self.inner = inner
        self.on_range = on_range
        self.ranges: list[tuple[str, int, int]] = []

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        return self.inner.get(key, limit_bytes=limit_bytes)

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        self.ranges.append((key, start, stop))
        data = self.inner.get_range(key, start, stop)
        return data if self.on_range is None else self.on_range(key, start, data)

    def stream(self, key: str, start: int, stop: int) -> Iterator[bytes]:
        return in_ranges(self.get_range, key, start, stop, piece_bytes=PIECE_BYTES)

    def size(self, key: str) -> int:
        return self.inner.size(key)

    def put_if_absent(self, key: str, data: bytes) -> None:
        self.inner.put_if_absent(key, data)

    def put(self, key: str, parts: Iterable[bytes]) -> int:
        return self.inner.put(key, parts)

    def replace(self, key: str, data: bytes) -> None:
        self.inner.replace(key, data)

    def list_after(self, prefix: str, after: str = "") -> Iterator[str]:
        return self.inner.list_after(prefix, after)

    def delete(self, key: str) -> None:
        self.inner.delete(key)
