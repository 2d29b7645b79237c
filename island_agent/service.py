"""An agent and its HTTP server in one process, on one event loop.

Liveness is answered by the loop, and everything that takes time runs in threads, so `/health` stays
quick while a version is fetched, decoded or installed; `/ready` is about serving alone.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from skerry.inference.config import ServerConfig
from skerry.island_agent.agent import Agent
from skerry.island_agent.relay import Relay
from skerry.island_agent.status import IslandStatus

try:
    import uvicorn
    from fastapi import FastAPI
    from prometheus_client import CollectorRegistry

    from skerry.inference.server import create_app
    from skerry.island_agent.metrics import IslandCollector, RelayCollector
    from skerry.island_agent.relay_http import relay_router
    from skerry.island_agent.watch import LogWatcher
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"serving an island needs {error.name}: pip install 'skerry[agent]'", name=error.name
    ) from error

logger = logging.getLogger(__name__)

# Longer than clients keep theirs (15 s in aiohttp): whoever closes first must not be the one that
# may be sent a request at that moment.
KEEP_ALIVE_S = 75


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """Where to listen; `shutdown_s` bounds how long a stop waits for requests and installs."""

    host: str = "127.0.0.1"
    port: int = 8000
    shutdown_s: float = 30.0
    server: ServerConfig | None = None


def build_app(
    agent: Agent,
    *,
    registry: CollectorRegistry | None = None,
    server: ServerConfig | None = None,
    relay: Relay | None = None,
) -> FastAPI:
    """Return the island's application: requests through the gate, and the agent's own state.

    With a relay it serves the bulletin to neighbours, too.

    `/metrics` shows `registry`, with the gate's and the island's own metrics added.  An island
    without engines is ready when its mirror holds a version.
    """

    def observed() -> IslandStatus:
        agent.status()  # takes over what the gate says of each engine
        return agent.state

    def status() -> Mapping[str, object]:
        own = agent.status()
        return own if relay is None else {**own, "relay": relay.to_json()}

    registry = registry or CollectorRegistry()
    IslandCollector(observed).register(registry)
    app = create_app(
        agent.gate,
        agent.engines,
        status,
        config=server,
        registry=registry,
        ready=lambda: agent.ready,
    )
    if relay is not None:
        RelayCollector(relay).register(registry)
        app.include_router(relay_router(relay))
    return app


async def serve(
    agent: Agent,
    config: ServiceConfig | None = None,
    *,
    listener: socket.socket | None = None,
    relay: Relay | None = None,
    watchers: Sequence[LogWatcher] = (),
) -> None:
    """Run the agent and its server until SIGTERM or SIGINT; then leave everything in order.

    The relay is closed at the end, and the watchers run as long as the agent does.

    Engines end up resumed and the mirror consistent.  Raises MirrorBusy, and OSError for a taken
    port.
    """
    config = config or ServiceConfig()
    bound = listener or _listen(config.host, config.port)
    server = _Server(
        uvicorn.Config(
            build_app(agent, server=config.server, relay=relay),
            log_config=None,
            lifespan="off",
            timeout_keep_alive=KEEP_ALIVE_S,
            access_log=relay is None,  # neighbours read in ranges of a mebibyte
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
        watching = [asyncio.create_task(watcher.run()) for watcher in watchers]
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({serving, running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        logger.info("island stops")
        agent.stop()
        if relay is not None:
            relay.stop()
        for task in (stopping, *watching):
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        _, late = await asyncio.wait({running}, timeout=config.shutdown_s)
        for task in late:
            task.cancel()
        await asyncio.wait({running})
        if not running.cancelled():
            running.result()
    finally:
        server.should_exit = True
        if relay is not None:
            relay.stop()
        await agent.close()
        await serving
        bound.close()
        if relay is not None:
            await asyncio.to_thread(relay.close)
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
