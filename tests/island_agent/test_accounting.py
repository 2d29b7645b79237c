"""Where an install's bytes, seconds and memory went; and the caps that hold them."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from skerry.bulletin.records import RECORD_LIMIT_BYTES
from skerry.bulletin.stores import LocalStore
from skerry.island_agent.config import LEAST_MEMORY_BYTES, AgentConfig
from skerry.island_agent.fetch import FetchConfig
from skerry.island_agent.metrics import IslandCollector
from skerry.island_agent.stopwatch import PHASES
from tests.island_agent.islands import island
from tests.island_agent.runs import Run, Snapshot, make_run, shard

ROOT = Path(__file__).parents[2]


def test_every_install_says_where_its_bytes_and_seconds_went(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run()
    sizes: list[int] = []

    def hook(step: str) -> None:
        if step == "journal-durable":
            sizes.append((tmp_path / "journal" / "install").stat().st_size)

    async def main() -> None:
        async with island(tmp_path, run.store, hook=hook) as it:
            await it.settle()
            full = it.agent.state.history[-1].phases
            assert tuple(full) == PHASES
            total = sum(len(data) for data in run.versions[0].files.values())
            assert full["fetch"].nbytes == full["verify"].nbytes == total
            run.extend(1)
            record = run.store.get(f"log/{run.writer.reader.state.seq:020}.json",
                                   limit_bytes=RECORD_LIMIT_BYTES)  # fmt: skip
            began = time.perf_counter()
            with caplog.at_level(logging.INFO):
                await it.settle()
            took = time.perf_counter() - began
            report = it.agent.state.history[-1]
            phases = report.phases
            commit = run.writer.reader.state.commits[1]
            assert tuple(phases) == PHASES
            assert phases["manifest"].nbytes == len(record)
            assert phases["fetch"].nbytes == phases["decode"].nbytes == commit.packs[0].size
            assert phases["journal"].nbytes == sizes[0]
            assert phases["apply"].nbytes == phases["scatter"].nbytes > report.changed  # type: ignore[operator]
            old, new = run.versions
            assert phases["verify"].nbytes == sum(
                spec.nbytes
                for spec in new.layout.tensors
                if not np.array_equal(old.read(spec), new.read(spec))
            )
            assert all(phases[name].seconds > 0 for name in PHASES[:6])
            assert sum(phase.seconds for phase in phases.values()) <= took
            status = json.loads(json.dumps(it.agent.status()))
            assert status["history"][-1]["phases"]["fetch"]["nbytes"] == commit.packs[0].size
            registry = CollectorRegistry()
            IslandCollector(lambda: it.agent.state).register(registry)
            text = generate_latest(registry).decode()
            for name in PHASES:
                assert f'skerry_island_install_seconds_total{{phase="{name}"}}' in text
                assert f'skerry_island_install_bytes_total{{phase="{name}"}}' in text

    asyncio.run(main())
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("install ended")]
    assert re.findall(r"(\w+)=[\d.]+s/\d+B", line) == list(PHASES)


@given(
    st.integers(LEAST_MEMORY_BYTES, 2**36),
    st.none() | st.integers(1, 200),
    st.integers(1, 64),
)
def test_threads_and_downloads_fit_the_memory_that_was_stated(
    memory: int, threads: int | None, parallel: int
) -> None:
    config = AgentConfig(
        directory=Path("island"),
        threads=threads,
        memory_bytes=memory,
        fetch=FetchConfig(parallel=parallel),
    )
    fitted, fetch = config.fitted()
    assert 1 <= fitted * 48 * 2**20 <= memory
    assert 1 <= fetch.parallel * 32 * 2**20 <= memory
    assert fetch.parallel <= parallel
    assert threads is None or fitted <= threads


def test_less_memory_than_one_leaf_takes_is_refused() -> None:
    with pytest.raises(ValueError, match="memory_bytes is at least"):
        AgentConfig(directory=Path("island"), memory_bytes=LEAST_MEMORY_BYTES - 1)
    with pytest.raises(ValueError, match="scrub_bytes_per_s is not negative"):
        AgentConfig(directory=Path("island"), scrub_bytes_per_s=-1)


FOLLOW = """
import asyncio, sys
from pathlib import Path
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.stores import LocalStore
from skerry.island_agent import Agent, AgentConfig, Target

def peak(key="VmHWM"):
    text = Path("/proc/self/status").read_text()
    return 1024 * int(text.split(key + ":")[1].split()[0])

async def main():
    before = peak("VmRSS")
    memory = int(sys.argv[3])
    for version in (0, 1):
        config = AgentConfig(directory=Path(sys.argv[2]), target=Target(version=version),
                             memory_bytes=memory, announce=False)
        agent = Agent(config, BulletinReader(LocalStore(Path(sys.argv[1]))))
        await agent.open()
        while await agent.step():
            pass
        assert agent.mirror.version == version
        await agent.close()
    print(before, peak())

asyncio.run(main())
"""


def test_sixteen_megabytes_are_installed_within_96_mib(tmp_path: Path) -> None:
    """A full version and a patch of 1 % of the words, by a process that does nothing else."""
    cap = 96 * 2**20
    rng = np.random.default_rng(0)
    tensors = {}
    for number in range(4):
        values = (rng.standard_normal((1024, 2048)) * 0.02).astype(np.float32)
        bits = (values.view(np.uint32) >> 16).astype("<u2").reshape(-1).view(np.uint8)
        tensors[f"layer.{number}"] = ("BF16", (1024, 2048), bits)
    run = Run(LocalStore(tmp_path / "store"))
    run.publish(Snapshot({"model.safetensors": shard("m", tensors)}))
    run.publish(run.versions[0].mutated(1, 0.01))
    result = subprocess.run(
        [sys.executable, "-c", FOLLOW, str(tmp_path / "store"), str(tmp_path / "island"), str(cap)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    before, peak = map(int, result.stdout.split())
    assert peak - before < cap
    print(f"peak RSS {peak >> 20} MiB, {(peak - before) >> 20} MiB more than after importing")
