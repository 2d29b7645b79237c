"""What does the gate cost a request: the same engine, which makes tokens at once, with and without?

`python -m skerry.benchmarks gate`, or `skerry bench gate`.  Two servers, each a process of its own,
are asked in turn by this one.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import aiohttp
import numpy as np
import typer

from skerry.benchmarks.submission import Submission, write

_START_LIMIT_S = 240.0  # of a busy machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Latencies of one request after the other, and requests a second of many at once."""

    server: str
    p50_ms: float
    p99_ms: float
    per_s: float


def gate(
    requests: Annotated[int, typer.Option(min=100, help="In each measurement.")] = 2000,
    tokens: Annotated[int, typer.Option(min=1, help="Of each answer.")] = 16,
    at_once: Annotated[int, typer.Option(min=1, help="Requests at once, for the rate.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Turns; the best of each is shown.")] = 3,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", dir_okay=False, metavar="FILE", help="Write the results there."),
    ] = None,
) -> None:
    """Measure what the gate adds to a request's latency, and how many it takes a second."""
    settings = {"requests": requests, "tokens": tokens, "at_once": at_once, "rounds": rounds}
    submission = Submission("gate", settings)
    best: dict[str, Measured] = {}
    module = "skerry.benchmarks.gate_server"
    with serving(module, "bare") as bare, serving(module, "gate") as gated:
        for _ in range(rounds):
            for name, url in (("bare", bare), ("gate", gated)):
                found = asyncio.run(_measure(name, url, requests, tokens, at_once))
                best[name] = _better(best.get(name), found)
    for found in best.values():
        print(
            f"{found.server:6} p50 {found.p50_ms:6.2f} ms  p99 {found.p99_ms:6.2f} ms  "
            f"{found.per_s:7.0f} requests/s"
        )
    added = best["gate"].p50_ms - best["bare"].p50_ms, best["gate"].p99_ms - best["bare"].p99_ms
    print(f"added  p50 {added[0]:6.2f} ms  p99 {added[1]:6.2f} ms")
    if json_file is not None:
        servers = [asdict(found) for found in best.values()]
        write(json_file, submission.document({"servers": servers}))


@contextmanager
def serving(module: str, *arguments: str) -> Iterator[str]:
    """Run a module that serves at the port it is given last, and yield where that is."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    command = [sys.executable, "-m", module, *arguments, str(port)]
    process = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + _START_LIMIT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


async def _measure(name: str, url: str, requests: int, tokens: int, at_once: int) -> Measured:
    body = {"prompt": [1, 2, 3], "max_tokens": tokens}
    headers = {} if name == "bare" else {"X-Accept-Weight-Versions": "latest-2.."}
    body |= {} if name == "bare" else {"logprobs": True}
    connector = aiohttp.TCPConnector(limit=at_once)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:

        async def ask() -> float:
            began = time.perf_counter()
            async with session.post(f"{url}/v1/completions", json=body) as answer:
                await answer.read()
                answer.raise_for_status()
            return time.perf_counter() - began

        for _ in range(50):
            await ask()
        alone = [await ask() for _ in range(requests)]
        left = iter(range(requests))

        async def many() -> None:
            for _ in left:
                await ask()

        began = time.perf_counter()
        await asyncio.gather(*(many() for _ in range(at_once)))
        seconds = time.perf_counter() - began
    p50, p99 = np.percentile(alone, (50, 99)) * 1000
    return Measured(server=name, p50_ms=p50, p99_ms=p99, per_s=requests / seconds)


def _better(a: Measured | None, b: Measured) -> Measured:
    if a is None:
        return b
    return Measured(
        server=b.server,
        p50_ms=min(a.p50_ms, b.p50_ms),
        p99_ms=min(a.p99_ms, b.p99_ms),
        per_s=max(a.per_s, b.per_s),
    )
