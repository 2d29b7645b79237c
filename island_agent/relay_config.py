"""What a relay keeps and endures: checked once, units in names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayConfig:
    """One relay.

    At most `cache_bytes` on disk, of which `spare_bytes` stay free, and `parallel` objects read
    from upstream at one time.  A request waits up to `hold_s` for an object that is on its way,
    then it is told to come back.  `fresh_s` is how long "not there yet" is remembered;
    `most_wait_s` and `most_waiters` bound who waits for the next record.  At most `streams` bodies
    are sent at one time; one of which nothing is taken for `stall_s` ends.
    """

    cache_bytes: int = 64 * 1024**3
    spare_bytes: int = 1024**3
    parallel: int = 4
    hold_s: float = 5.0
    fresh_s: float = 1.0
    most_wait_s: float = 30.0
    most_waiters: int = 1024
    streams: int = 256
    stall_s: float = 30.0

    def __post_init__(self) -> None:
        if min(self.cache_bytes, self.parallel, self.streams) < 1:
            raise ValueError("cache_bytes, parallel and streams are at least 1")
        if min(self.spare_bytes, self.most_waiters) < 0:
            raise ValueError("spare_bytes and most_waiters are not negative")
        if not 0 <= self.fresh_s <= 1:
            raise ValueError(f"fresh_s is at most a second, found {self.fresh_s}")
        if min(self.hold_s, self.most_wait_s, self.stall_s) <= 0:
            raise ValueError("hold_s, most_wait_s and stall_s are positive")
