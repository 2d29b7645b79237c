"""One real run of a stated size, for the model to be calibrated with or held against.

    python -m skerry.benchmarks.scale.run publish DIRECTORY MEGABYTES DENSITY VERSIONS
    python -m skerry.benchmarks.scale.run follow DIRECTORY MEGABYTES DENSITY VERSIONS

The one publishes into a bulletin directory, the other has an agent without engines follow it from
version to version.  Each is a process of its own, so that its memory is its own, and prints one
JSON object.  Seconds are those of the fastest version: what else the machine does only adds.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skerry.benchmarks.memory import MemorySampler, status_bytes, trim
from skerry.benchmarks.weights import Pair, served_tensors
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.stores import LocalStore
from skerry.bulletin.stores.metered import Metered
from skerry.codec.level import Level
from skerry.island_agent import Agent, AgentConfig, Target
from skerry.publisher import Publisher, PublisherConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a run is of."""

    megabytes: float
    density: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one run took for a version."""

    size: Size
    weights_bytes: int
    changed: int
    patch_bytes: int
    publish_s: float
    publish_cpu_s: float
    follow_s: float
    follow_cpu_s: float
    publisher_bytes: int
    agent_bytes: int
    puts: int
    gets: int


class Clock:
    """Times some versions, by the wall and by the CPU seconds of this process."""

    def __init__(self) -> None:
        self._times: list[tuple[float, float]] = []
        self._began = (0.0, 0.0)

    def __enter__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        wall, cpu = self._began
        self._times.append((time.perf_counter() - wall, time.process_time() - cpu))

    def least(self) -> dict[str, float]:
        """Return the least of either."""
        walls, cpus = zip(*self._times, strict=True)
        return {"seconds": min(walls), "cpu_s": min(cpus)}


def see(size: Size, versions: int, work: Path) -> Seen:
    """Run both sides of one size, one after the other."""
    published = _child("publish", work, size, versions)
    followed = _child("follow", work, size, versions)
    return Seen(
        size=size,
        weights_bytes=published["weights_bytes"],
        changed=published["changed"],
        patch_bytes=published["patch_bytes"],
        publish_s=published["seconds"],
        publish_cpu_s=published["cpu_s"],
        follow_s=followed["seconds"],
        follow_cpu_s=followed["cpu_s"],
        publisher_bytes=published["memory"],
        agent_bytes=followed["memory"],
        puts=published["puts"],
        gets=followed["gets"],
    )


def _child(role: str, work: Path, size: Size, versions: int) -> Mapping[str, Any]:
    command = [sys.executable, "-m", "skerry.benchmarks.scale.run", role, str(work)]
    command += [str(size.megabytes), str(size.density), str(versions)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: Mapping[str, Any] = json.loads(done.stdout)
    return found


def _publish(work: Path, pair: Pair, versions: int) -> Mapping[str, object]:
    store = Metered(LocalStore(work / "bulletin"))
    config = PublisherConfig(anchor_versions=None, anchor_ratio=None, level=Level.DEFAULT)
    trim()
    before = status_bytes("VmRSS")
    publisher = Publisher.open(store, config=config)
    weights = [served_tensors(pair, pair.old), served_tensors(pair, pair.new)]
    publisher.publish_arrays(weights[0], step=0)
    sampler, usage = MemorySampler(), store.usage()
    clock, changed, nbytes = Clock(), 0, 0
    for version in range(1, versions + 1):
        with clock:
            report = publisher.publish_arrays(weights[version % 2], step=version)
        changed += report.changed or 0
        nbytes += (report.patch_bytes or 0) + report.record_bytes
    sampler.stop()
    requests = (store.usage() - usage).requests
    publisher.close()
    return {
        "weights_bytes": pair.nbytes,
        "changed": round(changed / versions),
        "patch_bytes": round(nbytes / versions),
        **clock.least(),
        "memory": max(sampler.resident - before, 1),
        "puts": round(sum(n for verb, n in requests.items() if "put" in verb) / versions),
    }


async def _follow(work: Path, versions: int) -> Mapping[str, object]:
    store = Metered(LocalStore(work / "bulletin"))
    config = AgentConfig(
        directory=work / "island", target=Target(version=0), announce=False, scrub_bytes_per_s=0
    )
    agent = Agent(config, BulletinReader(store))
    await agent.open()
    while await agent.step():
        pass
    sampler, usage, clock = MemorySampler(), store.usage(), Clock()
    for version in range(1, versions + 1):
        agent.aim(Target(version=version))
        with clock:
            while await agent.step():
                pass
        assert agent.mirror.version == version
    sampler.stop()
    requests = (store.usage() - usage).requests
    await agent.close()
    return {
        **clock.least(),
        "memory": sampler.resident,
        "gets": round(sum(requests.values()) / versions),
    }


def main(argv: Sequence[str]) -> None:
    role, directory, megabytes, density, versions = argv
    work = Path(directory)
    if role == "publish":
        from skerry.benchmarks.simulate import simulate  # torch takes its time

        threads = os.cpu_count() or 1
        nbytes = int(float(megabytes) * 1e6)
        pair = simulate("BF16", nbytes, float(density), seed=1, threads=threads)
        print(json.dumps(_publish(work, pair, int(versions))))
    else:
        print(json.dumps(asyncio.run(_follow(work, int(versions)))))


if __name__ == "__main__":
    main(sys.argv[1:])
