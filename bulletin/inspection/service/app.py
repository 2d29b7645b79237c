"""The application: every route behind the guard, and its own description."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from skerry.bulletin.inspection.follower import Follower
from skerry.bulletin.inspection.service.config import ServiceConfig
from skerry.bulletin.inspection.service.examples import add_examples

try:
    from fastapi import FastAPI

    from skerry.bulletin.inspection.service.assets import assets_router
    from skerry.bulletin.inspection.service.guard import Guard
    from skerry.bulletin.inspection.service.islands import islands_router
    from skerry.bulletin.inspection.service.overview import health_router, overview_router
    from skerry.bulletin.inspection.service.problems import add_problems
    from skerry.bulletin.inspection.service.runs import (
        Served,
        health_of_runs_router,
        names_of,
        runs_router,
    )
    from skerry.bulletin.inspection.service.session import session_router
    from skerry.bulletin.inspection.service.site import Site, release
    from skerry.bulletin.inspection.service.storage import difference_router, storage_router
    from skerry.bulletin.inspection.service.streams import streams_router
    from skerry.bulletin.inspection.service.tensors import tensors_router
    from skerry.bulletin.inspection.service.versions import versions_router
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"the inspection service needs {error.name}: pip install 'skerry[inspect]'",
        name=error.name,
    ) from error

PREFIX = "/api/v1"
_ABOUT = """
One run of a bulletin, read-only, from its records, manifests and islands' statuses.

Answers that follow from the log have an ETag: ask again with `If-None-Match`. Nothing a store or an
island says is believed beyond what signatures and digests prove.
"""
_ABOUT_RUNS = """
Several runs, read-only.  Each is described by itself, at `runs/NAME/openapi.json`.
"""


def create_app(follower: Follower, config: ServiceConfig, *, address: str) -> FastAPI:
    """Build the application over a follower, which somebody else starts and stops."""
    site = Site.of(follower, config, address=address)
    app = _app_of(site)
    [name] = names_of([address])
    app.include_router(runs_router([Served(name, "./", site)]), prefix=PREFIX)
    return app


def create_app_of_runs(followers: Mapping[str, Follower], config: ServiceConfig) -> FastAPI:
    """Build the application over several runs, by their addresses."""
    names = names_of(list(followers))
    runs = [
        Served(name, f"runs/{name}/", Site.of(follower, config, address=address))
        for name, (address, follower) in zip(names, followers.items(), strict=True)
    ]
    app = _described(_ABOUT_RUNS)
    app.include_router(runs_router(runs), prefix=PREFIX)
    app.include_router(health_of_runs_router(runs))
    app.include_router(session_router(config))
    app.include_router(assets_router("runs.html"))
    for run in runs:
        app.mount(f"/runs/{run.name}", _app_of(run.site))
    add_problems(app)
    app.add_middleware(Guard, config=config)
    return app


def _app_of(site: Site) -> FastAPI:
    app = _described(_ABOUT)
    for router in (
        overview_router(site),
        versions_router(site),
        tensors_router(site),
        difference_router(site),
        islands_router(site),
        storage_router(site),
        streams_router(site),
    ):
        app.include_router(router, prefix=PREFIX)
    app.include_router(health_router(site))
    app.include_router(session_router(site.config))
    app.include_router(assets_router("index.html"))
    add_problems(app)
    described = app.openapi
    # Examples are put in afterwards: FastAPI leaves out what is null in them.
    app.openapi = cache(lambda: add_examples(described(), PREFIX))  # type: ignore[method-assign]
    app.add_middleware(Guard, config=site.config)
    return app


def _described(about: str) -> FastAPI:
    return FastAPI(
        title="Skerry inspection",
        version=release(),
        description=about,
        openapi_url="/openapi.json",
        docs_url=None,  # both of its pages would load scripts from other hosts
        redoc_url=None,
    )
