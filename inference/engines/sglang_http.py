"""SGLang's HTTP API as the adapter calls it: bounded answers, and errors that say which call."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from skerry.inference.bounded import read_at_most
from skerry.inference.engine import EngineError

_MAX_ANSWER_BYTES = 16 << 20
_MAX_EVENT_BYTES = 64 << 20  # each event repeats the whole answer


class SglangServer:
    """The server at `url`; `on_open` is called before the first request."""

    def __init__(self, url: str, on_open: Callable[[], None]) -> None:
        self._url = url.rstrip("/")
        self._on_open = on_open
        self._session: aiohttp.ClientSession | None = None

    async def call(self, name: str, body: Mapping[str, object] | None = None) -> Mapping[str, Any]:
        """Make one control call; without a body it asks.  Raises EngineError."""
        method = "GET" if body is None else "POST"
        try:
            async with self._open().request(method, f"{self._url}/{name}", json=body) as response:
                data = await read(response)
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(f"{name}: {error!r}") from error
        if response.status != 200:
            raise EngineError(f"{name}: HTTP {response.status}: {data[:500]!r}")
        try:
            return parse_object(data)
        except ValueError:
            return {}  # some answers are plain text

    def generate(self, body: Mapping[str, object]) -> Any:
        """Return the context of a streamed answer's response."""
        return self._open().post(f"{self._url}/generate", json=body)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, connect=10.0),
                connector=aiohttp.TCPConnector(limit=0),
                read_bufsize=_MAX_EVENT_BYTES,
            )
            self._on_open()
        return self._session


async def read(response: aiohttp.ClientResponse) -> bytes:
    data, whole = await read_at_most(response, _MAX_ANSWER_BYTES)
    if not whole:
        raise EngineError(f"an answer of more than {_MAX_ANSWER_BYTES} bytes")
    return data


def parse_object(data: bytes) -> Mapping[str, Any]:
    """Raises ValueError."""
    try:
        value = json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {data[:80]!r}")
    return value
