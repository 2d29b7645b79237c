"""Routes about islands and what it takes to catch up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import TypeAdapter
from starlette.exceptions import HTTPException
from starlette.responses import Response

from skerry.bulletin.inspection.follower import Snapshot
from skerry.bulletin.inspection.islands import (
    IslandPage,
    IslandRow,
    arranged,
    counted,
    island_row,
)
from skerry.bulletin.inspection.service.params import CatchUpQuery, IslandPath, IslandsQuery
from skerry.bulletin.inspection.service.problems import RESPONSES
from skerry.bulletin.inspection.service.site import Site
from skerry.bulletin.inspection.view import View
from skerry.bulletin.inspection.ways import CatchUp, catch_up
from skerry.bulletin.status import IslandReport

_REFUSED_SHOWN = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class IslandDetail:
    """One island, and its cheapest way to the newest version.

    None: there is no version, or what it holds is of another run.
    """

    island: IslandRow
    catch_up: CatchUp | None


_PAGE = TypeAdapter(IslandPage)
_DETAIL = TypeAdapter(IslandDetail)
_CATCH_UP = TypeAdapter(CatchUp)


def islands_router(site: Site) -> APIRouter:
    router = APIRouter(tags=["islands"])

    @router.get("/islands", response_model=IslandPage, responses=RESPONSES)
    async def islands(request: Request, query: Annotated[IslandsQuery, Query()]) -> Response:
        """List islands by their own statuses, as of the last look at them."""
        seen = site.seen()
        tag = site.islands_tag(seen)
        return await site.answer(request, _PAGE, lambda: _page(seen, query), tag=tag)

    @router.get("/islands/{island}", response_model=IslandDetail, responses=RESPONSES)
    async def island(request: Request, island: IslandPath) -> Response:
        """Show one island, and what it would download to be at the newest version."""
        seen = site.seen()
        if island not in seen.islands.reports:
            raise HTTPException(404, f"no status of an island {island}")
        tag = site.islands_tag(seen)
        return await site.answer(request, _DETAIL, lambda: _detail(seen, island), tag=tag)

    @router.get("/catch-up", response_model=CatchUp, responses=RESPONSES)
    async def cost(request: Request, query: Annotated[CatchUpQuery, Query()]) -> Response:
        """Say what it takes to get from one version to another: the cheapest way, in bytes."""
        seen = site.seen()
        want = seen.view.newest if query.want is None else query.want
        if want is None:
            raise HTTPException(404, "the run has no version yet")
        for version in (want, *(() if query.have is None else (query.have,))):
            seen.view.commit(version)  # what is not there is no 304
        return await site.answer(
            request,
            _CATCH_UP,
            lambda: catch_up(seen.view, have=query.have, want=want),
            tag=site.log_tag(seen),
        )

    return router


def rows_of(seen: Snapshot) -> list[IslandRow]:
    """Return every island, as of the last look."""
    islands = seen.islands
    return [
        island_row(seen.view, report, islands.looks.get(name, ()), now_ms=islands.looked_ms or 0)
        for name, report in islands.reports.items()
    ]


def _page(seen: Snapshot, query: IslandsQuery) -> IslandPage:
    everything = arranged(rows_of(seen))
    rows = [row for row in everything if query.state in (None, row.state)]
    return IslandPage(
        total=len(rows),
        newest=seen.view.newest,
        counts=counted(everything),
        offset=query.offset,
        islands=rows[query.offset : query.offset + query.limit],
        refused=list(seen.islands.refused[:_REFUSED_SHOWN]),
        refused_total=len(seen.islands.refused),
        more_than_looked_at=seen.islands.more,
        looked_ms=seen.islands.looked_ms,
    )


def _detail(seen: Snapshot, name: str) -> IslandDetail:
    row = next(row for row in rows_of(seen) if row.island == name)
    return IslandDetail(island=row, catch_up=_way(seen.view, seen.islands.reports[name]))


def _way(view: View, report: IslandReport) -> CatchUp | None:
    have, want = report.version, view.newest
    if want is None or report.run not in (None, view.state.run):
        return None
    known = have is not None and have in view.state.commits
    return catch_up(view, have=have if known else None, want=want)
