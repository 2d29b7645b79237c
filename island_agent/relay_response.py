"""Answers as web servers give them: conditions, single ranges, and bodies from open files."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import BinaryIO

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

NOTHING = (0, 0)  # a range that cannot be satisfied

_CHUNK_BYTES = 256 * 1024
_RANGE = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})")


class FileResponse(Response):
    """Bytes [start, stop) of an open file, which it closes.

    They are read and sent piece by piece, by as many answers at one time as `streams` admits.  A
    client that does not take a piece in `stall_s` loses its place, so that nobody can hold all of
    them; what it is sent then ends early, and the server drops the connection.
    """

    def __init__(
        self,
        file: BinaryIO,
        start: int,
        stop: int,
        *,
        head: bool,
        read: Callable[[Callable[[int, int], bytes], int, int], Awaitable[bytes]],
        streams: asyncio.Semaphore,
        stall_s: float,
        on_bytes: Callable[[int], None],
        status: int,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(
            status_code=status, headers=dict(headers), media_type="application/octet-stream"
        )
        self.headers["Content-Length"] = str(stop - start)
        self._file = file
        self._start = start
        self._stop = stop
        self._head = head
        self._in_thread = read
        self._streams = streams
        self._stall_s = stall_s
        self._on_bytes = on_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(_gone(receive))
        try:
            with self._file, suppress(TimeoutError):
                if self._head:
                    await self._begin(send)
                    await send({"type": "http.response.body", "body": b""})
                    return
                async with self._streams:
                    await self._begin(send)
                    await self._send(send, gone)
        finally:
            gone.cancel()

    async def _begin(self, send: Send) -> None:
        async with asyncio.timeout(self._stall_s):
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )

    async def _send(self, send: Send, gone: asyncio.Future[None]) -> None:
        position = self._start
        if position == self._stop:
            await send({"type": "http.response.body", "body": b""})
        while position < self._stop and not gone.done():
            size = min(_CHUNK_BYTES, self._stop - position)
            data = await self._in_thread(self._read, position, size)
            position += len(data)
            async with asyncio.timeout(self._stall_s):
                await send(
                    {
                        "type": "http.response.body",
                        "body": data,
                        "more_body": position < self._stop,
                    }
                )
            self._on_bytes(len(data))

    def _read(self, position: int, size: int) -> bytes:
        self._file.seek(position)
        data = self._file.read(size)
        if len(data) != size:
            raise OSError("a file of the relay's cache was cut")
        return data


async def _gone(receive: Receive) -> None:
    """Return when the client has left, or the answer is complete."""
    while (await receive())["type"] != "http.disconnect":
        pass


def status_only(status: int, *, retry_after_s: int | None = None) -> Response:
    """Return an answer without a body, which no cache keeps."""
    headers = {"Cache-Control": "no-store"}
    if retry_after_s is not None:
        headers["Retry-After"] = str(math.ceil(retry_after_s))
    return Response(status_code=status, headers=headers)


def unsatisfiable(size: int) -> Response:
    """Return the answer to a range that an object of `size` bytes does not have."""
    response = status_only(416)
    response.headers["Content-Range"] = f"bytes */{size}"
    return response


def conditional(request: Request, etag: str) -> Response | None:
    """Return the answer if a condition decides it."""
    match = request.headers.get("if-match")
    if match is not None and not _names(match, etag, weak=False):
        return status_only(412)
    none_match = request.headers.get("if-none-match")
    if none_match is not None and _names(none_match, etag, weak=True):
        return Response(status_code=304, headers={"ETag": etag})
    return None


def _names(header: str, etag: str, *, weak: bool) -> bool:
    for member in header.split(","):
        tag = member.strip()
        if tag == "*" or tag == etag or (weak and tag.removeprefix("W/") == etag):
            return True
    return False


def byte_range(request: Request, etag: str, size: int) -> tuple[int, int] | None:
    """Return the one range that was asked for, clipped; None: everything.

    An empty one cannot be satisfied.  Several ranges, and what is no range, are everything.
    """
    header = request.headers.get("range")
    match = None if header is None else _RANGE.fullmatch(header.strip())
    if match is None or request.headers.get("if-range", etag) != etag:
        return None
    first, last = match[1], match[2]
    if not first and not last:
        return None
    if not first:
        start, stop = max(size - int(last), 0), size
    else:
        start, stop = int(first), size if not last else min(int(last) + 1, size)
        if last and int(last) < int(first):
            return None
    return (start, stop) if start < stop else NOTHING
