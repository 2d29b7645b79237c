"""A relay on the wire: `GET` and `HEAD /bulletin/<key>`, as a web server over the run would answer.

Ranges, strong ETags, conditions; what never changes may be cached for ever, a record that is not
there is never cached.  `GET /bulletin/log/<seq>?wait=5` is answered as soon as there is something
in the slot.  No list, no writes, and nothing but the run's own prefixes.

    200, 206, 304, 412, 416   as ever            400   `wait` is no number of seconds
    404   not there, or the relay has no room    503   on its way here, or too many: ask again
    502   upstream gave nothing sound             in each of these: a neighbour may read past it
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from io import BytesIO
from typing import ParamSpec, TypeVar

from fastapi import APIRouter, Request, Response

from skerry.bulletin import keys
from skerry.bulletin.errors import BulletinError, NotFound
from skerry.bulletin.records import RECORD_LIMIT_BYTES
from skerry.codec.digest import digest_bytes
from skerry.island_agent.errors import Crowded, FetchError, NoRoom, Stopped, Unreferenced
from skerry.island_agent.relay import Relay
from skerry.island_agent.relay_cache import Kept
from skerry.island_agent.relay_refs import kind_of
from skerry.island_agent.relay_response import (
    NOTHING,
    FileResponse,
    byte_range,
    conditional,
    status_only,
    unsatisfiable,
)
from skerry.island_agent.watch import MARK

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

IN_MEMORY_BYTES = RECORD_LIMIT_BYTES  # larger answers are sent from a file

_FOR_EVER = "public, max-age=31536000, immutable"
_SECONDS = re.compile(r"[0-9]{1,5}(?:\.[0-9]{1,6})?")


def relay_router(relay: Relay) -> APIRouter:
    """Return the routes of a relay."""
    router = APIRouter()
    face = _Face(relay)
    router.add_api_route(
        "/bulletin/{key:path}", face.answer, methods=["GET", "HEAD"], include_in_schema=False
    )
    return router


class _Face:
    """The handlers of one relay."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._streams = asyncio.Semaphore(relay.config.streams)
        self._small_streams = asyncio.Semaphore(relay.config.streams)  # not held up by large ones

    async def answer(self, request: Request) -> Response:
        key: str = request.path_params["key"]
        try:
            match kind_of(key):
                case "log":
                    response = await self._record(request, key)
                case "passing":
                    response = await self._small(request, key)
                case "object":
                    response = await self._object(request, key)
                case _:
                    response = status_only(404)
        except (NotFound, NoRoom):
            response = status_only(404)
        except (Crowded, Stopped):
            response = status_only(503, retry_after_s=1)
        except (BulletinError, FetchError, OSError) as error:
            logger.warning("relay has no answer key=%s error=%s", key, error)
            response = status_only(502)
        if response.status_code in (404, 502, 503) and kind_of(key) == "object":
            self._relay.usage.refused += 1
        response.headers[MARK] = "1"
        return response

    async def _record(self, request: Request, key: str) -> Response:
        slots, seq = self._relay.slots, keys.parse_log(key)
        wait = request.query_params.get("wait")
        known, data = await self._blocking(slots.peek, seq)
        if wait is not None:
            if not _SECONDS.fullmatch(wait):
                return status_only(400)
            if data is None:
                waiter = slots.wait(seq)
                if waiter is None:
                    return status_only(503, retry_after_s=1)
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(float(wait), self._relay.config.most_wait_s)):
                        await asyncio.wrap_future(waiter)
                data = await self._blocking(slots.known, seq)
                # It is there but is not kept any more: then it is asked for after all.
                known = data is not None or not slots.is_taken(seq)
        if not known:
            read = await self._held(self._relay.begin_record(seq))
            if read is None:
                return status_only(503, retry_after_s=1)
            data = read.result()
        if data is None:
            return status_only(404)
        kept = await self._blocking(slots.kept, seq) if slots.is_taken(seq) else None
        return self._bytes(request, data, for_ever=data == kept)

    async def _small(self, request: Request, key: str) -> Response:
        read = await self._held(self._relay.begin_passing(key))
        if read is None:
            return status_only(503, retry_after_s=1)
        data = read.result()
        if data is None:
            return status_only(404)
        if len(data) <= IN_MEMORY_BYTES:
            return self._bytes(request, data, for_ever=key.startswith(keys.CHECKPOINT_PREFIX))
        etag = f'"{digest_bytes(data)}"'
        del read, data  # many who take it slowly share the file
        kept = await self._blocking(self._relay.passed.open, key)
        return status_only(404) if kept is None else self._ranged(request, etag, kept)

    async def _object(self, request: Request, key: str) -> Response:
        relay = self._relay
        try:
            kept = await self._blocking(relay.open, key)
            if kept is None:
                relay.usage.misses += 1
                fetched = await self._held(relay.begin(key))
                if fetched is not None:
                    fetched.result()
                    kept = await self._blocking(relay.open, key)
            else:
                relay.usage.hits += 1
        except Unreferenced:
            relay.news()
            kept = None
        if kept is None:  # on its way, not in a record yet, or evicted at once
            return status_only(503, retry_after_s=1)
        return self._ranged(request, f'"{relay.named(key)}"', kept)

    async def _held(self, flight: Future[T]) -> asyncio.Future[T] | None:
        """Wait for what others may wait for, too; None: it takes longer than a request is held."""
        waiting = asyncio.wrap_future(flight)
        waiting.add_done_callback(_seen)
        done, _ = await asyncio.wait({waiting}, timeout=self._relay.config.hold_s)
        return waiting if done else None

    def _ranged(self, request: Request, etag: str, kept: Kept) -> Response:
        response = conditional(request, etag)
        wanted = byte_range(request, etag, kept.size)
        if response is None and wanted == NOTHING:
            response = unsatisfiable(kept.size)
        if response is not None:
            kept.file.close()
            return response
        start, stop = wanted or (0, kept.size)
        headers = {"ETag": etag, "Cache-Control": _FOR_EVER, "Accept-Ranges": "bytes"}
        if wanted is not None:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{kept.size}"
        return FileResponse(
            kept.file,
            start,
            stop,
            head=request.method == "HEAD",
            read=self._blocking,
            streams=self._streams,
            stall_s=self._relay.config.stall_s,
            on_bytes=self._count,
            status=200 if wanted is None else 206,
            headers=headers,
        )

    def _bytes(self, request: Request, data: bytes, *, for_ever: bool) -> Response:
        etag = f'"{digest_bytes(data)}"'
        response = conditional(request, etag)
        if response is not None:
            return response
        headers = {"ETag": etag, "Cache-Control": _FOR_EVER if for_ever else "no-cache"}
        wanted = byte_range(request, etag, len(data))
        start, stop = wanted or (0, len(data))
        if wanted is not None:
            if wanted == NOTHING:
                return unsatisfiable(len(data))
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        return FileResponse(
            BytesIO(data),
            start,
            stop,
            head=request.method == "HEAD",
            read=_at_once,
            streams=self._small_streams,
            stall_s=self._relay.config.stall_s,
            on_bytes=self._count,
            status=200 if wanted is None else 206,
            headers=headers,
        )

    def _count(self, nbytes: int) -> None:
        self._relay.usage.served_bytes += nbytes

    async def _blocking(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run what touches the disk and waits for nobody."""
        return await asyncio.get_running_loop().run_in_executor(
            self._relay.readers, partial(work, *args, **kwargs)
        )


async def _at_once(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run what touches memory alone."""
    return work(*args, **kwargs)


def _seen(done: asyncio.Future[T]) -> None:
    """Take note of an error that nobody may have waited for."""
    if not done.cancelled():
        done.exception()
