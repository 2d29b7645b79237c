"""An agent and its HTTP server in one process, on one event loop.

Liveness is answered by the loop, and everything that takes time runs in threads, so `/health` stays
quick while a version is fetched, decoded or installed; `/ready` is about serving alone.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from skerry.inference.config import ServerConfig
from skerry.island_agent.agent import Agent
from skerry.island_agent.status import IslandStatus

try:
    import uvicorn
    from fastapi import FastAPI
    from prometheus_client import CollectorRegistry

    from skerry.inference.server import create_app
    from skerry.island_agent.metrics import IslandCollector
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"serving an island needs {error.name}: pip install 'skerry[agent]'", name=error.name
    ) from error

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """Where to listen; `shutdown_s` bounds how long a stop waits for requests and installs."""

    host: str = "127.0.0.1"
    port: int = 8000
    shutdown_s: float = 30.0
    server: ServerConfig | None = None


def build_app(
    agent: Agent, *, registry: CollectorRegistry | None = None, server: ServerConfig | None = None
) -> FastAPI:
    """Return the island's application: requests through the gate, and the agent's own state.

    `/metrics` shows `registry`, with the gate's and the island's own metrics added.  An island
    without engines is ready when its mirror holds a version.
    """

    def observed() -> IslandStatus:
        agent.status()  # takes over what the gate says of each engine
        return agent.state

    registry = registry or CollectorRegistry()
    IslandCollector(observed).register(registry)
    return create_app(
        agent.gate,
        agent.engines,
        agent.status,
        config=server,
        registry=registry,
        ready=lambda: agent.ready,
    )


async def serve(
    agent: Agent, config: ServiceConfig | None = None, *, listener: socket.socket | None = None
) -> None:
    """Run the agent and its server until SIGTERM or SIGINT; then leave everything in order.

    Engines end up resumed and the mirror consistent.  Raises MirrorBusy, and OSError for a taken
    port.
    """
    config = config or ServiceConfig()
    bound = listener or _listen(config.host, config.port)
    server = _Server(
        uvicorn.Config(
            build_app(agent, server=config.server),
            log_config=None,
            lifespan="off",
            timeout_graceful_shutdown=max(1, int(config.shutdown_s)),
        )
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    try:
        await agent.open()
        running = asyncio.create_task(agent.run())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({serving, running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        logger.info("island stops")
        agent.stop()
        stopping.cancel()
        _, late = await asyncio.wait({running}, timeout=config.shutdown_s)
        for task in late:
            task.cancel()
        await asyncio.wait({running})
        if not running.cancelled():
            running.result()
    finally:
        server.should_exit = True
        await agent.close()
        await serving
        bound.close()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling: the service decides the order of shutdown."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(host: str, port: int) -> socket.socket:
    return socket.create_server(
        (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
    )
