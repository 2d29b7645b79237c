"""What one agent takes for a version: peak memory, and CPU seconds for each GB of weights.

`python -m skerry.benchmarks agent`, or `skerry bench agent`.  A synthetic checkpoint in BF16 is
published as a full version and followed by patches that change a share of its words.  An agent
without engines, a process of its own for each version, goes from one to the next.  Anonymous memory
is what the agent takes for itself; resident memory also counts pages of files that it maps and that
the kernel can take back at any time.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from skerry.benchmarks.memory import MemorySampler, status_bytes
from skerry.benchmarks.options import AsJson
from skerry.benchmarks.submission import Submission
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.stores import LocalStore
from skerry.codec.level import Level
from skerry.island_agent import Agent, AgentConfig, Target
from skerry.island_agent.stopwatch import PHASES
from skerry.publisher import Publisher, PublisherConfig, ServedTensor

_ROWS, _COLUMNS = 4096, 8192  # of one tensor: 64 MiB
_MIB = 2**20
_PHASES = {f"{name}_s" for name in PHASES}


def publish(store: Path, nbytes: int, versions: int, density: float) -> int:
    """Publish a full version and patches; return the bytes of weights."""
    rng = np.random.default_rng(0)
    count = max(1, round(nbytes / (2 * _ROWS * _COLUMNS)))
    weights = {}
    for number in range(count):
        values = rng.standard_normal(_ROWS * _COLUMNS, np.float32) * 0.02
        weights[f"layers.{number:03}.weight"] = (values.view(np.uint32) >> 16).astype(np.uint16)
    config = PublisherConfig(anchor_versions=None, anchor_ratio=None, level=Level.DEFAULT)
    publisher = Publisher.open(LocalStore(store), config=config)
    served = {
        name: ServedTensor(dtype="BF16", shape=(_ROWS, _COLUMNS), data=words)
        for name, words in weights.items()
    }
    for version in range(versions + 1):
        if version:
            for words in weights.values():
                chosen = rng.integers(0, words.size, int(words.size * density))
                words[chosen] ^= 1
        publisher.publish_arrays(served, step=version)
    publisher.close()
    return sum(words.nbytes for words in weights.values())


async def _follow(store: Path, island: Path, version: int) -> dict[str, float]:
    config = AgentConfig(
        directory=island,
        target=Target(version=version),
        announce=False,
        verify_on_open=False,
    )
    agent = Agent(config, BulletinReader(LocalStore(store)))
    idle = status_bytes("VmRSS")
    sampler = MemorySampler()
    await agent.open()
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    while await agent.step():
        pass
    after, took = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter() - began
    report = agent.state.history[-1]
    sampler.stop()
    await agent.close()
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return {
        "version": report.version,
        "full": report.full,
        "seconds": took,
        "cpu_s": cpu,
        "idle_mib": idle / _MIB,
        "anonymous_mib": sampler.anonymous / _MIB,
        "resident_mib": max(sampler.resident, status_bytes("VmHWM")) / _MIB,
        **{f"{name}_s": phase.seconds for name, phase in report.phases.items()},
    }


def agent(
    gb: Annotated[float, typer.Option(min=0.01, help="Of BF16 weights.")] = 2.0,
    density: Annotated[float, typer.Option(min=1e-6, max=0.5, help="Of words that change.")] = 0.01,
    versions: Annotated[int, typer.Option(min=1, help="That follow the first.")] = 2,
    directory: Annotated[
        Path | None, typer.Option(help="Where bulletin and mirror are; default: the temporary one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Take an agent from version to version, and see what it needs."""
    submission = Submission("agent", {"gb": gb, "density": density, "versions": versions})
    rows = []
    with tempfile.TemporaryDirectory(dir=directory, prefix="skerry-agent-") as name:
        work = Path(name)
        nbytes = publish(work / "store", int(gb * 1e9), versions, density)
        for version in range(versions + 1):
            command = [sys.executable, "-m", "skerry.benchmarks.bench_agent"]
            command += [str(work / "store"), str(work / "island"), str(version)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            rows.append({**found, "cpu_s_per_gb": found["cpu_s"] / nbytes * 1e9})
            typer.echo(f"version {version} of {versions}", err=True)
    if as_json:
        print(json.dumps(submission.document({"weights_bytes": nbytes, "versions": rows})))
        return
    print(f"{nbytes / 1e9:.2f} GB of BF16, {density:.2%} of the words change each version\n")
    print("| version | s | CPU s per GB | anonymous, MiB | resident, MiB | seconds by phase |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        phases = (f"{k.removesuffix('_s')} {v:.2f}" for k, v in row.items() if k in _PHASES)
        print(
            f"| {row['version']}, {'full' if row['full'] else 'patch'} | {row['seconds']:.2f} "
            f"| {row['cpu_s_per_gb']:.2f} | {row['anonymous_mib']:.0f} | {row['resident_mib']:.0f} "
            f"| {', '.join(phases)} |"
        )


if __name__ == "__main__":
    store, island, version = sys.argv[1:]
    print(json.dumps(asyncio.run(_follow(Path(store), Path(island), int(version)))))
