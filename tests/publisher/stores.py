"""Stores that misbehave on purpose, around one that works."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from skerry.bulletin.errors import StoreUnavailable
from skerry.bulletin.store import ObjectStore


class FailingPuts:
    """Passes everything on but the puts whose numbers, counted from one, are in `refused`."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.refused: set[int] = set()
        self.puts: list[str] = []

    def put(self, key: str, parts: Iterable[bytes]) -> int:
        self.puts.append(key)
        if len(self.puts) in self.refused:
            raise StoreUnavailable(key, "refused for the test")
        return self.store.put(key, parts)

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        return self.store.get(key, limit_bytes=limit_bytes)

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        return self.store.get_range(key, start, stop)

    def stream(self, key: str, start: int, stop: int) -> Iterator[bytes]:
        return self.store.stream(key, start, stop)

    def size(self, key: str) -> int:
        return self.store.size(key)

    def put_if_absent(self, key: str, data: bytes) -> None:
        self.store.put_if_absent(key, data)

    def replace(self, key: str, data: bytes) -> None:
        self.store.replace(key, data)

    def list_after(self, prefix: str, after: str = "") -> Iterator[str]:
        return self.store.list_after(prefix, after)

    def delete(self, key: str) -> None:
        self.store.delete(key)
