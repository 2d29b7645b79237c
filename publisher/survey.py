"""What a collection finds, before anything is changed: what is due, what waits, and since when."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from skerry.bulletin import keys
from skerry.bulletin.errors import NotFound, StoreDenied
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.records import Commit, ObjectRef
from skerry.bulletin.retention import KeepRules
from skerry.bulletin.state import LogState, Retirement
from skerry.bulletin.status import read_reports
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.sweep import Sweep, Verdict, leased_by, retirable
from skerry.bulletin.writer import now_ms

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """What is kept, and how long the rest is still there.

    Objects go `grace_s` after the record that retires them; a live lease of an island puts that off
    by at most `lease_limit_s` more.  `skew_s` is allowed for between the clocks of two collectors.
    """

    rules: KeepRules = field(default_factory=KeepRules)
    grace_s: int = 3600
    lease_limit_s: float = 6 * 3600.0
    skew_s: float = 300.0

    def __post_init__(self) -> None:
        if min(self.grace_s, self.lease_limit_s, self.skew_s) < 0:
            raise ValueError("grace_s, lease_limit_s and skew_s are not negative")


class Grace:
    """How long ago each retirement was written."""

    def __init__(
        self,
        *,
        skew_s: float,
        begin: int,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], int] = now_ms,
    ) -> None:
        """Records up to slot `begin` are of earlier processes, those after it of this one."""
        self._skew_s = skew_s
        self._begin = begin
        self._clock = clock
        self._now = now
        self._seen: dict[int, float] = {}

    def watch(self, state: LogState) -> None:
        """Count from now on for the retirements that are new."""
        for gone in state.retirements:
            self._seen.setdefault(gone.seq, self._clock())

    def elapsed(self, gone: Retirement) -> float:
        """Return the seconds that have passed since this process saw the record, or since it was
        written, if that is known."""
        seen = self._seen.get(gone.seq)
        here_s = 0.0 if seen is None else self._clock() - seen
        if gone.seq > self._begin:
            return here_s
        # A clock that is behind makes us wait longer; one that is ahead by more than the allowance
        # cuts the grace short, and a reader then meets an object that is gone: it plans anew.
        return max(here_s, (self._now() - gone.time) / 1000 - self._skew_s)


class CommitTimes:
    """When each version was committed, by its writer's clock; asked of every record of the log."""

    def __init__(self, store: ObjectStore, state: LogState) -> None:
        self._reader = BulletinReader(store, pinned_key=state.pinned_key, history=True)
        self._times: dict[int, int] = {}

    def read(self) -> Mapping[int, int]:
        """Return milliseconds since 1970 by version.  Raises what BulletinReader.refresh raises."""
        for record in self._reader.refresh():
            if isinstance(record.body, Commit):
                self._times[record.body.version] = record.time
        return self._times


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a sweep finds in the store: `objects` (packs, files of fulls) and `names` (layouts and
    manifests) to delete, with their sizes; how many of them no record ever named; how many objects
    wait for their grace or a lease."""

    objects: Mapping[str, int]
    names: Mapping[str, int]
    orphans: int
    waiting: int

    @property
    def count(self) -> int:
        return len(self.objects) + len(self.names)

    @property
    def nbytes(self) -> int:
        return sum(self.objects.values()) + sum(self.names.values())

    def then(self, later: Survey) -> Survey:
        """Return what both have deleted, and what still waits."""
        return Survey(
            objects={**self.objects, **later.objects},
            names={**self.names, **later.names},
            orphans=self.orphans + later.orphans,
            waiting=later.waiting,
        )


def judge(
    state: LogState,
    store: ObjectStore,
    policy: RetentionPolicy,
    *,
    epoch: int,
    grace: Grace,
    now_ms: int,
) -> Sweep:
    """Return the verdicts of this moment, leases of the islands included.  Raises StoreError."""
    return Sweep.of(
        state,
        epoch=epoch,
        elapsed=grace.elapsed,
        leased=leased_by(state, read_reports(store), now_ms=now_ms),
        lease_limit_s=policy.lease_limit_s,
    )


def survey(state: LogState, store: ObjectStore, sweep: Sweep) -> Survey:
    """Ask the store what there is, and the log what may go.  Raises StoreError."""
    known = {ref.key: ref.size for ref in _refs(state)}
    objects: dict[str, int] = {}
    names: dict[str, int] = {}
    orphans = waiting = 0
    for prefix in (keys.FULL_PREFIX, keys.PACK_PREFIX):
        for key in _keys(store, prefix, known):
            verdict = sweep.verdict(key)
            waiting += verdict is Verdict.WAIT
            if verdict is Verdict.DELETE:
                objects[key] = known[key] if key in known else _size(store, key)
                orphans += retirable(key)[0] not in state.retired_keys
    described = [
        key
        for commit in state.commits.values()
        for key in (keys.manifest(commit.manifest), keys.layout(commit.layout))
    ]
    for prefix in (keys.MANIFEST_PREFIX, keys.LAYOUT_PREFIX):
        for key in _keys(store, prefix, described):
            if sweep.verdict(key) is Verdict.DELETE:
                names[key] = _size(store, key)
    return Survey(objects=objects, names=names, orphans=orphans, waiting=waiting)


def _keys(store: ObjectStore, prefix: str, known: Iterable[str]) -> Iterator[str]:
    """Yield what lies under `prefix`; where nothing can be listed, what the log knows of it."""
    try:
        yield from store.list_after(prefix)
    except StoreDenied as error:
        logger.warning("no orphans are found: %s", error)
        yield from (key for key in dict.fromkeys(known) if key.startswith(prefix))


def _refs(state: LogState) -> Iterator[ObjectRef]:
    for commit in state.commits.values():
        yield from commit.packs
        if commit.full is not None:
            yield from commit.full.objects
    for skip in state.skips:
        yield from skip.packs


def _size(store: ObjectStore, key: str) -> int:
    try:
        return store.size(key)
    except NotFound:  # deleted meanwhile
        return 0
