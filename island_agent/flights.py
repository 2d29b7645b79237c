"""Of calls that ask for one thing at one time, one does the work and all get what it brought."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class Flights(Generic[T]):
    """Safe to use from several threads; `joined` counts the calls that did no work."""

    def __init__(self) -> None:
        self.joined = 0
        self._lock = Lock()
        self._under_way: dict[str, Future[T]] = {}

    def run(self, name: str, work: Callable[[], T]) -> T:
        """Return what `work` brings, or what the call under way for `name` does.  Raises likewise.

        The work is done in the calling thread.
        """
        flight, leads = self._join(name)
        if leads:
            self._fly(name, flight, work)
        return flight.result()

    def start(self, name: str, work: Callable[[], T], pool: Executor) -> Future[T]:
        """Begin the same in a thread of `pool`.  Others wait for it too, so do not cancel it."""
        flight, leads = self._join(name)
        if leads:
            try:
                pool.submit(self._fly, name, flight, work)
            except RuntimeError as error:  # the pool is shut down
                self._land(name)
                flight.set_exception(error)
        return flight

    def _join(self, name: str) -> tuple[Future[T], bool]:
        with self._lock:
            flight = self._under_way.get(name)
            if flight is not None:
                self.joined += 1
                return flight, False
            flight = self._under_way[name] = Future()
            return flight, True

    def _fly(self, name: str, flight: Future[T], work: Callable[[], T]) -> None:
        try:
            result = work()
        except BaseException as error:  # it is every caller's
            self._land(name)
            flight.set_exception(error)
        else:
            self._land(name)
            flight.set_result(result)

    def _land(self, name: str) -> None:
        with self._lock:
            del self._under_way[name]
