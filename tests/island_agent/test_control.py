"""Targets: newest, pinned, a bound of lag; set at the start, and changed while the agent runs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fastapi import FastAPI

from skerry.bulletin.log import BulletinReader
from skerry.codec.errors import FormatError
from skerry.inference.accepted import AcceptedVersions, VersionRange
from skerry.inference.engine import EngineBroken
from skerry.inference.errors import WeightVersionGone
from skerry.island_agent.agent import Agent
from skerry.island_agent.config import AgentConfig
from skerry.island_agent.control import parse_target
from skerry.island_agent.plan import Target
from skerry.island_agent.service import build_app
from tests.island_agent.engines import ByteEngine, failing
from tests.island_agent.runs import make_run
from tests.island_agent.stores import TwistedStore
from tests.island_agent.test_agent import settle, with_agent

TOKEN = "correct horse"
Put = Callable[..., Awaitable[tuple[int, Any]]]


def with_control(
    tmp_path: Path, agent: Agent, scenario: Callable[[Put], Awaitable[None]], token: str | None
) -> None:
    """Serve the application of an agent that the scenario drives."""
    import uvicorn

    async def main() -> None:
        app: FastAPI = build_app(agent, control_token=token)
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        serving = asyncio.create_task(server._serve([listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/control/target"

        async def put(
            body: str | None, authorization: str | None = f"Bearer {TOKEN}"
        ) -> tuple[int, Any]:
            headers = {} if authorization is None else {"Authorization": authorization}
            async with (
                aiohttp.ClientSession() as session,
                session.request(
                    "GET" if body is None else "PUT", url, data=body, headers=headers
                ) as answer,
            ):
                return answer.status, await answer.json()

        await agent.open()
        try:
            await scenario(put)
        finally:
            server.should_exit = True
            await serving
            listener.close()
            await agent.close()

    asyncio.run(main())


def test_a_target_is_changed_while_the_agent_runs(tmp_path: Path) -> None:
    run = make_run(3)
    config = AgentConfig(directory=tmp_path / "island", target=Target(version=1))
    agent = Agent(config, BulletinReader(run.store))

    async def scenario(put: Put) -> None:
        await settle(agent)
        assert agent.state.version == 1
        status, body = await put(None)
        assert (status, body["wanted"], body["target"]["mode"]) == (200, 1, "pinned")
        status, body = await put('{"version": 2}')
        assert (status, body["wanted"]) == (200, 2)
        await settle(agent)
        assert agent.state.version == 2
        status, body = await put('{"max_lag": 1}')
        assert (status, body["wanted"], body["target"]["mode"]) == (200, 2, "lag")
        status, body = await put("{}")
        assert (status, body["wanted"], body["target"]["mode"]) == (200, 3, "newest")
        await settle(agent)
        assert agent.state.version == 3
        status, body = await put('{"version": 9}')  # not there yet: it stays until it is
        assert (status, body["wanted"]) == (200, 3)

    with_control(tmp_path, agent, scenario, TOKEN)


def test_a_new_target_is_gone_to_at_once_and_not_at_the_next_poll(tmp_path: Path) -> None:
    run = make_run(2)
    config = AgentConfig(
        directory=tmp_path / "island",
        target=Target(version=1),
        poll_s=3600.0,
        idle_poll_s=3600.0,
        watched_poll_s=3600.0,
        announce=False,
    )

    async def main() -> None:
        agent = Agent(config, BulletinReader(run.store))
        await agent.open()
        running = asyncio.create_task(agent.run())
        while agent.state.phase != "idle" or agent.state.version != 1:
            await asyncio.sleep(0)
        agent.aim(Target())
        while agent.state.version != 2:
            await asyncio.sleep(0)
        agent.stop()
        await running
        await agent.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_target_that_cannot_be_followed_changes_nothing(tmp_path: Path) -> None:
    run = make_run(2)
    agent = Agent(AgentConfig(directory=tmp_path / "island"), BulletinReader(run.store))

    async def scenario(put: Put) -> None:
        await settle(agent)
        status, body = await put('{"version": 0}')
        assert (status, body["error"]["type"]) == (409, "TargetRefused")
        assert agent.target == Target()
        assert not await agent.step()
        for bad in ("", "[]", '{"version": -1}', '{"version": "2"}', '{"versoin": 2}', "{" * 50):
            status, body = await put(bad)
            assert (status, body["error"]["type"]) == (400, "RequestInvalid"), bad
        for bad in ('{"version": 1, "max_lag": 2}', '{"max_lag": 2, "ready_lag": 1}', "x" * 5000):
            assert (await put(bad))[0] == 400
        assert agent.target == Target()

    with_control(tmp_path, agent, scenario, TOKEN)


@pytest.mark.parametrize(
    ("token", "given", "status"),
    [
        (None, f"Bearer {TOKEN}", 403),
        (None, "Bearer ", 403),
        (TOKEN, None, 401),
        (TOKEN, "Bearer ", 401),
        (TOKEN, "Bearer wrong", 401),
        (TOKEN, f"Basic {TOKEN}", 401),
        (TOKEN, TOKEN, 401),
    ],
)
def test_only_who_has_the_token_may_change_the_target(
    tmp_path: Path, token: str | None, given: str | None, status: int
) -> None:
    run = make_run(1)
    agent = Agent(AgentConfig(directory=tmp_path / "island"), BulletinReader(run.store))

    async def scenario(put: Put) -> None:
        for body in ('{"version": 0}', None):
            assert (await put(body, given))[0] == status
        assert agent.target == Target()

    with_control(tmp_path, agent, scenario, token)


@pytest.mark.parametrize("text", ["null", "3", '{"version": null}', '{"max_lag": 1.5}'])
def test_a_malformed_target_is_never_the_newest(text: str) -> None:
    with pytest.raises(FormatError):
        parse_target(text.encode())


# Readiness within the target's bound.


def test_an_island_that_falls_behind_its_bound_is_not_ready_and_says_so(tmp_path: Path) -> None:
    run = make_run()
    away = [False]

    def on_range(key: str, start: int, data: bytes) -> bytes:
        if away[0]:
            raise ConnectionResetError("no road")
        return data

    async def scenario(agent: Agent) -> None:
        await settle(agent)
        away[0] = True
        for behind in range(1, 6):
            run.extend(1)
            with pytest.raises(Exception, match="no road"):
                await agent.step()
            assert agent.state.lag == behind
            assert agent.ready == (behind <= 3)
        assert agent.status()["not_ready"] == "no engine serves a version that the target allows"
        for target, ready in ((Target(), True), (Target(version=5), False)):
            agent.aim(target)
            assert agent.status()["ready"] == ready
        away[0] = False
        await settle(agent)
        assert agent.status()["ready"]

    target = Target(ready_lag=3)
    store = TwistedStore(run.store, on_range)
    with_agent(tmp_path, store, scenario, target=target, engines={"a": ByteEngine()})


# Case I-4: a mixed fleet is told apart.


def test_an_engine_that_failed_gets_no_bounded_request_and_is_tried_again(tmp_path: Path) -> None:
    run = make_run()
    good, bad = ByteEngine(), ByteEngine()

    async def admitted(agent: Agent, version: int) -> str:
        async with agent.gate.admit(
            AcceptedVersions(ranges=(VersionRange(version, version),))
        ) as ticket:
            return ticket.engine

    async def scenario(agent: Agent) -> None:
        await settle(agent)
        bad.trouble["half"] = failing(EngineBroken("rank 1 failed"), 9)
        bad.trouble["load"] = failing(EngineBroken("rank 1 is gone"), 9)
        run.extend(1)
        await agent.step()
        for _ in range(8):
            assert await admitted(agent, 1) == "good"
        with pytest.raises(WeightVersionGone):
            await admitted(agent, 0)
        engines: Any = agent.status()["engines"]
        assert engines["good"]["version"] == 1
        assert engines["good"]["last_install"]["kind"] == "patch"
        assert engines["bad"]["version"] is None
        assert "rank 1 is gone" in engines["bad"]["error"]
        assert engines["bad"]["failures"] >= 2
        assert engines["bad"]["last_install"]["version"] == 0
        bad.trouble.clear()
        await settle(agent)
        engines = agent.status()["engines"]
        assert (engines["bad"]["version"], engines["bad"]["error"]) == (1, None)
        assert "rank 1 is gone" in engines["bad"]["last_error"]
        assert engines["bad"]["last_install"]["kind"] == "load"

    with_agent(tmp_path, run.store, scenario, engines={"good": good, "bad": bad})


def test_an_engine_that_hangs_does_not_hold_up_the_others_for_ever(tmp_path: Path) -> None:
    run = make_run()

    class Stuck(ByteEngine):
        stuck = False

        async def install(self, update: object) -> None:
            if self.stuck:
                await asyncio.Event().wait()
            await super().install(update)  # type: ignore[arg-type]

    good, slow = ByteEngine(), Stuck()
    config = AgentConfig(directory=tmp_path / "island", engine_limit_s=0.05)

    async def main() -> None:
        agent = Agent(config, BulletinReader(run.store), engines={"good": good, "slow": slow})
        await agent.open()
        await settle(agent)
        slow.stuck = True
        run.extend(1)
        await agent.step()
        assert not slow.paused
        engines: Any = agent.status()["engines"]
        assert good.installs == [1]
        assert "TimeoutError" in engines["slow"]["last_error"]
        assert engines["slow"]["version"] == 1  # it could load the mirror
        await agent.close()

    asyncio.run(main())
