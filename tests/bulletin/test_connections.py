"""Connections that never ask take no place from those who do."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

from fastapi import FastAPI, Response

from tests.island_agent.relays import served

MOST = 8


def app() -> FastAPI:
    made = FastAPI(openapi_url=None)

    @made.get("/little")
    async def little() -> Response:
        return Response(b"little")

    return made


def connected(url: str) -> socket.socket:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return socket.create_connection((parts.hostname, parts.port), timeout=60)


def is_answered(client: socket.socket) -> bool:
    """Ask, and read the whole answer."""
    client.sendall(b"GET /little HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = b""
    while not answer.endswith(b"little"):
        piece = client.recv(4096)
        if not piece:
            return False
        answer += piece
    return answer.startswith(b"HTTP/1.1 200")


def test_a_new_connection_is_answered_however_many_say_nothing() -> None:
    with served(app(), stall_s=3600, most=MOST) as (server, url), ExitStack() as stack:
        silent = [stack.enter_context(connected(url)) for _ in range(3 * MOST)]
        client = stack.enter_context(connected(url))
        assert is_answered(client)
        assert len(server.server_state.connections) <= MOST
        with suppress(ConnectionResetError):  # as good
            assert silent[0].recv(1) == b""


def test_of_those_who_are_answered_the_one_that_was_still_longest_makes_room() -> None:
    with served(app(), stall_s=3600, most=MOST) as (_, url), ExitStack() as stack:
        clients = [stack.enter_context(connected(url)) for _ in range(MOST)]
        for client in clients[1:]:
            assert is_answered(client)
        assert is_answered(stack.enter_context(connected(url)))
        for client in clients[1:]:
            assert is_answered(client)
