"""Which versions stay, and which objects nobody needs once the others are retired.  Pure.

Laws, for every set of kept versions that holds the newest one:

* a newcomer reaches every kept version, and every kept version reaches the newest one, for exactly
  the bytes that it took before;
* a kept version reaches every other one for at most STRETCH times the bytes that it took before,
  and never for more than a newcomer;
* an object goes only if no way that these laws need leads over it, so the packs of a retired
  version stay as links for as long as a kept one hangs on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from skerry.bulletin.errors import VersionGone, VersionUnknown
from skerry.bulletin.lineage import Graph, Step, edges
from skerry.bulletin.state import LogState

STRETCH = 2

_NO_TIMES: Mapping[int, int] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepRules:
    """Which versions are kept; whatever any rule names is, and the newest one always.

    `last`: so many of the highest numbers, and as many of the newest one's line.  `every`: those of
    that line whose number it divides.  `pinned`: these, abandoned ones too.  `newer_than_s`: those
    committed within so many seconds, by the clock of whoever committed them.
    """

    last: int = 32
    every: int | None = None
    pinned: frozenset[int] = frozenset()
    newer_than_s: float | None = None

    def __post_init__(self) -> None:
        if self.last < 1:
            raise ValueError(f"last: expected 1 or more, found {self.last}")
        if self.every is not None and self.every < 1:
            raise ValueError(f"every: expected 1 or more, found {self.every}")
        if self.newer_than_s is not None and self.newer_than_s < 0:
            raise ValueError(f"newer_than_s: expected 0 or more, found {self.newer_than_s}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a collection would retire: `versions`, and `keys` of packs and prefixes of fulls.

    `nbytes` is the size of the objects behind `keys`; `kept` are the versions that stay.
    """

    kept: frozenset[int]
    versions: tuple[int, ...]
    keys: tuple[str, ...]
    nbytes: int


def select(
    state: LogState, rules: KeepRules, *, now_ms: int = 0, times: Mapping[int, int] = _NO_TIMES
) -> Selection:
    """Apply the rules to a log.  Raises VersionUnknown or VersionGone for a pin that cannot hold.

    `times` says when each version was committed, in milliseconds since 1970 as `now_ms` is; what
    has no time is new.  Versions that were retired before stay so, whatever the rules say now.
    """
    kept = kept_versions(state, rules, now_ms=now_ms, times=times)
    needed = {key for step in needed_steps(state, kept) for key in step_keys(step)}
    sizes = {
        key: size
        for key, size in object_sizes(state).items()
        if key not in state.retired_keys and key not in needed
    }
    return Selection(
        kept=kept,
        versions=tuple(v for v in state.commits if v not in kept and v not in state.retired),
        keys=tuple(sorted(sizes)),
        nbytes=sum(sizes.values()),
    )


def still_holds(before: LogState, after: LogState) -> bool:
    """Say whether what was selected at `before` may be retired at `after`, a later state: all that
    came between are versions one after the other from the newest one on."""
    if len(after.skips) != len(before.skips) or len(after.retirements) != len(before.retirements):
        return False
    newest = None if before.newest is None else before.newest.version
    for version in range(len(before.commits), len(after.commits)):
        if after.commits[version].parent != newest:
            return False
        newest = version
    return True


def kept_versions(
    state: LogState, rules: KeepRules, *, now_ms: int, times: Mapping[int, int]
) -> frozenset[int]:
    """Return the versions that the rules keep.  Raises VersionUnknown, VersionGone for a pin."""
    if state.newest is None:
        return frozenset()
    for pin in sorted(rules.pinned):
        if pin not in state.commits:
            raise VersionUnknown(pin, newest=state.newest.version)
        if pin in state.retired:
            raise VersionGone(pin, "pinned, but retired already")
    live = [version for version in state.commits if version not in state.retired]
    line = [version for version in live if version not in state.abandoned]
    kept = {state.newest.version, *rules.pinned, *live[-rules.last :], *line[-rules.last :]}
    if rules.every is not None:
        kept.update(version for version in line if version % rules.every == 0)
    if rules.newer_than_s is not None:
        since_ms = now_ms - 1000 * rules.newer_than_s
        kept.update(version for version in live if times.get(version, now_ms) >= since_ms)
    return frozenset(kept)


def needed_steps(state: LogState, kept: Iterable[int], *, stretch: float = STRETCH) -> list[Step]:
    """Return steps over which the laws above hold for `kept`; chosen anew, they stay few."""
    if state.newest is None:
        return []
    targets = sorted(kept, reverse=True)
    graph, chosen = Graph(edges(state)), Graph()
    needed: dict[tuple[object, ...], Step] = {}

    def need(steps: tuple[Step, ...] | None) -> None:
        for step in steps or ():
            if _identity(step) not in needed:
                needed[_identity(step)] = step
                chosen.add(step)

    newcomer = graph.ways(None, targets)
    ways = {have: graph.ways(have, targets) for have in targets}
    for version in targets:
        need(newcomer.to(version))
        need(ways[version].to(state.newest.version))
    for have in targets:
        so_far = chosen.ways(have, targets)
        for want in targets:
            before, now = ways[have].cost(want), so_far.cost(want)
            if before is not None and (now is None or now > stretch * before):
                need(ways[have].to(want))
    return list(needed.values())


def step_keys(step: Step) -> Iterator[str]:
    """Yield what a retire record calls the objects of a step."""
    if step.full is not None:
        yield step.full.prefix
    else:
        yield from (ref.key for ref in step.objects)


def object_sizes(state: LogState) -> dict[str, int]:
    """Return the size of every pack and full that a record has named, retired ones too."""
    sizes: dict[str, int] = {}
    for commit in state.commits.values():
        sizes.update((ref.key, ref.size) for ref in commit.packs)
        if commit.full is not None:
            sizes[commit.full.prefix] = commit.full.nbytes
    for skip in state.skips:
        sizes.update((ref.key, ref.size) for ref in skip.packs)
    return sizes


def _identity(step: Step) -> tuple[object, ...]:
    return step.base, step.version, *step_keys(step)
