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
from dataclasses import dataclass, field

from skerry.bulletin.listener import listen
from skerry.inference.config import ServerConfig
from skerry.island_agent.agent import Agent
from skerry.island_agent.relay import Relay
from skerry.island_agent.status import IslandStatus

try:
    import uvicorn
    from fastapi import FastAPI
    from prometheus_client import CollectorRegistry

    from skerry.bulletin.connections import raise_file_limit, unheld
    from skerry.inference.server import create_app
    from skerry.island_agent.control import add_control
    from skerry.island_agent.groups.http import add_groups
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

STALL_S = 30.0  # who takes nothing of an answer for so long loses the connection

_READ_GRACE_S = 2.0  # for work that only reads from the store, which may never answer
_LAST_S = 1.0  # for the end of what was cancelled, and for requests, however late it is


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """Where to listen; `shutdown_s` bounds how long a stop waits for requests and installs.

    `control_token` opens `/control`; without one it is off.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    shutdown_s: float = 30.0
    server: ServerConfig | None = None
    control_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a service ended.

    `paused` engines could not be resumed.  When `late`, a thread still waits for the store or the
    disk: only the end of the process ends it, and it need not be waited for.
    """

    paused: tuple[str, ...] = ()
    late: bool = False


def build_app(
    agent: Agent,
    *,
    registry: CollectorRegistry | None = None,
    server: ServerConfig | None = None,
    control_token: str | None = None,
    relay: Relay | None = None,
) -> FastAPI:
    """Return the island's application: requests through the gate, and the agent's own state.

    With a relay it serves the bulletin to neighbours, too.
    `/metrics` shows `registry`, with the gate's and the island's own metrics added.  `/ready` is
    whether an engine serves a version that the target allows, or without engines the mirror has
    one.
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
    add_control(app, agent, control_token)
    add_groups(app, lambda: agent.groups, control_token)
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
) -> Ending:
    """Run the agent and its server until SIGTERM or SIGINT; then leave everything in order.

    At once the island is not ready any more; then installs end, engines are resumed, and requests
    end, all within `shutdown_s` and a few seconds.  The mirror is consistent whatever is cut off.
    The watchers run as long as the agent does, and the relay is closed at the end.
    Raises MirrorBusy, and OSError for a taken port.
    """
    config = config or ServiceConfig()
    raise_file_limit()
    bound = listener or listen(config.host, config.port)
    app = build_app(agent, server=config.server, control_token=config.control_token, relay=relay)
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            lifespan="off",
            timeout_keep_alive=KEEP_ALIVE_S,
            http=unheld(STALL_S),
            access_log=relay is None,  # neighbours read in ranges of a mebibyte
            timeout_graceful_shutdown=max(1, int(config.shutdown_s)),
        )
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    running = asyncio.create_task(_open_and_run(agent, watchers))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({serving, running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        logger.info("island stops phase=%s", agent.state.phase)
        deadline = loop.time() + config.shutdown_s
        agent.stop()
        if relay is not None:
            relay.stop()
        stopping.cancel()
        await _end(running, agent, deadline)
        server.config.timeout_graceful_shutdown = max(_LAST_S, deadline - loop.time())  # type: ignore[assignment]  # any number will do
        server.should_exit = True
        left_s = max(_LAST_S, deadline - loop.time())
        ended = await agent.close(min(_LAST_S, left_s) if agent.only_reads else left_s)
        await serving
        bound.close()
        if relay is not None:  # it writes to its cache alone, which survives any end
            closing = asyncio.ensure_future(asyncio.to_thread(relay.close))
            ended = bool((await asyncio.wait({closing}, timeout=_LAST_S))[0]) and ended
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    if running.done() and not running.cancelled():
        running.result()
    if not ended:
        logger.warning("island stopped before its work had ended phase=%s", agent.state.phase)
    return Ending(paused=agent.paused, late=not ended or not running.done())


async def _open_and_run(agent: Agent, watchers: Sequence[LogWatcher]) -> None:
    await agent.open()
    watching = [asyncio.create_task(watcher.run()) for watcher in watchers]
    try:
        await agent.run()
    finally:
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)


async def _end(running: asyncio.Task[None], agent: Agent, deadline: float) -> None:
    """Wait for the agent's loop: for an install until the deadline, for the store hardly at all."""
    loop = asyncio.get_running_loop()
    read_until = min(loop.time() + _READ_GRACE_S, deadline)
    await asyncio.wait({running}, timeout=read_until - loop.time())
    if not running.done() and not agent.only_reads:
        await asyncio.wait({running}, timeout=max(0.0, deadline - loop.time()))
    running.cancel()
    # An install that is cut off still resumes its engine, which is bounded too.
    await asyncio.wait({running}, timeout=max(_LAST_S, deadline - loop.time()))


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling: the service decides the order of shutdown."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
