"""Who descends from whom, laid out: the newest one's line on lane 0, branches beside it.  Pure.

Law: two branches share a lane only if one ends before the other leaves its parent.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from skerry.bulletin.inspection.rows import Form, Standing, form, standing
from skerry.bulletin.inspection.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Relative:
    """One version: its parent (perhaps before the stretch shown), and where it is drawn.

    `rollback`: the parent was not the newest version when this one was committed.
    """

    version: int
    parent: int | None
    step: int
    form: Form
    state: Standing
    lane: int
    rollback: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipRow:
    """A skip patch; `usable` while none of its packs is retired."""

    base_version: int
    version: int
    skip_bytes: int
    usable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The versions from `first` to `last`, and the skips that lead from or to one of them."""

    total: int
    newest: int | None
    first: int
    last: int | None
    lanes: int
    versions: list[Relative]
    skips: list[SkipRow]


def family(view: View, *, limit: int, first: int | None = None, last: int | None = None) -> Family:
    """Return the newest `limit` versions from `first` to `last`, both included."""
    total = len(view.state.commits)
    end = total if last is None else min(last + 1, total)
    begin = min(end, max(0 if first is None else first, end - limit))
    placed = lanes(view)
    versions = []
    for number in range(begin, end):
        commit = view.state.commits[number]
        versions.append(
            Relative(
                version=number,
                parent=commit.parent,
                step=commit.step,
                form=form(commit),
                state=standing(view, number),
                lane=placed[number],
                rollback=number > 0 and commit.parent != number - 1,
            )
        )
    shown = range(begin, end)
    return Family(
        total=total,
        newest=view.newest,
        first=begin,
        last=end - 1 if end > begin else None,
        lanes=1 + max((relative.lane for relative in versions), default=0),
        versions=versions,
        skips=[s for s in skips(view) if s.version in shown or s.base_version in shown],
    )


def skips(view: View) -> list[SkipRow]:
    gone = view.state.retired_keys
    return [
        SkipRow(
            base_version=skip.base_version,
            version=skip.version,
            skip_bytes=skip.nbytes,
            usable=gone.isdisjoint(pack.key for pack in skip.packs),
        )
        for skip in view.state.skips
    ]


def lanes(view: View) -> Mapping[int, int]:
    """Return the lane of every version."""
    commits = view.state.commits
    placed = dict.fromkeys(view.line, 0)
    branches: list[tuple[int, int, list[int]]] = []  # where it leaves, where it ends, its versions
    claimed = set(placed)
    for tip in range(len(commits) - 1, -1, -1):
        branch: list[int] = []
        at: int | None = tip
        while at is not None and at not in claimed:
            claimed.add(at)
            branch.append(at)
            at = commits[at].parent
        if branch:
            branches.append((branch[-1] if at is None else at, tip, branch))
    free: list[int] = []
    busy: list[tuple[int, int]] = []  # where the branch on a lane ends
    count = 0
    for leaves, tip, branch in sorted(branches, key=lambda entry: entry[:2]):
        while busy and busy[0][0] < leaves:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            count += 1
            lane = count
        heapq.heappush(busy, (tip, lane))
        placed.update(dict.fromkeys(branch, lane))
    return placed
