"""The cheapest way from the version an island has to the one it wants.  Pure.

Edges are fulls (from anywhere), patches (parent to version) and skips, each as long as none of its
objects is retired.  Cost is bytes to download, then number of steps.  Two versions are compared by
cost alone, so the search ends on any graph.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from skerry.bulletin.errors import NoPath, VersionGone, VersionUnknown
from skerry.bulletin.records import Commit, Full, ObjectRef
from skerry.bulletin.state import LogState
from skerry.codec.digest import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One move of an island: fetch `objects`, and be at `version`, whose digest is `result`.

    A patch or skip patch starts at version `base`, whose digest is `base_result`; a full starts
    anywhere.
    """

    kind: Literal["full", "patch"]
    base: int | None
    base_result: Digest | None
    version: int
    objects: tuple[ObjectRef, ...]
    full: Full | None
    layout: Digest
    result: Digest
    nbytes: int


def plan(
    state: LogState, *, have: int | None, want: int, abandoned_too: bool = False
) -> tuple[Step, ...]:
    """Return the cheapest steps from `have` (None: nothing) to `want`; none when they are equal.

    Raises VersionUnknown, VersionGone (`want` is retired, or abandoned and `abandoned_too` was not
    asked for), or NoPath.
    """
    newest = None if state.newest is None else state.newest.version
    for version in (want, have):
        if version is not None and version not in state.commits:
            raise VersionUnknown(version, newest=newest)
    if have == want:
        return ()
    if want in state.retired:
        raise VersionGone(want, "retired")
    if want in state.abandoned and not abandoned_too:
        raise VersionGone(want, "abandoned")

    edges: defaultdict[int | None, list[Step]] = defaultdict(list)
    for step in _usable(state):
        # A full discards what it starts from, so it is only ever a first step.
        edges[step.base].append(step)
    if have is not None:
        edges[have] = edges[have] + edges[None]

    # Entries: bytes, steps, order of arrival (a tie-break that never compares what follows).
    frontier: list[tuple[int, int, int, int | None, Step | None]] = [(0, 0, 0, have, None)]
    arrivals = 0
    settled: dict[int | None, Step | None] = {}
    while frontier:
        nbytes, count, _, version, last = heapq.heappop(frontier)
        if version in settled:
            continue
        settled[version] = last
        if version == want:
            return tuple(reversed(list(_walk_back(settled, want))))
        for step in edges[version]:
            if step.version not in settled:
                arrivals += 1
                entry = (nbytes + step.nbytes, count + 1, arrivals, step.version, step)
                heapq.heappush(frontier, entry)
    raise NoPath(have=have, want=want)


def _walk_back(settled: Mapping[int | None, Step | None], want: int) -> Iterator[Step]:
    step = settled[want]
    while step is not None:
        yield step
        step = None if step.kind == "full" else settled[step.base]


def _usable(state: LogState) -> Iterator[Step]:
    """Yield every edge of the run whose objects are not retired."""
    for commit in state.commits.values():
        if commit.full is not None and commit.full.prefix not in state.retired_keys:
            yield _full(commit, commit.full)
        if commit.base is not None and commit.parent is not None:
            yield from _patch(state, commit, commit.parent, commit.base, commit.packs)
    for skip in state.skips:
        commit = state.commits[skip.version]
        yield from _patch(state, commit, skip.base_version, skip.base, skip.packs)


def _full(commit: Commit, full: Full) -> Step:
    return Step(
        kind="full",
        base=None,
        base_result=None,
        version=commit.version,
        objects=full.objects,
        full=full,
        layout=commit.layout,
        result=commit.result,
        nbytes=full.nbytes,
    )


def _patch(
    state: LogState, commit: Commit, base: int, base_result: Digest, packs: tuple[ObjectRef, ...]
) -> Iterator[Step]:
    if state.retired_keys.isdisjoint(pack.key for pack in packs):
        yield Step(
            kind="patch",
            base=base,
            base_result=base_result,
            version=commit.version,
            objects=packs,
            full=None,
            layout=commit.layout,
            result=commit.result,
            nbytes=sum(pack.size for pack in packs),
        )
