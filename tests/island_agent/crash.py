"""A child process that follows a run and is ended: `python -m tests.island_agent.crash ...`.

Arguments: store, island, target, mode, moments.  The mode is `at-once`, `single` (through every
version), `run` (the agent's own loop, which SIGTERM ends in order) or `scrub` (mend what is damaged
at rest).  The moments say when and how the process ends itself, as JSON: `[signal, step,
occurrence, delay_s]`; a step of "" is any step.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from skerry.bulletin.log import BulletinReader
from skerry.bulletin.stores import LocalStore
from skerry.island_agent.agent import Agent
from skerry.island_agent.config import AgentConfig
from skerry.island_agent.hooks import Hook, no_hook
from skerry.island_agent.plan import Target


def ender(number: int, step: str, occurrence: int, delay_s: float = 0.0) -> Hook:
    """Return a hook that signals this process, `delay_s` after `step` was passed so many times."""
    left = [occurrence]

    def end() -> None:
        time.sleep(delay_s)
        os.kill(os.getpid(), number)

    def hook(passed: str) -> None:
        if passed == step or not step:
            left[0] -= 1
            if left[0] == 0:
                if delay_s:
                    threading.Thread(target=end, daemon=True).start()
                else:
                    end()

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
        if agent.mirror.version is None or agent.mirror.version < version:
            await agent.step()
        await agent.close()


async def run(store: Path, island: Path, target: int, *, hook: Hook) -> None:
    """Run the agent until SIGTERM."""
    config = AgentConfig(directory=island, target=Target(version=target), announce=False)
    agent = Agent(config, BulletinReader(LocalStore(store)), hook=hook)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, agent.stop)
    await agent.open()
    await agent.run()
    await agent.close()


async def scrub(store: Path, island: Path, target: int, *, hook: Hook) -> None:
    """Look at every part of the mirror, which is at `target`, and mend what differs."""
    config = AgentConfig(
        directory=island,
        target=Target(version=target),
        announce=False,
        verify_on_open=False,
        scrub_bytes_per_s=2**40,
    )
    agent = Agent(config, BulletinReader(LocalStore(store)), hook=hook)
    await agent.open()
    await agent.step()  # reads the log
    assert agent.scrubber is not None
    while not agent.state.scrub.passes or agent.state.scrub.suspects:
        await agent.scrubber.turn()
    await agent.close()


def main() -> None:
    store, island, target, mode, moment = sys.argv[1:]
    hook = ender(*json.loads(moment)) if moment else no_hook
    at = Path(store), Path(island), int(target)
    if mode == "scrub":
        asyncio.run(scrub(*at, hook=hook))
    elif mode == "run":
        asyncio.run(run(*at, hook=hook))
    else:
        asyncio.run(follow(*at, hook=hook, single=mode == "single"))


if __name__ == "__main__":
    main()
