"""Ranges of objects and of files, read into memory that is taken page by page."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np

from skerry.bulletin.errors import ShortObject
from skerry.bulletin.store import ObjectStore
from skerry.codec.digest import Bytes
from skerry.island_agent.errors import MirrorDamaged

_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


def sparse(nbytes: int) -> Bytes:
    """Return zeros that take memory page by page, as they are written to."""
    if not nbytes:
        return np.zeros(0, np.uint8)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    return np.frombuffer(mmap.mmap(-1, nbytes, flags=flags), np.uint8)


def read_object(store: ObjectStore, key: str, start: int, into: Bytes) -> None:
    """Fill `into` with the bytes of an object from `start` on.  Raises StoreError."""
    at = 0
    for piece in store.stream(key, start, start + into.size):
        if len(piece) > into.size - at:
            raise ShortObject(key, expected=into.size, found=at + len(piece))
        into[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
        at += len(piece)
    if at != into.size:
        raise ShortObject(key, expected=into.size, found=at)


def read_file(path: Path, start: int, into: Bytes) -> None:
    """Fill `into` with the bytes of a file from `start` on.

    Raises OSError, or MirrorDamaged if it ends before.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        left = into.data
        while left:
            got = os.preadv(fd, [left], start)
            if not got:
                raise MirrorDamaged(f"{path.name}: ends at byte {start}")
            left, start = left[got:], start + got
    finally:
        os.close(fd)
