"""A relay: one agent of an island reads from far away, its neighbours read from it.

Laws: of everything that neighbours ask for at the same time one copy is read from upstream, and
the relay's own agent is one of them, but never waits in their queue; what no record names holds up
nothing that one does; nothing is handed on or kept that does not have the digest in
its key, or, for the files of a full version, the one in a record that the agent has verified.

What a relay cannot have (no room, upstream down) it refuses, and a neighbour reads past it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from skerry.bulletin import keys
from skerry.bulletin.errors import NotFound, Tampered
from skerry.bulletin.reader import LAYOUT_LIMIT_BYTES, STORED_MANIFEST_LIMIT_BYTES
from skerry.bulletin.records import ObjectRef, Record
from skerry.bulletin.signing import PublicKey
from skerry.bulletin.state import LogState
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores.metered import Metered
from skerry.codec.digest import Digest, digest_bytes
from skerry.island_agent.errors import NoRoom, ObjectUnavailable, Stopped
from skerry.island_agent.fetch import FetchConfig, Fetcher
from skerry.island_agent.flights import Flights, Lane
from skerry.island_agent.recent import Recent
from skerry.island_agent.relay_cache import Kept, RelayCache
from skerry.island_agent.relay_config import RelayConfig
from skerry.island_agent.relay_log import LogSlots
from skerry.island_agent.relay_passing import Passing
from skerry.island_agent.relay_refs import References

logger = logging.getLogger(__name__)

_READERS = 4  # of this host's disk
_QUICK = 16  # records that are read from upstream at one time
_PASSING = 4  # and hints and checkpoints
_UNNAMED = 2  # and objects that no record is known to name
_ABSENT = 4096  # objects that were not there a moment ago
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
        self.passed = Passing(
            self.upstream,
            self.cache,
            self.slots,
            fresh_s=self.config.fresh_s,
            pinned_key=pinned_key,
            clock=clock,
        )
        self._stop = threading.Event()
        fetching = FetchConfig(parallel=self.config.parallel, attempts=3)
        self._fetcher = Fetcher(self.upstream, self.cache.incoming, fetching, stop=self._stop)
        self._flights: Flights[None] = Flights()
        self.readers = ThreadPoolExecutor(_READERS, thread_name_prefix="skerry-relay-disk")
        self._bulk = Lane(self.config.parallel, "skerry-relay")
        self._own = Lane(self.config.parallel, "skerry-relay-own", bounded=False)
        self._unnamed = Lane(_UNNAMED, "skerry-relay-unnamed")
        self._log = Lane(_QUICK, "skerry-relay-log")
        self._quick = Lane(_PASSING, "skerry-relay-passing")
        self._refs = References()
        self._absent: Recent[None] = Recent(fresh_s=self.config.fresh_s, most=_ABSENT, clock=clock)

    @property
    def joined(self) -> int:
        """How many requests waited for what another one was fetching."""
        return self._flights.joined + self.slots.flights.joined + self.passed.flights.joined

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
        """Do the same in a thread of the relay, for a neighbour; do not cancel it.

        The future may raise Crowded, too.  Raises Unreferenced, and NotFound for what was not there
        a moment ago.
        """
        digest = self.named(key)
        if self._absent.get(key) is not None:
            raise NotFound(key)
        if self._refs.names(key):
            return self._flights.start(digest, lambda: self._fetch(key, digest), self._bulk)
        return self._flights.start(key, lambda: self._probe(key, digest), self._unnamed)

    def begin_own(self, key: str) -> Future[None]:
        """Do the same for the relay's own agent, past the queue of neighbours."""
        digest = self.named(key)
        return self._flights.start(
            digest, lambda: self._fetch(key, digest), self._own, overtake=True
        )

    def begin_record(self, seq: int) -> Future[bytes | None]:
        """Read a slot of the log in a thread of the relay; do not cancel it."""
        return self.slots.begin(seq, self._log)

    def passing(self, key: str) -> bytes | None:
        """Return a hint, remembered for `fresh_s`, or a checkpoint that the run's key has signed.

        Raises StoreError.
        """
        return self.passed.get(key)

    def begin_passing(self, key: str) -> Future[bytes | None]:
        """Do the same in a thread of the relay; do not cancel it."""
        return self.passed.begin(key, self._quick)

    def stop(self) -> None:
        """End what is under way: whoever waits is refused."""
        self._stop.set()
        self.slots.close()

    def close(self) -> None:
        """Stop, and wait for the relay's threads."""
        self.stop()
        for lane in (self._bulk, self._own, self._unnamed, self._log, self._quick):
            lane.close()
        self.readers.shutdown()
        self.cache.close()

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

    def _probe(self, key: str, digest: Digest) -> None:
        """Fetch what no record names if it is there: its key may be one that nobody ever wrote."""
        if not self.cache.verify(digest):
            size = self._size(key)
            self._flights.run(digest, lambda: self._fetch(key, digest, size))

    def _size(self, key: str) -> int:
        if self._stop.is_set():
            raise Stopped("a shutdown was asked for")
        try:
            return self.upstream.size(key)
        except NotFound:
            self._absent.note(key, None)
            raise

    def _fetch(self, key: str, digest: Digest, size: int | None = None) -> None:
        if self.cache.verify(digest):
            return
        if self._stop.is_set():
            raise Stopped("a shutdown was asked for")
        try:
            limit = _SMALL.get(key.partition("/")[0] + "/")
            if limit is None:
                self._fetch_large(key, digest, size)
            else:
                self._fetch_small(key, digest, limit)
        except NoRoom as error:
            logger.warning("relay refuses key=%s error=%s", key, error)
            raise

    def _fetch_large(self, key: str, digest: Digest, size: int | None) -> None:
        if key.startswith(keys.FULL_PREFIX):
            ref = self._refs.file(key)
        else:
            size = self._refs.size(key) or size or self._size(key)
            ref = ObjectRef(key=key, size=size, digest=digest)
        with self.cache.room(digest, ref.size) as path:
            try:
                self._fetcher.fetch_to(ref, path)
            except ObjectUnavailable:
                self._size(key)  # raises NotFound for one that has been collected
                raise

    def _fetch_small(self, key: str, digest: Digest, limit_bytes: int) -> None:
        data = self.upstream.get(key, limit_bytes=limit_bytes)
        if digest_bytes(data) != digest:
            raise Tampered(key, expected=digest, found=digest_bytes(data))
        with self.cache.room(digest, len(data)) as path:
            path.write_bytes(data)


def _nothing() -> None:
    """Nobody listens."""


@dataclass(slots=True, kw_only=True)
class RelayUsage:
    """What neighbours were given.  Written by the event loop alone."""

    hits: int = 0
    misses: int = 0
    refused: int = 0
    served_bytes: int = 0
