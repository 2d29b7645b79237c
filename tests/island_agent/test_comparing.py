"""`/control/difference`: one comparison at a time, as long as somebody listens, and who may ask."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn
from typer.testing import CliRunner, Result

from skerry.bulletin.log import BulletinReader
from skerry.bulletin.stores import LocalStore
from skerry.cli.app import app as cli
from skerry.island_agent.agent import Agent
from skerry.island_agent.config import AgentConfig
from skerry.island_agent.plan import Target
from skerry.island_agent.service import build_app
from skerry.island_agent.state import Places
from tests.bulletin.faults import FaultyStore, Hook, nothing
from tests.island_agent.relays import _Server as Server
from tests.island_agent.runs import Run, make_run
from tests.island_agent.test_agent import settle
from tests.island_agent.test_exact import truth

TOKEN = "correct-horse"
Scenario = Callable[[Agent, str, aiohttp.ClientSession], Awaitable[None]]


@pytest.fixture(name="run")
def stored_run(tmp_path: Path) -> Run:
    return make_run(4, store=LocalStore(tmp_path / "store"))


@asynccontextmanager
async def island(
    run: Run, tmp_path: Path, *, token: str | None = TOKEN, before: Hook = nothing
) -> AsyncIterator[tuple[Agent, str, aiohttp.ClientSession]]:
    """Serve an agent that holds version 1 of a run."""
    config = AgentConfig(directory=tmp_path / "island", target=Target(version=1))
    agent = Agent(config, BulletinReader(FaultyStore(run.store, before=before)))
    server = Server(
        uvicorn.Config(
            build_app(agent, control_token=token), port=0, log_config=None, lifespan="off",
            timeout_graceful_shutdown=1,
        )
    )  # fmt: skip
    await agent.open()
    await settle(agent)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0)
    port = server.servers[0].sockets[0].getsockname()[1]
    headers = {"Authorization": f"Bearer {TOKEN}"}
    try:
        async with aiohttp.ClientSession(headers=headers) as session:
            yield agent, f"http://127.0.0.1:{port}", session
    finally:
        server.should_exit = True
        await serving
        await agent.close()


async def asked(session: aiohttp.ClientSession, url: str) -> tuple[int, list[Any]]:
    async with session.get(url) as answer:
        return answer.status, [json.loads(line) async for line in answer.content]


def test_an_agent_counts_what_differs_and_leaves_nothing_behind(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with island(run, tmp_path) as (agent, url, session):
            status, lines = await asked(session, f"{url}/control/difference?old=1&new=3")
            assert status == 200
            *_, last = lines
            assert last["done"]
            assert last["run"] == agent.reader.state.run
            found = {one["name"]: one["changed"] for one in last["difference"]["tensors"]}
            assert found == truth(run.versions[1], run.versions[3])
            assert last["difference"]["from_mirror"]
            assert not Places(tmp_path / "island").comparing.exists()

    asyncio.run(main())


def test_who_may_not_and_what_is_no_question_is_refused_at_once(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with island(run, tmp_path) as (_, url, session):
            path = f"{url}/control/difference"
            for query in (
                "", "?old=1", "?old=1&new=2&new=3", "?old=1&new=2&x=3", "?old=-1&new=2",
                "?old=1&new=x", f"?old=1&new={'9' * 5000}", "?old=%C2%B2&new=1",
            ):  # fmt: skip
                assert (await asked(session, path + query))[0] == 400, query
            status, [problem] = await asked(session, f"{path}?old=1&new=99")
            assert (status, problem["error"]["type"]) == (404, "VersionUnknown")
            async with session.get(f"{path}?old=1&new=2", headers={"Authorization": "x"}) as answer:
                assert answer.status == 401
        async with island(run, tmp_path, token=None) as (_, url, session):
            assert (await asked(session, f"{url}/control/difference?old=1&new=2"))[0] == 403

    asyncio.run(main())


def test_there_is_one_at_a_time_and_whoever_leaves_makes_room(run: Run, tmp_path: Path) -> None:
    gate, reached = threading.Event(), threading.Event()
    closed: list[bool] = []

    def before(verb: str, key: str) -> None:
        if closed and key.startswith("packs/"):
            reached.set()
            gate.wait(60)

    async def main() -> None:
        async with island(run, tmp_path, before=before) as (_, url, session):
            closed.append(True)
            path = f"{url}/control/difference?old=1&new=4"
            first = await session.get(path)
            await asyncio.to_thread(reached.wait, 60)
            assert json.loads(await first.content.readline())["phase"]
            status, [problem] = await asked(session, path)
            assert (status, problem["error"]["type"]) == (503, "Busy")
            assert (await asked(session, f"{url}/health"))[0] == 200
            first.close()
            closed.clear()
            gate.set()
            while (await asked(session, path))[0] == 503:
                pass  # what was left behind is about to notice

    asyncio.run(main())


def test_an_agent_that_is_to_stop_does_not_wait_for_a_comparison(run: Run, tmp_path: Path) -> None:
    gate = threading.Event()
    closed: list[bool] = []

    def before(verb: str, key: str) -> None:
        if closed and key.startswith("packs/"):
            gate.wait(60)

    async def main() -> None:
        async with island(run, tmp_path, before=before) as (agent, url, session):
            closed.append(True)
            async with session.get(f"{url}/control/difference?old=1&new=4") as answer:
                await answer.content.readline()
                agent.stop()
                for _ in range(2):  # the second was told after the agent was
                    await answer.content.readline()
                gate.set()
                last = json.loads([line async for line in answer.content][-1])
                assert last["stopped_by"]["type"] == "Stopped"

    asyncio.run(main())


def skerry(*arguments: object, token: str = TOKEN) -> Result:
    env = {"SKERRY_AGENT_CONTROL_TOKEN": token}
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments], env=env)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_the_command_line_asks_an_agent_or_does_it_itself(run: Run, tmp_path: Path) -> None:
    expected = truth(run.versions[1], run.versions[3])

    def ask(url: str) -> None:
        ours = tmp_path / "store"
        for arguments in ((), ("--agent", url)):
            found = json.loads(skerry("diff", ours, 1, 3, "--exact", "--json", *arguments).stdout)
            assert {one["name"]: one["changed"] for one in found["tensors"]} == expected
            assert found["changed"] == sum(expected.values()) <= found["at_most"]
            text = skerry("diff", ours, 1, 3, "--exact", *arguments).stdout
            assert "exactly" in text
            assert "at most" in text
        other = make_run(4, store=LocalStore(tmp_path / "other"))
        assert other.versions
        refused = skerry("diff", tmp_path / "other", 1, 3, "--exact", "--agent", url)
        assert (refused.exit_code, "another" in refused.stderr) == (1, True)
        wrong = skerry("diff", ours, 1, 3, "--exact", "--agent", url, token="wrong")
        assert (wrong.exit_code, "TokenInvalid" in wrong.stderr) == (1, True)
        closed = skerry("diff", ours, 1, 3, "--exact", "--agent", "http://127.0.0.1:9")
        assert closed.exit_code == 3
        for usage in (
            ("1", "3", "--agent", url), ("1", "3", "--exact", "--agent", "nonsense"),
            (tmp_path, "--exact"),
        ):  # fmt: skip
            assert skerry("diff", ours, *usage).exit_code == 2, usage

    async def main() -> None:
        async with island(run, tmp_path) as (_, url, _session):
            await asyncio.to_thread(ask, url)

    asyncio.run(main())


def test_what_is_no_agent_is_said_to_be_none(run: Run, tmp_path: Path) -> None:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b'{"done": true, "difference": {"x": 1}}\n')
        await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(reply, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            result = await asyncio.to_thread(
                skerry, "diff", tmp_path / "store", 1, 3, "--exact", "--agent",
                f"http://127.0.0.1:{port}",
            )  # fmt: skip
        assert result.exit_code == 1
        assert "not the answer of an agent" in result.stderr

    asyncio.run(main())
