"""Two islands over one bulletin: one follows the newest version, one is held a version behind."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from skerry.benchmarks.agent_process import AgentProcess
from skerry.inference.client import RolloutClient

_LIMIT_S = 600.0
_LOOK_S = 0.2
_CPU = ("--engine", "cpu", "--poll", "0.2")
# Threads that wait for a core of others spin on their own.
_ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@dataclass(kw_only=True)
class TwoIslands:
    """Agents with CPU engines and gates, as processes of their own."""

    agents: tuple[AgentProcess, AgentProcess]
    gates: tuple[RolloutClient, RolloutClient]
    token: str

    async def follow(self, version: int) -> None:
        """Return when one island serves `version`, just published, and the other the one before.

        Raises TimeoutError.
        """
        before = max(version - 1, 0)
        headers = {"Authorization": f"Bearer {self.token}"}
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.put(f"{self.agents[1].url}/control/target", json={"version": before}) as answer,
        ):
            answer.raise_for_status()
        await asyncio.gather(self._hold(0, version), self._hold(1, before))

    async def start(self) -> None:
        """Return when both serve version 0.  Raises TimeoutError."""
        await asyncio.gather(self._hold(0, 0), self._hold(1, 0))

    async def _hold(self, island: int, version: int) -> None:
        deadline = time.monotonic() + _LIMIT_S
        while (found := await asyncio.to_thread(self.agents[island].served)) != {version}:
            if time.monotonic() > deadline:
                raise TimeoutError(f"an island serves {found}, not {version}, after {_LIMIT_S} s")
            await asyncio.sleep(_LOOK_S)


@asynccontextmanager
async def two_islands(bulletin: Path, work: Path) -> AsyncIterator[TwoIslands]:
    """Start both; the bulletin has a version already.  They have ended when the context has."""
    token = secrets.token_hex(16)
    file = work / "control-token"
    file.write_text(token)
    file.chmod(0o600)
    async with AsyncExitStack() as stack:
        agents = []
        for name, words in (("newest", ()), ("behind", ("--control-token-file", str(file)))):
            agent = AgentProcess(str(bulletin), work / name, *_CPU, *words, environment=_ONE_THREAD)
            stack.callback(agent.end)
            agents.append(agent)
        gates = [await stack.enter_async_context(RolloutClient(agent.url)) for agent in agents]
        yield TwoIslands(agents=(agents[0], agents[1]), gates=(gates[0], gates[1]), token=token)
