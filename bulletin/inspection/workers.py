"""A few threads for calls to a store that may never answer, and a limit to what waits for them.

The threads are daemons: a process that ends does not wait for a store.  A call that is given up on
keeps its thread until it returns, so a dead store takes all of them, and no more than that.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class Busy(Exception):
    """All threads are taken, and enough calls wait for one already."""


class Workers:
    """`threads` calls run at a time, `waiting` more may wait for their turn."""

    def __init__(self, name: str, *, threads: int, waiting: int) -> None:
        self._name = name
        self._most = threads
        self._waiting = waiting
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0  # threads
        self._unfinished = 0  # calls that wait or run

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run `call` as soon as a thread is free.  Raises Busy."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                self._end()
                return
            try:
                result = call()
            except BaseException as error:  # whoever waits for the future gets it
                self._end()
                future.set_exception(error)
            else:
                self._end()
                future.set_result(result)

        with self._lock:
            if self._unfinished == self._most + self._waiting:
                raise Busy(f"{self._most} calls run and {self._waiting} wait")
            if self._started < min(self._unfinished + 1, self._most):
                name = f"{self._name}-{self._started + 1}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
                self._started += 1
            self._unfinished += 1
        self._calls.put(run)
        return future

    async def run(self, call: Callable[[], T], *, limit_s: float) -> T:
        """Wait for `call`, at most `limit_s`.  Raises Busy and TimeoutError."""
        return await asyncio.wait_for(asyncio.wrap_future(self.submit(call)), limit_s)

    def _end(self) -> None:
        """One call less; before its future says so, for whoever asks again at once."""
        with self._lock:
            self._unfinished -= 1

    def _serve(self) -> None:
        while True:
            self._calls.get()()
