"""A relay: one agent of an island reads from far away, its neighbours read from it.

Laws: of everything that neighbours ask for at the same time one copy is read from upstream, and
the relay's own agent is one of them; nothing is handed on or kept that does not have the digest in
its key, or, for the files of a full version, the one in a record that the agent has verified.

What a relay cannot have (no room, upstream down) it refuses, and a neighbour reads past it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from skerry.bulletin import checkpoint, keys
from skerry.bulletin.errors import BulletinError, NotFound, Tampered
from skerry.bulletin.hint import HINT_LIMIT_BYTES
from skerry.bulletin.reader import LAYOUT_LIMIT_BYTES, STORED_MANIFEST_LIMIT_BYTES
from skerry.bulletin.records import ObjectRef, Record
from skerry.bulletin.signing import PublicKey
from skerry.bulletin.state import LogState
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores.metered import Metered
from skerry.codec.digest import Digest, digest_bytes
from skerry.island_agent.errors import NoRoom, ObjectUnavailable
from skerry.island_agent.fetch import FetchConfig, Fetcher
from skerry.island_agent.flights import Flights
from skerry.island_agent.relay_cache import Kept, RelayCache
from skerry.island_agent.relay_config import RelayConfig
from skerry.island_agent.relay_log import LogSlots
from skerry.island_agent.relay_refs import References

logger = logging.getLogger(__name__)

_READERS = 4  # of this host's disk
_QUICK = 16  # records and hints that are read from upstream at one time
_COST_LIMIT_BYTES = 1 << 20
_SMALL = {
    keys.LAYOUT_PREFIX: LAYOUT_LIMIT_BYTES,
    keys.MANIFEST_PREFIX: STORED_MANIFEST_LIMIT_BYTES,
}


class Relay:
    """Safe to use from several threads.  `open` is quick, everything else may block.

    `news` is called, from any thread, when somebody knows of a record that the agent does not.
    """

    def __init__(
        self,
        upstream: ObjectStore,
        directory: Path,
        config: RelayConfig | None = None,
        *,
        pinned_key: PublicKey | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config or RelayConfig()
        self.upstream = Metered(upstream)
        self.news: Callable[[], None] = _nothing
        self.cache = RelayCache(
            directory,
            limit_bytes=self.config.cache_bytes,
            spare_bytes=self.config.spare_bytes,
        )
        self.slots = LogSlots(
            self.upstream,
            self.cache,
            fresh_s=self.config.fresh_s,
            most_waiters=self.config.most_waiters,
            on_news=lambda: self.news(),
            clock=clock,
        )
        self.usage = RelayUsage()
        self._pinned_key = pinned_key
        self._clock = clock
        self._stop = threading.Event()
        fetching = FetchConfig(parallel=self.config.parallel, attempts=3)
        self._fetcher = Fetcher(self.upstream, self.cache.incoming, fetching, stop=self._stop)
        self._flights: Flights[None] = Flights()
        self._passing: Flights[bytes | None] = Flights()
        self._bulk = ThreadPoolExecutor(self.config.parallel, thread_name_prefix="skerry-relay")
        self.readers = ThreadPoolExecutor(_READERS, thread_name_prefix="skerry-relay-disk")
        self._quick = ThreadPoolExecutor(_QUICK, thread_name_prefix="skerry-relay-log")
        self._lock = threading.Lock()
        self._refs = References()
        self._hints: dict[str, tuple[float, bytes | None]] = {}

    @property
    def joined(self) -> int:
        """How many requests waited for what another one was fetching."""
        return self._flights.joined + self.slots.flights.joined + self._passing.joined

    def learned(self, state: LogState, records: Iterable[Record]) -> None:
        """Take over what the relay's own agent has verified."""
        self._refs.learned(state)
        self.slots.learned(state, records)

    def named(self, key: str) -> Digest:
        """Return the digest that the object must have.  Raises Unreferenced."""
        digest = keys.named_digest(key)
        return self._refs.file(key).digest if digest is None else digest

    def open(self, key: str) -> Kept | None:
        """Return the object if it is here and verified.  Raises Unreferenced."""
        return self.cache.open(self.named(key))

    def holds(self, key: str) -> bool:
        """Say whether `open` would return the object.  Raises Unreferenced."""
        return self.cache.holds(self.named(key))

    def part(self, key: str) -> Path:
        """Return where the object lies while it is being read.  Raises Unreferenced."""
        return self.cache.part(self.named(key))

    def fetch(self, key: str) -> None:
        """Have the object here, verified.

        Raises Unreferenced, NotFound, NoRoom, FetchError, Tampered, StoreError or Stopped.
        """
        digest = self.named(key)
        self._flights.run(digest, lambda: self._fetch(key, digest))

    def begin(self, key: str) -> Future[None]:
        """Do the same in a thread of the relay; do not cancel it."""
        digest = self.named(key)
        return self._flights.start(digest, lambda: self._fetch(key, digest), self._bulk)

    def begin_record(self, seq: int) -> Future[bytes | None]:
        """Read a slot of the log in a thread of the relay; do not cancel it."""
        return self.slots.begin(seq, self._quick)

    def passing(self, key: str) -> bytes | None:
        """Return a hint, remembered for `fresh_s`, or a checkpoint that the run's key has signed.

        Raises StoreError.
        """
        return self._passing.run(key, lambda: self._pass(key))

    def begin_passing(self, key: str) -> Future[bytes | None]:
        """Do the same in a thread of the relay; do not cancel it."""
        return self._passing.start(key, lambda: self._pass(key), self._quick)

    def stop(self) -> None:
        """End what is under way: whoever waits is refused."""
        self._stop.set()
        self.slots.close()

    def close(self) -> None:
        """Stop, and wait for the relay's threads."""
        self.stop()
        for pool in (self._bulk, self._quick, self.readers):
            pool.shutdown()

    def to_json(self) -> Mapping[str, int]:
        """Return a JSON-ready snapshot, at once."""
        traffic, usage = self.upstream.usage(), self.usage
        return {
            "upstream_bytes": traffic.bytes_down,
            "upstream_requests": sum(traffic.requests.values()),
            "served_bytes": usage.served_bytes,
            "hits": usage.hits,
            "misses": usage.misses,
            "coalesced": self.joined,
            "refused": usage.refused,
            "waiting": self.slots.waiting,
            "cache_bytes": self.cache.nbytes,
            "head": self.slots.head,
        }

    def _fetch(self, key: str, digest: Digest) -> None:
        if self.cache.verify(digest):
            return
        try:
            limit = _SMALL.get(key.partition("/")[0] + "/")
            if limit is None:
                self._fetch_large(key, digest)
            else:
                self._fetch_small(key, digest, limit)
        except NoRoom as error:
            logger.warning("relay refuses key=%s error=%s", key, error)
            raise

    def _fetch_large(self, key: str, digest: Digest) -> None:
        if key.startswith(keys.FULL_PREFIX):
            ref = self._refs.file(key)
        else:
            size = self._refs.size(key) or self.upstream.size(key)
            ref = ObjectRef(key=key, size=size, digest=digest)
        with self.cache.room(digest, ref.size) as path:
            try:
                self._fetcher.fetch_to(ref, path)
            except ObjectUnavailable:
                self.upstream.size(key)  # raises NotFound for one that has been collected
                raise

    def _fetch_small(self, key: str, digest: Digest, limit_bytes: int) -> None:
        data = self.upstream.get(key, limit_bytes=limit_bytes)
        if digest_bytes(data) != digest:
            raise Tampered(key, expected=digest, found=digest_bytes(data))
        with self.cache.room(digest, len(data)) as path:
            path.write_bytes(data)

    def _pass(self, key: str) -> bytes | None:
        if not key.startswith(keys.CHECKPOINT_PREFIX):
            return self._hint(key)
        seq = keys.parse_checkpoint(key)
        first = self.slots.get(0)  # of this run, and so is then what is kept
        kept = self.cache.kept(_checkpoint(seq))
        return self._checkpoint(key, seq, first or b"") if kept is None else kept

    def _hint(self, key: str) -> bytes | None:
        with self._lock:
            asked_at, data = self._hints.get(key, (-self.config.fresh_s, None))
        if self._clock() - asked_at < self.config.fresh_s:
            return data
        limit = HINT_LIMIT_BYTES if key == keys.HINT else _COST_LIMIT_BYTES
        try:
            data = self.upstream.get(key, limit_bytes=limit)
        except NotFound:
            data = None
        with self._lock:
            self._hints[key] = self._clock(), data
        return data

    def _checkpoint(self, key: str, seq: int, first: bytes) -> bytes | None:
        """Return a checkpoint if it is sound, and keep it: its slot never gets another one."""
        try:
            data = self.upstream.get(key, limit_bytes=checkpoint.CHECKPOINT_LIMIT_BYTES)
        except NotFound:
            return None
        try:
            begun = LogState(pinned_key=self._pinned_key).apply(first)
            checkpoint.read(data, begun, seq=seq)
        except BulletinError as error:
            logger.warning("%s is not handed on: %s", key, error)
            return None
        with suppress(NoRoom, OSError):
            self.cache.keep(_checkpoint(seq), data)
        return data


def _checkpoint(seq: int) -> str:
    return f"checkpoint-{seq:020d}"


def _nothing() -> None:
    """Nobody listens."""


@dataclass(slots=True, kw_only=True)
class RelayUsage:
    """What neighbours were given.  Written by the event loop alone."""

    hits: int = 0
    misses: int = 0
    refused: int = 0
    served_bytes: int = 0
