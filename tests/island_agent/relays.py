"""Relays and what stands around them, over real HTTP on this host."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from skerry.bulletin.connections import unheld
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.store import ObjectStore
from skerry.island_agent.relay import Relay
from skerry.island_agent.relay_config import RelayConfig
from skerry.island_agent.relay_http import relay_router
from skerry.island_agent.relay_store import RelayStore
from skerry.island_agent.service import KEEP_ALIVE_S, STALL_S

SMALL = RelayConfig(cache_bytes=64 << 20, spare_bytes=0, hold_s=20)


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def http_server(app: FastAPI, *, stall_s: float = STALL_S) -> Iterator[str]:
    """Serve an application from a thread, as an agent does; yields its address."""
    with served(app, stall_s=stall_s) as (_, url):
        yield url


@contextmanager
def served(
    app: FastAPI, *, stall_s: float, most: int | None = None
) -> Iterator[tuple[uvicorn.Server, str]]:
    """Do the same; yields the server, too."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            lifespan="off",
            timeout_keep_alive=KEEP_ALIVE_S,
            http=unheld(stall_s, most=most),
            timeout_graceful_shutdown=1,
        )
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@contextmanager
def relay_at(
    upstream: ObjectStore, directory: Path, config: RelayConfig = SMALL
) -> Iterator[tuple[Relay, str]]:
    """Serve a relay without an agent; yields it and the address of its bulletin."""
    relay = Relay(upstream, directory, config)
    app = FastAPI(openapi_url=None)
    app.include_router(relay_router(relay))
    try:
        with http_server(app, stall_s=config.stall_s) as url:
            try:
                yield relay, f"{url}/bulletin"
            finally:
                relay.stop()
    finally:
        relay.close()


def caught_up(relay: Relay) -> BulletinReader:
    """Let the relay learn the log, as its agent would."""
    reader = BulletinReader(RelayStore(relay))
    records = reader.refresh()
    relay.learned(reader.state, records)
    return reader
