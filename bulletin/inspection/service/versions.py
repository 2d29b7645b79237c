"""Routes about versions and records: all of them follow from the log alone."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import TypeAdapter
from starlette.responses import Response

from skerry.bulletin.inspection.details import VersionDetail, version_detail
from skerry.bulletin.inspection.family import Family, family
from skerry.bulletin.inspection.rows import RecordPage, VersionPage, record_page, version_page
from skerry.bulletin.inspection.service.params import (
    LineageQuery,
    RecordsQuery,
    StretchQuery,
    VersionPath,
    VersionsQuery,
)
from skerry.bulletin.inspection.service.problems import RESPONSES
from skerry.bulletin.inspection.service.site import Site
from skerry.bulletin.inspection.timeline import Timeline, timeline

_VERSIONS = TypeAdapter(VersionPage)
_VERSION = TypeAdapter(VersionDetail)
_RECORDS = TypeAdapter(RecordPage)
_TIMELINE = TypeAdapter(Timeline)
_FAMILY = TypeAdapter(Family)


def versions_router(site: Site) -> APIRouter:
    router = APIRouter(tags=["versions"])

    @router.get("/versions", response_model=VersionPage, responses=RESPONSES)
    async def versions(request: Request, query: Annotated[VersionsQuery, Query()]) -> Response:
        """List versions, a page at a time."""
        seen = site.seen()
        return await site.answer(
            request,
            _VERSIONS,
            lambda: version_page(
                seen.view,
                limit=query.limit,
                before=query.before,
                after=query.after,
                oldest_first=query.order == "oldest",
                state=query.state,
            ),
            tag=site.log_tag(seen),
        )

    @router.get("/versions/{version}", response_model=VersionDetail, responses=RESPONSES)
    async def version(request: Request, version: VersionPath) -> Response:
        """Show one version: its record, whose signature was verified, and what that names."""
        seen = site.seen()
        seen.view.commit(version)  # what is not there is no 304
        return await site.answer(
            request,
            _VERSION,
            lambda: version_detail(seen.view, version),
            tag=site.log_tag(seen),
        )

    @router.get("/records", response_model=RecordPage, responses=RESPONSES)
    async def records(request: Request, query: Annotated[RecordsQuery, Query()]) -> Response:
        """List the slots of the log, a page at a time."""
        seen = site.seen()
        return await site.answer(
            request,
            _RECORDS,
            lambda: record_page(seen.view, limit=query.limit, after=query.after),
            tag=site.log_tag(seen),
        )

    @router.get("/timeline", response_model=Timeline, responses=RESPONSES)
    async def figures(request: Request, query: Annotated[StretchQuery, Query()]) -> Response:
        """Give the figures of many versions, a column for each."""
        seen = site.seen()
        return await site.answer(
            request,
            _TIMELINE,
            lambda: timeline(seen.view, limit=query.limit, first=query.first, last=query.last),
            tag=site.log_tag(seen),
        )

    @router.get("/lineage", response_model=Family, responses=RESPONSES)
    async def lineage(request: Request, query: Annotated[LineageQuery, Query()]) -> Response:
        """Give parents, branches and skips of a stretch of versions."""
        seen = site.seen()
        return await site.answer(
            request,
            _FAMILY,
            lambda: family(seen.view, limit=query.limit, first=query.first, last=query.last),
            tag=site.log_tag(seen),
        )

    return router
