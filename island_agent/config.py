"""How an island behaves: checked once, units in names."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from skerry.bulletin import keys
from skerry.codec.digest import LEAF_BYTES, digest_bytes
from skerry.island_agent.fetch import FetchConfig
from skerry.island_agent.plan import Target
from skerry.island_agent.selection import Selection
from skerry.publisher.threads import thread_count

_SHARED_MEMORY = Path("/dev/shm")  # a tmpfs on every Linux
_THREAD_BYTES = 3 * LEAF_BYTES  # a leaf's copy, what was found in it, and a leaf ahead
_STREAM_BYTES = 32 * 1024 * 1024  # of a store, for one object that is being read
LEAST_MEMORY_BYTES = _THREAD_BYTES + _STREAM_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """One agent.

    The log is looked at every `poll_s`, up to `idle_poll_s` while nothing comes, and up to
    `watched_poll_s` while a relay tells of new records; every `eager_s`, if that is less, while a
    request waits for a version.  A nudge brings the next look forward, to `nudge_s` after the last
    one at the soonest.  A failed pass is tried again after `retry_s`, up to `retry_limit_s`,
    doubling.  `drain_s` bounds how long an engine waits for requests that do not accept the new
    version (None: for ever); an install or load that takes an engine longer than `engine_limit_s`
    has failed (None: none does).  `verify_engines` hashes an engine's weights before its new
    version is advertised: it lengthens the pause by one hash.  `audit_engines` hashes them right
    after instead, while it serves, and takes an engine that holds other weights out of service.
    `threads` decode patches, None: one for each usable CPU.  `selection` mirrors a part of every
    version only; an engine's weights are then no version's, so they cannot be held against its
    digest.

    The scrub hashes the mirror at `scrub_bytes_per_s`, 0: not at all, and begins anew at most every
    `scrub_pass_s`.  With `in_memory` everything of the island lies in RAM, below `/dev/shm`, and
    `directory` only names it: see `root`.
    `memory_bytes` bounds what staging takes beside the changes of one tensor and side files, by
    fewer threads and fewer downloads at a time than were asked for; None: no bound.

    With `announce` the status is left in the bulletin when it has changed, at most every
    `announce_s`, and every `heartbeat_s`; what is being read is leased for three of these.
    """

    directory: Path
    island: str = "island"
    target: Target = field(default_factory=Target)
    poll_s: float = 0.5
    idle_poll_s: float = 8.0
    watched_poll_s: float = 60.0
    eager_s: float = 0.1
    nudge_s: float = 0.5
    retry_s: float = 0.5
    retry_limit_s: float = 60.0
    drain_s: float | None = None
    engine_limit_s: float | None = None
    selection: Selection | None = None
    verify_on_open: bool = True
    verify_engines: bool = False
    audit_engines: bool = False
    threads: int | None = None
    announce: bool = True
    announce_s: float = 1.0
    heartbeat_s: float = 30.0
    history: int = 32
    scrub_bytes_per_s: int = 32_000_000
    scrub_pass_s: float = 60.0
    in_memory: bool = False
    memory_bytes: int | None = None
    fetch: FetchConfig = field(default_factory=FetchConfig)

    def __post_init__(self) -> None:
        keys.island(self.island)
        if not 0 < self.poll_s <= self.idle_poll_s:
            raise ValueError(f"0 < poll_s <= idle_poll_s, found {self.poll_s}, {self.idle_poll_s}")
        if self.eager_s <= 0:
            raise ValueError(f"eager_s is above 0, found {self.eager_s}")
        if self.nudge_s < 0:
            raise ValueError(f"nudge_s is not negative, found {self.nudge_s}")
        if self.watched_poll_s < self.poll_s:
            raise ValueError(
                f"watched_poll_s is at least poll_s, found {self.watched_poll_s}, {self.poll_s}"
            )
        if not 0 < self.retry_s <= self.retry_limit_s:
            raise ValueError(
                f"0 < retry_s <= retry_limit_s, found {self.retry_s}, {self.retry_limit_s}"
            )
        if self.drain_s is not None and self.drain_s < 0:
            raise ValueError(f"drain_s is not negative, found {self.drain_s}")
        if self.engine_limit_s is not None and self.engine_limit_s <= 0:
            raise ValueError(f"engine_limit_s is above 0, found {self.engine_limit_s}")
        if self.selection is not None and (self.verify_engines or self.audit_engines):
            raise ValueError(
                "audit_engine needs whole versions: it does not go with tensors and shard"
            )
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads is at least 1, found {self.threads}")
        for name in ("scrub_bytes_per_s", "scrub_pass_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is not negative, found {getattr(self, name)}")
        if self.memory_bytes is not None and self.memory_bytes < LEAST_MEMORY_BYTES:
            raise ValueError(
                f"memory_bytes is at least {LEAST_MEMORY_BYTES}, found {self.memory_bytes}"
            )
        if not 0 < self.announce_s <= self.heartbeat_s:
            raise ValueError(
                f"0 < announce_s <= heartbeat_s, found {self.announce_s}, {self.heartbeat_s}"
            )
        if self.history < 1:
            raise ValueError(f"history is at least 1, found {self.history}")

    @property
    def root(self) -> Path:
        """The directory that everything of the island lies in."""
        if not self.in_memory:
            return self.directory
        place = digest_bytes(os.fsencode(self.directory.absolute()))[:16]
        return _SHARED_MEMORY / f"skerry-{os.geteuid()}-{place}"

    def fitted(self) -> tuple[int, FetchConfig]:
        """Return how many threads decode and how to fetch, within `memory_bytes`."""
        threads = thread_count(self.threads)
        if self.memory_bytes is None:
            return threads, self.fetch
        # The two never run at the same time.
        threads = max(1, min(threads, self.memory_bytes // _THREAD_BYTES))
        parallel = max(1, min(self.fetch.parallel, self.memory_bytes // _STREAM_BYTES))
        return threads, replace(self.fetch, parallel=parallel)
