"""Clients that do not read: what they hold is given back."""

from __future__ import annotations

import logging
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
import uvicorn
from fastapi import FastAPI, Response

from skerry.bulletin import keys
from skerry.bulletin.connections import raise_file_limit
from skerry.island_agent.relay import Relay
from skerry.island_agent.relay_config import RelayConfig
from skerry.island_agent.relay_http import relay_router
from tests.island_agent.relays import caught_up, served
from tests.island_agent.runs import Run, make_run

STALL_S = 0.2


@contextmanager
def relay_of(
    run: Run, directory: Path, stall_s: float
) -> Iterator[tuple[uvicorn.Server, Relay, str]]:
    config = RelayConfig(cache_bytes=1 << 28, spare_bytes=0, streams=2, stall_s=stall_s)
    relay = Relay(run.store, directory, config)
    app = FastAPI(openapi_url=None)
    app.include_router(relay_router(relay))
    try:
        with served(app, stall_s=stall_s) as (server, url):
            yield server, relay, url
    finally:
        relay.close()


def asking(url: str, path: str) -> socket.socket:
    """Ask for something and read nothing of the answer."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((parts.hostname, parts.port))
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return client


def until_alone(server: uvicorn.Server) -> None:
    """Wait until connections have been there and are gone."""
    while server.server_state.total_requests < 1 and not server.server_state.connections:
        threading.Event().wait(0.001)
    while server.server_state.connections:
        threading.Event().wait(0.001)


def largest(run: Run) -> str:
    full = run.writer.reader.state.commits[0].full
    assert full is not None
    return quote(max(full.objects, key=lambda ref: ref.size).key)


def test_who_reads_nothing_loses_the_connection(tmp_path: Path) -> None:
    run = make_run(0, words=4_000_000)
    with relay_of(run, tmp_path, STALL_S) as (server, relay, url), ExitStack() as stack:
        caught_up(relay)
        for _ in range(6):
            stack.enter_context(asking(url, f"/bulletin/{largest(run)}"))
        until_alone(server)


def test_those_who_read_no_object_hold_up_no_record(tmp_path: Path) -> None:
    run = make_run(0, words=4_000_000)
    with relay_of(run, tmp_path, 3600) as (_, relay, url), ExitStack() as stack:
        caught_up(relay)
        for _ in range(6):  # three times the places
            client = stack.enter_context(asking(url, f"/bulletin/{largest(run)}"))
        with asking(url, f"/bulletin/{keys.log(0)}") as reader:
            assert reader.recv(100).startswith(b"HTTP/1.1 200")
        client.setblocking(False)
        with pytest.raises(BlockingIOError):  # who has no place yet has no headers either
            client.recv(100)


def test_an_answer_of_any_route_that_nobody_takes_ends_with_its_connection() -> None:
    app = FastAPI(openapi_url=None)

    @app.get("/much")
    async def much() -> Response:
        return Response(bytes(32 << 20))

    with served(app, stall_s=STALL_S) as (server, url), ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(asking(url, "/much"))
        until_alone(server)


def test_who_reads_and_leaves_is_not_taken_for_somebody_who_does_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    app = FastAPI(openapi_url=None)

    @app.get("/little")
    async def little() -> Response:
        return Response(b"little", headers={"Connection": "close"})

    with served(app, stall_s=STALL_S) as (server, url):
        for _ in range(10):
            with asking(url, "/little") as client:
                while client.recv(4096):
                    pass
        until_alone(server)
        threading.Event().wait(2 * STALL_S)  # so long what is wrong would take
    assert "dropped" not in caplog.text


def test_who_takes_an_answer_slowly_but_takes_it_gets_all_of_it() -> None:
    app = FastAPI(openapi_url=None)

    @app.get("/much")
    async def much() -> Response:
        return Response(bytes(2 << 20), headers={"Connection": "close"})

    with served(app, stall_s=3) as (_, url), asking(url, "/much") as client:
        found = 0
        while piece := client.recv(4096):
            found += len(piece)
            if found // (1 << 18) > (found - len(piece)) // (1 << 18):
                threading.Event().wait(0.5)  # eight times: longer than the limit altogether
        assert found > 2 << 20


def test_as_many_files_can_be_open_as_the_host_allows() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
        assert raise_file_limit() == before[1]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
