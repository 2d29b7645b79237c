"""Retires what the rules no longer keep, and deletes it once its grace has passed.

The order is the protocol: a retire record, then its grace, then the objects.  Nothing is remembered
between two runs: what is to be deleted is what the log has retired and the store still has, so a
collector may be killed anywhere and the next one goes on.

The grace is counted by this process's own monotonic clock, from its own record on.  For a record
of an earlier process it starts anew, unless the record's time shows, by the clocks of both and an
allowance for their skew, that it has passed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from skerry.bulletin import keys
from skerry.bulletin.errors import Fenced, StoreUnsafe
from skerry.bulletin.retention import Selection, select, still_holds
from skerry.bulletin.state import LogState
from skerry.bulletin.sweep import Sweep, Verdict
from skerry.bulletin.writer import BulletinWriter, now_ms
from skerry.codec.parallel import ordered
from skerry.publisher.progress import Meter, Progress, silent
from skerry.publisher.survey import CommitTimes, Grace, RetentionPolicy, Survey, judge, survey

logger = logging.getLogger(__name__)

Turn = AbstractContextManager[object]

_KEYS_PER_RECORD = 8_000  # a record has at most 1 MiB
_VERSIONS_PER_RECORD = 16_000
_NAMES_PER_TURN = 64  # deleted while the publisher waits
_PARALLEL = 8


class Collector:
    """Collects one run, in the process that writes it.  One thread at a time.

    `turn`, a reentrant lock, is held for whatever must not happen while a version is published.
    """

    def __init__(
        self,
        writer: BulletinWriter,
        policy: RetentionPolicy,
        *,
        turn: Turn | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], int] = now_ms,
    ) -> None:
        self._writer = writer
        self._policy = policy
        self._turn = turn or threading.RLock()
        self._now = now
        state = writer.reader.state
        self._grace = Grace(skew_s=policy.skew_s, begin=state.seq, clock=clock, now=now)
        self._grace.watch(state)
        self._times = CommitTimes(writer.reader.store, state)

    def retire(self) -> Selection:
        """Write down what the rules no longer keep; return it.

        Raises what BulletinWriter.retire raises, and VersionUnknown or VersionGone for a pin.
        """
        with self._turn:
            self._writer.settle()
            state = self._writer.reader.state
        # Takes seconds in a long log, in which versions may go on coming.
        chosen = self._select(state)
        with self._turn:
            self._writer.settle()
            if not still_holds(state, self._writer.reader.state):
                chosen = self._select(self._writer.reader.state)
            versions, names = chosen.versions, chosen.keys
            while versions or names:
                self._writer.retire(
                    versions=versions[:_VERSIONS_PER_RECORD],
                    names=names[:_KEYS_PER_RECORD],
                    grace_s=self._policy.grace_s,
                )
                versions, names = versions[_VERSIONS_PER_RECORD:], names[_KEYS_PER_RECORD:]
            self._grace.watch(self._writer.reader.state)
        if chosen.versions or chosen.keys:
            logger.info(
                "retired versions=%d objects=%d bytes=%d kept=%d grace_s=%d",
                len(chosen.versions), len(chosen.keys), chosen.nbytes, len(chosen.kept),
                self._policy.grace_s,
            )  # fmt: skip
        return chosen

    def _select(self, state: LogState) -> Selection:
        rules = self._policy.rules
        times = {} if rules.newer_than_s is None else self._times.read()
        return select(state, rules, now_ms=self._now(), times=times)

    def sweep(self, progress: Progress = silent) -> Survey:
        """Delete what is due; return it.

        Raises StoreError (the next sweep goes on), and Fenced once another writer has the run.
        """
        store = self._writer.reader.store
        self._check_head()
        found = survey(self._writer.reader.state, store, self._judge())
        meter = Meter(progress, "delete", found.nbytes)

        def delete(key: str) -> str:
            store.delete(key)
            return key

        # No record can ever name one of these again, so it does not matter who publishes meanwhile.
        for key in ordered(delete, found.objects, _PARALLEL):
            meter.add(found.objects[key])
        names = list(found.names)
        for first in range(0, len(names), _NAMES_PER_TURN):
            self._delete_names(names[first : first + _NAMES_PER_TURN])
            meter.add(sum(found.names[key] for key in names[first : first + _NAMES_PER_TURN]))
        if found.count:
            logger.info(
                "deleted objects=%d bytes=%d orphans=%d waiting=%d",
                found.count, found.nbytes, found.orphans, found.waiting,
            )  # fmt: skip
        return found

    def _delete_names(self, names: list[str]) -> None:
        """Delete layouts and manifests, which the version that comes next may name again."""
        with self._turn:
            sweep = self._judge()
            for key in names:
                if sweep.verdict(key) is Verdict.DELETE:
                    self._check_head()
                    self._writer.reader.store.delete(key)

    def _judge(self) -> Sweep:
        reader = self._writer.reader
        return judge(
            reader.state,
            reader.store,
            self._policy,
            epoch=self._writer.epoch,
            grace=self._grace,
            now_ms=self._now(),
        )

    def _check_head(self) -> None:
        """Check that the log has not gone on without us: our view of it would not count any more.

        Raises Fenced or StoreUnsafe.
        """
        with self._turn:
            self._writer.settle()
            epoch, state = self._writer.epoch, self._writer.reader.state
            data = self._writer.reader.slot(state.seq + 1)
            if data is None:
                return
            other = state.apply(data)
            if other.epoch > epoch:
                raise Fenced(epoch=epoch, found=other.epoch, writer=other.writer or "unknown")
            raise StoreUnsafe(keys.log(other.seq), "holds a record of ours that we did not write")
