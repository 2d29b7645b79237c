"""How an island behaves: checked once, units in names."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from skerry.bulletin import keys
from skerry.island_agent.fetch import FetchConfig
from skerry.island_agent.plan import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """One agent.

    The log is looked at every `poll_s`, up to `idle_poll_s` while nothing comes and no request
    waits for a version, and up to `watched_poll_s` while a relay tells of new records.  A nudge
    brings the next look forward, to `nudge_s` after the last one at the soonest.  A failed pass is
    tried again after `retry_s`, up to `retry_limit_s`, doubling.  `drain_s` bounds how long an
    engine waits for requests that do not accept the new version (None: for ever).
    `verify_engines` hashes an engine's weights before its new version is advertised: it lengthens
    the pause by one hash.  `audit_engines` hashes them right after instead, while it serves, and
    takes an engine that holds other weights out of service.  `threads` decode patches, None: one
    for each usable CPU.

    With `announce` the status is left in the bulletin when it has changed, at most every
    `announce_s`, and every `heartbeat_s`; what is being read is leased for three of these.
    """

    directory: Path
    island: str = "island"
    target: Target = field(default_factory=Target)
    poll_s: float = 0.5
    idle_poll_s: float = 8.0
    watched_poll_s: float = 60.0
    nudge_s: float = 0.5
    retry_s: float = 0.5
    retry_limit_s: float = 60.0
    drain_s: float | None = None
    verify_on_open: bool = True
    verify_engines: bool = False
    audit_engines: bool = False
    threads: int | None = None
    announce: bool = True
    announce_s: float = 1.0
    heartbeat_s: float = 30.0
    history: int = 32
    fetch: FetchConfig = field(default_factory=FetchConfig)

    def __post_init__(self) -> None:
        keys.island(self.island)
        if not 0 < self.poll_s <= self.idle_poll_s:
            raise ValueError(f"0 < poll_s <= idle_poll_s, found {self.poll_s}, {self.idle_poll_s}")
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
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads is at least 1, found {self.threads}")
        if not 0 < self.announce_s <= self.heartbeat_s:
            raise ValueError(
                f"0 < announce_s <= heartbeat_s, found {self.announce_s}, {self.heartbeat_s}"
            )
        if self.history < 1:
            raise ValueError(f"history is at least 1, found {self.history}")
