"""Which skip patches a run should have, so that a late joiner needs few.  Pure.

The ladder: the version in place d of a line, d divisible by 2^k, gets skips from the versions 2, 4,
… 2^k places before it on that line (in a run without forks a version's place is its number).  Then
any two versions of a line, n places apart, have at most about 2 log2(n) steps between them; skips
never leave a line, so they are shared by all that descends from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from skerry.bulletin.lineage import Graph, Step, edges
from skerry.bulletin.state import LogState

MAX_LEVEL = 20  # a skip over a million versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """A skip that the ladder lacks: `chain` leads there now, `nbytes` is the cheapest way of any
    kind, a full included: a skip that is not smaller saves nothing."""

    base: int
    version: int
    chain: tuple[Step, ...]
    nbytes: int


def line(state: LogState) -> list[int]:
    """Return the versions that lead to the newest one, the oldest first, and that one."""
    versions = []
    commit = state.newest
    while commit is not None:
        versions.append(commit.version)
        commit = None if commit.parent is None else state.commits[commit.parent]
    return versions[::-1]


def pairs(state: LogState, *, max_level: int = MAX_LEVEL) -> list[tuple[int, int]]:
    """Return the skips of the newest one's line that are not there, as (base, version).

    They come by base, so that weights at the base need only ever go forward, and the short ones
    first, so that the long ones are made of them.  A retired version counts while it is a link.
    """
    within_reach = Graph(edges(state)).ways(None).arrivals
    present = {
        (skip.base_version, skip.version)
        for skip in state.skips
        if state.retired_keys.isdisjoint(ref.key for ref in skip.packs)
    }
    versions = line(state)
    missing = []
    for place, base in enumerate(versions):
        for level in range(1, max_level + 1):
            span = 1 << level
            if place % span or place + span >= len(versions):
                break
            version = versions[place + span]
            if base not in within_reach or version not in within_reach:
                continue
            if (base, version) not in present:
                missing.append((base, version))
    return missing


def rung(state: LogState, base: int, version: int) -> Rung | None:
    """Return how the skip is to be made; None where no patches lead to its base, or from there.

    The base may be retired, as long as it is still a link between others.
    """
    every = list(edges(state))
    newcomer = Graph(every).ways(None, [base, version])
    between = (step for step in every if step.base is not None and base <= step.base < step.version)
    ways = Graph(between).ways(base, [version])
    chain, nbytes = ways.to(version), ways.cost(version)
    if newcomer.cost(base) is None or chain is None or nbytes is None:
        return None
    over_a_full = newcomer.cost(version)
    assert over_a_full is not None  # by way of the base, if by no other
    return Rung(base=base, version=version, chain=chain, nbytes=min(nbytes, over_a_full))
