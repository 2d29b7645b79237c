"""Routes about what the run takes, and about how two versions differ."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import TypeAdapter
from starlette.responses import Response

from skerry.bulletin.inspection.difference import (
    Difference,
    TensorDifferences,
    difference,
    tensor_differences,
)
from skerry.bulletin.inspection.follower import Snapshot
from skerry.bulletin.inspection.service.params import (
    DifferenceQuery,
    ForecastQuery,
    StorageQuery,
)
from skerry.bulletin.inspection.service.problems import RESPONSES, Unfit
from skerry.bulletin.inspection.service.replies import unchanged
from skerry.bulletin.inspection.service.site import Site
from skerry.bulletin.inspection.storage import Forecast, Usage, forecast, usage
from skerry.bulletin.retention import KeepRules, kept_versions
from skerry.bulletin.writer import now_ms

MANIFESTS_ADDED = 64  # of one answer: each may have to be read
KEPT_MOST = 128  # the work grows with their square
_RETIREMENTS_SHOWN = 100

_USAGE = TypeAdapter(Usage)
_FORECAST = TypeAdapter(Forecast)
_DIFFERENCE = TypeAdapter(Difference)
_DIFFERENCES = TypeAdapter(TensorDifferences)


def storage_router(site: Site) -> APIRouter:
    router = APIRouter(tags=["storage"])

    @router.get("/storage", response_model=Usage, responses=RESPONSES)
    async def used(request: Request, query: Annotated[StorageQuery, Query()]) -> Response:
        """Say what the run takes, and when what was retired may go, as of the last look."""
        seen = site.seen()
        looked_ms = seen.islands.looked_ms
        return await site.answer(
            request,
            _USAGE,
            lambda: usage(
                seen.view,
                seen.islands.reports.values(),
                now_ms=now_ms() if looked_ms is None else looked_ms,
                lease_limit_s=query.lease_limit_s,
                shown=_RETIREMENTS_SHOWN,
            ),
            tag=None if looked_ms is None else site.islands_tag(seen),
        )

    @router.get("/forecast", response_model=Forecast, responses=RESPONSES)
    async def collection(request: Request, query: Annotated[ForecastQuery, Query()]) -> Response:
        """Say what a collection by these rules would retire now.  Nothing is changed."""
        seen = site.seen()
        return await site.answer(
            request,
            _FORECAST,
            lambda: _forecast(seen, query),
            tag=site.log_tag(seen),
            heavy=True,
        )

    return router


def difference_router(site: Site) -> APIRouter:
    router = APIRouter(tags=["versions"])

    @router.get("/difference", response_model=Difference, responses=RESPONSES)
    async def total(request: Request, query: Annotated[DifferenceQuery, Query()]) -> Response:
        """Say how many elements differ between two versions, at most, by their records."""
        seen = site.seen()
        for version in (query.old, query.new):
            seen.view.commit(version)  # what is not there is no 304
        return await site.answer(
            request,
            _DIFFERENCE,
            lambda: difference(seen.view, query.old, query.new),
            tag=site.log_tag(seen),
        )

    @router.get("/difference/tensors", response_model=TensorDifferences, responses=RESPONSES)
    async def tensors(request: Request, query: Annotated[DifferenceQuery, Query()]) -> Response:
        """Say the same tensor by tensor, from the manifests of at most 64 versions."""
        seen = site.seen()
        found = await site.compute(
            site.computing, lambda: difference(seen.view, query.old, query.new)
        )
        needed = {query.old, query.new, *(found.compared or ())}
        if len(needed) > MANIFESTS_ADDED:
            most = f"expected at most {MANIFESTS_ADDED} versions between the two"
            raise Unfit(f"{most}, found {len(needed)}")

        tag = site.log_tag(seen)
        known = unchanged(request, tag)
        if known is not None:
            return known
        read = await asyncio.gather(*(site.described(seen.view.commit(v)) for v in needed))
        described = dict(zip(needed, read, strict=True))
        return await site.answer(
            request,
            _DIFFERENCES,
            lambda: tensor_differences(found, described, limit=query.limit),
            tag=tag,
        )

    return router


def _forecast(seen: Snapshot, query: ForecastQuery) -> Forecast:
    rules = KeepRules(last=query.keep_last, every=query.keep_every)
    kept = kept_versions(seen.view.state, rules, now_ms=0, times={})
    if len(kept) > KEPT_MOST:
        rule = f"expected rules that keep at most {KEPT_MOST} versions, these keep {len(kept)}"
        raise Unfit(f"{rule}: ask skerry gc --dry-run")
    return forecast(seen.view, rules)
