"""How far a relay is relied on, and what all relays before one bulletin know of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayTrust:
    """How far a relay is relied on.

    Its word that a record is not there yet holds for `log_s` seconds in a row; then the bulletin
    itself is asked once.  An object that it says is on its way is waited for, and an answer may
    take: `patience_s`, and a second more for every `slowest_bytes_s` bytes.  It is left alone for
    `pause_s` when it gave no answer or was found to be behind, for `bench_s` when it gave wrong
    bytes or took longer than that.
    """

    log_s: float = 60.0
    patience_s: float = 60.0
    slowest_bytes_s: float = 1e6
    pause_s: float = 5.0
    bench_s: float = 300.0

    def __post_init__(self) -> None:
        if min(self.log_s, self.patience_s, self.pause_s, self.bench_s) < 0:
            raise ValueError("log_s, patience_s, pause_s and bench_s are not negative")
        if self.slowest_bytes_s <= 0:
            raise ValueError(f"slowest_bytes_s is positive, found {self.slowest_bytes_s}")

    def allowed_s(self, nbytes: int) -> float:
        """Return how long so many bytes may take."""
        return self.patience_s + nbytes / self.slowest_bytes_s


@dataclass(slots=True)
class SharedLook:
    """What all relays before one bulletin know of it; guarded by `lock`."""

    looked_at: float  # when it was last asked how far the log goes
    lock: Lock = field(default_factory=Lock)
    first: bytes | None = None  # slot 0 by a relay's word, while the bulletin did not answer
    found: bytes | None = None  # what is there in truth, if that is another one
