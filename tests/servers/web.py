"""A web server over a directory of objects, as nginx serves one: ranges, ETags, conditions, TLS."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_SETTLE_S = 0.02

Answer = Callable[[web.Request], web.StreamResponse | None]


@dataclass
class WebServer:
    """A running server; `answer` may reply in place of the files, `seen` is what was asked."""

    url: str
    seen: list[web.BaseRequest] = field(default_factory=list)
    answer: Answer = lambda request: None


@cache
def server_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all test servers, which runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="test-servers", daemon=True).start()
    return loop


@contextmanager
def serve(root: Path, *, tls: ssl.SSLContext | None = None) -> Iterator[WebServer]:
    """Serve a directory on this host, from a thread beside the test."""
    loop = server_loop()
    server = WebServer(url="")

    async def handle(request: web.Request) -> web.StreamResponse:
        server.seen.append(request)
        answer = server.answer(request)
        if answer is not None:
            return answer
        path = root / request.match_info["key"]
        return web.FileResponse(path) if path.is_file() else web.Response(status=404)

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/run/{key:.*}", handle)
        runner = web.AppRunner(app, shutdown_timeout=0.5)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        port = runner.addresses[0][1]
        server.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{port}/run"
        return runner

    async def stop(runner: web.AppRunner) -> None:
        await asyncio.sleep(_SETTLE_S)  # a connection that is being accepted would be left open
        await runner.cleanup()
        await asyncio.sleep(_SETTLE_S)

    runner = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(stop(runner), loop).result(30)


def certificate(directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Make a certificate for this host; return what a server and what a client needs of it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "skerry test")])
    now = datetime.datetime.now(datetime.UTC)
    host = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([host]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = directory / "test.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + signed.public_bytes(serialization.Encoding.PEM)
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(path)
    return server, ssl.create_default_context(cafile=path)
