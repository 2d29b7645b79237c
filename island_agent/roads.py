"""The cheapest ways to two versions at once, for whoever wants to see both.  Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from skerry.bulletin.errors import NoPath
from skerry.bulletin.lineage import Step, plan
from skerry.bulletin.records import Full, ObjectRef
from skerry.bulletin.state import LogState

Start = Literal["full", "mirror", "first"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Road:
    """How to get to `version`: from a full, from what a mirror holds, or from the first version of
    two; then `patches`, one after another."""

    version: int
    start: Start
    full: Full | None
    patches: tuple[Step, ...]

    @property
    def packs(self) -> tuple[ObjectRef, ...]:
        return tuple(ref for step in self.patches for ref in step.objects)

    @property
    def nbytes(self) -> int:
        full = 0 if self.full is None else self.full.nbytes
        return full + sum(step.nbytes for step in self.patches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roads:
    """Two roads; `second` may start where `first` ends."""

    first: Road
    second: Road

    @property
    def from_mirror(self) -> bool:
        return "mirror" in (self.first.start, self.second.start)


def roads(state: LogState, old: int, new: int, held: int | None) -> Roads:
    """Return the cheapest roads to two versions for a mirror that holds `held` (None: nothing).

    Abandoned and retired versions will do, as long as their objects are not.  Raises NoPath.
    """
    found = list(_pairs(state, old, new, held)) + list(_pairs(state, new, old, held))
    if not found:
        raise NoPath(have=held, want=new)
    return min(found, key=lambda pair: pair.first.nbytes + pair.second.nbytes)


def _pairs(state: LogState, first: int, second: int, held: int | None) -> Iterator[Roads]:
    begin = _road(state, held, first, "mirror")
    if begin is None:
        return
    onward = _road(state, first, second, "first")
    apart = _road(state, held, second, "mirror")
    for end in (onward, apart):
        if end is not None:
            yield Roads(first=begin, second=end)


def _road(state: LogState, have: int | None, want: int, start: Start) -> Road | None:
    try:
        steps = plan(state, have=have, want=want, abandoned_too=True, retired_too=True)
    except NoPath:
        return None
    full = steps[0].full if steps else None
    if full is not None:
        return Road(version=want, start="full", full=full, patches=steps[1:])
    return Road(version=want, start=start, full=None, patches=steps)
