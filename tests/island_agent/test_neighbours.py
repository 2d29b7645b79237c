"""Many agents behind one relay: from far away comes one copy of everything."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from fastapi import FastAPI, Response
from fastapi.responses import FileResponse

from skerry.bulletin import keys
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.signing import Signer
from skerry.bulletin.stores import Metered, Relayed, open_store
from skerry.bulletin.stores.local import LocalStore
from skerry.island_agent.agent import Agent
from skerry.island_agent.config import AgentConfig
from skerry.island_agent.errors import MirrorBusy
from skerry.island_agent.neighbours import Joined, Neighbours, join
from skerry.island_agent.selection import Selection
from skerry.island_agent.service import build_app
from tests.island_agent.relays import SMALL, http_server
from tests.island_agent.runs import Run, assert_is, make_run, random_snapshot
from tests.island_agent.test_demand import assert_holds
from tests.servers.web import WebServer, serve

SIGNER = Signer.from_seed(bytes(32))  # islands pin it, as those behind a relay should


def config(directory: Path) -> AgentConfig:
    return AgentConfig(
        directory=directory,
        poll_s=0.05,
        idle_poll_s=1.0,
        watched_poll_s=3600.0,
        retry_s=0.05,
        threads=1,
        announce=False,
    )


@asynccontextmanager
async def running(joined: Joined) -> AsyncIterator[Agent]:
    agent = joined.agent
    await agent.open()
    tasks = [asyncio.create_task(agent.run())]
    tasks += [asyncio.create_task(watcher.run()) for watcher in joined.watchers]
    try:
        yield agent
    finally:
        agent.stop()
        if joined.relay is not None:
            joined.relay.stop()
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await agent.close()
        if joined.relay is not None:
            joined.relay.close()


def joined(directory: Path, bulletin: str, neighbours: Neighbours) -> Joined:
    return join(config(directory), bulletin, neighbours, pinned_key=SIGNER.public_key)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


def resident() -> int:
    """Return this process's resident bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    raise AssertionError("no VmRSS")


def hint_bytes(server: WebServer, run: Run) -> int:
    asked = sum(1 for request in server.seen if request.path.endswith(keys.HINT))
    return asked * run.store.size(keys.HINT)


def read_past(server: WebServer) -> dict[str, int]:
    """Return how often each key was asked of the bulletin and not of a relay."""
    return Counter(request.path.removeprefix("/run/") for request in server.seen)


async def behind_one_relay(directory: Path, followers: int) -> None:
    """Followers start from nothing, then follow three more versions, all through one relay."""
    root = directory / "bulletin"
    run = make_run(2, store=LocalStore(root), words=40_000, signer=SIGNER)
    with ExitStack() as stack:
        far = stack.enter_context(serve(root))  # what the relay reads
        past = stack.enter_context(serve(root))  # what a follower would read past the relay
        lone = stack.enter_context(serve(root))  # what an agent without neighbours reads
        metered = Metered(open_store(lone.url))
        single = Agent(
            config(directory / "lone"), BulletinReader(metered, pinned_key=SIGNER.public_key)
        )
        head = joined(directory / "head", far.url, Neighbours(relay=SMALL))
        assert head.relay is not None
        relay = head.relay
        address = stack.enter_context(http_server(build_app(head.agent, relay=relay)))
        async with running(head), running(Joined(agent=single, relay=None, watchers=())):
            await until(lambda: single.state.version == head.agent.state.version == 2)
            gc.collect()
            before = resident()
            async with AsyncExitStack() as islands:
                everybody = [
                    joined(
                        directory / f"island-{n}",
                        past.url,
                        Neighbours(upstream=[f"{address}/bulletin"]),
                    )
                    for n in range(followers)
                ]
                agents = [await islands.enter_async_context(running(one)) for one in everybody]
                for newest in (2, 3, 4, 5):
                    if newest > 2:
                        run.extend(1)
                        single.nudge()
                        head.agent.nudge()
                    await until(
                        lambda newest=newest: all(  # type: ignore[misc]
                            agent.state.version == newest and agent.state.phase == "idle"
                            for agent in (single, head.agent, *agents)
                        )
                    )
                await until(lambda: relay.slots.waiting == followers)
                gc.collect()
                each = (resident() - before) / followers
                came = relay.upstream.usage().bytes_down - hint_bytes(far, run)
                one = metered.usage().bytes_down - hint_bytes(lone, run)
                figures = relay.to_json()
                print(
                    f"\n{followers} in-process followers of one relay, versions 2 to 5: "
                    f"{came} bytes from upstream, {one} by an agent alone, "
                    f"{figures['served_bytes']} served, {len(past.seen)} requests past the relay, "
                    f"{figures['upstream_requests']} upstream requests, "
                    f"{figures['coalesced']} coalesced, {each / 1024:.0f} KiB a follower"
                )
                assert came == one
                assert read_past(past) == {keys.log(0): followers}
                assert all(not agent.state.failures for agent in agents)
                for n in (0, followers - 1):
                    assert_is(directory / f"island-{n}" / "mirror", run.versions[5])
                text = await page(f"{address}/metrics")
                assert f"skerry_relay_waiting {followers}.0" in text
                assert '"relay":{"upstream_bytes"' in await page(f"{address}/status")


async def page(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return await answer.text()


def test_a_relay_that_mirrors_a_part_itself_gives_its_neighbours_everything(
    tmp_path: Path,
) -> None:
    root, part = tmp_path / "bulletin", Selection.parse(["norm"])
    run = Run(LocalStore(root), lists_leaves=True, signer=SIGNER)
    run.publish(random_snapshot())
    run.extend(1)

    async def main() -> None:
        with serve(root) as far, serve(root) as past, ExitStack() as servers:
            head = join(
                replace(config(tmp_path / "head"), selection=part),
                far.url,
                Neighbours(relay=SMALL),
                pinned_key=SIGNER.public_key,
            )
            url = servers.enter_context(http_server(build_app(head.agent, relay=head.relay)))
            follower = joined(
                tmp_path / "island", past.url, Neighbours(upstream=[f"{url}/bulletin"])
            )
            async with asyncio.timeout(60), running(head), running(follower):
                await until(lambda: head.agent.state.version == follower.agent.state.version == 1)
            assert read_past(past) == {keys.log(0): 1}

    asyncio.run(main())
    assert_holds(tmp_path / "head" / "mirror.partial", run.versions[1], part)
    assert_is(tmp_path / "island" / "mirror", run.versions[1])


def test_a_relay_of_a_relay_and_an_island_whose_relay_goes_away(tmp_path: Path) -> None:
    root = tmp_path / "bulletin"
    run = make_run(1, store=LocalStore(root), signer=SIGNER)

    async def main() -> None:
        with serve(root) as far, ExitStack() as servers:
            head = joined(tmp_path / "head", far.url, Neighbours(relay=SMALL))
            first = servers.enter_context(http_server(build_app(head.agent, relay=head.relay)))
            middle = joined(
                tmp_path / "middle",
                far.url,
                Neighbours(relay=SMALL, upstream=[f"{first}/bulletin"]),
            )
            async with running(head), running(middle):
                with http_server(build_app(middle.agent, relay=middle.relay)) as second:
                    island = joined(
                        tmp_path / "island",
                        far.url,
                        Neighbours(upstream=[f"{second}/bulletin"]),
                    )
                    async with running(island) as agent:
                        await until(lambda: agent.state.version == 1)
                        run.extend(1)
                        head.agent.nudge()
                        await until(lambda: agent.state.version == 2)
                        assert middle.relay is not None
                        middle.relay.stop()
                async with running(
                    joined(
                        tmp_path / "island",
                        far.url,
                        Neighbours(upstream=[f"{second}/bulletin"]),
                    )
                ) as agent:
                    run.extend(1)
                    await until(lambda: agent.state.version == 3)

    asyncio.run(main())
    assert_is(tmp_path / "island" / "mirror", run.versions[3])


@pytest.mark.parametrize("lie", ["log", "packs", "full", "layouts", "hint", "all", "old", "none"])
def test_whatever_a_relay_says_its_islands_get_the_newest_version(tmp_path: Path, lie: str) -> None:
    root = tmp_path / "bulletin"
    run = make_run(1, store=LocalStore(root), signer=SIGNER)
    old = run.writer.reader.state.seq
    run.extend(1)
    app = FastAPI(openapi_url=None)

    @app.get("/bulletin/{key:path}")
    async def answer(key: str) -> Response:
        """Serve the bulletin with something wrong about it."""
        headers = {"X-Skerry-Relay": "1"}
        path = root / key
        too_new = key.startswith("log/") and lie == "old" and keys.parse_log(key) > old
        if lie == "none" or too_new or not path.is_file():
            return Response(status_code=404, headers=headers)
        if lie == "all" or key.startswith(f"{lie}/"):
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            lies = tmp_path / "lies" / key
            if not lies.exists():
                lies.parent.mkdir(parents=True, exist_ok=True)
                lies.write_bytes(data)
            return FileResponse(lies, headers=headers)
        return FileResponse(path, headers=headers)

    async def main() -> None:
        with http_server(app) as url:
            relays = [f"{url}/bulletin"]
            island = joined(tmp_path / "island", str(root), Neighbours(upstream=relays))
            if lie in ("old", "none"):  # a minute for those who wait for it
                assert isinstance(island.agent.reader.store, Relayed)
                island.agent.reader.store.distrust()
            async with running(island) as agent:
                await until(lambda: agent.state.version == 2)
            if lie == "old":  # an island that comes back does not fall behind what it holds
                island = joined(tmp_path / "island", str(root), Neighbours(upstream=relays))
                async with running(island) as agent:
                    run.extend(1)
                    await until(lambda: agent.state.version == 3)

    asyncio.run(main())
    assert_is(tmp_path / "island" / "mirror", run.versions[-1])


def test_a_relay_of_another_run_of_the_same_key_changes_nothing_for_a_fresh_island(
    tmp_path: Path,
) -> None:
    other = make_run(3, store=LocalStore(tmp_path / "other"), signer=SIGNER)
    run = make_run(1, store=LocalStore(tmp_path / "bulletin"), signer=SIGNER)

    async def main() -> None:
        with ExitStack() as servers:
            head = joined(tmp_path / "head", str(tmp_path / "other"), Neighbours(relay=SMALL))
            url = servers.enter_context(http_server(build_app(head.agent, relay=head.relay)))
            async with running(head):
                await until(lambda: head.agent.state.version == 3)
                island = joined(
                    tmp_path / "island",
                    str(tmp_path / "bulletin"),
                    Neighbours(upstream=[f"{url}/bulletin"]),
                )
                async with running(island) as agent:
                    await until(lambda: agent.state.version == 1)
                    assert agent.state.run == run.writer.reader.state.run

    asyncio.run(main())
    assert_is(tmp_path / "head" / "mirror", other.versions[3])
    assert_is(tmp_path / "island" / "mirror", run.versions[1])


def test_a_second_agent_is_refused_before_it_touches_the_relays_cache(tmp_path: Path) -> None:
    first = joined(tmp_path, "memory://second-agent", Neighbours(relay=SMALL))
    assert first.relay is not None
    begun = tmp_path / "relay" / "objects" / ".x.new"
    begun.write_bytes(b"being written")
    with pytest.raises(MirrorBusy):
        joined(tmp_path, "memory://second-agent", Neighbours(relay=SMALL))
    assert begun.exists()
    first.relay.close()


def test_a_wrong_record_in_a_relays_cache_stops_its_agent_for_one_pass(tmp_path: Path) -> None:
    run = make_run(2, store=LocalStore(tmp_path / "bulletin"), signer=SIGNER)
    other = make_run(2, signer=SIGNER)

    async def main() -> None:
        head = joined(tmp_path / "head", str(tmp_path / "bulletin"), Neighbours(relay=SMALL))
        assert head.relay is not None
        assert head.relay.slots.get(0)
        wrong = other.store.get(keys.log(1), limit_bytes=1 << 20)
        head.relay.cache.keep(f"log-{1:020d}", wrong)
        async with running(head) as agent:
            await until(lambda: agent.state.version == 2)

    asyncio.run(main())
    assert_is(tmp_path / "head" / "mirror", run.versions[2])


def test_ten_agents_behind_one_relay_cost_the_wan_one_fetch(tmp_path: Path) -> None:
    asyncio.run(behind_one_relay(tmp_path, 10))


@pytest.mark.soak
def test_a_hundred_agents_behind_one_relay_cost_the_wan_one_fetch(tmp_path: Path) -> None:
    asyncio.run(behind_one_relay(tmp_path, 100))
