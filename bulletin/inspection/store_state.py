"""How the store has been answering, as it can be told at any moment, also while it does not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from skerry.bulletin.inspection.problems import Problem

SLOW_S = 5.0

Answering = Literal["opening", "empty", "ok", "slow", "failing", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """How it stands.

    `opening`: the log is being read for the first time, `records_read` of `records_known`, as far
    as the hint tells; `empty`: there is no log; `slow`: a look has been waiting for `pending_s`;
    `failing`: the last look failed; `refused`: the log breaks a rule, and what is shown is what was
    good before that.  `answered_ms` is when a look last succeeded.
    """

    state: Answering
    problem: Problem | None
    pending_s: float | None
    answered_ms: int | None
    records_read: int
    records_known: int


class StoreState:
    """Written by the thread that asks the store, read by any other."""

    def __init__(self, *, clock: Callable[[], float], now: Callable[[], int]) -> None:
        self._clock = clock
        self._now = now
        self._lock = threading.Lock()
        self._since: float | None = None
        self._problem: Problem | None = None
        self._state: Answering = "opening"
        self._answered_ms: int | None = None
        self._read = self._known = 0

    @contextmanager
    def asking(self) -> Iterator[None]:
        with self._lock:
            self._since = self._clock()
        try:
            yield
        finally:
            with self._lock:
                self._since = None

    def progress(self, records: int, nbytes: int, known: int) -> None:
        """Something has come: what is pending is pending since now."""
        with self._lock:
            self._read, self._known = records, max(records, known + 1)
            self._since = self._clock()

    def answered(self, *, empty: bool) -> None:
        with self._lock:
            self._state, self._problem = ("empty" if empty else "ok"), None
            self._answered_ms = self._now()

    def failed(self, problem: Problem, *, trouble: bool) -> None:
        """`trouble`: the store is at fault; else the log is."""
        with self._lock:
            self._state, self._problem = ("failing" if trouble else "refused"), problem

    def report(self) -> StoreReport:
        with self._lock:
            pending_s = None if self._since is None else max(0.0, self._clock() - self._since)
            state = self._state
            if state in ("ok", "empty", "opening") and pending_s is not None:
                state = "slow" if pending_s >= SLOW_S else state
            return StoreReport(
                state=state,
                problem=self._problem,
                pending_s=pending_s,
                answered_ms=self._answered_ms,
                records_read=self._read,
                records_known=self._known,
            )
