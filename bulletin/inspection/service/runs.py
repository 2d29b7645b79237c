"""Several runs behind one address: a list of them, and each as it is alone below `runs/NAME/`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import TypeAdapter
from starlette.responses import JSONResponse, Response

from skerry.bulletin.inspection.service.overview import Overview, overview
from skerry.bulletin.inspection.service.problems import RESPONSES
from skerry.bulletin.inspection.service.site import Site
from skerry.bulletin.inspection.store_state import Answering

_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run that is served: its page and its API are below `href`, seen from this service."""

    name: str
    href: str
    overview: Overview


@dataclass(frozen=True, slots=True, kw_only=True)
class RunList:
    """Every run of this service, in the order in which they were given."""

    runs: list[RunRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHealth:
    """Whether a run is still followed, and how its store has been answering."""

    name: str
    status: Literal["ok", "ended"]
    store: Answering


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthOfRuns:
    """The process lives; `ended`: one of the runs is not followed any more."""

    status: Literal["ok", "ended"]
    runs: list[RunHealth]


@dataclass(frozen=True, slots=True)
class Served:
    """A run under its name."""

    name: str
    href: str
    site: Site


_LIST = TypeAdapter(RunList)
_HEALTH = TypeAdapter(HealthOfRuns)


def names_of(addresses: Sequence[str]) -> list[str]:
    """Return a name for each address: the end of it, and a number where that is taken."""
    names: list[str] = []
    for address in addresses:
        last = address.partition("?")[0].rstrip("/").rpartition("/")[2]
        name = _UNFIT.sub("-", last).strip(".-")[:64] or "run"
        number, found = 1, name
        while found in names:
            number += 1
            found = f"{name}-{number}"
        names.append(found)
    return names


def runs_router(runs: Sequence[Served]) -> APIRouter:
    router = APIRouter(tags=["run"])

    @router.get("/runs", response_model=RunList, responses=RESPONSES)
    async def listed(request: Request) -> Response:
        """List the runs that this service shows."""
        for run in runs:
            run.site.follower.attend()
        return await runs[0].site.answer(request, _LIST, lambda: _listed(runs), tag=None)

    return router


def health_of_runs_router(runs: Sequence[Served]) -> APIRouter:
    router = APIRouter(tags=["service"])

    @router.get(
        "/health",
        response_model=HealthOfRuns,
        responses={503: {"description": "a run is not followed", "model": HealthOfRuns}},
    )
    @router.head("/health", include_in_schema=False)
    async def health() -> Response:
        """Tell that the process lives.  Needs no token and never waits for a store."""
        told = _health(runs)
        status = 200 if told.status == "ok" else 503
        body = _HEALTH.dump_python(told, mode="json")
        return JSONResponse(body, status, headers={"Cache-Control": "no-store"})

    return router


def _listed(runs: Sequence[Served]) -> RunList:
    rows = [
        RunRow(
            name=run.name, href=run.href, overview=overview(run.site, run.site.follower.snapshot)
        )
        for run in runs
    ]
    return RunList(runs=rows)


def _health(runs: Sequence[Served]) -> HealthOfRuns:
    each = [
        RunHealth(
            name=run.name,
            status="ended" if run.site.follower.ended else "ok",
            store=run.site.follower.store_state.report().state,
        )
        for run in runs
    ]
    ended = any(run.status == "ended" for run in each)
    return HealthOfRuns(status="ended" if ended else "ok", runs=each)
