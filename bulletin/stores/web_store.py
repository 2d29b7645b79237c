"""A bulletin that is served over HTTP, read-only, by a web server or a CDN in front of a bucket.

No credentials, no listing: a reader starts at the hint or at the first record, and asks for the
next one.  What is named by a digest may be cached for ever; the log, hints and status are asked
for past every cache.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NoReturn
from urllib.parse import quote

import aiohttp

from skerry.bulletin.errors import (
    ListUnsupported,
    ObjectTooLarge,
    ReadOnly,
    StoreDenied,
    StoreUnavailable,
)
from skerry.bulletin.keys import check_key
from skerry.bulletin.store import check_range
from skerry.bulletin.stores.adaptive import AdaptiveLimit, Slots
from skerry.bulletin.stores.ranges import RangeConfig, RangeReader
from skerry.bulletin.stores.retries import Retries
from skerry.bulletin.stores.web import WebClient, refused

_UNCACHED = ("log/", "hint/", "islands/")
_NO_CACHE = {"Cache-Control": "no-cache"}


class WebStore:
    """See ObjectStore.  `url` is the address of the run's root, checked by `open_store`.

    `allowed_s` says how long a request for so many bytes may take; None: as long as bytes come.
    """

    def __init__(
        self,
        url: str,
        *,
        retries: Retries | None = None,
        tls: ssl.SSLContext | None = None,
        config: RangeConfig | None = None,
        allowed_s: Callable[[int], float] | None = None,
    ) -> None:
        config = config or RangeConfig()
        self._root = url.rstrip("/")
        self._allowed_s = allowed_s
        range_s = None if allowed_s is None else allowed_s(config.range_bytes)
        self._client = WebClient(redirects=True, tls=tls, whole_s=range_s)
        slots = Slots(AdaptiveLimit())
        self._ranges = RangeReader(self._client, slots, retries or Retries(), config)

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        url = self._url(key)
        return self._client.run(self._get(key, url, limit_bytes))

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        check_range(start, stop)
        return b"".join(self.stream(key, start, stop))

    def stream(self, key: str, start: int, stop: int) -> Iterator[bytes]:
        url = self._url(key)
        check_range(start, stop)
        if start == stop:  # HTTP has no empty range
            self.size(key)
            return
        yield from self._ranges.stream(
            key, start, stop, address=lambda renew: url, headers=_headers(key)
        )

    def size(self, key: str) -> int:
        url = self._url(key)
        return self._client.run(self._size(key, url))

    def put_if_absent(self, key: str, data: bytes) -> None:
        self._refuse(key)

    def put(self, key: str, parts: Iterable[bytes]) -> int:
        self._refuse(key)

    def replace(self, key: str, data: bytes) -> None:
        self._refuse(key)

    def list_after(self, prefix: str, after: str = "") -> Iterator[str]:
        raise ListUnsupported(prefix)

    def delete(self, key: str) -> None:
        self._refuse(key)

    def _url(self, key: str) -> str:
        return f"{self._root}/{quote(check_key(key))}"

    def _refuse(self, key: str) -> NoReturn:
        raise ReadOnly(check_key(key))

    async def _get(self, key: str, url: str, limit_bytes: int) -> bytes:
        whole_s = None if self._allowed_s is None else self._allowed_s(limit_bytes)
        async with self._client.request(
            "GET", url, key=key, headers=_headers(key), whole_s=whole_s
        ) as response:
            _check(key, response)
            length = response.content_length
            if length is not None and length > limit_bytes:
                raise ObjectTooLarge(key, limit_bytes=limit_bytes, found=length)
            body = bytearray()
            async for data in response.content.iter_any():
                body += data
                if len(body) > limit_bytes:
                    raise ObjectTooLarge(key, limit_bytes=limit_bytes)
        if length is not None and len(body) != length:
            raise StoreUnavailable(key, f"expected {length} bytes, found {len(body)}")
        return bytes(body)

    async def _size(self, key: str, url: str) -> int:
        async with self._client.request("HEAD", url, key=key, headers=_headers(key)) as response:
            _check(key, response)
            if response.content_length is None:
                raise StoreDenied(key, "the server does not say how large the object is")
            return response.content_length


def _check(key: str, response: aiohttp.ClientResponse) -> None:
    error = refused(key, response)
    if error is not None:
        raise error
    if response.status != 200:
        raise StoreDenied(key, f"asked for an object, found HTTP status {response.status}")


def _headers(key: str) -> Mapping[str, str]:
    return _NO_CACHE if key.startswith(_UNCACHED) else {}
