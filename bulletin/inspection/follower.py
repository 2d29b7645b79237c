"""Keeps a view of a run up to date, from a thread that alone waits for the store.

Whoever asks gets what was seen last, at once, and how long ago that was; a store that is slow or
dead delays nobody.  While nobody asks, looks are rare: a page that nobody reads costs next to
nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from skerry.bulletin.errors import BulletinError, StoreError
from skerry.bulletin.inspection.lookout import Islands, Lookout
from skerry.bulletin.inspection.pace import Pace
from skerry.bulletin.inspection.problems import problem_of
from skerry.bulletin.inspection.store_state import StoreState
from skerry.bulletin.inspection.view import View
from skerry.bulletin.inspection.workers import Busy
from skerry.bulletin.patience import Patience
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.signing import PublicKey
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.writer import now_ms

__all__ = ["Follower", "Pace", "Snapshot"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What was seen last; `log_changes` and `island_changes` count what was new until then."""

    view: View = field(default_factory=View)
    islands: Islands = field(default_factory=Islands)
    log_changes: int = 0
    island_changes: int = 0


class Follower:
    """Follows one run.  `snapshot`, `store_state` and `attend` never wait, on any thread."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        pinned_key: PublicKey | None = None,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], int] = now_ms,
    ) -> None:
        self.store = store
        self.pace = pace or Pace()
        self._clock = clock
        self._now = now
        self._reader = BulletinReader(
            store, pinned_key=pinned_key, wait=Patience(limit_s=0.0), history=True
        )
        self._lookout = Lookout(store, now=now)
        self._snapshot = Snapshot(view=View(state=self._reader.state))
        self._state = StoreState(clock=clock, now=now)
        self._attended_at = clock()
        self._log_due = self._islands_due = self._attended_at
        self._failures = 0
        self._wake = threading.Condition()
        self._stopping = False
        self._listeners: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._run, name="skerry-follower", daemon=True)

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    @property
    def store_state(self) -> StoreState:
        return self._state

    @property
    def asking(self) -> bool:
        """Whether a request to the store is under way."""
        return self._state.report().pending_s is not None

    @property
    def stopping(self) -> bool:
        return self._stopping

    @property
    def ended(self) -> bool:
        """Whether its thread has ended although nobody asked for it: nothing is seen any more."""
        started = self._thread.ident is not None
        return started and not self._stopping and not self._thread.is_alive()

    @property
    def listeners(self) -> int:
        """How many wait for changes."""
        return len(self._listeners)

    @property
    def idle(self) -> bool:
        """Whether nobody has asked for a while."""
        return self._clock() - self._attended_at >= self.pace.attention_s

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread and whoever listens to end; who waits for the store is not waited for."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._notify()

    def attend(self) -> None:
        """Somebody is looking: what would have waited for longer is due soon."""
        with self._wake:
            was_idle, self._attended_at = self.idle, self._clock()
            if was_idle and not self._failures:
                self._log_due = min(self._log_due, self._attended_at)
                self._islands_due = min(self._islands_due, self._attended_at)
                self._wake.notify()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener`, which must not wait, after every change; return what ends that."""
        with self._wake:
            self._listeners.append(listener)

        def end() -> None:
            with self._wake:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return end

    def look_once(self) -> None:
        """Look at the log and the islands now.  Raises BulletinError, OSError and Busy."""
        self._look_at_log()
        self._look_at_islands()

    def look(self) -> float:
        """Look at what is due; return in how many seconds the next look is."""
        now = self._clock()
        idle = self.idle
        refused: BulletinError | None = None
        try:
            with self._state.asking():
                if now >= self._log_due:
                    try:
                        self._look_at_log()
                    except StoreError:
                        raise
                    except BulletinError as error:  # of the log: islands are there nevertheless
                        refused = error
                    self._log_due = self._clock() + self.pace.log_s(idle=idle)
                if now >= self._islands_due and self._reader.state.seq >= 0:
                    self._look_at_islands()
                    self._islands_due = self._clock() + self.pace.islands_s(idle=idle)
            if refused is not None:
                raise refused
            self._failures = 0
        except Exception as error:  # the loop's boundary: told, and tried again
            self._failures += 1
            wait_s = self.pace.after_failures_s(self._failures)
            self._log_due = self._islands_due = self._clock() + wait_s
            if self._failures == 1:
                foreseen = isinstance(error, BulletinError | OSError | Busy)
                told = "the bulletin cannot be read error=%r"
                logger.warning(told, error, exc_info=None if foreseen else error)
            trouble = isinstance(error, StoreError) or not isinstance(error, BulletinError)
            self._state.failed(problem_of(error), trouble=trouble)
            self._notify()
        return max(0.0, min(self._log_due, self._islands_due) - self._clock())

    def _look_at_log(self) -> None:
        view = self._snapshot.view
        try:
            self._reader.refresh(self._state.progress)
        finally:  # records before the one at fault are good
            records = self._reader.history_from(len(view.records))
            if records:
                view = view.after(records, self._reader.state)
                self._set(view=view, log_changes=self._snapshot.log_changes + 1)
        self._state.answered(empty=self._reader.state.seq < 0)

    def _look_at_islands(self) -> None:
        islands = self._lookout.look(self._snapshot.view)
        if islands.news:
            self._set(islands=islands, island_changes=self._snapshot.island_changes + 1)
        else:
            self._set(islands=islands)

    def _set(
        self,
        *,
        view: View | None = None,
        islands: Islands | None = None,
        log_changes: int | None = None,
        island_changes: int | None = None,
    ) -> None:
        old = self._snapshot
        self._snapshot = Snapshot(
            view=view or old.view,
            islands=islands or old.islands,
            log_changes=old.log_changes if log_changes is None else log_changes,
            island_changes=old.island_changes if island_changes is None else island_changes,
        )
        if log_changes is not None or island_changes is not None:
            self._notify()

    def _notify(self) -> None:
        with self._wake:
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener()

    def _run(self) -> None:
        while not self._stopping:
            self.look()
            with self._wake:
                # What somebody asked for while the look went on is due at once.
                wait_s = min(self._log_due, self._islands_due) - self._clock()
                if wait_s > 0 and not self._stopping:
                    self._wake.wait(wait_s)
