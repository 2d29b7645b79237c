"""The page's files, under names that change with their content; the chart library among them.

Plotly's bundle comes inside its Python package: none of it is in this repository, and no other host
is asked for it.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.resources import files

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from skerry.bulletin.inspection.service.replies import IMMUTABLE, unchanged
from skerry.codec.digest import digest_bytes

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_PLOTLY = "plotly.min.js"
_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, as it is and compressed."""

    data: bytes
    packed: bytes
    media_type: str
    tag: str


@dataclass(frozen=True, slots=True)
class Assets:
    """The pages, and everything that they load, by path below `assets/`."""

    pages: dict[str, Asset]
    by_path: dict[str, Asset]


@cache
def load_assets() -> Assets:
    """Read the page from this package, and the chart library from its own."""
    own = {
        entry.name: entry.read_bytes()
        for entry in files("skerry.bulletin.inspection").joinpath("page").iterdir()
        if entry.name.rpartition(".")[2] in _TYPES
    }
    charts = _chart_library()
    digest = digest_bytes(b"\0".join(own[name] for name in sorted(own)))[:_DIGITS]
    plotly = f"plotly-{version('plotly')}-{digest_bytes(charts)[:_DIGITS]}/{_PLOTLY}"
    pages = {
        name: _asset(
            name,
            own.pop(name)
            .replace(b"{own}", f"assets/{digest}".encode())
            .replace(b"{plotly}", f"assets/{plotly}".encode()),
        )
        for name in ("index.html", "runs.html")
    }
    by_path = {f"{digest}/{name}": _asset(name, data) for name, data in own.items()}
    by_path[plotly] = _asset(_PLOTLY, charts)
    return Assets(pages, by_path)


def _chart_library() -> bytes:
    try:
        package = files("plotly")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the page needs plotly: pip install 'skerry[inspect]'", name="plotly"
        ) from error
    return package.joinpath("package_data").joinpath(_PLOTLY).read_bytes()


def assets_router(page_name: str) -> APIRouter:
    """Serve one of the pages, and what it loads."""
    router = APIRouter(include_in_schema=False)
    assets = load_assets()

    @router.get("/")
    @router.head("/")
    async def page(request: Request) -> Response:
        return _send(request, assets.pages[page_name], "no-cache")

    @router.get("/assets/{path:path}")
    async def asset(request: Request, path: str) -> Response:
        if path not in assets.by_path:
            raise HTTPException(404, "no such file of the page")
        return _send(request, assets.by_path[path], IMMUTABLE)

    return router


def _send(request: Request, asset: Asset, caching: str) -> Response:
    headers = {"ETag": asset.tag, "Cache-Control": caching, "Vary": "Accept-Encoding"}
    known = unchanged(request, asset.tag)
    if known is not None:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(asset.packed, media_type=asset.media_type, headers=headers)
    return Response(asset.data, media_type=asset.media_type, headers=headers)


def _asset(name: str, data: bytes) -> Asset:
    return Asset(
        data=data,
        packed=gzip.compress(data, 6, mtime=0),
        media_type=_TYPES[name.rpartition(".")[2]],
        tag=f'"{digest_bytes(data)[:_DIGITS]}"',
    )
