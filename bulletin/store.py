"""The object store that a bulletin stands on: nine verbs, and the promise that each one makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from skerry.bulletin.errors import ShortObject

_PIECE_BYTES = 8 * 1024 * 1024


class ObjectStore(Protocol):
    """A flat map from keys to bytes; safe to use from several threads and processes at once.

    Every implementation passes `tests.bulletin.store_contract.StoreContract`.  Every method raises
    InvalidKey for a key that `keys.check_key` refuses, StoreUnavailable when the store gives no
    answer and nothing was changed, and StoreDenied when it refuses for good.  A write of any kind
    may raise OutcomeUnknown instead: repeating it with the same bytes is always right.  No key may
    be a directory of another one.
    """

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        """Return the whole object.

        Raises NotFound, and ObjectTooLarge when it is longer than the limit; never truncates.
        """
        ...

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """Return bytes [start, stop).  Raises NotFound, and ShortObject when there are fewer."""
        ...

    def stream(self, key: str, start: int, stop: int) -> Iterator[bytes]:
        """Yield bytes [start, stop) in order, in pieces as large as the store likes, never empty.

        For much at once: the store fetches as it does best, in bounded memory, and goes on from the
        byte reached as long as it can.  Errors come while iterating, after the bytes before them:
        NotFound, ShortObject, and ObjectChanged when the bytes would be of two objects.
        """
        ...

    def size(self, key: str) -> int:
        """Return the size in bytes.  Raises NotFound."""
        ...

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Create the object, all of it or none of it, durably: the only atomic step there is.

        Of any number of concurrent calls for one key exactly one succeeds, for ever.  Raises
        AlreadyExists if the key is taken, OutcomeUnknown if the object may have been created.
        """
        ...

    def put(self, key: str, parts: Iterable[bytes]) -> int:
        """Store one immutable object, whole or not at all, durably; return its size in bytes.

        For names that only one content can have (a digest or a nonce is part of them): putting the
        same bytes again is fine.  An error raised by `parts` passes through and nothing is stored.
        """
        ...

    def replace(self, key: str, data: bytes) -> None:
        """Set a mutable object, for hints and status only; readers see the old bytes or the new."""
        ...

    def list_after(self, prefix: str, after: str = "") -> Iterator[str]:
        """Yield the keys that start with `prefix` and are greater than `after`, in byte order.

        Raises ListUnsupported where there is no such thing as a list.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove the object if it is there."""
        ...


def check_range(start: int, stop: int) -> None:
    """Raises ValueError for what is no range: a bug of the caller's, not an answer of a store."""
    if not 0 <= start <= stop:
        raise ValueError(f"expected 0 <= start <= stop, found [{start}, {stop})")


def in_ranges(
    get_range: Callable[[str, int, int], bytes],
    key: str,
    start: int,
    stop: int,
    *,
    piece_bytes: int = _PIECE_BYTES,
) -> Iterator[bytes]:
    """Return `stream` for a store that is as fast with one range after the other."""
    check_range(start, stop)
    if start == stop:
        get_range(key, start, stop)  # for its errors
    for first in range(start, stop, piece_bytes):
        last = min(first + piece_bytes, stop)
        piece = get_range(key, first, last)
        if len(piece) != last - first:  # all that follow would be at the wrong place
            raise ShortObject(key, expected=last - first, found=len(piece))
        yield piece
