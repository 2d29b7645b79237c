"""How often the store is asked: often while somebody looks, rarely while nobody does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds between looks.

    A look at the log is one request when nothing is new; one at the islands is a list and a request
    for each of them.  Somebody counts as looking for `attention_s` after a request.
    """

    log_watched_s: float = 2.0
    log_idle_s: float = 60.0
    islands_watched_s: float = 10.0
    islands_idle_s: float = 300.0
    attention_s: float = 60.0
    longest_failing_s: float = 60.0

    def __post_init__(self) -> None:
        if min(self.log_watched_s, self.islands_watched_s, self.attention_s) <= 0:
            raise ValueError("seconds between looks are above 0")
        if self.log_idle_s < self.log_watched_s or self.islands_idle_s < self.islands_watched_s:
            raise ValueError("looks are no rarer while somebody looks")

    def log_s(self, *, idle: bool) -> float:
        return self.log_idle_s if idle else self.log_watched_s

    def islands_s(self, *, idle: bool) -> float:
        return self.islands_idle_s if idle else self.islands_watched_s

    def after_failures_s(self, failures: int) -> float:
        """Return how long to wait after so many failures in a row."""
        doubled = self.log_watched_s * 2.0 ** min(failures - 1, 30)
        return min(self.longest_failing_s, doubled)
