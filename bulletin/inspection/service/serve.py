"""The service as a process: listens, serves until it is told to stop, and waits for no store."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from skerry.bulletin.inspection.follower import Follower
from skerry.bulletin.inspection.service.app import create_app, create_app_of_runs
from skerry.bulletin.inspection.service.config import ServiceConfig

try:
    import uvicorn
    from fastapi import FastAPI

    from skerry.bulletin.connections import unheld
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"the inspection service needs {error.name}: pip install 'skerry[inspect]'",
        name=error.name,
    ) from error

logger = logging.getLogger(__name__)

CONNECTIONS = 512
STALL_S = 30.0  # who takes nothing of an answer for so long loses the connection
_STOP_S = 2


def serve(
    followers: Mapping[str, Follower],
    config: ServiceConfig,
    listener: socket.socket,
    *,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve one run or several, by their addresses, until SIGTERM or SIGINT.

    `ready` is called when requests are answered.
    """
    app = _app(followers, config)
    server = _Server(
        list(followers.values()),
        ready,
        uvicorn.Config(
            app,
            log_config=None,
            lifespan="off",
            access_log=False,
            server_header=False,
            http=unheld(STALL_S, most=CONNECTIONS),
            timeout_graceful_shutdown=_STOP_S,
        ),
    )

    async def run() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.stop)
        await server.serve(sockets=[listener])

    for follower in followers.values():
        follower.start()
    try:
        asyncio.run(run())
    finally:
        for follower in followers.values():
            follower.stop()


def _app(followers: Mapping[str, Follower], config: ServiceConfig) -> FastAPI:
    if len(followers) > 1:
        return create_app_of_runs(followers, config)
    [(address, follower)] = followers.items()
    return create_app(follower, config, address=address)


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling, which would raise the signal again at the end."""

    def __init__(
        self, followers: Sequence[Follower], ready: Callable[[], None], config: uvicorn.Config
    ) -> None:
        super().__init__(config)
        self._followers = followers
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    def stop(self) -> None:
        self.should_exit = True
        for follower in self._followers:
            follower.stop()  # streams end by themselves then

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
