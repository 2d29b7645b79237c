"""HTTP for stores: one client over one event loop in a background thread.

What escapes are errors of the bulletin.  An address may hold a signature, so none is ever in them.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import ssl
import threading
import weakref
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from email.utils import parsedate_to_datetime
from time import time
from typing import Any, TypeVar

import aiohttp
from yarl import URL

from skerry.bulletin.errors import NotFound, StoreDenied, StoreError, StoreUnavailable, TooSlow

T = TypeVar("T")

_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_REDIRECTS = 5
_AGAIN = (408, 425, 429)
_CONNECT_S = 5.0
_STALL_S = 20.0  # without a byte for so long a connection is given up
_READ_BUFFER = 1 << 20
_CLOSE_S = 5.0
_KEPT_S = 60.0  # an idle connection: the next version may well come within it

_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}  # by process: a fork takes no thread along
_open: weakref.WeakSet[aiohttp.ClientSession] = weakref.WeakSet()


def background_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this process's stores; the first call starts its thread."""
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="skerry-web", daemon=True).start()
            atexit.register(_close_all, os.getpid(), loop)
        return loop


def _close_all(pid: int, loop: asyncio.AbstractEventLoop) -> None:
    async def close() -> None:
        for session in list(_open):
            await session.close()

    if os.getpid() == pid:
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(close(), loop).result(_CLOSE_S)


class WebClient:
    """Requests without cookies, without decompression, without redirects to another scheme.

    A request and its answer take at most `whole_s` together; None: as long as bytes come.
    """

    def __init__(
        self,
        *,
        redirects: bool,
        tls: ssl.SSLContext | None = None,
        stall_s: float = _STALL_S,
        whole_s: float | None = None,
    ) -> None:
        self._redirects = _MOST_REDIRECTS if redirects else 0
        self._tls = tls
        self._whole_s = whole_s
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_S, connect=None, sock_read=stall_s
        )
        self._session: aiohttp.ClientSession | None = None
        self._pid = os.getpid()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns, which runs in the background loop."""
        future = asyncio.run_coroutine_threadsafe(work, background_loop())
        try:
            return future.result()
        finally:
            future.cancel()  # does nothing when it is done; else this thread was interrupted

    @asynccontextmanager
    async def request(
        self,
        method: str,
        url: str,
        *,
        key: str,
        headers: Mapping[str, str],
        whole_s: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Make one request, for the object `key`; errors inside the block are translated, too.

        `whole_s` takes the place of the client's.  Raises StoreUnavailable when no answer came or
        it broke off, TooSlow, and StoreDenied.
        """
        whole = asyncio.timeout(self._whole_s if whole_s is None else whole_s)
        try:
            address = URL(url, encoded=True)
            async with whole:
                for _ in range(self._redirects + 1):
                    async with self._sessions().request(
                        method,
                        address,
                        headers=headers,
                        allow_redirects=False,
                        timeout=self._timeout,
                    ) as response:
                        if response.status not in _REDIRECTS:
                            yield response
                            return
                        address = self._followed(key, address, response)
                raise StoreDenied(key, f"more than {self._redirects} redirects")
        except (aiohttp.ClientConnectorCertificateError, aiohttp.InvalidURL) as error:
            raise StoreDenied(key, f"cannot connect: {type(error).__name__}") from None
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            if whole.expired():
                raise TooSlow(key, "the answer takes longer than it may") from None
            rule = f"no answer, or one that broke off: {type(error).__name__}"
            raise StoreUnavailable(key, rule) from None

    def _followed(self, key: str, address: URL, response: aiohttp.ClientResponse) -> URL:
        try:
            target = address.join(URL(response.headers["Location"], encoded=True))
        except (KeyError, ValueError):
            raise StoreDenied(key, "a redirect to nowhere") from None
        if target.scheme != address.scheme:
            rule = f"a redirect from {address.scheme} to {target.scheme:.20} is not followed"
            raise StoreDenied(key, rule)
        if target.user is not None:
            raise StoreDenied(key, "a redirect with a user name is not followed")
        return target

    def _sessions(self) -> aiohttp.ClientSession:
        """Return the session, made here because aiohttp wants the running loop."""
        if self._session is None or self._pid != os.getpid():
            self._pid = os.getpid()
            tls: ssl.SSLContext | bool = True if self._tls is None else self._tls
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=96, ssl=tls, keepalive_timeout=_KEPT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"Accept-Encoding": "identity"},
                read_bufsize=_READ_BUFFER,
                auto_decompress=False,
            )
            _open.add(self._session)
            weakref.finalize(self, _close, self._session, asyncio.get_running_loop()).atexit = False
        return self._session


def _close(session: aiohttp.ClientSession, loop: asyncio.AbstractEventLoop) -> None:
    """Close a session that nobody has any more; whichever thread collects the garbage."""
    with suppress(RuntimeError):  # the loop is gone, as after a fork
        loop.call_soon_threadsafe(lambda: loop.create_task(session.close()))


def refused(key: str, response: aiohttp.ClientResponse) -> StoreError | None:
    """Return the error that an answer to a read is, None when it has what was asked for."""
    status = response.status
    if status in (404, 410):
        return NotFound(key)
    if status in _AGAIN or status >= 500:
        after_s = retry_after(response.headers.get("Retry-After"))
        return StoreUnavailable(key, f"HTTP status {status}", retry_after_s=after_s)
    if status not in (200, 206, 416):
        return StoreDenied(key, f"HTTP status {status}")
    coding = response.headers.get("Content-Encoding", "identity")
    if coding != "identity":
        return StoreDenied(key, f"expected the bytes as they are, found coding {coding:.40}")
    return None


def retry_after(value: str | None) -> float | None:
    """Return the seconds that a Retry-After header asks for; None for none or nonsense."""
    if value is None:
        return None
    if value.isdecimal():
        return float(min(int(value[:12]), 86_400))
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except ValueError:
        return None
