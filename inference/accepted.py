"""The sets of weight versions that requests accept, before and after "latest" is known.

A `Constraint` is what a request says, in its shortest form; `AcceptedVersions` is what it means
from its arrival on.  Both print as the header that says them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from skerry.inference.errors import EngineUnavailable

Preference = Literal["newest", "oldest"] | int


@dataclass(frozen=True, slots=True, order=True)
class VersionRange:
    """The versions `start` to `end`, both included; `end` None is open."""

    start: int
    end: int | None

    def __contains__(self, version: int) -> bool:
        return self.start <= version and (self.end is None or version <= self.end)

    def __str__(self) -> str:
        if self.end == self.start:
            return str(self.start)
        return f"{self.start}..{'' if self.end is None else self.end}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedVersions:
    """A set of versions as sorted, disjoint ranges, and which of them is best."""

    ranges: tuple[VersionRange, ...]
    prefer: Preference = "newest"

    def contains(self, version: int) -> bool:
        return any(version in r for r in self.ranges)

    def choose(self, served: Collection[int]) -> int | None:
        """Return the preferred accepted version of `served`, or None.

        A preferred number that is not there counts as "newest": a preference never refuses.
        """
        fitting = [v for v in served if self.contains(v)]
        if not fitting:
            return None
        if self.prefer in fitting:
            return int(self.prefer)
        return min(fitting) if self.prefer == "oldest" else max(fitting)

    def has_any(self, *, above: int, excluded: AbstractSet[int]) -> bool:
        """Return whether some accepted version is greater than `above` and not `excluded`."""
        for r in self.ranges:
            if r.end is None:
                return True  # `excluded` is finite
            start = max(r.start, above + 1)
            if r.end - start + 1 > sum(start <= v <= r.end for v in excluded):
                return True
        return False

    def __str__(self) -> str:
        return _text(map(str, self.ranges), self.prefer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """The union of `ranges` (sorted, disjoint) and, with a `lag`, of "latest - lag" onwards."""

    ranges: tuple[VersionRange, ...]
    lag: int | None = None
    prefer: Preference = "newest"

    def resolve(self, newest: int | None) -> AcceptedVersions:
        """Fix the relative part against the newest committed version.

        Raises EngineUnavailable if that is needed and nothing is known to be committed.
        """
        ranges = self.ranges
        if self.lag is not None:
            if newest is None:
                raise EngineUnavailable("a relative constraint needs a known newest version")
            ranges = union((*ranges, VersionRange(max(newest - self.lag, 0), None)))
        return AcceptedVersions(ranges=ranges, prefer=self.prefer)

    def may_contain(self, version: int) -> bool:
        """Return whether some newest version lets this constraint accept `version`."""
        return self.lag is not None or any(version in r for r in self.ranges)

    def __str__(self) -> str:
        relative = () if self.lag is None else (f"latest-{self.lag}..",)
        return _text((*map(str, self.ranges), *relative), self.prefer)


ANY = Constraint(ranges=(VersionRange(0, None),))


def union(ranges: Iterable[VersionRange]) -> tuple[VersionRange, ...]:
    """Merge ranges that overlap or touch."""
    merged: list[VersionRange] = []
    for r in sorted(ranges, key=lambda r: r.start):
        if merged and (merged[-1].end is None or r.start <= merged[-1].end + 1):
            last = merged[-1]
            ends = (last.end, r.end)
            end = None if None in ends else max(e for e in ends if e is not None)
            merged[-1] = VersionRange(last.start, end)
        else:
            merged.append(r)
    return tuple(merged)


def _text(items: Iterable[str], prefer: Preference) -> str:
    return ",".join(items) + ("" if prefer == "newest" else f";prefer={prefer}")
