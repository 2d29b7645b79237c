"""The run at a glance, and the service's own health."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import TypeAdapter
from starlette.responses import JSONResponse, Response

from skerry.bulletin.inspection.follower import Snapshot
from skerry.bulletin.inspection.islands import IslandCounts, counted
from skerry.bulletin.inspection.rows import VersionRow, version_row
from skerry.bulletin.inspection.service.guard import is_ours
from skerry.bulletin.inspection.service.islands import rows_of
from skerry.bulletin.inspection.service.problems import RESPONSES
from skerry.bulletin.inspection.service.site import Site
from skerry.bulletin.inspection.store_state import StoreReport
from skerry.bulletin.writer import now_ms
from skerry.codec.digest import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """One run.  `run` is the digest of slot 0, `key` verifies the next record (None: unsigned).

    While `store` is not ok, the rest is what was seen last.
    """

    address: str
    run: Digest | None
    key: str | None
    pinned: bool
    epoch: int
    writer: str | None
    records: int
    versions: int
    live: int
    abandoned: int
    retired: int
    newest: VersionRow | None
    log_bytes: int
    islands: IslandCounts
    islands_denied: str | None
    islands_looked_ms: int | None
    store: StoreReport
    now_ms: int
    release: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The process lives; `store` is how the bulletin has been answering.

    `ended`: nothing follows the bulletin any more, and only another process will.
    """

    status: Literal["ok", "ended"]
    store: StoreReport


_OVERVIEW = TypeAdapter(Overview)
_HEALTH = TypeAdapter(Health)


def overview_router(site: Site) -> APIRouter:
    router = APIRouter(tags=["run"])

    @router.get("/run", response_model=Overview, responses=RESPONSES)
    async def run(request: Request) -> Response:
        """Show the run at a glance, and how the store is; also while there is nothing to show."""
        site.follower.attend()
        snapshot = site.follower.snapshot
        return await site.answer(request, _OVERVIEW, lambda: overview(site, snapshot), tag=None)

    return router


def health_router(site: Site) -> APIRouter:
    router = APIRouter(tags=["service"])

    @router.get(
        "/health",
        response_model=Health,
        responses={503: {"description": "the bulletin is not followed", "model": Health}},
    )
    @router.head("/health", include_in_schema=False)
    async def health(request: Request) -> Response:
        """Tell that the process lives.  Needs no token and never waits for the store."""
        follower = site.follower
        health = Health(
            status="ended" if follower.ended else "ok", store=follower.store_state.report()
        )
        body = _HEALTH.dump_python(health, mode="json")
        host = request.headers.get("host", "")
        if site.config.token is not None or not is_ours(site.config, host):
            body["store"]["problem"] = None  # whoever may be anybody learns nothing of the run
        status = 200 if health.status == "ok" else 503
        return JSONResponse(body, status, headers={"Cache-Control": "no-store"})

    return router


def overview(site: Site, snapshot: Snapshot) -> Overview:
    view, state = snapshot.view, snapshot.view.state
    retired, abandoned = state.retired, state.abandoned - state.retired
    total = len(state.commits)
    return Overview(
        address=site.address,
        run=state.run,
        key=None if state.key is None else state.key.hex,
        pinned=state.pinned_key is not None,
        epoch=state.epoch,
        writer=state.writer,
        records=state.seq + 1,
        versions=total,
        live=total - len(retired) - len(abandoned),
        abandoned=len(abandoned),
        retired=len(retired),
        newest=None if view.newest is None else version_row(view, view.newest),
        log_bytes=state.nbytes,
        islands=counted(rows_of(snapshot)),
        islands_denied=snapshot.islands.denied,
        islands_looked_ms=snapshot.islands.looked_ms,
        store=site.follower.store_state.report(),
        now_ms=now_ms(),
        release=site.release,
    )
