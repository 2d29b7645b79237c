"""An agent with one engine, open for the length of a `with`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from skerry.bulletin.log import BulletinReader
from skerry.bulletin.store import ObjectStore
from skerry.island_agent.agent import Agent
from skerry.island_agent.config import AgentConfig
from skerry.island_agent.fetch import FetchConfig
from skerry.island_agent.hooks import Hook, no_hook
from skerry.island_agent.plan import Target
from skerry.island_agent.scrub import Scrubber
from tests.island_agent.engines import ByteEngine

FETCH = FetchConfig(attempts=2, backoff_s=0.0)


@dataclass
class Island:
    agent: Agent
    engine: ByteEngine
    hook: Hook = no_hook  # may be set at any time

    @property
    def mirror(self) -> Path:
        return self.agent.mirror.directory

    @property
    def scrubber(self) -> Scrubber:
        assert self.agent.scrubber is not None
        return self.agent.scrubber

    @property
    def served(self) -> int | None:
        """What requests are let in for."""
        return self.agent.gate.view()["a"].version

    async def settle(self, version: int | None = None) -> None:
        """Go where the target says; a version becomes the target first."""
        if version is not None:
            self.agent.aim(Target(version=version))
        while await self.agent.step():
            pass

    async def scrub(self) -> None:
        """Hash the whole mirror, from wherever the scrub is, and mend what is found."""
        passes = self.agent.state.scrub.passes
        while self.agent.state.scrub.passes < passes + 2:
            assert await self.scrubber.turn()


@asynccontextmanager
async def island(
    directory: Path,
    store: ObjectStore,
    *,
    hook: Hook = no_hook,
    engine: ByteEngine | None = None,
    in_memory: bool = False,
) -> AsyncIterator[Island]:
    engine = engine or ByteEngine()
    config = AgentConfig(
        directory=directory,
        poll_s=0.001,
        idle_poll_s=0.01,
        retry_s=0.001,
        retry_limit_s=0.01,
        fetch=FETCH,
        in_memory=in_memory,
        announce=False,
        scrub_bytes_per_s=2**40,
        scrub_pass_s=0.0,
    )
    opened: list[Island] = []

    def pass_on(step: str) -> None:
        (opened[0].hook if opened else hook)(step)

    agent = Agent(config, BulletinReader(store), engines={"a": engine}, hook=pass_on)
    await agent.open()
    opened.append(Island(agent, engine, hook))
    try:
        yield opened[0]
    finally:
        await agent.close()
