"""A real nginx with the configuration that we ship, on a free port of this host."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from skerry.benchmarks.processes import stop_process

SHIPPED = Path(__file__).parents[2] / "docs/deploy/nginx-relay.conf"

_MAIN = """
{user}
daemon off;
worker_processes 1;
pid {directory}/nginx.pid;
error_log {directory}/error.log warn;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    include {directory}/relay.conf;
}}
"""
_TRIES = 3  # a free port may be taken by somebody else meanwhile
_START_S = 20.0


def nginx() -> str | None:
    """Return the program, None where it is not installed."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


@contextmanager
def serve(program: str, directory: Path, origin: str) -> Iterator[str]:
    """Run nginx in front of the bulletin at `origin`; yields the bulletin's address there."""
    for left in reversed(range(_TRIES)):
        port = _free_port()
        process = _start(program, directory, origin, port)
        if _listens(process, port):
            break
        process.kill()
        process.wait()
        if not left:
            raise RuntimeError(f"nginx does not start: {_log(directory)}")
    try:
        yield f"http://127.0.0.1:{port}{urlsplit(origin).path}"
    finally:
        stop_process(process, 20)


def _start(program: str, directory: Path, origin: str, port: int) -> subprocess.Popen[bytes]:
    parts = urlsplit(origin)
    text = SHIPPED.read_text(encoding="utf-8")
    for shipped, ours in (
        ("listen 8090;", f"listen 127.0.0.1:{port};"),
        ("server bulletin.example.org:443;", f"server {parts.netloc};"),
        ("https://skerry_origin", f"{parts.scheme}://skerry_origin"),
        ("bulletin.example.org", parts.netloc),
        ("/runs/a/", f"{parts.path}/"),
        ("/var/cache/nginx/skerry", f"{directory}/cache"),
    ):
        assert shipped in text, shipped
        text = text.replace(shipped, ours)
    directory.mkdir(exist_ok=True)
    (directory / "relay.conf").write_text(text, encoding="utf-8")
    user = "user root;" if os.geteuid() == 0 else ""
    main = directory / "nginx.conf"
    main.write_text(_MAIN.format(user=user, directory=directory), encoding="utf-8")
    return subprocess.Popen(
        [program, "-p", str(directory), "-c", str(main), "-e", str(directory / "error.log")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _listens(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return process.poll() is None
    return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _log(directory: Path) -> str:
    path = directory / "error.log"
    return path.read_text(errors="replace")[-1000:] if path.exists() else "no log"
