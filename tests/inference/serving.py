"""A real HTTP server over a stand-in engine, in a thread with its own event loop."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import uvicorn
from fastapi import FastAPI

from skerry.inference.config import GateConfig, ServerConfig
from skerry.inference.decision import KnownVersions
from skerry.inference.gate import AdmissionGate
from skerry.inference.server import create_app
from skerry.inference.swap import SwapReport
from tests.inference.stand_in import Checkpoints, StandInEngine

T = TypeVar("T")
VERSION = 5
START_S = 60.0  # far above any start; only a hung one meets it


class Serving:
    """One island behind a URL.  Its gate and engine live in the server's loop: use `there`."""

    def __init__(self, checkpoints: Checkpoints, config: ServerConfig) -> None:
        self.checkpoints = checkpoints
        self.engine = StandInEngine()
        engines = {"engine": self.engine}
        self.gate = AdmissionGate(engines, config=GateConfig(resume_backoff_s=0.0))
        self.agent: dict[str, object] = {"phase": "idle"}
        self.app = create_app(self.gate, engines, lambda: self.agent, config=config)
        self.url = ""
        self.loop: asyncio.AbstractEventLoop | None = None

    async def there(self, make: Callable[[], Awaitable[T]]) -> T:
        """Await `make()` in the server's loop."""

        async def run() -> T:
            return await make()

        assert self.loop is not None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), self.loop))

    async def say(self, act: Callable[[], T]) -> T:
        """Call `act` in the server's loop."""

        async def run() -> T:
            return act()

        return await self.there(run)

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        path = self.checkpoints.path(VERSION)
        await self.gate.reload("engine", VERSION, lambda: self.engine.load(path, VERSION))
        self.gate.tell(KnownVersions(newest=VERSION))

    async def swap(self, version: int, drain_s: float | None = None) -> SwapReport:
        assert self.engine.version is not None
        update = self.checkpoints.update(self.engine.version, version)
        await self.engine.stage(update)
        return await self.gate.swap(
            "engine", version, lambda: self.engine.install(update), drain_s=drain_s
        )

    async def running(self, count: int) -> None:
        """Return when `count` requests hold a ticket."""
        while self.gate.view()["engine"].running != count:
            await asyncio.sleep(0)

    async def swapping(self) -> None:
        """Return when a swap has closed the engine to whom it excludes."""
        while self.gate.view()["engine"].target is None:
            await asyncio.sleep(0)


@contextmanager
def serving(directory: Path, config: ServerConfig | None = None) -> Iterator[Serving]:
    """Run an island at VERSION until the block ends."""
    island = Serving(Checkpoints(directory), config or ServerConfig())
    with serve(island.app, island.start) as url:
        island.url = url
        yield island


@contextmanager
def serve(app: FastAPI, before: Callable[[], Awaitable[None]]) -> Iterator[str]:
    """Serve `app` on a free port of this host; `before` runs first, in the server's loop."""
    started = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await before()
            await super().startup(sockets)
            started.set()

    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(
        uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=10)
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        assert started.wait(START_S), "the server did not start"
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
