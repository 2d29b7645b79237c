"""An engine's own HTTP routes, as the gate asks them: bytes go through, nothing is read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import aiohttp

from skerry.inference.engine import EngineError, PassedAnswer, RequestUnsupported

_PIECE_BYTES = 1 << 20  # each costs turns of two event loops, however small it is
_MAX_REFUSAL_BYTES = 1 << 20


class Upstream:
    """The routes of the server at `url`."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def ask(
        self,
        route: str,
        body: Mapping[str, object],
        headers: Mapping[str, str],
        echoed: tuple[str, str] | None = None,
    ) -> AsyncIterator[PassedAnswer]:
        """Send a request; leaving the context cancels it.

        With `echoed`, a header and its value, that header is sent, and an answer with status 200
        has to bear it.  Raises EngineError if no answer comes, or one without it.
        """
        sent = {**headers, "Content-Type": "application/json", "Accept-Encoding": "identity"}
        if echoed is not None:
            sent[echoed[0]] = echoed[1]
        try:
            data = json.dumps(body, allow_nan=False).encode()
            async with self._open().post(
                self._url + route, data=data, headers=sent, allow_redirects=False
            ) as response:
                if response.status != 200 and not 400 <= response.status < 500:
                    raise EngineError(f"{route}: HTTP {response.status}: {await _said(response)}")
                if response.status == 200 and echoed is not None:
                    found = response.headers.get(echoed[0])
                    if found != echoed[1]:
                        raise EngineError(f"{route}: expected weights {echoed[1]}, found {found}")
                yield PassedAnswer(
                    status=response.status,
                    content_type=response.headers.get("Content-Type", "application/octet-stream"),
                    pieces=_pieces(response),
                )
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(f"{route}: {error!r}") from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, connect=10.0),
                connector=aiohttp.TCPConnector(limit=0),
                read_bufsize=_PIECE_BYTES,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


def salted(body: Mapping[str, object], salt: Callable[[str | None], str]) -> Mapping[str, object]:
    """Return `body` with the salt that its own `cache_salt` makes, if it has one.

    Raises RequestUnsupported for one that is no text.
    """
    own = body.get("cache_salt")
    if own is not None and (not isinstance(own, str) or not own):
        raise RequestUnsupported(f"cache_salt: expected text, found {own!r:.80}")
    return {**body, "cache_salt": salt(own)}


async def _pieces(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async for piece in response.content.iter_chunked(_PIECE_BYTES):
        yield piece


async def _said(response: aiohttp.ClientResponse) -> str:
    data = await response.content.read(_MAX_REFUSAL_BYTES)
    return data[:500].decode(errors="replace")
