"""An object store in a dict: the model that every other store is tested against."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from threading import Lock

from skerry.bulletin.errors import AlreadyExists, NotFound, ObjectTooLarge, ShortObject
from skerry.bulletin.keys import check_key
from skerry.bulletin.store import check_range, in_ranges


class MemoryStore:
    """See ObjectStore."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._lock = Lock()

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        data = self._find(key)
        if len(data) > limit_bytes:
            raise ObjectTooLarge(key, limit_bytes=limit_bytes, found=len(data))
        return data

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        check_range(start, stop)
        data = self._find(key)[start:stop]
        if len(data) < stop - start:
            raise ShortObject(key, expected=stop - start, found=len(data))
        return data

    def stream(self, key: str, start: int, stop: int) -> Iterator[bytes]:
        return in_ranges(self.get_range, key, start, stop)

    def size(self, key: str) -> int:
        return len(self._find(key))

    def put_if_absent(self, key: str, data: bytes) -> None:
        check_key(key)
        with self._lock:
            if key in self._objects:
                raise AlreadyExists(key)
            self._objects[key] = bytes(data)

    def put(self, key: str, parts: Iterable[bytes]) -> int:
        check_key(key)
        data = b"".join(parts)
        with self._lock:
            self._objects[key] = data
        return len(data)

    def replace(self, key: str, data: bytes) -> None:
        self.put(key, [data])

    def list_after(self, prefix: str, after: str = "") -> Iterator[str]:
        with self._lock:
            # Code points sort as their UTF-8 bytes do.
            found = sorted(k for k in self._objects if k.startswith(prefix) and k > after)
        yield from found

    def delete(self, key: str) -> None:
        check_key(key)
        with self._lock:
            self._objects.pop(key, None)

    def _find(self, key: str) -> bytes:
        check_key(key)
        with self._lock:
            try:
                return self._objects[key]
            except KeyError:
                raise NotFound(key) from None
