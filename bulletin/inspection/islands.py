"""Where versions are served and what lags, by what islands say of themselves.  Pure.

A status is written by anybody who may write to the store: shown, never believed.  Whatever in it
can be compared with the log is: the lag is counted here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from skerry.bulletin.inspection.view import View
from skerry.bulletin.status import IslandReport

SILENT_S = 90.0  # an agent writes its status every 30 s, whatever happens

State = Literal["current", "behind", "failing", "silent", "stopped", "stray"]
# What an operator must see first comes first.
_SEVERITY: dict[State, int] = {
    "stray": 0, "failing": 1, "silent": 2, "behind": 3, "stopped": 4, "current": 5,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look at a status found; `lag` is counted against the log of that moment."""

    time_ms: int
    version: int | None
    lag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IslandRow:
    """One island.

    `state`: `stray` holds another run, or a version that the log does not have or has abandoned or
    retired; `silent` has said nothing for SILENT_S; `failing` names an error; `stopped` has taken
    its leave.  `lag` counts versions of the newest one's line that it lacked at the last look,
    `said_lag` is its own word.  `age_s` compares its clock with ours, so it may be below zero.
    """

    island: str
    state: State
    why: str | None
    version: int | None
    target: int | None
    lag: int
    said_lag: int
    phase: str
    done_bytes: int
    total_bytes: int
    error: str | None
    engines: Mapping[str, int | None]
    last_seen_ms: int
    age_s: float
    looks: Sequence[Look]


@dataclass(frozen=True, slots=True, kw_only=True)
class IslandCounts:
    """How many islands are in each state."""

    current: int = 0
    behind: int = 0
    failing: int = 0
    silent: int = 0
    stopped: int = 0
    stray: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A status object that is none, or could not be read."""

    key: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IslandPage:
    """Islands, those that need somebody first; `refused` statuses are no islands."""

    total: int
    newest: int | None
    counts: IslandCounts
    offset: int
    islands: list[IslandRow]
    refused: list[Refused]
    refused_total: int
    more_than_looked_at: bool
    looked_ms: int | None


def island_row(
    view: View, report: IslandReport, looks: Sequence[Look], *, now_ms: int
) -> IslandRow:
    age_s = (now_ms - report.time_ms) / 1000
    # A log that has moved on since the look makes nobody late.
    lag = looks[-1].lag if looks else view.lag(report.version)
    state, why = _judge(view, report, lag, age_s)
    return IslandRow(
        island=report.island,
        state=state,
        why=why,
        version=report.version,
        target=report.target,
        lag=lag,
        said_lag=report.lag,
        phase=report.phase,
        done_bytes=report.nbytes,
        total_bytes=report.total_bytes,
        error=report.error,
        engines=dict(report.engines),
        last_seen_ms=report.time_ms,
        age_s=age_s,
        looks=looks,
    )


def arranged(rows: Iterable[IslandRow]) -> list[IslandRow]:
    """Return the rows, those that need somebody first, then those furthest behind."""
    return sorted(rows, key=lambda row: (_SEVERITY[row.state], -row.lag, row.island))


def counted(rows: Iterable[IslandRow]) -> IslandCounts:
    counts = dict.fromkeys(_SEVERITY, 0)
    for row in rows:
        counts[row.state] += 1
    return IslandCounts(**counts)


def _judge(view: View, report: IslandReport, lag: int, age_s: float) -> tuple[State, str | None]:
    version, state = report.version, view.state
    if report.run is not None and report.run != state.run:
        return "stray", "it holds another run"
    if version is not None:
        if version not in state.commits:
            return "stray", f"the log has no version {version}"
        if version in state.abandoned:
            return "stray", f"version {version} is abandoned"
        if version in state.retired:
            return "stray", f"version {version} is retired"
    if report.error is not None:
        return "failing", report.error
    if report.phase == "stopped":
        return "stopped", None
    if age_s > SILENT_S:
        return "silent", f"nothing for {age_s:.0f} s"
    return ("behind", None) if lag else ("current", None)
