"""How long to go on trying: delays that double up to a cap, until a limit has passed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """A limit in seconds, and the clock and the sleep that it is measured with."""

    limit_s: float
    first_delay_s: float = 0.02
    longest_delay_s: float = 1.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        if self.limit_s < 0 or not 0 < self.first_delay_s <= self.longest_delay_s:
            raise ValueError(f"expected a limit and growing delays, found {self}")

    def attempts(self) -> Iterator[int]:
        """Yield 0 at once, then 1, 2, … after growing delays, the last one at the limit."""
        deadline = self.clock() + self.limit_s
        delay_s = self.first_delay_s
        attempt = 0
        while True:
            yield attempt
            left_s = deadline - self.clock()
            if left_s <= 0:
                return
            self.sleep(min(delay_s, left_s))
            delay_s = min(2 * delay_s, self.longest_delay_s)
            attempt += 1
