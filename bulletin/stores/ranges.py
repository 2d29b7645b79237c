"""One object over HTTP in many ranges side by side, handed over in order, in bounded memory.

A range that breaks off goes on from the byte reached.  All ranges are of one object: the first
answer says which (its ETag), every other answer must agree, and later requests insist on it.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

import aiohttp

from skerry.bulletin.errors import (
    ObjectChanged,
    ShortObject,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)
from skerry.bulletin.stores.adaptive import AdaptiveLimit, Slots
from skerry.bulletin.stores.retries import Attempts, Retries
from skerry.bulletin.stores.stragglers import Stragglers
from skerry.bulletin.stores.web import WebClient, background_loop, refused

_CONTENT_RANGE = re.compile(r"bytes (?:([0-9]{1,19})-([0-9]{1,19})|\*)/([0-9]{1,19})")


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeConfig:
    """`ahead` ranges of at most `range_bytes` are under way or waiting to be taken, per stream.

    What `burst` such ranges hold is read at once, in as many ranges, none below `least_bytes`: a
    connection starts slowly whatever the link carries, so that a small object takes its time from
    the number of them.  Larger objects are read by as many as the link proves to be good for.
    """

    range_bytes: int = 1024 * 1024
    least_bytes: int = 32 * 1024
    burst: int = 32
    ahead: int = 48

    def __post_init__(self) -> None:
        if min(self.range_bytes, self.least_bytes, self.burst, self.ahead) < 1:
            raise ValueError("range_bytes, least_bytes, burst and ahead are at least 1")

    @property
    def burst_bytes(self) -> int:
        """The largest object that is read at once."""
        return self.burst * self.range_bytes

    def size_for(self, nbytes: int) -> int:
        """Return the size of each range of an object of `nbytes`."""
        return min(self.range_bytes, max(self.least_bytes, -(-nbytes // self.burst)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentRange:
    """What a Content-Range header says; `start == stop` for a range that cannot be had."""

    start: int
    stop: int
    total: int

    @classmethod
    def parse(cls, text: str | None) -> ContentRange | None:
        match = _CONTENT_RANGE.fullmatch(text or "")
        if match is None:
            return None
        total = int(match[3])
        if match[1] is None:
            return cls(start=0, stop=0, total=total)
        start, stop = int(match[1]), int(match[2]) + 1
        return cls(start=start, stop=stop, total=total) if start < stop <= total else None


class RangeReader:
    """Reads objects of one store.

    `slots` bounds the requests of all large objects together, `burst` those of all small ones.
    """

    def __init__(
        self,
        client: WebClient,
        slots: Slots,
        retries: Retries,
        config: RangeConfig | None = None,
    ) -> None:
        self._client = client
        self._slots = slots
        self._retries = retries
        self._config = config or RangeConfig()
        burst = self._config.burst
        self._burst = Slots(AdaptiveLimit(least=burst, start=burst, most=burst))

    def stream(
        self,
        key: str,
        start: int,
        stop: int,
        *,
        address: Callable[[bool], str],
        headers: Mapping[str, str],
    ) -> Iterator[bytes]:
        """Yield bytes [start, stop), of which there is at least one.

        `address(False)` returns the object's URL, or nothing when a fresh one is due;
        `address(True)` makes that, and may block.
        """
        nbytes = stop - start
        size = self._config.size_for(nbytes)
        at_once = nbytes <= self._config.burst_bytes
        transfer = _Transfer(
            self._client, self._burst if at_once else self._slots, self._retries,
            key=key, start=start, stop=stop, address=address, headers=headers,
            stragglers=Stragglers(-(-nbytes // size)) if at_once else None,
        )  # fmt: skip
        waiting: deque[Future[bytes]] = deque()
        loop = background_loop()
        firsts = iter(range(start, stop, size))
        try:
            while True:
                while (
                    len(waiting) < self._config.ahead and (first := next(firsts, None)) is not None
                ):
                    last = min(first + size, stop)
                    waiting.append(
                        asyncio.run_coroutine_threadsafe(transfer.read(first, last), loop)
                    )
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class _Transfer:
    """The state that the ranges of one stream share; lives in the event loop."""

    def __init__(
        self,
        client: WebClient,
        slots: Slots,
        retries: Retries,
        *,
        key: str,
        start: int,
        stop: int,
        address: Callable[[bool], str],
        headers: Mapping[str, str],
        stragglers: Stragglers | None,
    ) -> None:
        self._client = client
        self._slots = slots
        self._retries = retries
        self._stragglers = stragglers
        self._key = key
        self._start = start
        self._stop = stop
        self._address = address
        self._headers = headers
        self._object: tuple[str, int] | None = None  # ETag and size

    async def read(self, first: int, last: int) -> bytes:
        """Return bytes [first, last), however many requests that takes."""
        piece = _Piece(first, last)
        if self._stragglers is None:
            await self._fill(piece)
            return bytes(piece.buffer)
        began = asyncio.get_running_loop().time()
        filling = asyncio.create_task(self._fill(piece))
        late = asyncio.create_task(self._stragglers.is_one(began))
        rest, again = piece, late  # there is no second request yet
        try:
            await asyncio.wait({filling, late}, return_when=asyncio.FIRST_COMPLETED)
            if not filling.done():
                rest = _Piece(piece.position, last)
                again = asyncio.create_task(self._once(rest))
                await asyncio.wait({filling, again}, return_when=asyncio.FIRST_COMPLETED)
            if not filling.done() and again.exception() is None:
                piece.finish(rest)
            else:
                await filling
        finally:
            for task in (filling, late, again):
                task.cancel()
                task.add_done_callback(_forget)
        self._stragglers.finished(asyncio.get_running_loop().time() - began)
        return bytes(piece.buffer)

    async def _once(self, piece: _Piece) -> None:
        async with self._slots:
            await self._request(piece, renew=False)

    async def _fill(self, piece: _Piece) -> None:
        attempts = self._retries.reading()
        renew = False
        while True:
            reached = piece.position
            try:
                async with self._slots:
                    await self._request(piece, renew=renew)
                    self._slots.limit.completed(piece.last - piece.first)
            except StoreUnavailable as error:
                await self._wait(error, attempts, progressed=piece.position > reached)
            except StoreDenied:
                if renew:  # a fresh address is refused as well
                    raise
                renew = True
            else:
                self._retries.budget.succeeded()
                return

    async def _wait(self, error: StoreUnavailable, attempts: Attempts, *, progressed: bool) -> None:
        self._slots.limit.failed()
        if progressed:
            attempts.progressed()
        delay_s = attempts.delay_after(error)
        if delay_s is None:
            raise error
        await asyncio.sleep(delay_s)

    async def _request(self, piece: _Piece, *, renew: bool) -> None:
        url = "" if renew else self._address(False)
        if not url:
            loop = asyncio.get_running_loop()
            url = await loop.run_in_executor(None, self._address, True)
        headers = {**self._headers, "Range": f"bytes={piece.position}-{piece.last - 1}"}
        if self._object is not None and self._object[0].startswith('"'):
            headers["If-Match"] = self._object[0]  # a weak ETag never matches
        async with self._client.request("GET", url, key=self._key, headers=headers) as response:
            self._check(response, piece)
            async for data in response.content.iter_any():
                piece.add(self._key, data)
        if piece.position < piece.last:
            rule = f"expected {piece.last - piece.first} bytes, found fewer"
            raise StoreUnavailable(self._key, rule)

    def _check(self, response: aiohttp.ClientResponse, piece: _Piece) -> None:
        """Refuse an answer that is not the range that was asked for, of the object that it was."""
        if response.status == 412:
            raise ObjectChanged(self._key, "another object has taken its place")
        error = refused(self._key, response)
        if error is not None:
            raise error
        found = ContentRange.parse(response.headers.get("Content-Range"))
        if response.status == 416 and found is not None and found.total < self._stop:
            raise self._short(found.total)
        if response.status != 206 or found is None:
            raise StoreDenied(self._key, f"asked for a range, found HTTP status {response.status}")
        if found.total < self._stop:
            raise self._short(found.total)
        self._recognise(response.headers.get("ETag", ""), found.total)
        if (found.start, found.stop) != (piece.position, piece.last):
            rule = f"asked for bytes {piece.position} to {piece.last}, found others"
            raise StoreUnavailable(self._key, rule)

    def _short(self, total: int) -> StoreError:
        found = max(total - self._start, 0)
        return ShortObject(self._key, expected=self._stop - self._start, found=found)

    def _recognise(self, etag: str, total: int) -> None:
        if self._object is None:
            self._object = etag, total
        elif self._object != (etag, total):
            raise ObjectChanged(self._key, "another object has taken its place")


class _Piece:
    """One range on its way; `position` is the byte reached."""

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last
        self.position = first
        self.buffer = bytearray(last - first)

    def finish(self, rest: _Piece) -> None:
        """Take over what another request for the end of this one has brought."""
        self.buffer[rest.first - self.first :] = rest.buffer
        self.position = self.last

    def add(self, key: str, data: bytes) -> None:
        if len(data) > self.last - self.position:
            raise StoreUnavailable(key, "found more bytes than were asked for")
        at = self.position - self.first
        self.buffer[at : at + len(data)] = data
        self.position += len(data)


def _forget(task: asyncio.Task[None]) -> None:
    """Look at a task's error, which nobody waits for: asyncio would complain."""
    if not task.cancelled():
        task.exception()
