"""The bulletin as a relay's own agent reads it: what the neighbours need, too, is read once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import wait
from contextlib import suppress

from skerry.bulletin import keys
from skerry.bulletin.errors import BulletinError, NotFound, ObjectTooLarge, ShortObject
from skerry.bulletin.store import ObjectStore, check_range
from skerry.island_agent.errors import FetchError, NoRoom, Unreferenced
from skerry.island_agent.relay import Relay
from skerry.island_agent.relay_cache import Kept
from skerry.island_agent.relay_refs import kind_of

_PIECE_BYTES = 1 << 20
_LOOK_S = 0.02  # between two looks at what has arrived


class RelayStore:
    """See ObjectStore.  What the relay cannot have is read past it, from its upstream.

    Records are read as they are now, never from what the relay remembers of free slots.
    """

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._upstream: ObjectStore = relay.upstream

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        match kind_of(key):
            case "log":
                data = self._relay.slots.get(keys.parse_log(key), fresh=True)
            case "passing" if key.startswith(keys.CHECKPOINT_PREFIX):
                data = self._relay.passing(key)
            case "object":
                kept = self._kept(key)
                if kept is None:
                    return self._upstream.get(key, limit_bytes=limit_bytes)
                with kept.file:
                    if kept.size > limit_bytes:
                        raise ObjectTooLarge(key, limit_bytes=limit_bytes, found=kept.size)
                    return kept.file.read()
            case _:
                return self._upstream.get(key, limit_bytes=limit_bytes)
        if data is None:
            raise NotFound(key)
        if len(data) > limit_bytes:
            raise ObjectTooLarge(key, limit_bytes=limit_bytes, found=len(data))
        return data

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        check_range(start, stop)
        return b"".join(self.stream(key, start, stop))

    def stream(self, key: str, start: int, stop: int) -> Iterator[bytes]:
        check_range(start, stop)
        if kind_of(key) == "object" and start < stop:
            for piece in self._arriving(key, start, stop):
                start += len(piece)
                yield piece
            if start == stop:
                return
        kept = self._kept(key) if kind_of(key) == "object" else None
        if kept is None:
            yield from self._upstream.stream(key, start, stop)
            return
        with kept.file as file:
            if stop > kept.size:
                found = max(kept.size - start, 0)
                raise ShortObject(key, expected=stop - start, found=found)
            file.seek(start)
            while start < stop:
                piece = file.read(min(_PIECE_BYTES, stop - start))
                start += len(piece)
                yield piece

    def size(self, key: str) -> int:
        kept = None
        if kind_of(key) == "object":
            with suppress(Unreferenced):
                kept = self._relay.open(key)
        if kept is None:  # nobody fetches a whole object to know its size
            return self._upstream.size(key)
        kept.file.close()
        return kept.size

    def put_if_absent(self, key: str, data: bytes) -> None:
        self._upstream.put_if_absent(key, data)

    def put(self, key: str, parts: Iterable[bytes]) -> int:
        return self._upstream.put(key, parts)

    def replace(self, key: str, data: bytes) -> None:
        self._upstream.replace(key, data)

    def list_after(self, prefix: str, after: str = "") -> Iterator[str]:
        return self._upstream.list_after(prefix, after)

    def delete(self, key: str) -> None:
        self._upstream.delete(key)

    def _arriving(self, key: str, start: int, stop: int) -> Iterator[bytes]:
        """Yield what the relay has of an object that it is just reading, as it comes; ends early.

        Nobody has hashed these bytes yet: they are for the own agent alone, which does.
        """
        try:
            if self._relay.holds(key):
                return
            part, flight = self._relay.part(key), self._relay.begin_own(key)
        except Unreferenced:
            return
        file = None
        try:
            while not flight.done() and start < stop:
                if file is None:
                    with suppress(FileNotFoundError):
                        file = part.open("rb")
                        file.seek(start)
                piece = b"" if file is None else file.read(min(_PIECE_BYTES, stop - start))
                if piece:
                    start += len(piece)
                    yield piece
                else:
                    wait([flight], timeout=_LOOK_S)
        finally:
            if file is not None:
                file.close()

    def _kept(self, key: str) -> Kept | None:
        """Return the object from the relay's cache, which fetches it; None: it cannot have it."""
        try:
            kept = self._relay.open(key)
            if kept is None:
                self._relay.fetch(key)
                kept = self._relay.open(key)
        except (Unreferenced, NoRoom, FetchError, BulletinError, OSError):  # also a broken disk
            return None
        return kept
