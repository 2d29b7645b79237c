"""The cheapest way from the version an island has to the one it wants.  Pure.

Edges are fulls (from anywhere), patches (parent to version) and skips, each as long as none of its
objects is retired.  Cost is bytes to download, then number of steps.  Two versions are compared by
cost alone, so the search ends on any graph.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
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
    state: LogState,
    *,
    have: int | None,
    want: int,
    abandoned_too: bool = False,
    retired_too: bool = False,
) -> tuple[Step, ...]:
    """Return the cheapest steps from `have` (None: nothing) to `want`; none when they are equal.

    Raises VersionUnknown, VersionGone (`want` is retired or abandoned, and that was not asked for),
    or NoPath.
    """
    newest = None if state.newest is None else state.newest.version
    for version in (want, have):
        if version is not None and version not in state.commits:
            raise VersionUnknown(version, newest=newest)
    if have == want:
        return ()
    if want in state.retired and not retired_too:
        raise VersionGone(want, "retired")
    if want in state.abandoned and not abandoned_too:
        raise VersionGone(want, "abandoned")
    steps = Graph(edges(state)).ways(have, [want]).to(want)
    if steps is None:
        raise NoPath(have=have, want=want)
    return steps


class Graph:
    """Steps by the version that they start from, for one search or many."""

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self._leaving: defaultdict[int | None, list[Step]] = defaultdict(list)
        for step in steps:
            self.add(step)

    def add(self, step: Step) -> None:
        self._leaving[step.base].append(step)

    def ways(self, have: int | None, wants: Iterable[int] | None = None) -> Ways:
        """Search from `have` (None: nothing) until each of `wants` is reached; None: everywhere."""
        missing = None if wants is None else set(wants)
        # Entries: bytes, steps, order of arrival (a tie-break that never compares what follows).
        frontier: list[tuple[int, int, int, int | None, Step | None]] = [(0, 0, 0, have, None)]
        order = 0
        arrivals: dict[int | None, tuple[int, Step | None]] = {}
        while frontier and (missing is None or missing):
            nbytes, count, _, version, last = heapq.heappop(frontier)
            if version in arrivals:
                continue
            arrivals[version] = nbytes, last
            if missing is not None and version is not None:
                missing.discard(version)
            leaving = self._leaving.get(version, [])
            if last is None and version is not None:
                # A full discards what it starts from, so it is only ever a first step.
                leaving = leaving + self._leaving.get(None, [])
            for step in leaving:
                if step.version not in arrivals:
                    order += 1
                    entry = (nbytes + step.nbytes, count + 1, order, step.version, step)
                    heapq.heappush(frontier, entry)
        return Ways(have, arrivals)


@dataclass(frozen=True, slots=True)
class Ways:
    """The cheapest ways from one start: to each version that was reached, what it costs in bytes
    and the last step."""

    have: int | None
    arrivals: Mapping[int | None, tuple[int, Step | None]]

    def cost(self, version: int) -> int | None:
        """Return the bytes that it takes to get to `version`, None if no way leads there."""
        arrival = self.arrivals.get(version)
        return None if arrival is None else arrival[0]

    def to(self, version: int) -> tuple[Step, ...] | None:
        """Return the steps to `version`, None if no way leads there."""
        if version not in self.arrivals:
            return None
        steps = []
        step = self.arrivals[version][1]
        while step is not None:
            steps.append(step)
            step = None if step.kind == "full" else self.arrivals[step.base][1]
        return tuple(reversed(steps))


def edges(state: LogState, *, without: Collection[str] | None = None) -> Iterator[Step]:
    """Yield every step of the run none of whose objects is in `without`: the retired ones."""
    without = state.retired_keys if without is None else without

    def usable(packs: tuple[ObjectRef, ...]) -> bool:
        return not any(pack.key in without for pack in packs)

    for commit in state.commits.values():
        if commit.full is not None and commit.full.prefix not in without:
            yield _full(commit, commit.full)
        if commit.base is not None and commit.parent is not None and usable(commit.packs):
            yield _patch(commit, commit.parent, commit.base, commit.packs)
    for skip in state.skips:
        if usable(skip.packs):
            yield _patch(state.commits[skip.version], skip.base_version, skip.base, skip.packs)


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


def _patch(commit: Commit, base: int, base_result: Digest, packs: tuple[ObjectRef, ...]) -> Step:
    return Step(
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
