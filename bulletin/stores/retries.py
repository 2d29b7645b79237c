"""When to try again, and how often: decisions about time that all requests to one store share.

Law: in any T seconds no more than `capacity + per_s * T + per_success * successes` retries are
made, whatever the number of threads: a store that answers everything with 503 is not hit harder
for it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from threading import Lock
from typing import TypeVar

from skerry.bulletin.errors import Unanswered

T = TypeVar("T")


class RetryBudget:
    """A bucket of retries that time and successes fill.  Safe to use from several threads."""

    def __init__(
        self,
        *,
        capacity: float = 20.0,
        per_s: float = 2.0,
        per_success: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if capacity < 1 or per_s <= 0 or per_success < 0:
            raise ValueError("expected capacity >= 1, per_s > 0 and per_success >= 0")
        self.spent = 0  # retries so far
        self._capacity = capacity
        self._per_s = per_s
        self._per_success = per_success
        self._clock = clock
        self._left = capacity
        self._filled_at = clock()
        self._lock = Lock()

    def claim(self, *, within_s: float) -> float | None:
        """Take one retry; return the seconds until it is due, None when that is too late."""
        with self._lock:
            now = self._clock()
            self._add((now - self._filled_at) * self._per_s)
            self._filled_at = now
            wait_s = max(0.0, (1.0 - self._left) / self._per_s)
            if wait_s > within_s:
                return None
            self._left -= 1.0  # below zero it is owed: whoever comes next waits longer
            self.spent += 1
            return wait_s

    def succeeded(self) -> None:
        """A request was answered: the store is not down altogether."""
        with self._lock:
            self._add(self._per_success)

    def _add(self, amount: float) -> None:
        self._left = min(self._capacity, self._left + amount)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryConfig:
    """How long one operation is tried: reads, writes, and the pauses between attempts.

    Progress starts `read_s` anew; a read is tried for `longest_read_s` whatever its progress (None:
    without end).
    """

    read_s: float = 30.0
    longest_read_s: float | None = None
    write_s: float = 60.0
    first_delay_s: float = 0.1
    longest_delay_s: float = 5.0
    longest_retry_after_s: float = 20.0  # what a store may ask for at most

    def __post_init__(self) -> None:
        if min(self.read_s, self.write_s, self.longest_retry_after_s) < 0:
            raise ValueError("read_s, write_s and longest_retry_after_s are not negative")
        if not 0 < self.first_delay_s <= self.longest_delay_s:
            raise ValueError("expected 0 < first_delay_s <= longest_delay_s")


class Retries:
    """The budget and the clock of one store, and the operations that are tried again with them."""

    def __init__(
        self,
        config: RetryConfig | None = None,
        *,
        budget: RetryBudget | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        random: Random | None = None,
    ) -> None:
        self.config = config or RetryConfig()
        self.budget = budget or RetryBudget(clock=clock)
        self.clock = clock
        self.sleep = sleep
        self.random = random or Random()

    def reading(self) -> Attempts:
        return Attempts(self, self.config.read_s, longest_s=self.config.longest_read_s)

    def writing(self) -> Attempts:
        return Attempts(self, self.config.write_s)


class Attempts:
    """The attempts of one operation, so many seconds from now or from the last progress."""

    def __init__(self, retries: Retries, limit_s: float, *, longest_s: float | None = None) -> None:
        self._retries = retries
        self._limit_s = limit_s
        self._end = math.inf if longest_s is None else retries.clock() + longest_s
        self.progressed()

    def progressed(self) -> None:
        """Something was achieved: patience and pauses start again."""
        self._deadline = min(self._retries.clock() + self._limit_s, self._end)
        self._delay_s = self._retries.config.first_delay_s

    def delay_after(self, error: Unanswered) -> float | None:
        """Return how long to wait before the next attempt, None when there is to be none."""
        config, random = self._retries.config, self._retries.random
        delay_s = self._delay_s * random.uniform(0.5, 1.0)
        self._delay_s = min(2 * self._delay_s, config.longest_delay_s)
        if error.retry_after_s is not None:
            delay_s += min(error.retry_after_s, config.longest_retry_after_s)
        left_s = self._deadline - self._retries.clock()
        if delay_s > left_s:
            return None
        due_s = self._retries.budget.claim(within_s=left_s)
        return None if due_s is None else max(delay_s, due_s)

    def run(self, operation: Callable[[], T], *, on: type[Unanswered] = Unanswered) -> T:
        """Return what `operation` returns, once it does; raises its last error after too long."""
        while True:
            try:
                result = operation()
            except on as error:
                delay_s = self.delay_after(error)
                if delay_s is None:
                    raise
                self._retries.sleep(delay_s)
            else:
                self._retries.budget.succeeded()
                return result
