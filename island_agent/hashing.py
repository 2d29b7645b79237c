"""Leaves hashed as they lie in files: read by calls, never through a map, on every usable CPU.

A disk that cannot read a page answers a call with an error, but a map with SIGBUS, which ends the
process.  Here it is a leaf with a digest that no bytes have: damage, like any other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from skerry.codec.digest import Digest, DigestStream
from skerry.island_agent.parts import is_damage
from skerry.publisher.threads import usable_cpus

UNREADABLE = Digest("0" * 64)

_BLOCK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [start, stop) of a file."""

    path: Path
    start: int
    stop: int


def hash_spans(spans: Sequence[Span]) -> list[Digest]:
    """Return the digest of each, UNREADABLE for what the disk does not give back.

    Takes a block of memory for each thread.  Raises OSError for anything but damage.
    """
    threads = min(usable_cpus(), len(spans))
    if threads <= 1:
        return [_hash(span, threads=None) for span in spans]
    with _pool(threads) as pool:
        return list(pool.map(lambda span: _hash(span, threads=1), spans))


def _hash(span: Span, threads: int | None) -> Digest:
    stream = DigestStream(threads)
    try:
        with opened(span.path) as fd:
            block = memoryview(bytearray(min(_BLOCK_BYTES, span.stop - span.start)))
            at = span.start
            while at < span.stop:
                got = os.preadv(fd, [block[: span.stop - at]], at)
                if not got:
                    return UNREADABLE  # the file is shorter than it was
                stream.update(block[:got])
                at += got
    except OSError as error:
        if is_damage(error):
            return UNREADABLE
        raise
    return stream.digest()


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open a file to read, no link.  Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _pool(threads: int) -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(threads, thread_name_prefix="skerry-hash")
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
