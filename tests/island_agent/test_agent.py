"""An island follows a run: exactness, coalescing, failures that never count as success."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from skerry.bulletin.errors import NoPath, StoreUnavailable
from skerry.bulletin.log import BulletinReader
from skerry.bulletin.patience import Patience
from skerry.bulletin.reader import DEFAULT_WAIT
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores import MemoryStore
from skerry.codec.errors import ResultMismatch
from skerry.inference.accepted import ANY
from skerry.inference.engine import EngineBroken, InstallFailed
from skerry.inference.errors import RequestRevoked
from skerry.island_agent.agent import Agent
from skerry.island_agent.config import AgentConfig
from skerry.island_agent.errors import (
    LogBehind,
    MirrorBusy,
    ObjectCorrupt,
    ObjectUnavailable,
    RunMismatch,
    TargetRefused,
)
from skerry.island_agent.fetch import FetchConfig
from skerry.island_agent.plan import Target
from tests.island_agent.engines import ByteEngine, failing
from tests.island_agent.runs import Run, assert_is, make_run, random_snapshot
from tests.island_agent.stores import TwistedStore

FETCH = FetchConfig(attempts=2, backoff_s=0.0)


def with_agent(
    directory: Path,
    store: ObjectStore,
    scenario: Callable[[Agent], Awaitable[None]],
    *,
    target: Target = Target(),  # noqa: B008  (frozen)
    engines: dict[str, ByteEngine] | None = None,
    hook: Callable[[str], None] = lambda step: None,
    fetch: FetchConfig = FETCH,
    wait: Patience = DEFAULT_WAIT,
    announce_s: float = 1.0,
    heartbeat_s: float = 30.0,
) -> None:
    """Open an agent, run the scenario, close it."""

    async def main() -> None:
        config = AgentConfig(
            directory=directory / "island",
            target=target,
            fetch=fetch,
            poll_s=0.001,
            idle_poll_s=0.01,
            retry_s=0.001,
            retry_limit_s=0.01,
            announce_s=announce_s,
            heartbeat_s=heartbeat_s,
        )
        agent = Agent(config, BulletinReader(store, wait=wait), engines=engines, hook=hook)
        await agent.open()
        try:
            await scenario(agent)
        finally:
            await agent.close()

    asyncio.run(main())


async def settle(agent: Agent) -> None:
    while await agent.step():
        pass


def test_a_new_island_gets_the_newest_version_byte_for_byte(tmp_path: Path) -> None:
    run = make_run(3)
    with_agent(tmp_path, run.store, settle)
    assert_is(tmp_path / "island" / "mirror", run.versions[3])


def test_versions_that_came_together_are_one_install(tmp_path: Path) -> None:
    run = make_run()
    engine = ByteEngine()
    seen: list[int | None] = []

    async def scenario(agent: Agent) -> None:
        await settle(agent)
        run.extend(5)
        await settle(agent)
        assert engine.loads == 1
        assert engine.installs == [5]
        assert await engine.weights_digest() == run.versions[5].weights
        report = agent.state.history[-1]
        assert (report.base, report.version, report.steps, report.full) == (0, 5, 5, False)
        assert report.changed
        assert report.nbytes > 0

    def hook(step: str) -> None:
        seen.append(engine.version)

    with_agent(tmp_path, run.store, scenario, engines={"a": engine}, hook=hook)
    assert set(seen) <= {None, 0, 5}
    assert_is(tmp_path / "island" / "mirror", run.versions[5])


# Case A-1.


def test_a_bad_object_is_retried_and_never_counts_as_success(tmp_path: Path) -> None:
    run = make_run(2)
    bad = {run.writer.reader.state.commits[1].packs[0].key: 4}

    def on_range(key: str, start: int, data: bytes) -> bytes:
        if bad.get(key, 0):
            bad[key] -= 1
            return bytes(len(data))
        return data

    store = TwistedStore(run.store, on_range)
    engine = ByteEngine()

    async def scenario(agent: Agent) -> None:
        agent.aim(Target(version=0))
        await settle(agent)
        agent.aim(Target())
        with pytest.raises(ObjectCorrupt):
            await agent.step()
        assert agent.mirror.version == 0
        assert engine.version == 0
        assert_is(agent.mirror.directory, run.versions[0])
        task = asyncio.create_task(agent.run())
        while agent.state.version != 2:
            await asyncio.sleep(0)
        agent.stop()
        await task
        assert agent.state.failures["ObjectCorrupt"] == 1
        assert [report.version for report in agent.state.history] == [0, 2]
        assert await engine.weights_digest() == run.versions[2].weights

    with_agent(tmp_path, store, scenario, engines={"a": engine})
    assert_is(tmp_path / "island" / "mirror", run.versions[2])


def test_a_failure_shows_in_status_with_who_acts(tmp_path: Path) -> None:
    run = make_run(1)
    store = TwistedStore(run.store, lambda key, start, data: bytes(len(data)))

    async def scenario(agent: Agent) -> None:
        task = asyncio.create_task(agent.run())
        while agent.state.failures["ObjectCorrupt"] < 2:
            await asyncio.sleep(0)
        status = agent.status()
        store.on_range = None
        while agent.state.version != 1:
            await asyncio.sleep(0)
        agent.stop()
        await task
        error = status["last_error"]
        assert isinstance(error, dict)
        assert error["kind"] == "ObjectCorrupt"
        assert error["acts"] == "the agent"
        assert error["doing"] == "fetching"
        assert status["version"] is None
        assert agent.status()["last_error"] is None
        assert agent.status()["errors"]
        json.dumps(agent.status())

    with_agent(tmp_path, store, scenario)


def test_a_pack_that_promises_other_weights_is_left_for_a_full_version(tmp_path: Path) -> None:
    run = make_run()
    other = run.versions[0].mutated(99)
    run.publish(run.versions[0].mutated(1), result=other.weights)
    run.versions[1] = other
    run.publish(other.mutated(2), full=True)

    async def scenario(agent: Agent) -> None:
        agent.aim(Target(version=0))
        await settle(agent)
        agent.aim(Target(version=1))
        with pytest.raises(ResultMismatch):
            await agent.step()
        assert agent.mirror.version == 0
        assert_is(agent.mirror.directory, run.versions[0])
        agent.aim(Target())
        await settle(agent)
        assert agent.mirror.version == 2
        assert agent.state.history[-1].full

    with_agent(tmp_path, run.store, scenario)
    assert_is(tmp_path / "island" / "mirror", run.versions[2])


def test_an_object_that_vanished_leads_to_the_newest_reachable_version(tmp_path: Path) -> None:
    run = make_run(2)
    run.publish(run.versions[2].mutated(3))
    commit = run.writer.reader.state.commits[3]
    run.writer.retire(names=[commit.packs[0].key], grace_s=0)
    run.store.delete(commit.packs[0].key)

    async def scenario(agent: Agent) -> None:
        await agent.step()
        assert agent.mirror.version == 2
        with pytest.raises(NoPath, match="version 3"):
            await agent.step()

    with_agent(tmp_path, run.store, scenario)
    assert_is(tmp_path / "island" / "mirror", run.versions[2])


def test_an_unreachable_store_keeps_the_version_that_is_served(tmp_path: Path) -> None:
    run = make_run()
    store = TwistedStore(run.store)
    engine = ByteEngine()

    def lost(key: str, start: int, data: bytes) -> bytes:
        raise StoreUnavailable(key, "no answer")

    async def scenario(agent: Agent) -> None:
        await settle(agent)
        store.on_range = lost
        run.extend(1)
        for _ in range(3):
            with pytest.raises(ObjectUnavailable):
                await agent.step()
        assert engine.version == 0
        store.on_range = None
        await settle(agent)
        assert engine.version == 1

    with_agent(tmp_path, store, scenario, engines={"a": engine})


# Case A-2.


def test_an_island_goes_to_the_version_it_was_told_and_no_further(tmp_path: Path) -> None:
    run = make_run(2)
    with_agent(tmp_path, run.store, settle)
    run.extend(4)
    engine = ByteEngine()

    async def scenario(agent: Agent) -> None:
        await settle(agent)
        assert engine.version == 5
        assert engine.installs == [5]
        assert not await agent.step()
        assert engine.installs == [5]

    with_agent(tmp_path, run.store, scenario, target=Target(version=5), engines={"a": engine})
    assert_is(tmp_path / "island" / "mirror", run.versions[5])


def test_an_engine_serves_the_mirror_before_the_log_can_be_read(tmp_path: Path) -> None:
    run = make_run(1)
    with_agent(tmp_path, run.store, settle)
    engine = ByteEngine()

    class Unreachable(TwistedStore):
        def get(self, key: str, *, limit_bytes: int) -> bytes:
            raise StoreUnavailable(key, "no answer")

    async def scenario(agent: Agent) -> None:
        with pytest.raises(StoreUnavailable):
            await agent.step()
        assert engine.version == 1
        assert agent.ready

    with_agent(tmp_path, Unreachable(run.store), scenario, engines={"a": engine})


def test_a_lag_that_is_allowed_is_not_caught_up(tmp_path: Path) -> None:
    run = make_run(1)

    async def scenario(agent: Agent) -> None:
        await settle(agent)
        run.extend(2)
        await settle(agent)
        assert (agent.mirror.version, agent.state.lag) == (1, 2)
        run.extend(1)
        await settle(agent)
        assert agent.mirror.version == 4

    with_agent(tmp_path, run.store, scenario, target=Target(max_lag=2))


def test_an_island_goes_back_only_where_the_log_says_so(tmp_path: Path) -> None:
    run = make_run(3)

    async def scenario(agent: Agent) -> None:
        await settle(agent)
        agent.aim(Target(version=1))
        with pytest.raises(TargetRefused, match="older than 3"):
            await agent.step()
        agent.aim(Target())
        run.publish(run.versions[1].mutated(50), parent=1, full=True)
        await settle(agent)
        assert agent.mirror.version == 4
        assert_is(agent.mirror.directory, run.versions[4])
        agent.aim(Target(version=3))
        with pytest.raises(TargetRefused, match="abandoned"):
            await agent.step()

    with_agent(tmp_path, run.store, scenario)


def test_a_log_that_shows_less_than_is_held_is_not_believed(tmp_path: Path) -> None:
    run = make_run(2)
    with_agent(tmp_path, run.store, settle)
    stale = MemoryStore()
    for key in run.store.list_after(""):
        if key != "log/00000000000000000003.json":
            stale.put(key, [run.store.get(key, limit_bytes=10**9)])

    async def scenario(agent: Agent) -> None:
        with pytest.raises(LogBehind, match="holds version 2, the log ends at 1"):
            await agent.step()

    with_agent(tmp_path, stale, scenario)
    assert_is(tmp_path / "island" / "mirror", run.versions[2])


def test_a_log_of_another_run_is_refused(tmp_path: Path) -> None:
    run, other = make_run(), make_run(1)
    with_agent(tmp_path, run.store, settle)

    async def scenario(agent: Agent) -> None:
        with pytest.raises(RunMismatch):
            await agent.step()
        assert agent.mirror.version == 0

    with_agent(tmp_path, other.store, scenario)
    assert_is(tmp_path / "island" / "mirror", run.versions[0])


def test_a_change_of_structure_arrives_exactly(tmp_path: Path) -> None:
    """H-1."""
    run = make_run(1)
    engine = ByteEngine()

    async def scenario(agent: Agent) -> None:
        await settle(agent)
        run.publish(random_snapshot(seed=5, words=6000))
        run.extend(1)
        await settle(agent)
        assert (engine.version, engine.loads) == (3, 2)
        assert await engine.weights_digest() == run.versions[3].weights

    with_agent(tmp_path, run.store, scenario, engines={"a": engine})
    assert_is(tmp_path / "island" / "mirror", run.versions[3])


# Case H-2.


def test_weights_and_their_scales_switch_together(tmp_path: Path) -> None:
    run = make_run()
    pair = {"block.weight": {0: 1, 4000: 2}, "block.weight_scale_inv": {3: 4}}
    new = run.versions[0]
    for name, words in pair.items():
        new = new.with_words(name, words)
    run.publish(new)
    run.publish(new.with_words("block.weight_scale_inv", {3: 5}))
    run.publish(run.versions[2].with_words("router.bias", {0: 1}))
    engine = ByteEngine()
    states: set[str] = set()

    async def scenario(agent: Agent) -> None:
        for version in range(4):
            agent.aim(Target(version=version))
            await agent.step()
            states.add(await engine.weights_digest())
            assert await engine.weights_digest() == run.versions[version].weights
            assert_is(agent.mirror.directory, run.versions[version])

    with_agent(tmp_path, run.store, scenario, engines={"a": engine})
    assert len(states) == 4


# Engines: cases I-2, I-4, J-2.


def two_engines(tmp_path: Path, run: Run, method: str, error: Exception, times: int) -> Agent:
    good, bad = ByteEngine(), ByteEngine()
    box: list[Agent] = []

    async def scenario(agent: Agent) -> None:
        box.append(agent)
        await settle(agent)
        bad.trouble[method] = failing(error, times)
        run.extend(1)
        await agent.step()
        assert good.version == 1
        assert agent.gate.view()["good"].version == 1
        for engine, view in ((good, "good"), (bad, "bad")):
            assert agent.gate.view()[view].version == engine.version
            assert not engine.paused
        if agent.gate.view()["bad"].version != 1:
            engines = agent.status()["engines"]
            assert isinstance(engines, dict)
            assert engines["bad"]["error"]
            assert engines["good"]["error"] is None
            assert agent.state.last_error is not None
        bad.trouble.clear()
        await settle(agent)
        assert bad.version == 1
        assert await bad.weights_digest() == run.versions[1].weights
        assert agent.state.last_error is None

    with_agent(tmp_path, run.store, scenario, engines={"good": good, "bad": bad})
    return box[0]


@pytest.mark.parametrize("method", ["stage", "pause", "install"])
@pytest.mark.parametrize("times", [1, 2, 9])
def test_an_engine_that_refused_keeps_its_label_and_is_brought_along(
    tmp_path: Path, method: str, times: int
) -> None:
    agent = two_engines(tmp_path, make_run(), method, InstallFailed("not now"), times)
    assert agent.state.failures["InstallFailed"] >= 1


@pytest.mark.parametrize("method", ["half", "install"])
def test_an_engine_that_failed_half_way_serves_nothing_until_it_loaded_anew(
    tmp_path: Path, method: str
) -> None:
    agent = two_engines(tmp_path, make_run(), method, EngineBroken("half way"), 1)
    assert agent.state.failures["EngineBroken"] == 1


def test_an_engine_that_cannot_load_gets_no_request(tmp_path: Path) -> None:
    run = make_run()
    engine = ByteEngine()
    engine.trouble["load"] = failing(EngineBroken("no memory"), 2)

    async def scenario(agent: Agent) -> None:
        await agent.step()
        assert agent.mirror.version == 0
        assert agent.gate.view()["a"].version is None
        assert not agent.ready
        assert not await agent.step()  # no movement: the loop does not spin
        engine.trouble.clear()
        await settle(agent)
        assert agent.ready

    with_agent(tmp_path, run.store, scenario, engines={"a": engine})


def test_an_engine_that_an_earlier_agent_left_paused_is_resumed(tmp_path: Path) -> None:
    run = make_run()
    engine = ByteEngine()
    engine.paused = True

    async def scenario(agent: Agent) -> None:
        assert not engine.paused

    with_agent(tmp_path, run.store, scenario, engines={"a": engine})


def test_an_engine_that_holds_other_weights_is_never_advertised(tmp_path: Path) -> None:
    run = make_run()
    engine = ByteEngine()

    async def main() -> None:
        config = AgentConfig(directory=tmp_path / "island", verify_engines=True)
        agent = Agent(config, BulletinReader(run.store), engines={"a": engine})
        await agent.open()
        await settle(agent)
        run.extend(1)

        def lie(engine: ByteEngine) -> None:
            engine._weights["model-00001-of-00003.safetensors"][-1] ^= 1

        engine.trouble["install"] = lie
        served: list[int | None] = []
        agent.gate.on_swap(lambda report: served.append(agent.gate.view()["a"].version))
        await agent.step()
        assert served[0] is None
        assert engine.version == 1
        assert await engine.weights_digest() == run.versions[1].weights
        await agent.close()

    asyncio.run(main())


# The island's own words.


def test_an_agent_without_threads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="threads is at least 1, found 0"):
        AgentConfig(directory=tmp_path, threads=0)


def test_an_agent_decodes_with_as_many_threads_as_it_is_told(tmp_path: Path) -> None:
    run = make_run(1)

    async def main() -> None:
        agent = Agent(AgentConfig(directory=tmp_path / "island", threads=3), run.reader())
        await agent.open()
        try:
            while await agent.step():
                pass
            assert agent.mirror.threads == 3
            assert_is(agent.mirror.directory, run.versions[1])
        finally:
            await agent.close()

    asyncio.run(main())


def test_the_status_lies_in_the_bulletin(tmp_path: Path) -> None:
    run = make_run(1)

    async def scenario(agent: Agent) -> None:
        task = asyncio.create_task(agent.run())
        while not list(run.store.list_after("islands/")):
            await asyncio.sleep(0)
        while agent.state.version != 1:
            await asyncio.sleep(0)
        agent.stop()
        await task

    with_agent(tmp_path, run.store, scenario)
    status = json.loads(run.store.get("islands/island.json", limit_bytes=10**6))
    assert status["island"] == "island"
    assert status["version"] == 1


def test_a_read_only_store_is_followed_all_the_same(tmp_path: Path) -> None:
    run = make_run(1)

    class ReadOnly(TwistedStore):
        def replace(self, key: str, data: bytes) -> None:
            raise StoreUnavailable(key, "read-only")

    async def scenario(agent: Agent) -> None:
        task = asyncio.create_task(agent.run())
        while agent.state.version != 1:
            await asyncio.sleep(0)
        agent.stop()
        await task
        assert not agent.state.failures

    with_agent(tmp_path, ReadOnly(run.store), scenario)


def test_a_spool_that_is_too_small_is_the_operators_move(tmp_path: Path) -> None:
    run = make_run(2)

    async def scenario(agent: Agent) -> None:
        task = asyncio.create_task(agent.run())
        while not agent.state.failures:
            await asyncio.sleep(0)
        agent.stop()
        await task
        assert agent.state.last_error is not None
        assert agent.state.last_error.kind == "SpoolFull"
        assert agent.state.last_error.acts == "the operator"

    with_agent(tmp_path, run.store, scenario, fetch=replace(FETCH, spool_bytes=10))


# Roads and packs that never heal.


def test_a_store_that_sends_other_bytes_for_ever_costs_little_and_nothing_is_installed(
    tmp_path: Path,
) -> None:
    run = make_run()
    bad: set[str] = set()
    store = TwistedStore(
        run.store, lambda key, start, data: bytes(len(data)) if key in bad else data
    )
    engine = ByteEngine()

    async def scenario(agent: Agent) -> None:
        await settle(agent)
        run.extend(3)
        packs = [run.writer.reader.state.commits[version].packs[0] for version in (1, 2, 3)]
        bad.add(packs[1].key)
        store.ranges.clear()
        for _ in range(8):
            with pytest.raises(ObjectCorrupt, match=packs[1].digest):
                await agent.step()
            assert (agent.mirror.version, engine.version) == (0, 0)
            assert agent.gate.view()["a"].version == 0
        read = {key: 0 for key, _, _ in store.ranges}
        for key, start, stop in store.ranges:
            read[key] += stop - start
        assert read.pop(packs[1].key) == 8 * 2 * packs[1].size
        assert read == {packs[0].key: packs[0].size, packs[2].key: packs[2].size}
        bad.clear()
        await settle(agent)
        assert engine.version == 3
        assert await engine.weights_digest() == run.versions[3].weights

    with_agent(tmp_path, store, scenario, engines={"a": engine})
    assert_is(tmp_path / "island" / "mirror", run.versions[3])


def test_a_new_island_that_meets_a_wrong_pack_serves_the_full_version_before_it(
    tmp_path: Path,
) -> None:
    run = make_run()
    run.publish(run.versions[0].mutated(1), result=run.versions[0].mutated(99).weights)
    store = TwistedStore(run.store)
    full = sum(len(data) for data in run.versions[0].files.values())

    async def scenario(agent: Agent) -> None:
        with pytest.raises(ResultMismatch):
            await agent.step()
        assert await agent.step()
        assert agent.mirror.version == 0
        for _ in range(6):
            with pytest.raises(ResultMismatch):
                await agent.step()
        read = sum(stop - start for key, start, stop in store.ranges if key.startswith("full/"))
        assert read <= 2 * full

    with_agent(tmp_path, store, scenario)
    assert_is(tmp_path / "island" / "mirror", run.versions[0])


def test_a_wrong_pack_is_passed_by_as_soon_as_a_later_full_version_leads_around_it(
    tmp_path: Path,
) -> None:
    run = make_run()
    other = run.versions[0].mutated(99)
    run.publish(run.versions[0].mutated(1), result=other.weights)
    run.versions[1] = other

    async def scenario(agent: Agent) -> None:
        agent.aim(Target(version=0))
        await settle(agent)
        agent.aim(Target())
        for _ in range(3):
            with pytest.raises(ResultMismatch):
                await agent.step()
        run.publish(other.mutated(2), full=True)
        run.extend(1)
        await settle(agent)
        assert agent.mirror.version == 3

    with_agent(tmp_path, run.store, scenario)
    assert_is(tmp_path / "island" / "mirror", run.versions[3])


# Labels and engines.


def test_an_audit_takes_an_engine_with_other_weights_out_and_loads_it_anew(tmp_path: Path) -> None:
    run = make_run()
    engine = ByteEngine()

    async def main() -> None:
        config = AgentConfig(directory=tmp_path / "island", audit_engines=True)
        agent = Agent(config, BulletinReader(run.store), engines={"a": engine})
        await agent.open()
        await settle(agent)
        run.extend(1)

        def lie(engine: ByteEngine) -> None:
            engine._weights["model-00001-of-00003.safetensors"][-1] ^= 1

        async def ask() -> None:
            async with agent.gate.admit(ANY.resolve(None)):
                await asyncio.Event().wait()

        engine.trouble["install"] = lie
        running = asyncio.create_task(ask())
        await asyncio.sleep(0)
        await agent.step()
        with pytest.raises(RequestRevoked, match="serves weights"):
            await running  # it would go on, with tokens labelled as of the version
        assert agent.state.failures["EngineBroken"] == 1
        assert (engine.version, engine.loads) == (1, 2)
        assert await engine.weights_digest() == run.versions[1].weights
        await agent.close()

    asyncio.run(main())


@pytest.mark.parametrize("own", [None, 0])
def test_an_engine_that_came_back_with_other_weights_loses_its_label_and_is_loaded(
    tmp_path: Path, own: int | None
) -> None:
    run = make_run(1)
    engine = ByteEngine()
    labels: list[int | None] = []

    async def scenario(agent: Agent) -> None:
        await settle(agent)
        engine.trouble["load"] = lambda _: labels.append(agent.gate.view()["a"].version)
        engine._version = own
        assert await agent.step()
        assert labels == [None]
        assert (engine.version, agent.gate.view()["a"].version) == (1, 1)
        assert agent.status()["last_error"] is None

    with_agent(tmp_path, run.store, scenario, engines={"a": engine})


def test_two_agents_on_one_directory_are_one_too_many(tmp_path: Path) -> None:
    run = make_run(1)

    async def scenario(agent: Agent) -> None:
        second = Agent(AgentConfig(directory=tmp_path / "island"), BulletinReader(run.store))
        with pytest.raises(MirrorBusy) as caught:
            await second.open()
        await second.close()
        assert caught.value.acts == "the operator"
        await settle(agent)
        assert agent.mirror.version == 1

    with_agent(tmp_path, run.store, scenario)
    assert_is(tmp_path / "island" / "mirror", run.versions[1])


def test_a_lost_marker_shows_in_the_status_and_the_mirror_stays(tmp_path: Path) -> None:
    run = make_run(1)
    with_agent(tmp_path, run.store, settle)
    (tmp_path / "island" / "state" / "marker").write_bytes(b"?")

    async def scenario(agent: Agent) -> None:
        task = asyncio.create_task(agent.run())
        while agent.state.failures["RunUnknown"] < 2:
            await asyncio.sleep(0)
        agent.stop()
        await task
        assert agent.state.last_error is not None
        assert agent.state.last_error.acts == "the operator"
        assert str(tmp_path / "island" / "mirror") in agent.state.last_error.message

    with_agent(tmp_path, run.store, scenario)
    assert_is(tmp_path / "island" / "mirror", run.versions[1])
