"""What requests need of HTTP beyond routes: a bounded body, and to see that the client left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from skerry.inference.errors import RequestInvalid


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """Return the body.  Raises RequestInvalid as soon as it is seen to exceed the limit."""
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > limit_bytes:
        raise RequestInvalid(
            f"body: expected at most {limit_bytes} bytes, found {declared:.20}", status=413
        )
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > limit_bytes:
            raise RequestInvalid(
                f"body: expected at most {limit_bytes} bytes, found more", status=413
            )
    return bytes(data)


async def left_before(request: Request, work: Coroutine[object, object, None]) -> bool:
    """Run `work`; return whether the client left before it ended, and cancel it then."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_disconnect(request.receive))
    try:
        await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return True
        working.result()
        return False
    finally:
        await _cancel(working, watching)


class EventStream(StreamingResponse):
    """A stream that ends when the client leaves; `on_end` then runs, whatever happened.

    One whose source fails is broken off, so that the client sees that it is not whole.
    """

    def __init__(
        self,
        events: AsyncIterator[str] | AsyncIterator[bytes],
        *,
        headers: Mapping[str, str],
        on_end: Callable[[bool], Awaitable[None]],
        status: int = 200,
        content_type: str = "text/event-stream",
    ) -> None:
        super().__init__(events, status_code=status, headers=headers, media_type=content_type)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Not left to Starlette, which asks servers of some versions only when it next sends.
        sending = asyncio.create_task(self.stream_response(send))
        watching = asyncio.create_task(_disconnect(receive))
        whole = False
        try:
            await asyncio.wait([sending, watching], return_when=asyncio.FIRST_COMPLETED)
            whole = sending.done() and sending.exception() is None
        finally:
            await _cancel(sending, watching)
            await self._on_end(whole)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
