"""Which objects in the store may be deleted now.  Pure.

Laws:

* a pack or full goes when a record has retired it and its grace has passed, or when its epoch is
  below the collector's own fence and no record names it: then none ever will;
* a layout or manifest goes when no version names it but those whose grace has passed, and no step
  that can still be taken begins or ends at one that does;
* a lease puts all that off by at most `lease_limit_s` after the grace;
* everything else stays, above all every record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from skerry.bulletin import keys
from skerry.bulletin.errors import InvalidKey
from skerry.bulletin.lineage import edges
from skerry.bulletin.retention import object_sizes
from skerry.bulletin.state import LogState, Retirement
from skerry.bulletin.status import IslandReport, Leg

Elapsed = Callable[[Retirement], float]


class Verdict(Enum):
    """What is to become of an object."""

    KEEP = "keep"
    WAIT = "wait"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """What islands say that they are reading."""

    keys: frozenset[str] = frozenset()
    versions: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The verdict on every object of a run, at one moment."""

    epoch: int
    named: frozenset[str]  # packs and prefixes that a record names and none has retired
    due: frozenset[str]
    waiting: frozenset[str]
    described: frozenset[str]  # layouts and manifests that are still needed

    @classmethod
    def of(
        cls,
        state: LogState,
        *,
        epoch: int,
        elapsed: Elapsed,
        leased: Leased,
        lease_limit_s: float,
    ) -> Sweep:
        """Judge by the log, for the writer of `epoch`, which is the newest, or is to become it.

        `elapsed` says how many seconds have passed since a retire record was written.
        """

        def is_due(gone: Retirement, on_lease: bool) -> bool:
            return elapsed(gone) >= gone.body.grace_s + (lease_limit_s if on_lease else 0)

        due: set[str] = set()
        waiting: set[str] = set()
        pending: set[int] = set()
        for gone in state.retirements:
            for key in gone.body.keys:
                (due if is_due(gone, key in leased.keys) else waiting).add(key)
            pending.update(v for v in gone.body.versions if not is_due(gone, v in leased.versions))
        due -= waiting  # a key that was retired twice waits for the later record
        return cls(
            epoch=epoch,
            named=frozenset(object_sizes(state).keys() - state.retired_keys),
            due=frozenset(due),
            waiting=frozenset(waiting),
            described=frozenset(_described(state, pending, due)),
        )

    def verdict(self, key: str) -> Verdict:
        """Say what is to become of the object at `key`."""
        if key.startswith((keys.LAYOUT_PREFIX, keys.MANIFEST_PREFIX)):
            return Verdict.KEEP if key in self.described else Verdict.DELETE
        try:
            name, epoch = retirable(key)
        except InvalidKey:
            return Verdict.KEEP  # not ours
        if name in self.waiting:
            return Verdict.WAIT
        orphan = epoch < self.epoch and name not in self.named
        return Verdict.DELETE if name in self.due or orphan else Verdict.KEEP


def retirable(key: str) -> tuple[str, int]:
    """Return what a retire record calls the object at `key`, and its epoch.  Raises InvalidKey."""
    if key.startswith(keys.PACK_PREFIX):
        return key, keys.parse_pack(key)[0]
    prefix = "/".join(key.split("/")[:2])
    return prefix, keys.parse_full_prefix(prefix)


def leased_by(state: LogState, reports: Iterable[IslandReport], *, now_ms: int) -> Leased:
    """Return what live leases cover.  Versions and steps that the log does not know are ignored."""
    legs: set[Leg] = set()
    for report in reports:
        if report.reading is not None and report.reading.until_ms > now_ms:
            legs.update(report.reading.legs)
    if not legs:
        return Leased()
    names = set()
    for commit in state.commits.values():
        if commit.full is not None and (None, commit.version) in legs:
            names.add(commit.full.prefix)
        if (commit.parent, commit.version) in legs:
            names.update(ref.key for ref in commit.packs)
    for skip in state.skips:
        if (skip.base_version, skip.version) in legs:
            names.update(ref.key for ref in skip.packs)
    return Leased(
        keys=frozenset(names),
        versions=frozenset(end for leg in legs for end in leg if end is not None),
    )


def _described(state: LogState, pending: set[int], due: set[str]) -> Iterator[str]:
    """Yield the layouts and manifests that somebody may still ask for."""
    for commit in state.commits.values():
        if commit.version not in state.retired or commit.version in pending:
            yield keys.layout(commit.layout)
            yield keys.manifest(commit.manifest)
    for step in edges(state, without=due):  # a link needs the layouts at its ends to be read
        yield keys.layout(step.layout)
        if step.base is not None:
            yield keys.layout(state.commits[step.base].layout)
