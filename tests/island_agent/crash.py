"""A child process that follows a run and is killed: `python -m tests.island_agent.crash ...`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from skerry.bulletin.log import BulletinReader
from skerry.bulletin.stores import LocalStore
from skerry.island_agent.agent import Agent
from skerry.island_agent.config import AgentConfig
from skerry.island_agent.hooks import Hook, no_hook
from skerry.island_agent.plan import Target


def killer(step: str, occurrence: int) -> Hook:
    """Return a hook that kills this process the `occurrence`-th time that `step` is passed."""
    left = [occurrence]

    def hook(passed: str) -> None:
        if passed == step:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return hook


async def follow(
    store: Path, island: Path, target: int, *, hook: Hook = no_hook, single: bool = False
) -> None:
    """Bring the island to `target`; when `single`, through every version, telling each one."""
    reader = BulletinReader(LocalStore(store))
    targets = range(target + 1) if single else [target]
    for version in targets:
        config = AgentConfig(directory=island, target=Target(version=version), announce=False)
        agent = Agent(config, reader, hook=hook)
        await agent.open()
        print("open", flush=True)
        if agent.mirror.version is None or agent.mirror.version < version:
            await agent.step()
            print(agent.mirror.version, flush=True)
        await agent.close()


def main() -> None:
    store, island, target, step, occurrence, single = sys.argv[1:]
    hook = killer(step, int(occurrence))
    asyncio.run(
        follow(Path(store), Path(island), int(target), hook=hook, single=single == "single")
    )


if __name__ == "__main__":
    main()
