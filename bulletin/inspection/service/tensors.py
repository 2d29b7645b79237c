"""Routes about tensors: they need a version's layout and manifest, which the store is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import TypeAdapter
from starlette.exceptions import HTTPException
from starlette.responses import Response

from skerry.bulletin.errors import BulletinError, NotFound
from skerry.bulletin.inspection.cells import Layers, cells, layers
from skerry.bulletin.inspection.described import Described, TensorRow
from skerry.bulletin.inspection.details import FileRow, Sizes, files_of, sizes
from skerry.bulletin.inspection.heat import (
    NOT_YET,
    HeatMap,
    TensorHistory,
    heat_map,
    sampled,
    tensor_history,
    tensor_point,
)
from skerry.bulletin.inspection.service.params import (
    DigestPath,
    HeatQuery,
    TensorQuery,
    TensorsQuery,
    VersionPath,
)
from skerry.bulletin.inspection.service.problems import RESPONSES
from skerry.bulletin.inspection.service.replies import unchanged
from skerry.bulletin.inspection.service.site import Site, TooLong
from skerry.bulletin.inspection.tensors import TensorPage, tensor_page
from skerry.bulletin.inspection.view import View
from skerry.bulletin.inspection.workers import Busy
from skerry.bulletin.records import Commit
from skerry.codec.digest import Digest

EACH_LIMIT_S = 8.0  # of an answer in many parts; those that are read later are told next time


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestReply:
    """One manifest with the tensors of its layout; it never changes.

    Several versions may have it: what only the record of one tells is not in it.
    """

    manifest: Digest
    layout: Digest
    raw_bytes: int
    full_bytes: int
    files: list[FileRow]
    side_files_changed: list[str]
    recipe: Mapping[str, object]
    tensors: list[TensorRow]


_SIZES = TypeAdapter(Sizes)
_MANIFEST = TypeAdapter(ManifestReply)
_TENSORS = TypeAdapter(TensorPage)
_LAYERS = TypeAdapter(Layers)
_HEAT = TypeAdapter(HeatMap)
_HISTORY = TypeAdapter(TensorHistory)


def tensors_router(site: Site) -> APIRouter:
    router = APIRouter(tags=["tensors"])

    async def told(
        request: Request,
        commit: Commit,
        adapter: TypeAdapter[Any],
        tell: Callable[[Described], object],
    ) -> Response:
        tag = _tag(site, commit)
        known = unchanged(request, tag)
        if known is not None:
            return known
        described = await site.described(commit)
        return await site.answer(request, adapter, lambda: tell(described), tag=tag)

    @router.get("/manifests/{digest}", response_model=ManifestReply, responses=RESPONSES)
    async def manifest(request: Request, digest: DigestPath) -> Response:
        """Give a manifest that a record names.  Immutable."""
        commit = _named(site.seen().view, digest)
        tag = f'"{digest[:24]}-{site.release}"'
        known = unchanged(request, tag, immutable=True)
        if known is not None:
            return known
        described = await site.described(commit)
        return await site.answer(
            request, _MANIFEST, lambda: _manifest(digest, described), tag=tag, immutable=True
        )

    @router.get("/versions/{version}/sizes", response_model=Sizes, responses=RESPONSES)
    async def exact(request: Request, version: VersionPath) -> Response:
        """Give a version's exact sizes, files, and the side files that changed."""
        commit = site.seen().view.commit(version)
        return await told(request, commit, _SIZES, lambda described: sizes(commit, described))

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
        return await told(
            request,
            commit,
            _TENSORS,
            lambda described: tensor_page(
                version,
                described,
                compared=commit.changed is not None,
                limit=query.limit,
                offset=query.offset,
                order=query.order,
                prefix=query.prefix,
                layer=query.layer,
                projection=query.projection,
            ),
        )

    @router.get("/versions/{version}/layers", response_model=Layers, responses=RESPONSES)
    async def by_layer(request: Request, version: VersionPath) -> Response:
        """Add up a version's tensors by layer and projection."""
        commit = site.seen().view.commit(version)
        return await told(
            request,
            commit,
            _LAYERS,
            lambda described: layers(version, described, compared=commit.changed is not None),
        )

    @router.get("/heat", response_model=HeatMap, responses=RESPONSES)
    async def heat(request: Request, query: Annotated[HeatQuery, Query()]) -> Response:
        """Give the changed share by layer and projection, for versions evenly chosen.

        Where `unread` is not 0 there is more to tell soon.
        """
        seen = site.seen()
        first, last = _stretch(seen.view, query)
        found = await _each(site, seen.view, sampled(seen.view, first, last, query.columns))

        def compute() -> HeatMap:
            known = {version: cells(described) for version, described in found.known.items()}
            return heat_map(first, last, known, found.unknown)

        tag = site.log_tag(seen) if found.settled else None
        return await site.answer(request, _HEAT, compute, tag=tag)

    @router.get("/tensor", response_model=TensorHistory, responses=RESPONSES)
    async def history(request: Request, query: Annotated[TensorQuery, Query()]) -> Response:
        """Follow one tensor through versions, evenly chosen.

        Where `unread` is not 0 there is more to tell soon.
        """
        seen = site.seen()
        first, last = _stretch(seen.view, query)
        found = await _each(site, seen.view, sampled(seen.view, first, last, query.columns))

        def compute() -> TensorHistory:
            known = {v: tensor_point(query.name, v, found.known[v]) for v in found.known}
            return tensor_history(query.name, first, last, known, found.unknown)

        tag = site.log_tag(seen) if found.settled else None
        return await site.answer(request, _HISTORY, compute, tag=tag)

    return router


@dataclass(frozen=True, slots=True)
class _Found:
    """The descriptions that there are, why not the others, and whether that stays so."""

    known: Mapping[int, Described]
    unknown: Mapping[int, str]
    settled: bool


async def _each(site: Site, view: View, versions: list[int]) -> _Found:
    """Read many descriptions at once, those that are there within EACH_LIMIT_S."""
    known: dict[int, Described] = {}
    unknown: dict[int, str] = {}
    settled = True

    async def one(version: int) -> None:
        nonlocal settled
        commit = view.commit(version)
        if commit.changed is None:
            unknown[version] = "nobody compared it with its parent"
            return
        try:
            known[version] = await site.described(commit, limit_s=EACH_LIMIT_S)
        except NotFound:
            unknown[version] = "its manifest is not there any more"
            # Of a version in use it may be on its way to this mirror, or be put back.
            settled = settled and version in view.state.retired
        except TimeoutError:
            unknown[version], settled = "the store did not answer in time", False
        except (TooLong, Busy):
            unknown[version], settled = NOT_YET, False
        except (BulletinError, OSError) as error:
            unknown[version], settled = str(error)[:200], False

    await asyncio.gather(*map(one, versions))
    return _Found(known, unknown, settled)


def _manifest(digest: str, described: Described) -> ManifestReply:
    return ManifestReply(
        manifest=Digest(digest),
        layout=described.layout_digest,
        raw_bytes=described.raw_bytes,
        full_bytes=described.layout.nbytes,
        files=files_of(described.layout),
        side_files_changed=list(described.side_files),
        recipe=described.layout.recipe,
        tensors=list(described.rows),
    )


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
    # Versions that were not compared have the manifests of versions that changed nothing.
    return f'"{commit.version}-{commit.changed}-{commit.manifest[:24]}-{site.release}"'
