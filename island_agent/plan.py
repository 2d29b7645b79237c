"""What to do next, from the log alone.  Pure.

`choose` says which version the island should hold, `route` how to get there: at most one full
version and then patches, checked to follow each other before anything is fetched.  Several
versions are always one route, hence one install; versions in between are never served.
"""

from __future__ import annotations

from dataclasses import dataclass

from skerry.bulletin.errors import NoPath, VersionGone
from skerry.bulletin.lineage import Step, plan
from skerry.bulletin.records import Full, ObjectRef
from skerry.bulletin.state import LogState
from skerry.codec.digest import Digest
from skerry.island_agent.errors import ChainRefused, LogBehind, RunMismatch, TargetRefused
from skerry.island_agent.marker import Held

MAX_STEPS = 100_000
_REACHABLE = 64  # ancestors looked at when a version cannot be reached


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which version to hold: a pinned one, or the newest.

    With `max_lag` n the island stays where it is while at most n versions of its line are newer.
    `ready_lag` is for readiness alone: with n, what serves an older version than that is not ready;
    None: any version of the run is.  It may not be below `max_lag`, or an island that does what it
    was told would not be ready.
    """

    version: int | None = None
    max_lag: int = 0
    ready_lag: int | None = None

    def __post_init__(self) -> None:
        if self.version is not None and self.version < 0:
            raise ValueError(f"a version is not negative, found {self.version}")
        if self.max_lag < 0:
            raise ValueError(f"max_lag is not negative, found {self.max_lag}")
        if self.version is not None and (self.max_lag or self.ready_lag is not None):
            raise ValueError("version is pinned: max_lag and ready_lag are for the newest one")
        if self.ready_lag is not None and self.ready_lag < self.max_lag:
            raise ValueError(
                f"ready_lag is at least max_lag, found {self.ready_lag} and {self.max_lag}"
            )

    def to_json(self) -> dict[str, object]:
        mode = "newest" if self.version is None else "pinned"
        if self.version is None and self.max_lag:
            mode = "lag"
        return {
            "mode": mode,
            "version": self.version,
            "max_lag": self.max_lag,
            "ready_lag": self.ready_lag,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """The full version that a route starts from."""

    held: Held
    full: Full


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchStep:
    """Packs that lead from weights `base` to `version`."""

    version: int
    base: Digest
    packs: tuple[ObjectRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How to get to `target`: from `anchor`, or from what is held; then `patches` in order.

    `legs` are the same steps as (from, to) versions; from None: a full.
    """

    target: Held
    anchor: Anchor | None
    patches: tuple[PatchStep, ...]
    legs: tuple[tuple[int | None, int], ...]
    nbytes: int

    @property
    def packs(self) -> tuple[ObjectRef, ...]:
        return tuple(ref for step in self.patches for ref in step.packs)


def choose(state: LogState, target: Target, held: Held | None) -> int | None:
    """Return the version to hold now; None while the log has none to offer.

    Never goes back by itself: only from a version that the log has abandoned.  Raises LogBehind,
    RunMismatch or TargetRefused.
    """
    if held is not None:
        check_held(state, held)
    if state.newest is None:
        return None
    have = None if held is None else held.version
    if target.version is not None:
        return _pinned(state, target.version, have)
    if have is None or have in state.abandoned:
        return state.newest.version
    return have if 0 < lag(state, have) <= target.max_lag else state.newest.version


def check_held(state: LogState, held: Held) -> None:
    """Check that the log knows what the island holds.  Raises LogBehind or RunMismatch."""
    commit = state.commits.get(held.version)
    if commit is None:
        newest = None if state.newest is None else state.newest.version
        raise LogBehind(f"holds version {held.version}, the log ends at {newest}")
    if commit.result != held.weights or commit.layout != held.layout:
        raise RunMismatch(
            f"version {held.version} is {held.weights} here and {commit.result} in the log"
        )


def lag(state: LogState, have: int | None) -> int:
    """Count the versions of the newest one's line that are newer than `have`."""
    count = 0
    version = None if state.newest is None else state.newest.version
    while version is not None and version != have:
        count += 1
        version = state.commits[version].parent
    return count


def route(state: LogState, *, have: int | None, want: int) -> Route:
    """Return the cheapest way to `want`; with `have` None it starts from a full version.

    Raises VersionUnknown, VersionGone, NoPath, or ChainRefused.
    """
    steps = plan(state, have=have, want=want)
    if len(steps) > MAX_STEPS:
        raise ChainRefused(f"{len(steps)} steps lead to version {want}, the limit is {MAX_STEPS}")
    anchors = [index for index, step in enumerate(steps) if step.full is not None]
    steps = steps[anchors[-1] :] if anchors else steps
    anchor = _anchor(steps[0]) if anchors else None
    patches = steps[1:] if anchors else steps
    at = None if have is None else _held(state, have)
    if anchor is not None:
        at = anchor.held
    for step in patches:
        if at is None or step.base != at.version or step.base_result != at.weights:
            raise ChainRefused(f"step to version {step.version} does not start at {at}")
        at = _held(state, step.version)
        if at.weights != step.result or at.layout != step.layout:
            raise ChainRefused(f"step to version {step.version} does not end at {at}")
    if at is None or at.version != want:
        raise ChainRefused(f"the steps end at {at}, not at version {want}")
    return Route(
        target=at,
        anchor=anchor,
        patches=tuple(_patch(step) for step in patches),
        legs=tuple((step.base, step.version) for step in steps),
        nbytes=sum(step.nbytes for step in steps),
    )


def collected(state: LogState, route: Route) -> str | None:
    """Return an object of the route that the log has retired since, if there is one."""
    names = [ref.key for ref in route.packs]
    if route.anchor is not None:
        names.insert(0, route.anchor.full.prefix)
    if route.target.version in state.retired:  # its layout goes with it
        names.append(f"version {route.target.version}")
        return next((name for name in names if name in state.retired_keys), names[-1])
    return next((name for name in names if name in state.retired_keys), None)


def nearest(state: LogState, *, have: int | None, want: int) -> Route:
    """Return a route to the newest ancestor of `want` that can be reached.  Raises NoPath."""
    version = state.commits[want].parent
    for _ in range(_REACHABLE):
        if version is None or version == have:
            break
        try:
            return route(state, have=have, want=version)
        except (NoPath, VersionGone):
            version = state.commits[version].parent
    raise NoPath(have=have, want=want)


def within(state: LogState, target: Target, have: int) -> bool:
    """Say whether who serves `have` serves what the target asks for."""
    if target.version is not None:
        return have == target.version
    if target.ready_lag is None or state.newest is None:
        return True
    return have not in state.abandoned and lag(state, have) <= target.ready_lag


def _pinned(state: LogState, version: int, have: int | None) -> int | None:
    if version not in state.commits:
        return have  # not published yet: the next look may find it
    if version in state.abandoned:
        raise TargetRefused(f"version {version} is abandoned")
    if have is not None and version < have and have not in state.abandoned:
        raise TargetRefused(
            f"version {version} is older than {have}; only a rollback in the log leads back"
        )
    return version


def _held(state: LogState, version: int) -> Held:
    commit = state.commits[version]
    return Held(version=version, layout=commit.layout, weights=commit.result)


def _anchor(step: Step) -> Anchor:
    assert step.full is not None
    held = Held(version=step.version, layout=step.layout, weights=step.result)
    return Anchor(held=held, full=step.full)


def _patch(step: Step) -> PatchStep:
    assert step.base_result is not None
    return PatchStep(version=step.version, base=step.base_result, packs=step.objects)
