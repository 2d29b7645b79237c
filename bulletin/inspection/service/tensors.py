"""Routes about tensors: they need a version's layout and manifest, which the store is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import APIRouter, Query, Request
from pydantic import TypeAdapter
from starlette.exceptions import HTTPException
from starlette.responses import Response

from skerry.bulletin.errors import BulletinError, NotFound
from skerry.bulletin.inspection.details import Sizes, sizes
from skerry.bulletin.inspection.heat import (
    HeatMap,
    TensorHistory,
    heat_map,
    sampled,
    tensor_history,
)
from skerry.bulletin.inspection.service.params import (
    DigestPath,
    HeatQuery,
    TensorQuery,
    TensorsQuery,
    VersionPath,
)
from skerry.bulletin.inspection.service.problems import RESPONSES
from skerry.bulletin.inspection.service.site import Site
from skerry.bulletin.inspection.tensors import (
    Layers,
    TensorPage,
    TensorRow,
    layers,
    tensor_page,
)
from skerry.bulletin.inspection.view import View
from skerry.bulletin.inspection.workers import Busy
from skerry.bulletin.records import Commit
from skerry.codec.digest import Digest

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestReply:
    """One manifest with the layout that it is of; it never changes."""

    manifest: Digest
    layout: Digest
    sizes: Sizes
    tensors: list[TensorRow]


_SIZES = TypeAdapter(Sizes)
_MANIFEST = TypeAdapter(ManifestReply)
_TENSORS = TypeAdapter(TensorPage)
_LAYERS = TypeAdapter(Layers)
_HEAT = TypeAdapter(HeatMap)
_HISTORY = TypeAdapter(TensorHistory)


def tensors_router(site: Site) -> APIRouter:
    router = APIRouter(tags=["tensors"])
    read = site.descriptions

    @router.get("/manifests/{digest}", response_model=ManifestReply, responses=RESPONSES)
    async def manifest(request: Request, digest: DigestPath) -> Response:
        """Give a manifest that a record names.  Immutable."""
        commit = _named(site.seen().view, digest)

        def compute() -> ManifestReply:
            described = read.of(commit)
            return ManifestReply(
                manifest=commit.manifest,
                layout=commit.layout,
                sizes=sizes(commit, described),
                tensors=list(described.rows),
            )

        tag = f'"{digest[:24]}-{site.release}"'
        return await site.answer(
            request, _MANIFEST, compute, tag=tag, immutable=True, from_store=True
        )

    @router.get("/versions/{version}/sizes", response_model=Sizes, responses=RESPONSES)
    async def exact(request: Request, version: VersionPath) -> Response:
        """Give a version's exact sizes, files, and the side files that changed."""
        commit = site.seen().view.commit(version)
        return await site.answer(
            request,
            _SIZES,
            lambda: sizes(commit, read.of(commit)),
            tag=_tag(site, commit),
            from_store=True,
        )

    @router.get(
        "/versions/{version}/tensors",
        response_model=TensorPage,
        responses=RESPONSES,
    )
    async def tensors(
        request: Request, version: VersionPath, query: Annotated[TensorsQuery, Query()]
    ) -> Response:
        """List a version's tensors: what changed, of how much, in how many bytes of the patch."""
        commit = site.seen().view.commit(version)
        return await site.answer(
            request,
            _TENSORS,
            lambda: tensor_page(
                version,
                read.of(commit),
                compared=commit.changed is not None,
                limit=query.limit,
                offset=query.offset,
                order=query.order,
                prefix=query.prefix,
                layer=query.layer,
                projection=query.projection,
            ),
            tag=_tag(site, commit),
            from_store=True,
        )

    @router.get("/versions/{version}/layers", response_model=Layers, responses=RESPONSES)
    async def by_layer(request: Request, version: VersionPath) -> Response:
        """Add up a version's tensors by layer and projection."""
        commit = site.seen().view.commit(version)
        return await site.answer(
            request,
            _LAYERS,
            lambda: layers(version, read.of(commit), compared=commit.changed is not None),
            tag=_tag(site, commit),
            from_store=True,
        )

    @router.get("/heat", response_model=HeatMap, responses=RESPONSES)
    async def heat(request: Request, query: Annotated[HeatQuery, Query()]) -> Response:
        """Give the changed share by layer and projection, for versions evenly chosen."""
        seen = site.seen()
        first, last = _stretch(seen.view, query)
        chosen = sampled(seen.view, first, last, query.columns)
        known, unknown, settled = await _each(site, seen.view, chosen, read.cells)
        tag = site.log_tag(seen) if settled else None
        return await site.answer(
            request, _HEAT, lambda: heat_map(first, last, known, unknown), tag=tag
        )

    @router.get("/tensor", response_model=TensorHistory, responses=RESPONSES)
    async def history(request: Request, query: Annotated[TensorQuery, Query()]) -> Response:
        """Follow one tensor through versions, evenly chosen."""
        seen = site.seen()
        first, last = _stretch(seen.view, query)
        chosen = sampled(seen.view, first, last, query.columns)
        known, unknown, settled = await _each(site, seen.view, chosen, read.of)
        tag = site.log_tag(seen) if settled else None
        return await site.answer(
            request,
            _HISTORY,
            lambda: tensor_history(query.name, first, last, known, unknown),
            tag=tag,
        )

    return router


async def _each(
    site: Site, view: View, versions: list[int], read: Callable[[Commit], T]
) -> tuple[Mapping[int, T], Mapping[int, str], bool]:
    """Read many descriptions at once; return those found, why not of the others, and whether
    asking again would find the same."""
    known: dict[int, T] = {}
    unknown: dict[int, str] = {}
    settled = True

    async def one(version: int) -> None:
        nonlocal settled
        commit = view.commit(version)
        if commit.changed is None:
            unknown[version] = "nobody compared it with its parent"
            return
        try:
            known[version] = await site.store.run(
                lambda: read(commit), limit_s=site.config.store_limit_s
            )
        except NotFound:
            unknown[version] = "its manifest is not there any more"
            # Of a version in use it may be on its way to this mirror, or be put back.
            settled = settled and version in view.state.retired
        except TimeoutError:
            unknown[version], settled = "the store did not answer in time", False
        except (BulletinError, OSError, Busy) as error:
            unknown[version], settled = str(error)[:200], False

    await asyncio.gather(*map(one, versions))
    return known, unknown, settled


def _stretch(view: View, query: HeatQuery) -> tuple[int, int]:
    if view.newest is None:
        raise HTTPException(404, "the run has no version yet")
    last = view.newest if query.last is None else min(query.last, len(view.state.commits) - 1)
    return min(query.first or 0, last), last


def _named(view: View, digest: str) -> Commit:
    """Return a version whose manifest that is: nothing else is read from the store."""
    version = view.manifests.get(Digest(digest))
    if version is None:
        raise HTTPException(404, f"no version has the manifest {digest}")
    return view.commit(version)


def _tag(site: Site, commit: Commit) -> str:
    return f'"{commit.version}-{commit.manifest[:24]}-{site.release}"'
