"""Connections of an HTTP service that nobody holds by not reading, and nobody else by not asking.

Law: of what is to be sent to a peer something leaves in every `stall_s`, and once the connection is
to be closed all of it, 256 KiB in every `stall_s`; else it is aborted.  A close alone waits until
the peer has read everything, for ever if need be.

Law: a new connection is always taken.  Beyond `most` it ends the one to which nothing has been sent
for longest: peers that vanished, or never ask, take no place from those who do.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import struct
from collections import OrderedDict
from contextlib import suppress
from socket import SO_LINGER, SOL_SOCKET
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

logger = logging.getLogger(__name__)

_PIECE_BYTES = 256 * 1024

if TYPE_CHECKING:
    _Protocol = asyncio.Protocol
else:
    _Protocol = AutoHTTPProtocol


def unheld(stall_s: float, *, most: int | None = None) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with these laws, for its setting `http`; None: no limit."""
    still = _Still(most)

    class Unheld(_Protocol):
        _watched: _Watched | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self._watched = _Watched(transport, stall_s, still)
            super().connection_made(self._watched)  # type: ignore[arg-type]  # it acts as one
            still.make_room()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)  # which may close once more
            if self._watched is not None:
                self._watched.stop()

    return Unheld


class _Still:
    """The connections there are, first the one to which nothing has been sent for longest."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._open: OrderedDict[_Watched, None] = OrderedDict()

    def come(self, connection: _Watched) -> None:
        self._open[connection] = None

    def sent(self, connection: _Watched) -> None:
        if connection in self._open:
            self._open.move_to_end(connection)

    def gone(self, connection: _Watched) -> None:
        self._open.pop(connection, None)

    def make_room(self) -> None:
        while self._most is not None and len(self._open) > self._most:
            logger.debug("connection dropped: others need its place")
            self._open.popitem(last=False)[0].drop()


class _Watched:
    """A transport that looks now and then at what has left."""

    def __init__(self, transport: asyncio.Transport, stall_s: float, still: _Still) -> None:
        self._transport = transport
        self._still = still
        self._stall_s = stall_s
        self._loop = asyncio.get_running_loop()
        self._written = 0
        self._left = 0  # how much of it was on its way at the last look
        self._look_at = self._loop.call_later(stall_s, self._look)
        self._abort_at: asyncio.TimerHandle | None = None
        still.come(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._still.sent(self)
        self._written += len(data)
        self._transport.write(data)

    def close(self) -> None:
        self._transport.close()
        if self._abort_at is None:
            pieces = 1 + self._transport.get_write_buffer_size() // _PIECE_BYTES
            self._abort_at = self._loop.call_later(pieces * self._stall_s, self._stalled)

    def stop(self) -> None:
        """The connection is gone."""
        self._still.gone(self)
        self._look_at.cancel()
        if self._abort_at is not None:
            self._abort_at.cancel()

    def _stalled(self) -> None:
        logger.info("connection dropped: what was sent has not been taken in %g s", self._stall_s)
        self.drop()

    def drop(self) -> None:
        at_once = struct.pack("ii", 1, 0)  # nor does the kernel go on trying
        with suppress(OSError):
            socket = self._transport.get_extra_info("socket")
            socket.setsockopt(SOL_SOCKET, SO_LINGER, at_once)
        self._transport.abort()

    def _look(self) -> None:
        waiting = self._transport.get_write_buffer_size()
        left = self._written - waiting
        if waiting and left == self._left:
            self._stalled()
            return
        self._left = left
        self._look_at = self._loop.call_later(self._stall_s, self._look)


def raise_file_limit() -> int:
    """Let this process open as many files as it may, connections among them; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            logger.warning("at most %d files can be open at one time: %s", soft, error)
            return soft
    return hard
