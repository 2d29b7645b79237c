"""A road to an HTTP server on which requests and answers come to harm, one at a time, on purpose.

It understands HTTP/1.1 just so far that each fault hits a whole exchange: it reads one request,
asks the server, and gives the answer, harmed or not.  Bodies pass through memory.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tests.servers.web import server_loop


class Fault(StrEnum):
    """What can happen to one exchange."""

    RESET = "reset before the request arrives"
    STORM = "503, Retry-After"
    ERROR = "500"
    CUT = "the body breaks off"
    SHORT = "the body ends early, and so does its stated length"
    LOST = "the server has done it, the answer is lost"
    SLOW = "the body comes in drops"
    CONFLICT = "409 to a conditional put"
    STALE = "the list is an older one"
    UNCONDITIONAL = "the condition of a put is taken off"


@dataclass(frozen=True, slots=True)
class Request:
    """One request, its body whole."""

    method: str
    target: str
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def conditional(self) -> bool:
        return self.method == "PUT" and "if-none-match" in self.headers

    @property
    def lists(self) -> bool:
        return self.method == "GET" and "list-type=" in self.target


Decide = Callable[[Request], Fault | None]


class FaultProxy:
    """`decide` says what happens to a request; what did happen is counted."""

    def __init__(self, server: tuple[str, int]) -> None:
        self.server = server
        self.decide: Decide = lambda request: None
        self.unconditional: Callable[[str], str] | None = None  # a signed target without conditions
        self.retry_after_s = 0
        self.harmed: Counter[Fault] = Counter()
        self.requests = 0
        self.port = 0
        self._lists: dict[str, bytes] = {}

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while (request := await _read_request(reader, writer)) is not None:
                self.requests += 1
                fault = self._fault(request)
                if not await self._exchange(request, fault, writer):
                    break
        writer.close()

    def _fault(self, request: Request) -> Fault | None:
        fault = self.decide(request)
        unfit = (
            (fault in (Fault.CONFLICT, Fault.UNCONDITIONAL) and not request.conditional)
            or (fault is Fault.STALE and request.target not in self._lists)
            or (fault in (Fault.CUT, Fault.SHORT, Fault.SLOW) and request.method != "GET")
        )
        if fault is None or unfit:
            return None
        self.harmed[fault] += 1
        return fault

    async def _exchange(
        self, request: Request, fault: Fault | None, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; return whether the connection lives on."""
        match fault:
            case Fault.RESET:
                return _reset(writer)
            case Fault.STORM | Fault.ERROR | Fault.CONFLICT:
                status = {Fault.STORM: "503 Slow", Fault.ERROR: "500 Bad"}.get(fault, "409 Race")
                wait = f"Retry-After: {self.retry_after_s}\r\n" if fault is Fault.STORM else ""
                writer.write(f"HTTP/1.1 {status}\r\n{wait}Content-Length: 0\r\n\r\n".encode())
                await writer.drain()
                return True
            case Fault.STALE:
                writer.write(self._lists[request.target])
                await writer.drain()
                return True
            case Fault.UNCONDITIONAL:
                assert self.unconditional is not None
                host, port = self.server
                headers = {
                    "host": f"{host}:{port}",  # as it was signed
                    "content-length": request.headers["content-length"],
                }
                target = self.unconditional(request.target)
                request = replace(request, target=target, headers=headers)
        head, body = await self._ask(request)
        if fault is Fault.LOST:
            return _reset(writer)
        if fault is Fault.CUT:
            writer.write(head + body[: len(body) // 2])
            await writer.drain()
            return _reset(writer)
        if fault is Fault.SHORT:
            length = f"Content-Length: {len(body)}".encode()
            body = body[: len(body) // 2]
            head = head.replace(length, f"Content-Length: {len(body)}".encode())
        if request.lists:
            self._lists.setdefault(request.target, head + body)
        writer.write(head)
        step = 4096 if fault is Fault.SLOW else max(len(body), 1)
        for at in range(0, len(body), step):
            writer.write(body[at : at + step])
            await writer.drain()
            if fault is Fault.SLOW:
                await asyncio.sleep(0.001)
        await writer.drain()
        return True

    async def _ask(self, request: Request) -> tuple[bytes, bytes]:
        """Return the head of the server's answer, with its length, and its body."""
        reader, writer = await asyncio.open_connection(*self.server)
        try:
            lines = [f"{request.method} {request.target} HTTP/1.1"]
            kept = {k: v for k, v in request.headers.items() if k not in _ROAD}
            lines += [f"{name}: {value}" for name, value in kept.items()]
            writer.write("\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1"))
            writer.write(request.body)
            await writer.drain()
            status, headers = await _read_head(reader)
            body = b""
            if headers.get("transfer-encoding") == "chunked":
                body = await _read_chunks(reader)
            elif request.method != "HEAD":
                body = await reader.readexactly(int(headers.get("content-length", "0")))
        finally:
            writer.close()
        length = headers.get("content-length") if request.method == "HEAD" else str(len(body))
        headers = {k: v for k, v in headers.items() if k not in _ROAD and k != "content-length"}
        lines = [status, *(f"{name}: {value}" for name, value in headers.items())]
        lines += [f"Content-Length: {length}", "", ""]
        return "\r\n".join(lines).encode("latin-1"), body


_ROAD = {"connection", "transfer-encoding", "expect", "keep-alive"}


def _reset(writer: asyncio.StreamWriter) -> bool:
    connection: Any = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False


async def _read_head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    while True:
        text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text.rstrip("\r\n").split("\r\n")
        if not first.startswith("HTTP/1.1 100"):
            break
    pairs = (line.partition(":") for line in lines)
    return first, {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Request | None:
    try:
        first, headers = await _read_head(reader)
    except asyncio.IncompleteReadError:
        return None
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    method, target, _ = first.split(" ")
    return Request(method, target, headers, body)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    chunks = []
    while size := int(await reader.readline(), 16):
        chunks.append(await reader.readexactly(size))
        await reader.readline()
    return b"".join(chunks)


@contextmanager
def fault_proxy(server: tuple[str, int]) -> Iterator[FaultProxy]:
    """Run a proxy before a server, on this host, beside the test."""
    proxy = FaultProxy(server)
    tasks: set[asyncio.Task[Any]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await proxy.handle(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            tasks.discard(task)

    async def start() -> asyncio.Server:
        listener = await asyncio.start_server(handle, "127.0.0.1", 0, limit=1 << 20)
        proxy.port = listener.sockets[0].getsockname()[1]
        return listener

    async def stop() -> None:
        listener.close()
        for task in tasks.copy():
            task.cancel()
        await asyncio.sleep(0.05)

    loop = server_loop()
    listener = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(30)
