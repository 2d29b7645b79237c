"""Leaves the island's status in the bulletin: best effort, from a thread that nobody waits for.

A store may be read-only, slow or gone; an install is neither delayed nor failed by that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from skerry.bulletin import keys
from skerry.bulletin.errors import BulletinError
from skerry.bulletin.status import MAX_LEGS, IslandReport, Lease
from skerry.bulletin.store import ObjectStore
from skerry.island_agent.status import IslandStatus

logger = logging.getLogger(__name__)

_LAST_WORD_S = 2.0  # how long the end waits for the last status to be written


class Announcer:
    """Writes the status when it has changed, at most every `interval_s`, and every `heartbeat_s`.

    What is being read is leased until three heartbeats from then, by this host's clock.
    """

    def __init__(
        self,
        store: ObjectStore,
        status: IslandStatus,
        *,
        interval_s: float,
        heartbeat_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._status = status
        self._key = keys.island(status.island)
        self._interval_s = interval_s
        self._heartbeat_s = heartbeat_s
        self._clock = clock
        self._told: IslandReport | None = None
        self._told_at = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="skerry-announce", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Say the last word, if the store takes it in time."""
        self._stopping.set()
        self._thread.join(_LAST_WORD_S)

    def tell(self) -> None:
        """Write the status if there is anything to tell."""
        report = report_of(self._status, lease_s=3 * self._heartbeat_s)
        beat = self._clock() - self._told_at >= self._heartbeat_s
        if self._told is not None and not beat and _news(report) == _news(self._told):
            return
        self._told, self._told_at = report, self._clock()
        try:
            self._store.replace(self._key, report.to_bytes())
        except (BulletinError, OSError) as error:
            logger.debug("status not announced key=%s error=%r", self._key, error)

    def _run(self) -> None:
        while True:
            self.tell()
            if self._stopping.wait(self._interval_s):
                break
        self.tell()


def report_of(status: IslandStatus, *, lease_s: float) -> IslandReport:
    """Return what others are told of a status."""
    failure, legs = status.last_error, status.reading
    now_ms = max(0, int(1000 * status.clock()))  # of a clock before 1970, no time at all
    lease = None
    if legs:
        # Of a longer way the far end is not leased yet; the next report will have it.
        lease = Lease(legs=legs[:MAX_LEGS], until_ms=now_ms + int(1000 * lease_s))
    return IslandReport(
        island=status.island,
        run=status.run,
        version=status.version,
        target=status.wanted,
        newest=status.newest,
        lag=status.lag,
        phase=status.phase,
        error=None if failure is None else f"{failure.kind}: {failure.message}",
        engines={name: engine.version for name, engine in status.engines.items()},
        nbytes=status.progress.job_bytes,
        total_bytes=status.bytes_total,
        time_ms=now_ms,
        reading=lease,
    )


def _news(report: IslandReport) -> IslandReport:
    """Return a report without what changes all the time."""
    lease = report.reading
    return replace(
        report,
        nbytes=0,
        time_ms=0,
        reading=None if lease is None else replace(lease, until_ms=0),
    )
