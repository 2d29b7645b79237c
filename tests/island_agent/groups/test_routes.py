"""Agents of a group over HTTP: who is let in, and one group on one agent from end to end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
import uvicorn

from skerry.bulletin.log import BulletinReader
from skerry.inference.engine import InstallFailed
from skerry.island_agent.agent import Agent
from skerry.island_agent.config import AgentConfig
from skerry.island_agent.errors import PeerLost
from skerry.island_agent.groups.ballots import Command, Verb
from skerry.island_agent.groups.config import GroupTimes
from skerry.island_agent.groups.groups import Membership
from skerry.island_agent.groups.http import HttpPeers
from skerry.island_agent.groups.roster import Roster
from skerry.island_agent.service import build_app
from tests.island_agent.engines import ByteEngine, failing
from tests.island_agent.runs import Run, make_run

TOKEN = "correct horse"
GROUPS = ("one=a/x+a/y",)
TIMES = GroupTimes(look_s=0.02, retry_s=0.01, retry_limit_s=0.05, hold_s=5.0)


class Alone:
    """One agent with two engines that are one group, and its address."""

    def __init__(self, tmp_path: Path, engines: dict[str, ByteEngine] | None = None) -> None:
        self.run: Run = make_run()
        self.engines = engines or {"x": ByteEngine(), "y": ByteEngine()}
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.roster = Roster.parse((f"a={self.url}",), GROUPS)
        self.agent = Agent(
            AgentConfig(
                directory=tmp_path / "a", island="a", announce=False, poll_s=0.01, idle_poll_s=0.02
            ),
            BulletinReader(self.run.store),
            engines=self.engines,
            membership=Membership(
                roster=self.roster, peers=HttpPeers(self.roster, TOKEN), times=TIMES
            ),
        )

    def serves(self, version: int) -> bool:
        groups = self.agent.groups
        return (
            groups is not None
            and groups.shown()["one"].version == version
            and all(view.version == version for view in self.agent.gate.view().values())
        )

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await asyncio.sleep(0.005)

    def live(self, scenario: Callable[[Alone], Awaitable[None]]) -> None:
        async def main() -> None:
            app = build_app(self.agent, control_token=TOKEN)
            server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
            serving = asyncio.create_task(server._serve([self.listener]))
            await self.agent.open()
            running = asyncio.create_task(self.agent.run())
            try:
                await self.until(lambda: self.serves(0))
                await scenario(self)
            finally:
                self.agent.stop()
                await running
                server.should_exit = True
                await serving
                self.listener.close()
                await self.agent.close()

        asyncio.run(main())


def test_nobody_drives_a_group_without_the_token_or_with_other_groups(tmp_path: Path) -> None:
    async def scenario(it: Alone) -> None:
        look = Command(verb=Verb.LOOK)
        peers = HttpPeers(it.roster, TOKEN)
        report = await peers.ask("a", "one", look, 0.0)
        assert report.record.serves is not None
        assert report.record.serves.version == 0
        other = Roster.parse((f"a={it.url}",), ("one=a/x",))
        unknown = Roster.parse((f"a={it.url}",), ("two=a/x",))
        for refused, group, why in (
            (HttpPeers(it.roster, "stolen"), "one", "401.*TokenInvalid"),
            (HttpPeers(other, TOKEN), "one", "409.*RosterMismatch"),
            (HttpPeers(unknown, TOKEN), "two", "404.*GroupUnknown"),
        ):
            with pytest.raises(PeerLost, match=why):
                await refused.ask("a", group, look, 0.0)
            await refused.close()
        await peers.close()
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{it.url}/control/groups") as answer:
                assert answer.status == 401
            async with session.post(
                f"{it.url}/control/groups/one",
                data=b"{" * 100_000,
                headers={"Authorization": f"Bearer {TOKEN}"},
            ) as answer:
                assert answer.status in (400, 413)
            async with session.get(f"{it.url}/metrics") as answer:
                text = await answer.text()
        assert 'skerry_group_version{group="one"} 0.0' in text
        assert 'skerry_group_switches_total{group="one",outcome="released"} 1.0' in text

    Alone(tmp_path).live(scenario)


def test_an_engine_that_cannot_follow_has_the_other_go_back_and_the_next_try_succeeds(
    tmp_path: Path,
) -> None:
    async def scenario(it: Alone) -> None:
        it.engines["y"].trouble["install"] = failing(InstallFailed("no memory"))
        it.run.extend(1)
        await it.until(lambda: it.serves(1))
        groups = it.agent.groups
        assert groups is not None
        assert groups.shown()["one"].undone == 1
        assert it.engines["x"].installs in ([1, 1], [1])  # it may have waited for y's failure
        assert it.engines["y"].installs == [1]
        assert [engine.loads for engine in it.engines.values()] == [1, 1]
        assert await it.engines["x"].weights_digest() == it.run.versions[1].weights

    Alone(tmp_path).live(scenario)


def test_an_engine_without_undo_is_in_no_group(tmp_path: Path) -> None:
    class Forgetful(ByteEngine):
        undo = None  # type: ignore[assignment]

    it = Alone(tmp_path, {"x": ByteEngine(), "y": Forgetful()})

    async def main() -> None:
        with pytest.raises(ValueError, match="cannot take an install back"):
            await it.agent.open()
        await it.agent.close()

    asyncio.run(main())
    it.listener.close()
