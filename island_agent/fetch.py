"""Objects from the bulletin into files: streamed, resumed, verified, never half believed.

An object under way is `spool/<digest>.part`, always a prefix of the whole: the store reads ahead as
it does best but hands over in order, so that a restart goes on where the last one stopped.  What
has its final name had the promised size and digest.  Only FetchError, Stopped and DiskError escape,
or another OSError of this host's disk.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from skerry.bulletin.errors import StoreError
from skerry.bulletin.records import FileRef, ObjectRef
from skerry.bulletin.store import ObjectStore
from skerry.island_agent.errors import ObjectCorrupt, ObjectUnavailable, SpoolFull, Stopped
from skerry.island_agent.files import digest_file, remove, rename
from skerry.island_agent.room import writing

logger = logging.getLogger(__name__)

_MOST_DOUBLINGS = 64  # of a pause: more would not fit into a float
_DIGEST_ATTEMPTS = 2  # a part kept from an earlier run may be damaged; a second whole read is not


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchConfig:
    """How to read from the store: so many `attempts` in a row that bring nothing, with pauses that
    double from `backoff_s` on.

    `parallel` objects are read at one time, each in as much memory as one stream of the store has.
    """

    parallel: int = 4
    attempts: int = 6
    backoff_s: float = 0.2
    backoff_limit_s: float = 10.0
    spool_bytes: int = 256 * 1024**3

    def __post_init__(self) -> None:
        if min(self.parallel, self.attempts, self.spool_bytes) < 1:
            raise ValueError("parallel, attempts and spool_bytes are at least 1")
        if min(self.backoff_s, self.backoff_limit_s) < 0:
            raise ValueError("backoff_s and backoff_limit_s are not negative")


@dataclass(slots=True)
class FetchProgress:
    """What a fetcher did so far; read by the status page while it works."""

    bytes_read: int = 0
    bytes_resumed: int = 0
    retries: int = 0
    job_bytes: int = 0  # read or found on disk since the last `begin`


class Fetcher:
    """Reads objects of one store into one spool directory."""

    def __init__(
        self,
        store: ObjectStore,
        spool: Path,
        config: FetchConfig | None = None,
        *,
        stop: threading.Event | None = None,
        random: Random | None = None,
        on_bytes: Callable[[int], None] | None = None,
    ) -> None:
        """`stop` ends waiting and reading; `on_bytes` is told `job_bytes` whenever it grew."""
        self.progress = FetchProgress()
        self._store = store
        self._spool = spool
        self._config = config or FetchConfig()
        self._stop = stop or threading.Event()
        self._random = random or Random()
        self._on_bytes = on_bytes
        self._lock = threading.Lock()

    @property
    def parallel(self) -> int:
        """How many reads go on at one time."""
        return self._config.parallel

    def begin(self) -> None:
        """Start counting the bytes of a new job."""
        self.progress.job_bytes = 0

    def fetch(self, ref: ObjectRef) -> Path:
        """Return the verified object's path in the spool, downloading what is missing."""
        path = self._spool / ref.digest
        self.fetch_to(ref, path)
        return path

    def fetch_all(self, refs: Iterable[ObjectRef]) -> None:
        """Have every object in the spool; small ones are read side by side."""
        distinct = {ref.digest: ref for ref in refs}
        with threads(self._config.parallel) as pool:
            for future in [pool.submit(self.fetch, ref) for ref in distinct.values()]:
                future.result()

    def fetch_to(self, ref: ObjectRef, path: Path) -> None:
        """Make `path`, on the spool's file system, be the object; downloads what is missing."""
        if holds(path, ref):
            self._count(ref.size, resumed=True)
            return
        remove(path)  # another object of that name: it takes the room that this one needs
        part = self._spool / f"{ref.digest}.part"
        for attempt in range(1, _DIGEST_ATTEMPTS + 1):
            self._complete(ref, part)
            found = digest_file(part)
            if found.digest() == ref.digest:
                path.parent.mkdir(parents=True, exist_ok=True)
                rename(part, path)
                return
            part.unlink()
            logger.warning(
                "object differs key=%s expected=%s found=%s attempt=%d",
                ref.key, ref.digest, found.digest(), attempt,
            )  # fmt: skip
        raise ObjectCorrupt(ref.key, f"expected digest {ref.digest}, found {found.digest()}")

    def pieces(self, key: str, start: int, stop: int) -> Iterator[bytes]:
        """Yield bytes [start, stop) of an object in order, unverified: for who can check parts.

        Raises ObjectUnavailable or Stopped.
        """
        position, fruitless = start, 0
        while position < stop:
            if fruitless:
                self._pause(fruitless)
            self.check_stop()
            began = position
            problem: Exception | str = ""
            stream = self._store.stream(key, position, stop)
            while position < stop and not problem:
                try:
                    piece = next(stream, b"")
                except (StoreError, OSError) as error:
                    problem = error
                    break
                if 0 < len(piece) <= stop - position:
                    self._count(len(piece), resumed=False)
                    position += len(piece)
                    yield piece
                    self.check_stop()
                else:
                    found = position + len(piece) - began
                    problem = f"expected {stop - began} bytes, found {found}"
            if problem:
                fruitless = 1 if position > began else fruitless + 1
                if fruitless >= self._config.attempts:
                    rule = f"from byte {position} on, {self._config.attempts} attempts: {problem}"
                    raise ObjectUnavailable(key, rule)

    def reserve(self, refs: Iterable[ObjectRef], *, keep: Iterable[ObjectRef] = ()) -> None:
        """Make room in the spool for `refs`: whatever is neither of them nor of `keep` is removed.

        Raises SpoolFull if they exceed the limit together.
        """
        wanted = {ref.digest: ref for ref in refs}
        needed = sum(ref.size for ref in wanted.values())
        if wanted:
            self.check_room(max(wanted.values(), key=lambda ref: ref.size).key, needed)
        kept = wanted.keys() | {ref.digest for ref in keep}
        for path in self._spool.iterdir():
            if path.name.removesuffix(".part") not in kept:
                path.unlink()

    def check_room(self, key: str, nbytes: int) -> None:
        """Raises SpoolFull if so many bytes are more than may lie in the spool."""
        if nbytes > self._config.spool_bytes:
            limit = self._config.spool_bytes
            raise SpoolFull(key, f"{nbytes} bytes to spool, the limit is {limit}")

    def release(self) -> None:
        """Empty the spool: what was fetched is installed."""
        for path in self._spool.iterdir():
            path.unlink()

    def check_stop(self) -> None:
        """Raises Stopped once a shutdown was asked for."""
        if self._stop.is_set():
            raise Stopped("a shutdown was asked for")

    def missing(self, refs: Iterable[ObjectRef]) -> int:
        """Return how many bytes of `refs` are not in the spool, by size alone."""
        distinct = {ref.digest: ref for ref in refs}
        return sum(ref.size - self._spooled(ref) for ref in distinct.values())

    def _spooled(self, ref: ObjectRef) -> int:
        for name in (ref.digest, f"{ref.digest}.part"):
            with suppress(FileNotFoundError):
                return min((self._spool / name).stat().st_size, ref.size)
        return 0

    def _complete(self, ref: ObjectRef, part: Path) -> None:
        with writing(self._spool, ref.key, ref.size - self._spooled(ref)), part.open("ab") as file:
            start = file.tell()
            if start > ref.size:
                file.truncate(0)
                start = 0
            self._count(start, resumed=True)
            for piece in self.pieces(ref.key, start, ref.size):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())

    def _count(self, size: int, *, resumed: bool) -> None:
        with self._lock:
            if resumed:
                self.progress.bytes_resumed += size
            else:
                self.progress.bytes_read += size
            self.progress.job_bytes += size
            if self._on_bytes is not None:
                self._on_bytes(self.progress.job_bytes)

    def _pause(self, attempt: int) -> None:
        with self._lock:
            self.progress.retries += 1
            share = self._random.uniform(0.5, 1.0)
        doubled = self._config.backoff_s * 2.0 ** min(attempt - 1, _MOST_DOUBLINGS)
        delay_s = min(self._config.backoff_limit_s, doubled)
        self._stop.wait(delay_s * share)


def holds(path: Path, ref: ObjectRef | FileRef) -> bool:
    """Say whether the file at `path` is the object, by size and digest."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size != ref.size:
        return False
    return digest_file(path).digest() == ref.digest


@contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Run reads side by side; one that fails ends those that have not begun."""
    pool = ThreadPoolExecutor(count, thread_name_prefix="skerry-fetch")
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
