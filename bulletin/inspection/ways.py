"""What an island downloads to get from one version to another.  Pure; `lineage` finds the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from skerry.bulletin.inspection.view import View
from skerry.bulletin.lineage import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One step: a full from anywhere, a version's own patch, or a skip patch over several."""

    kind: Literal["full", "patch", "skip"]
    base: int | None
    version: int
    step_bytes: int
    objects: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp:
    """The cheapest way from `have` (None: nothing) to `want`; `why` says why there is none."""

    have: int | None
    want: int
    reachable: bool
    why: str | None
    total_bytes: int
    objects: int
    steps: list[StepRow]


def catch_up(view: View, *, have: int | None, want: int) -> CatchUp:
    """Raises VersionUnknown."""
    view.commit(want)
    if have is not None:
        view.commit(have)
    why: str | None = None
    steps: tuple[Step, ...] | None = ()
    if have != want:
        if want in view.state.retired:
            why = f"version {want} is retired"
        elif want in view.state.abandoned:
            why = f"version {want} is abandoned"
        else:
            steps = view.graph.ways(have, [want]).to(want)
            if steps is None:
                why = f"no path leads to version {want}"
    rows = [_row(view, step) for step in (steps or ())]
    return CatchUp(
        have=have,
        want=want,
        reachable=why is None,
        why=why,
        total_bytes=sum(row.step_bytes for row in rows),
        objects=sum(row.objects for row in rows),
        steps=rows,
    )


def _row(view: View, step: Step) -> StepRow:
    kind: Literal["full", "patch", "skip"] = step.kind
    if kind == "patch" and step.objects != view.state.commits[step.version].packs:
        kind = "skip"
    return StepRow(
        kind=kind,
        base=step.base,
        version=step.version,
        step_bytes=step.nbytes,
        objects=len(step.objects),
    )
