"""What does a gigabyte that the gate only passes on cost: routed experts for router replay, say?

`python -m skerry.benchmarks payload`, or `skerry bench payload`.  An engine's server sends answers
of one size, read by this process in three ways: from it alone, from it with the plug-in that puts
the versions in front, and through the gate.  Each process counts its own CPU time.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import aiohttp
import typer

from skerry.benchmarks.bench_gate import serving
from skerry.benchmarks.payload_server import CPU, NAME, ROUTE
from skerry.benchmarks.submission import Submission, write
from skerry.inference.vllm.weights import HEADER

_GB = 1e9
_MB = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """CPU seconds a gigabyte of the engine's server and of the gate's, and what came through."""

    way: str
    engine_cpu_s_per_gb: float
    gate_cpu_s_per_gb: float
    gb_per_s: float


def payload(
    megabytes: Annotated[int, typer.Option(min=1, help="Of each answer.")] = 64,
    answers: Annotated[int, typer.Option(min=1, help="Of each way, one after the other.")] = 16,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", dir_okay=False, metavar="FILE", help="Write the results there."),
    ] = None,
) -> None:
    """Measure the CPU time that the gate and the plug-in spend on a gigabyte of answers."""
    submission = Submission("payload", {"megabytes": megabytes, "answers": answers})
    nbytes = megabytes * _MB
    with (
        serving("skerry.benchmarks.payload_server", "engine", str(nbytes)) as engine,
        serving("skerry.benchmarks.payload_server", "gate", engine) as gate,
    ):
        ways = [
            asyncio.run(_measure(way, url, headers, engine, gate, nbytes, answers))
            for way, url, headers in (
                ("engine alone", engine, {}),
                ("with plug-in", engine, {HEADER: NAME}),
                ("through gate", gate, {}),
            )
        ]
    print("CPU seconds a GB     engine's server     gate   GB/s")
    for found in ways:
        print(
            f"{found.way:18} {found.engine_cpu_s_per_gb:17.2f} {found.gate_cpu_s_per_gb:8.2f} "
            f"{found.gb_per_s:6.2f}"
        )
    if json_file is not None:
        write(json_file, submission.document({"ways": [asdict(found) for found in ways]}))


async def _measure(
    way: str,
    url: str,
    headers: dict[str, str],
    engine: str,
    gate: str,
    nbytes: int,
    answers: int,
) -> Way:
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout, read_bufsize=1 << 20) as session:

        async def used(server: str) -> float:
            async with session.get(server + CPU) as answer:
                return float(await answer.text())

        async def ask() -> None:
            async with session.post(
                url + ROUTE, json={"token_ids": [1]}, headers=headers
            ) as answer:
                answer.raise_for_status()
                got = sum([len(piece) async for piece in answer.content.iter_any()])
            if got < nbytes:
                raise RuntimeError(f"{way}: expected {nbytes} bytes and more, found {got}")

        await ask()
        before, began = [await used(engine), await used(gate)], time.perf_counter()
        for _ in range(answers):
            await ask()
        seconds = time.perf_counter() - began
        after = [await used(engine), await used(gate)]
    gigabytes = answers * nbytes / _GB
    engine_s, gate_s = (b - a for a, b in zip(before, after, strict=True))
    return Way(
        way=way,
        engine_cpu_s_per_gb=engine_s / gigabytes,
        gate_cpu_s_per_gb=gate_s / gigabytes,
        gb_per_s=gigabytes / seconds,
    )
