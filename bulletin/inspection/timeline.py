"""The figures of a stretch of versions in columns: what a chart of thousands needs.  Pure."""

from __future__ import annotations

from dataclasses import dataclass

from skerry.bulletin.inspection.rows import Form, Standing, version_row
from skerry.bulletin.inspection.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Columns of equal length, oldest first; what each means is said of VersionRow.

    `total` versions there are; `first` is the oldest one shown.
    """

    total: int
    newest: int | None
    first: int
    version: list[int]
    step: list[int]
    time_ms: list[int]
    form: list[Form]
    state: list[Standing]
    share: list[float | None]
    patch_bytes: list[int | None]
    full_bytes: list[int | None]
    bytes_per_changed: list[float | None]
    ratio: list[float | None]


def timeline(
    view: View, *, limit: int, first: int | None = None, last: int | None = None
) -> Timeline:
    """Return the newest `limit` versions from `first` to `last`, both included."""
    total = len(view.state.commits)
    end = total if last is None else min(last + 1, total)
    begin = min(end, max(0 if first is None else first, end - limit))
    rows = [version_row(view, number) for number in range(begin, end)]
    return Timeline(
        total=total,
        newest=view.newest,
        first=begin,
        version=[row.version for row in rows],
        step=[row.step for row in rows],
        time_ms=[row.time_ms for row in rows],
        form=[row.form for row in rows],
        state=[row.state for row in rows],
        share=[row.share for row in rows],
        patch_bytes=[row.patch_bytes for row in rows],
        full_bytes=[row.full_bytes for row in rows],
        bytes_per_changed=[row.bytes_per_changed for row in rows],
        ratio=[row.ratio for row in rows],
    )
