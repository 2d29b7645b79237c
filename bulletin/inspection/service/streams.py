"""Answers that go on: events as they come, and a verification line by line.

Each holds a place while its client listens, and no more than one event: a client that reads slowly
misses what was overtaken, one that vanishes frees its place at the next beat.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from skerry.bulletin.inspection.checks import Check, check_version
from skerry.bulletin.inspection.problems import problem_of
from skerry.bulletin.inspection.service.params import (
    EventsQuery,
    VerificationQuery,
    VersionPath,
)
from skerry.bulletin.inspection.service.problems import RESPONSES
from skerry.bulletin.inspection.service.site import Site
from skerry.bulletin.inspection.workers import Busy, Workers
from skerry.bulletin.patience import Patience
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.records import Commit

BEAT_S = 10.0
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class _Places:
    """So many may listen at a time."""

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self) -> None:
        """Raises Busy."""
        if not self._left:
            raise Busy("too many listen already")
        self._left -= 1

    def give_back(self) -> None:
        self._left += 1


class _Held(StreamingResponse):
    """A stream that holds a place until it ends, however it does.  Raises Busy."""

    def __init__(
        self, places: _Places, stream: AsyncGenerator[bytes, None], media_type: str
    ) -> None:
        places.take()
        super().__init__(stream, media_type=media_type, headers=_HEADERS)
        self._places = places
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._places.give_back()
            await self._stream.aclose()  # a client that left leaves it where it was


def streams_router(site: Site) -> APIRouter:
    router = APIRouter()
    listeners = _Places(site.config.listeners)
    verifiers = _Places(site.config.verifications)
    workers = Workers("skerry-verify", threads=site.config.verifications, waiting=8)

    @router.get(
        "/events",
        tags=["service"],
        response_class=Response,
        responses={**RESPONSES, 200: {"content": {"text/event-stream": {}}}},
    )
    async def events(request: Request, query: Annotated[EventsQuery, Query()]) -> Response:
        """Tell of new versions (`log`), of islands (`islands`) and of the store (`store`).

        Each event says what there is now; one that was missed is made up for by the next.
        """
        return _Held(listeners, _events(site, query.seconds), "text/event-stream")

    @router.get(
        "/versions/{version}/verification",
        tags=["versions"],
        response_class=Response,
        responses={**RESPONSES, 200: {"content": {"application/x-ndjson": {"schema": {}}}}},
    )
    async def verification(
        request: Request, version: VersionPath, query: Annotated[VerificationQuery, Query()]
    ) -> Response:
        """Ask the store for every object of a version, a line for each; the last line sums up.

        Packs are read only with `deep`, and only as long as the client listens.
        """
        commit = site.seen().view.commit(version)
        lines = _verification(site, workers, commit, deep=query.deep)
        return _Held(verifiers, lines, "application/x-ndjson")

    return router


async def _events(site: Site, seconds: float) -> AsyncGenerator[bytes, None]:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    last: dict[str, object] = {}
    async with _changes(site) as changed:
        while True:
            site.follower.attend()
            changed.clear()
            told = False
            for name, value in _now(site).items():
                if last.get(name) != value:
                    last[name] = value
                    told = True
                    yield f"event: {name}\ndata: {json.dumps(value)}\n\n".encode()
            if not told:
                yield b": beat\n\n"
            left_s = end - loop.time()
            if left_s <= 0 or site.follower.stopping:
                return
            try:
                await asyncio.wait_for(changed.wait(), min(BEAT_S, left_s))
            except TimeoutError:
                continue


@asynccontextmanager
async def _changes(site: Site) -> AsyncIterator[asyncio.Event]:
    """Give an event that is set after every change, as long as somebody waits for it."""
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()

    def notify() -> None:
        try:
            loop.call_soon_threadsafe(changed.set)
        except RuntimeError:
            return  # the loop has ended, and with it whoever listened

    end = site.follower.listen(notify)
    try:
        yield changed
    finally:
        end()


def _now(site: Site) -> dict[str, object]:
    seen, report = site.follower.snapshot, site.follower.store_state.report()
    state = seen.view.state
    return {
        "store": {
            "state": report.state,
            "problem": None if report.problem is None else asdict(report.problem),
        },
        "log": {
            "seq": state.seq,
            "head": state.head,
            "newest": seen.view.newest,
            "versions": len(state.commits),
        },
        "islands": {"looked_ms": seen.islands.looked_ms, "changes": seen.island_changes},
    }


async def _verification(
    site: Site, workers: Workers, commit: Commit, *, deep: bool
) -> AsyncGenerator[bytes, None]:
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[Check | None] = asyncio.Queue()
    gone = threading.Event()

    def work() -> None:
        try:
            reader = BulletinReader(site.follower.store, wait=Patience(limit_s=0.0))
            reader.state = site.follower.snapshot.view.state
            for check in check_version(reader, commit, deep=deep, stopped=gone.is_set):
                loop.call_soon_threadsafe(lines.put_nowait, check)
        finally:
            if not gone.is_set():
                loop.call_soon_threadsafe(lines.put_nowait, None)

    checked = problems = nbytes = 0
    try:
        try:
            job = asyncio.wrap_future(workers.submit(work))
        except Busy as busy:  # the stream has begun, so the answer is in it
            yield _sum(commit, busy, deep=deep, checks=0, problems=0, checked_bytes=0)
            return
        while True:
            try:
                check = await asyncio.wait_for(lines.get(), BEAT_S)
            except TimeoutError:
                yield b'{"waiting": true}\n'  # a client that has left is noticed here
                continue
            if check is None:
                break
            checked += 1
            problems += check.problem is not None
            nbytes += check.checked_bytes
            yield json.dumps(asdict(check)).encode() + b"\n"
        error = (await asyncio.gather(job, return_exceptions=True))[0]
        yield _sum(
            commit, error, deep=deep, checks=checked, problems=problems, checked_bytes=nbytes
        )
    finally:
        gone.set()


def _sum(commit: Commit, error: BaseException | None, **figures: int) -> bytes:
    """Return the last line: whether all was checked, or what stopped it."""
    stopped = None if error is None else asdict(problem_of(error))
    done = {"version": commit.version, "done": error is None, "stopped_by": stopped}
    return json.dumps({**done, **figures}).encode() + b"\n"
