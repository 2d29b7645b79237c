"""What a run takes in its store, what is about to go, and what a collection would free.  Pure.

Everything is counted from records: what no record names (orphans) and descriptions, which are
small, are not in it; `skerry gc --dry-run` asks the store itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from skerry.bulletin import keys
from skerry.bulletin.inspection.view import View
from skerry.bulletin.retention import KeepRules, object_sizes, select
from skerry.bulletin.status import IslandReport
from skerry.bulletin.sweep import Sweep, leased_by


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """So many objects (a full counts as one), so many bytes."""

    objects: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What a retire record gave up; it may be deleted from `due_ms` on, later if `leased`."""

    seq: int
    due_ms: int
    passed: bool
    leased: bool
    versions: int
    amount: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """`patches`, `skips` and `fulls` are in use; `waiting` is retired and may not go yet, `due` may
    be deleted or is already.  `log_bytes` are the records, which stay for ever."""

    log_bytes: int
    patches: Amount
    skips: Amount
    fulls: Amount
    in_use: Amount
    waiting: Amount
    due: Amount
    retirements: list[Due]
    retirements_total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a collection by these rules would retire now, and what would stay."""

    keep_last: int
    keep_every: int | None
    kept_versions: int
    retired_versions: int
    freed: Amount
    left: Amount


def usage(
    view: View,
    reports: Iterable[IslandReport],
    *,
    now_ms: int,
    lease_limit_s: float,
    shown: int,
) -> Usage:
    """Add up the run; the newest `shown` retirements are listed."""
    state = view.state
    sizes = object_sizes(state)
    leased = leased_by(state, reports, now_ms=now_ms)
    sweep = Sweep.of(
        state,
        epoch=max(state.epoch, 1),
        elapsed=lambda gone: (now_ms - gone.time) / 1000,
        leased=leased,
        lease_limit_s=lease_limit_s,
    )
    skips = {pack.key for skip in state.skips for pack in skip.packs}
    used = [key for key in sizes if key not in state.retired_keys]
    packs = [key for key in used if key.startswith(keys.PACK_PREFIX)]
    retirements = [
        Due(
            seq=gone.seq,
            due_ms=gone.time + 1000 * gone.body.grace_s,
            passed=now_ms >= gone.time + 1000 * gone.body.grace_s,
            leased=not leased.keys.isdisjoint(gone.body.keys),
            versions=len(gone.body.versions),
            amount=_amount(sizes, gone.body.keys),
        )
        for gone in state.retirements[-shown:]
    ]
    return Usage(
        log_bytes=state.nbytes,
        patches=_amount(sizes, (key for key in packs if key not in skips)),
        skips=_amount(sizes, (key for key in packs if key in skips)),
        fulls=_amount(sizes, (key for key in used if key.startswith(keys.FULL_PREFIX))),
        in_use=_amount(sizes, used),
        waiting=_amount(sizes, sweep.waiting),
        due=_amount(sizes, sweep.due),
        retirements=retirements[::-1],
        retirements_total=len(state.retirements),
    )


def forecast(view: View, rules: KeepRules) -> Forecast:
    """Apply rules to the log as a collection would."""
    chosen = select(view.state, rules)
    sizes = object_sizes(view.state)
    gone = view.state.retired_keys.union(chosen.keys)
    return Forecast(
        keep_last=rules.last,
        keep_every=rules.every,
        kept_versions=len(chosen.kept),
        retired_versions=len(chosen.versions),
        freed=Amount(objects=len(chosen.keys), total_bytes=chosen.nbytes),
        left=_amount(sizes, (key for key in sizes if key not in gone)),
    )


def _amount(sizes: Mapping[str, int], names: Iterable[str]) -> Amount:
    # A retire record may name what no record has made: it has no size that anybody knows.
    found = [sizes.get(name, 0) for name in names]
    return Amount(objects=len(found), total_bytes=sum(found))
