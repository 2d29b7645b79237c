"""Nudges: who waits for a version, or has heard of one, makes the agent look now, not some day."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fastapi import FastAPI, Response

from skerry.bulletin.log import BulletinReader
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores import Metered
from skerry.inference.accepted import AcceptedVersions, VersionRange
from skerry.inference.errors import WeightVersionGone, WeightVersionNotReady
from skerry.island_agent.agent import Agent
from skerry.island_agent.config import AgentConfig
from skerry.island_agent.watch import LogWatcher
from tests.island_agent.engines import ByteEngine
from tests.island_agent.relays import caught_up, http_server, relay_at
from tests.island_agent.runs import make_run

HOURS_S = 36_000.0


def version(number: int) -> AcceptedVersions:
    return AcceptedVersions(ranges=(VersionRange(number, number),))


@asynccontextmanager
async def idle_agent(
    directory: Path, store: ObjectStore, *, engine: ByteEngine | None = None, nudge_s: float = 0.001
) -> AsyncIterator[Agent]:
    """An agent at rest, which would look again in hours."""
    config = AgentConfig(
        directory=directory,
        poll_s=HOURS_S,
        idle_poll_s=HOURS_S,
        watched_poll_s=HOURS_S,
        nudge_s=nudge_s,
        eager_s=0.001,
        announce=False,
    )
    agent = Agent(config, BulletinReader(store), engines=None if engine is None else {"a": engine})
    await agent.open()
    running = asyncio.create_task(agent.run())
    try:
        await reaches(agent, 0)
        yield agent
    finally:
        agent.stop()
        await running
        await agent.close()


async def reaches(agent: Agent, number: int) -> None:
    while agent.state.version != number or agent.state.phase != "idle":
        await asyncio.sleep(0)


async def rests(store: Metered) -> int:
    """Wait until nobody asks the store any more; return the number of requests."""
    seen, now = -1, 0
    while seen != now:
        seen, now = now, sum(store.usage().requests.values())
        await asyncio.sleep(0.1)
    return seen


def test_a_request_that_waits_for_a_version_gets_it_although_the_agent_is_idle(
    tmp_path: Path,
) -> None:
    run = make_run(0)

    async def main() -> None:
        store = Metered(run.store)
        async with idle_agent(tmp_path, store, engine=ByteEngine()) as agent:
            await rests(store)
            run.extend(1)
            async with asyncio.timeout(30), agent.gate.admit(version(1), wait_s=30) as ticket:
                assert ticket.version == 1

    asyncio.run(main())


def test_while_a_request_waits_the_agent_goes_on_looking(tmp_path: Path) -> None:
    run = make_run(0)

    async def main() -> None:
        store = Metered(run.store)
        async with idle_agent(tmp_path, store, engine=ByteEngine()) as agent:
            before = await rests(store)

            async def ask() -> int:
                async with agent.gate.admit(version(1), wait_s=30) as ticket:
                    return ticket.version

            asked = asyncio.create_task(ask())
            async with asyncio.timeout(30):
                while sum(store.usage().requests.values()) < before + 5:
                    await asyncio.sleep(0)
                run.extend(1)
                assert await asked == 1

    asyncio.run(main())


def test_a_request_that_is_refused_for_now_makes_the_agent_look_too(tmp_path: Path) -> None:
    run = make_run(0)

    async def main() -> None:
        store = Metered(run.store)
        async with idle_agent(tmp_path, store, engine=ByteEngine()) as agent:
            await rests(store)
            run.extend(1)
            with pytest.raises(WeightVersionNotReady):
                async with agent.gate.admit(version(1)):
                    pass
            async with asyncio.timeout(30):
                await reaches(agent, 1)

    asyncio.run(main())


def test_requests_that_no_later_version_can_serve_nudge_nobody(tmp_path: Path) -> None:
    run = make_run(1)

    async def main() -> None:
        config = AgentConfig(directory=tmp_path)
        agent = Agent(config, BulletinReader(run.store), engines={"a": ByteEngine()})
        heard: list[int] = []
        agent.gate.on_wait(lambda: heard.append(1))
        agent.gate.set_served("a", 1)
        async with agent.gate.admit(version(1)):
            pass
        with pytest.raises(WeightVersionGone):
            async with agent.gate.admit(version(0)):
                pass
        assert heard == []
        with pytest.raises(WeightVersionNotReady):
            async with agent.gate.admit(version(2)):
                pass
        assert heard == [1]

    asyncio.run(main())


def test_a_thousand_nudges_are_one_look_a_second(tmp_path: Path) -> None:
    run = make_run(0)

    async def main() -> None:
        store = Metered(run.store)
        async with idle_agent(tmp_path, store, nudge_s=1.0) as agent:
            loop = asyncio.get_running_loop()
            before, began = sum(store.usage().requests.values()), loop.time()
            while loop.time() < began + 2.2:
                agent.nudge()
                await asyncio.sleep(0.001)
            looks = sum(store.usage().requests.values()) - before
            assert 1 <= looks <= 4

    asyncio.run(main())


def test_a_nudge_while_the_agent_looks_is_not_lost(tmp_path: Path) -> None:
    """The record may have come after the look."""
    run = make_run(0)

    class Late(Metered):
        """A store on which a version is published right after the log was seen to end."""

        def get(self, key: str, *, limit_bytes: int) -> bytes:
            try:
                return super().get(key, limit_bytes=limit_bytes)
            finally:
                if armed and key.startswith("log/"):
                    armed.pop()
                    run.extend(1)
                    agents[0].nudge()

    armed: list[int] = []
    agents: list[Agent] = []

    async def main() -> None:
        store = Late(run.store)
        async with idle_agent(tmp_path, store) as agent:
            agents.append(agent)
            await rests(store)
            armed.append(1)
            agent.nudge()
            async with asyncio.timeout(30):
                await reaches(agent, 1)

    asyncio.run(main())


# Watching a relay.


def test_an_idle_follower_of_a_relay_hears_of_a_record_and_polls_nobody(tmp_path: Path) -> None:
    run = make_run(0)

    async def main() -> None:
        store = Metered(run.store)
        with relay_at(run.store, tmp_path / "relay") as (relay, url):
            reader = await asyncio.to_thread(caught_up, relay)
            async with idle_agent(tmp_path / "island", store) as agent:
                watcher = LogWatcher([url], agent, wait_s=30)
                watching = asyncio.create_task(watcher.run())
                while relay.slots.waiting < 1:
                    await asyncio.sleep(0)
                seen = await rests(store)
                for number in (1, 2, 3):
                    run.extend(1)
                    records = await asyncio.to_thread(reader.refresh)
                    relay.learned(reader.state, records)
                    async with asyncio.timeout(30):
                        await reaches(agent, number)
                # One look for each record, and one more for each that says that it was the last.
                assert await rests(store) - seen <= 3 * 8
                assert agent.is_watched
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(main())


def test_a_relay_that_lies_about_a_record_costs_few_looks(tmp_path: Path) -> None:
    run = make_run(0)
    app = FastAPI()

    @app.get("/bulletin/{key:path}")
    async def lie(key: str) -> Response:
        return Response(b"junk", headers={"X-Skerry-Relay": "1"})

    async def main() -> None:
        store = Metered(run.store)
        with http_server(app) as url:
            async with idle_agent(tmp_path, store) as agent:
                watcher = LogWatcher([f"{url}/bulletin"], agent)
                watching = asyncio.create_task(watcher.run())
                while watcher.asked < 4:  # 0.1 s, 0.2 s, 0.4 s: ever more rarely
                    await asyncio.sleep(0.01)
                before = watcher.asked
                await asyncio.sleep(0.3)
                assert watcher.asked <= before + 1
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                assert agent.state.failures == {}

    asyncio.run(main())


def test_a_server_that_is_no_relay_does_not_make_the_agent_rest(tmp_path: Path) -> None:
    """A cache answers at once; the agent goes on looking by itself, and the next relay is asked."""
    run = make_run(0)
    app = FastAPI()

    async def main() -> None:
        with (
            http_server(app) as cache,
            relay_at(run.store, tmp_path / "relay") as (relay, url),
        ):
            await asyncio.to_thread(caught_up, relay)
            async with idle_agent(tmp_path / "island", run.store) as agent:
                watcher = LogWatcher([cache, url], agent)
                watching = asyncio.create_task(watcher.run())
                while relay.slots.waiting < 1:
                    await asyncio.sleep(0.001)
                assert watcher.asked == 2
                assert not agent.is_watched
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(main())
