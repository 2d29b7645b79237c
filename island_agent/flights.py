"""Of calls that ask for one thing at one time, one does the work and all get what it brought.

Law: who runs in a thread of its own never waits for a flight that waits for a thread: it takes it
over.  So nobody's queue holds up another one, and no flight waits for one behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock, Semaphore
from typing import Generic, TypeVar

from skerry.island_agent.errors import Crowded, Stopped

T = TypeVar("T")

_QUEUE = 4  # for each thread


class Lane:
    """Threads, and a queue before them that is no longer than four times their number.

    With `bounded=False` the queue is as long as it gets.
    """

    def __init__(self, threads: int, name: str, *, bounded: bool = True) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._places = Semaphore((1 + _QUEUE) * threads) if bounded else None

    def submit(self, work: Callable[[], None]) -> None:
        """Do `work` in one of the threads.  Raises Crowded, or Stopped after `close`."""
        if self._places is not None and not self._places.acquire(blocking=False):
            raise Crowded("too many wait for a thread of the relay")
        try:
            self._pool.submit(self._do, work)
        except RuntimeError as error:  # the pool is shut down
            self._leave()
            raise Stopped("the relay is closed") from error

    def close(self) -> None:
        """Do what is queued, take nothing more, and wait for the threads."""
        self._pool.shutdown()

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._places is not None:
            self._places.release()


class _Flight(Generic[T]):
    def __init__(self, name: str, work: Callable[[], T]) -> None:
        self.name = name
        self.work = work
        self.landed: Future[T] = Future()
        self.begun = False


class Flights(Generic[T]):
    """Safe to use from several threads; `joined` counts the calls that asked for no new work."""

    def __init__(self) -> None:
        self.joined = 0
        self._lock = Lock()
        self._under_way: dict[str, _Flight[T]] = {}

    def run(self, name: str, work: Callable[[], T]) -> T:
        """Return what `work` brings, or what the call under way for `name` does.  Raises likewise.

        The work is done in the calling thread, also that of another call that has not begun.
        """
        flight, _ = self._join(name, work)
        self._fly(flight)
        return flight.landed.result()

    def start(
        self, name: str, work: Callable[[], T], lane: Lane, *, overtake: bool = False
    ) -> Future[T]:
        """Begin the same in a thread of `lane`.  Others wait for it too, so do not cancel it.

        With `overtake` a thread of this lane does the work if no thread of another one has begun
        it.  The future raises what `work` does, or Crowded or Stopped.
        """
        flight, new = self._join(name, work)
        if new or (overtake and not flight.begun):
            try:
                lane.submit(lambda: self._fly(flight))
            except (Crowded, Stopped) as error:
                if self._claim(flight):  # else somebody took it over
                    self._land(flight)
                    flight.landed.set_exception(error)
        return flight.landed

    def _join(self, name: str, work: Callable[[], T]) -> tuple[_Flight[T], bool]:
        with self._lock:
            flight = self._under_way.get(name)
            if flight is not None:
                self.joined += 1
                return flight, False
            flight = self._under_way[name] = _Flight(name, work)
            return flight, True

    def _claim(self, flight: _Flight[T]) -> bool:
        """Say whether the caller is the one who has to do the work."""
        with self._lock:
            begun, flight.begun = flight.begun, True
            return not begun

    def _fly(self, flight: _Flight[T]) -> None:
        if not self._claim(flight):
            return
        try:
            result = flight.work()
        except BaseException as error:  # it is every caller's
            self._land(flight)
            flight.landed.set_exception(error)
        else:
            self._land(flight)
            flight.landed.set_result(result)

    def _land(self, flight: _Flight[T]) -> None:
        with self._lock:
            del self._under_way[flight.name]
