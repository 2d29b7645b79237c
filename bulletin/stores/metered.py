"""A store whose traffic is counted: requests by verb, bytes up and down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock
from types import MappingProxyType

from skerry.bulletin.store import ObjectStore


@dataclass(frozen=True, slots=True)
class Usage:
    """Traffic up to some moment.  `after - before` is what happened between two moments.

    A request counts when it is made, bytes when they have arrived; a stream is one request.
    """

    requests: Mapping[str, int] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0

    def __sub__(self, before: Usage) -> Usage:
        counts = Counter(self.requests)
        counts.subtract(before.requests)
        return Usage(
            requests=MappingProxyType({verb: n for verb, n in sorted(counts.items()) if n}),
            bytes_up=self.bytes_up - before.bytes_up,
            bytes_down=self.bytes_down - before.bytes_down,
        )


class Metered:
    """See ObjectStore.  Errors pass through; a request that fails counts."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self._requests: Counter[str] = Counter()
        self._up = 0
        self._down = 0
        self._lock = Lock()

    def usage(self) -> Usage:
        """Return the traffic so far."""
        with self._lock:
            requests = MappingProxyType(dict(self._requests))
            return Usage(requests=requests, bytes_up=self._up, bytes_down=self._down)

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        self._count("get")
        return self._came(self.inner.get(key, limit_bytes=limit_bytes))

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        self._count("get_range")
        return self._came(self.inner.get_range(key, start, stop))

    def stream(self, key: str, start: int, stop: int) -> Iterator[bytes]:
        self._count("stream")
        for piece in self.inner.stream(key, start, stop):
            yield self._came(piece)

    def size(self, key: str) -> int:
        self._count("size")
        return self.inner.size(key)

    def put_if_absent(self, key: str, data: bytes) -> None:
        self._count("put_if_absent", up=len(data))
        self.inner.put_if_absent(key, data)

    def put(self, key: str, parts: Iterable[bytes]) -> int:
        self._count("put")
        if isinstance(parts, list | tuple):  # stays one that a store can repeat
            with self._lock:
                self._up += sum(map(len, parts))
            return self.inner.put(key, parts)
        return self.inner.put(key, self._went(parts))

    def replace(self, key: str, data: bytes) -> None:
        self._count("replace", up=len(data))
        self.inner.replace(key, data)

    def list_after(self, prefix: str, after: str = "") -> Iterator[str]:
        self._count("list_after")
        return self.inner.list_after(prefix, after)

    def delete(self, key: str) -> None:
        self._count("delete")
        self.inner.delete(key)

    def _count(self, verb: str, *, up: int = 0) -> None:
        with self._lock:
            self._requests[verb] += 1
            self._up += up

    def _came(self, data: bytes) -> bytes:
        with self._lock:
            self._down += len(data)
        return data

    def _went(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        for part in parts:
            with self._lock:
                self._up += len(part)
            yield part
