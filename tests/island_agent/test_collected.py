"""An island whose plan is collected under it, and what it says of itself meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import pytest

from skerry.bulletin import keys
from skerry.bulletin.errors import OutcomeUnknown, VersionGone
from skerry.bulletin.log import BulletinReader
from skerry.bulletin.patience import Patience
from skerry.bulletin.retention import KeepRules
from skerry.bulletin.status import IslandReport, Lease, read_reports
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores import MemoryStore
from skerry.island_agent.agent import Agent
from skerry.island_agent.announce import Announcer, report_of
from skerry.island_agent.errors import ObjectUnavailable, VersionCollected
from skerry.island_agent.fetch import FetchConfig
from skerry.island_agent.plan import Target
from skerry.island_agent.pull import pull
from skerry.island_agent.status import IslandStatus
from skerry.publisher import MemoryStorage
from skerry.publisher.collect import Collector
from skerry.publisher.compact import Compactor
from skerry.publisher.survey import RetentionPolicy
from tests.bulletin.faults import FaultyStore
from tests.island_agent import test_agent
from tests.island_agent.runs import Run, assert_is, make_run

FETCH = FetchConfig(attempts=2, backoff_s=0.0)


def gone(keep: KeepRules, run: Run, *, grace_s: int = 0, lease_limit_s: float = 0.0) -> None:
    """Compact, retire and delete at once."""
    compactor = Compactor(run.writer, MemoryStorage())
    for pair in compactor.missing():
        compactor.make(*pair)
    policy = RetentionPolicy(rules=keep, grace_s=grace_s, lease_limit_s=lease_limit_s)
    gc = Collector(run.writer, policy)
    gc.retire()
    gc.sweep()


def first_get(run: Run, action: Callable[[], None]) -> ObjectStore:
    """A store that does `action` just before the first object of a pack or full is read."""
    store = FaultyStore(run.store)
    left = [action]

    def before(verb: str, key: str) -> None:
        if key.startswith(("packs/", "full/")) and left:
            left.pop()()

    store.before = before
    return store


def with_agent(
    directory: Path,
    store: ObjectStore,
    scenario: Callable[[Agent], Awaitable[None]],
    target: Target = Target(),  # noqa: B008  (frozen)
) -> None:
    """One that waits for no object, and says often what it does."""
    test_agent.with_agent(
        directory,
        store,
        scenario,
        target=target,
        wait=Patience(limit_s=0),
        announce_s=0.01,
        heartbeat_s=0.05,
    )


def test_an_island_whose_plan_was_collected_says_so_and_goes_another_way(tmp_path: Path) -> None:
    run = make_run(2)

    def publish_and_collect() -> None:
        run.publish(run.versions[-1].mutated(50), full=True)
        run.publish(run.versions[-1].mutated(51))
        gone(KeepRules(last=1), run)

    async def scenario(agent: Agent) -> None:
        with pytest.raises(VersionCollected, match="was collected meanwhile") as caught:
            await agent.step()
        assert caught.value.version == 2
        assert isinstance(caught.value.__cause__, ObjectUnavailable)
        assert agent.state.reading == ()
        assert await agent.step()  # from the newest log, at the first attempt
        assert agent.mirror.version == 4
        assert_is(agent.mirror.directory, run.versions[4])

    with_agent(tmp_path, first_get(run, publish_and_collect), scenario)


def test_the_loop_gets_over_it_by_itself(tmp_path: Path) -> None:
    run = make_run(2)

    def publish_and_collect() -> None:
        run.publish(run.versions[-1].mutated(50), full=True)
        gone(KeepRules(last=1), run)

    async def scenario(agent: Agent) -> None:
        task = asyncio.create_task(agent.run())
        while agent.state.version != 3:
            await asyncio.sleep(0.001)
        agent.stop()
        await task
        assert agent.state.failures == {"VersionCollected": 1}
        assert agent.state.last_error is None

    with_agent(tmp_path, first_get(run, publish_and_collect), scenario)


def test_a_pinned_version_that_was_retired_is_refused_by_name(tmp_path: Path) -> None:
    run = make_run(4)
    gone(KeepRules(last=1), run)

    async def scenario(agent: Agent) -> None:
        with pytest.raises(VersionGone, match="version 1 is retired"):
            await agent.step()

    with_agent(tmp_path, run.store, scenario, Target(version=1))


def test_a_missing_object_that_nobody_retired_is_not_called_collected(tmp_path: Path) -> None:
    run = make_run(1)

    def lose() -> None:
        for key in list(run.store.list_after("packs/")):
            run.store.delete(key)

    async def scenario(agent: Agent) -> None:
        with pytest.raises(ObjectUnavailable):
            await agent.step()

    with_agent(tmp_path, first_get(run, lose), scenario)


def test_a_pull_of_the_newest_goes_on_with_the_newest_that_there_is(tmp_path: Path) -> None:
    run = make_run(2)

    def publish_and_collect() -> None:
        run.publish(run.versions[-1].mutated(50), full=True)
        gone(KeepRules(last=1), run)

    reader = BulletinReader(first_get(run, publish_and_collect), wait=Patience(limit_s=0))
    held = pull(reader, tmp_path / "new", config=FETCH)
    assert held.version == 3
    assert_is(tmp_path / "new", run.versions[3])


def test_a_pull_of_a_version_that_is_collected_meanwhile_says_so(tmp_path: Path) -> None:
    run = make_run(2)

    def publish_and_collect() -> None:
        run.publish(run.versions[-1].mutated(50), full=True)
        gone(KeepRules(last=1), run)

    reader = BulletinReader(first_get(run, publish_and_collect), wait=Patience(limit_s=0))
    with pytest.raises(VersionCollected, match="version 1"):
        pull(reader, tmp_path / "old", 1, config=FETCH)
    assert not (tmp_path / "old").exists()


def test_a_pull_goes_another_way_to_a_version_that_is_kept(tmp_path: Path) -> None:
    run = make_run(4)
    reader = BulletinReader(
        first_get(run, lambda: gone(KeepRules(last=1), run)), wait=Patience(limit_s=0)
    )
    pull(reader, tmp_path / "kept", 4, config=FETCH)
    assert_is(tmp_path / "kept", run.versions[4])


def test_what_an_island_reads_is_leased_and_held_for_it(tmp_path: Path) -> None:
    run = make_run(3)
    seen: list[IslandReport] = []

    def collect_while_it_reads() -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            seen[:] = [report for report in read_reports(run.store) if report.reading]
            if seen:
                break
            time.sleep(0.005)
        gone(KeepRules(last=1), run, lease_limit_s=1000.0)

    async def scenario(agent: Agent) -> None:
        task = asyncio.create_task(agent.run())
        while agent.state.version != 3:
            await asyncio.sleep(0.001)
        agent.stop()
        await task
        assert not agent.state.failures

    with_agent(tmp_path, first_get(run, collect_while_it_reads), scenario)
    (report,) = seen
    assert (report.island, report.target, report.phase) == ("island", 3, "fetching")
    assert report.reading is not None
    assert report.reading.legs == ((None, 0), (0, 1), (1, 2), (2, 3))
    (last,) = read_reports(run.store)
    assert (last.version, last.phase, last.reading) == (3, "stopped", None)


def test_a_store_that_hangs_delays_neither_an_install_nor_the_end(tmp_path: Path) -> None:
    run = make_run(1)
    free = threading.Event()

    class Hanging(FaultyStore):
        def replace(self, key: str, data: bytes) -> None:
            free.wait(60)
            raise OutcomeUnknown(key, "no answer")

    async def scenario(agent: Agent) -> None:
        task = asyncio.create_task(agent.run())
        while agent.state.version != 1:
            await asyncio.sleep(0.001)
        agent.stop()
        await task
        assert not agent.state.failures

    begun = time.monotonic()
    with_agent(tmp_path, Hanging(run.store), scenario)
    assert time.monotonic() - begun < 30
    free.set()


class Tape(MemoryStore):
    """Remembers what was written when."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[IslandReport] = []

    def put(self, key: str, parts: Iterable[bytes]) -> int:
        data = b"".join(parts)
        self.written.append(IslandReport.from_bytes(data, what=key))
        return super().put(key, [data])


def test_the_status_is_written_on_changes_and_at_a_heartbeat_only() -> None:
    store, now = Tape(), [0.0]
    status = IslandStatus(island="eu-1", clock=lambda: 1000 + now[0])
    announcer = Announcer(store, status, interval_s=1.0, heartbeat_s=30.0, clock=lambda: now[0])
    announcer.tell()
    status.progress.job_bytes = 5
    now[0] = 29.0
    announcer.tell()
    assert len(store.written) == 1
    now[0] = 30.0
    announcer.tell()
    assert [report.nbytes for report in store.written] == [0, 5]
    status.phase, status.reading = "fetching", ((None, 3),)
    announcer.tell()
    announcer.tell()
    assert store.written[2].reading == Lease(legs=((None, 3),), until_ms=1_030_000 + 90_000)
    assert len(store.written) == 3
    assert store.written[2] == report_of(status, lease_s=90.0)
    assert keys.island("eu-1") in list(store.list_after("islands/"))
