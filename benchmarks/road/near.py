"""The island's side: an agent with the CPU engine, and a request that waits for each next version.

    python -m skerry.benchmarks.road.near URL DIRECTORY VERSIONS [--memory]

It brings itself to the newest version, then takes so many more.  A version is served when a request
that accepts nothing older is let in.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

from skerry.benchmarks.road.messages import say
from skerry.benchmarks.road.spent import Spent
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.stores import open_store
from skerry.inference.constraint import parse_header
from skerry.inference.engines import CpuEngine
from skerry.island_agent import Agent, AgentConfig
from skerry.island_agent.hooks import PATCH_STEPS

_WAIT_S = 600.0


class _Times:
    """The hook: when each step was passed last."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}

    def __call__(self, step: str) -> None:
        if step in PATCH_STEPS:
            self.at[step] = time.time()


async def follow(url: str, directory: Path, versions: int, *, in_memory: bool) -> None:
    """Bring the island up to date, then tell of each new version once it is installed."""
    times = _Times()
    config = AgentConfig(
        directory=directory, in_memory=in_memory, announce=False, scrub_bytes_per_s=0
    )
    engines = {"cpu": CpuEngine()} if versions else {}
    agent = Agent(config, BulletinReader(open_store(url)), engines=engines, hook=times)
    await agent.open()
    while await agent.step():
        for engine in agent.state.engines.values():
            if engine.error is not None:
                raise RuntimeError(engine.error)
    first = agent.mirror.version
    assert first is not None
    say(version=first)
    running = asyncio.create_task(agent.run())
    for version in range(first + 1, first + 1 + versions):
        spent = Spent()
        accepted = parse_header(f"{version}..").resolve(version)
        async with agent.gate.admit(accepted, _WAIT_S):
            served_at = time.time()
        while not agent.state.history or agent.state.history[-1].version < version:
            await asyncio.sleep(0.01)
        report = agent.state.history[-1]
        phases = {name: phase.seconds for name, phase in report.phases.items()}
        say(
            version=version,
            arrived=times.at["objects-spooled"],
            served=served_at,
            pause_s=report.pause_s,
            phases=phases,
            **spent.told(),
        )
    agent.stop()
    await running
    await agent.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("directory", type=Path)
    parser.add_argument("versions", type=int)
    parser.add_argument("--memory", action="store_true", help="keep the mirror in RAM")
    args = parser.parse_args()
    asyncio.run(follow(args.url, args.directory, args.versions, in_memory=args.memory))


if __name__ == "__main__":
    main()
