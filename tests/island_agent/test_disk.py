"""Disks that fill up, turn read-only, refuse; clocks that jump: the old version goes on serving.

Every trouble comes at one step of an install and stays for a few passes; when it goes, the same
agent goes on.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.bulletin.status import IslandReport
from skerry.bulletin.stores import MemoryStore
from skerry.island_agent.agent import Agent
from skerry.island_agent.announce import Announcer
from skerry.island_agent.config import AgentConfig
from skerry.island_agent.errors import DiskDenied, DiskError, DiskFull
from skerry.island_agent.plan import Target
from skerry.island_agent.room import check_room, disk_error, free_bytes, own_directory
from skerry.island_agent.status import IslandStatus
from skerry.island_agent.stopwatch import PHASES, StopWatch
from tests.island_agent.disks import as_nobody, read_only, small_disk
from tests.island_agent.islands import Island, island
from tests.island_agent.runs import Run, assert_is, make_run

START = "before the pass"


def patched_run() -> Run:
    """Version 1 is a patch with side files, 2 a full version alone; both need room."""
    run = make_run()
    blob = os.urandom(200_000)
    run.publish(run.versions[0].mutated(1, 0.05).with_file("extra/blob", blob))
    run.publish(run.versions[1].mutated(2).with_file("extra/more", blob), patch=False)
    return run


RUN = patched_run()
STEPS = {
    1: [START, "objects-spooled", "journal-durable", "leaves-checked"],
    2: [START, "file-fetched", "objects-spooled", "assembled", "swap-intended", "new-moved"],
}


async def survives(
    it: Island, version: int, step: str, begin: Callable[[], None], end: Callable[[], None]
) -> DiskError:
    """Bring the island to `version` past a trouble that begins at `step`; return the error."""
    old = version - 1
    await it.settle(old)
    seen: list[str] = []

    def hook(passed: str) -> None:
        if passed == step and not seen:
            seen.append(passed)
            begin()

    it.hook = hook
    if step == START:
        hook(START)
    error: DiskError | None = None
    # From its record on, a patch is served; the mirror follows as soon as it can.
    serves = version if step in ("journal-durable", "leaves-checked") else old
    it.agent.aim(Target(version=version))
    for _ in range(3):
        with pytest.raises(DiskError) as caught:
            await it.agent.step()
        error = error or caught.value
        assert it.served == it.engine.version == serves
        assert not it.engine.paused
        assert await it.engine.weights_digest() == RUN.versions[serves].weights
    assert seen
    end()
    while it.agent.mirror.version != version or it.served != version:
        assert await it.agent.step()
    assert_is(it.mirror, RUN.versions[version])
    assert await it.engine.weights_digest() == RUN.versions[version].weights
    assert error is not None
    return error


@pytest.mark.parametrize(("version", "step"), [(v, s) for v, steps in STEPS.items() for s in steps])
def test_a_disk_that_fills_up_at_any_step_says_what_is_needed_and_free(
    tmp_path: Path, version: int, step: str
) -> None:
    async def main() -> None:
        with small_disk(tmp_path / "disk") as disk:
            async with island(disk.path / "island", RUN.store) as it:
                error = await survives(it, version, step, disk.fill, disk.empty)
                assert isinstance(error, DiskFull), error
                assert error.needed is not None
                assert error.needed > error.free
                assert f"{error.needed} bytes, {error.free} are free" in str(error)
                assert "the operator: make room" in error.acts

    asyncio.run(main())


PLACES = {
    1: [(START, "spool"), ("objects-spooled", "journal"), ("journal-durable", "mirror"),
        ("leaves-checked", "state")],
    2: [(START, "spool"), ("assembled", "state"), ("assembled", "journal"),
        ("swap-intended", "state")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("version", "step", "place"), [(v, *at) for v, places in PLACES.items() for at in places]
)
def test_a_disk_that_turns_read_only_at_any_step(
    tmp_path: Path, version: int, step: str, place: str
) -> None:
    async def main() -> None:
        with read_only() as disk:
            async with island(tmp_path / "island", RUN.store) as it:
                where = tmp_path / "island" / place
                error = await survives(it, version, step, lambda: disk.make(where), disk.mend)
                assert isinstance(error, DiskDenied), error
                assert "Read-only file system" in str(error)
                assert "bytes are free" in str(error)
                assert "permissions or mount" in error.acts

    asyncio.run(main())


@pytest.mark.parametrize(
    ("version", "step", "place"), [(v, *at) for v, places in PLACES.items() for at in places]
)
def test_a_directory_that_may_not_be_written_at_any_step(
    version: int, step: str, place: str
) -> None:
    with as_nobody() as home:
        where = home / "island" / place

        def refuse() -> None:
            where.chmod(0o500)
            for path in where.glob("*.safetensors"):
                path.chmod(0o400)

        def allow() -> None:
            where.chmod(0o700)
            for path in where.glob("*.safetensors"):
                path.chmod(0o600)

        async def main() -> None:
            async with island(home / "island", RUN.store) as it:
                error = await survives(it, version, step, refuse, allow)
                assert isinstance(error, DiskDenied), error
                assert "Permission denied" in str(error)

        asyncio.run(main())


def test_a_repair_without_room_is_finished_when_there_is_some(tmp_path: Path) -> None:
    async def main() -> None:
        with small_disk(tmp_path / "disk") as disk:
            async with island(disk.path / "island", RUN.store) as it:
                await it.settle(1)
                path = it.mirror / "extra" / "blob"
                path.write_bytes(bytes(200_000))
                disk.fill()
                with pytest.raises(DiskFull, match="repair needs"):
                    await it.scrub()
                assert it.agent.state.scrub.suspects
                disk.empty()
                await it.scrub()
                assert_is(it.mirror, RUN.versions[1])

    asyncio.run(main())


def test_the_status_of_a_running_agent_shows_the_disk_and_the_cure_needs_no_restart(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        with small_disk(tmp_path / "disk") as disk:
            async with island(disk.path / "island", RUN.store) as it:
                await it.settle(0)
                disk.fill()
                it.agent.aim(Target())
                running = asyncio.create_task(it.agent.run())
                while it.agent.state.failures["DiskFull"] < 2:
                    await asyncio.sleep(0)
                status = json.loads(json.dumps(it.agent.status()))
                assert status["last_error"]["kind"] == "DiskFull"
                assert "are free" in status["last_error"]["message"]
                assert "operator" in status["last_error"]["acts"]
                assert status["version"] == it.served == 0
                assert status["ready"]
                disk.empty()
                while it.served != 2:
                    await asyncio.sleep(0)
                while it.agent.state.last_error is not None:
                    await asyncio.sleep(0)
                it.agent.stop()
                await running
                assert_is(it.mirror, RUN.versions[2])

    asyncio.run(main())


def test_what_does_not_fit_is_not_begun(tmp_path: Path) -> None:
    with pytest.raises(DiskFull) as caught:
        check_room(tmp_path / "not" / "there", "version 1", 2**60)
    assert caught.value.needed == 2**60
    assert 0 < caught.value.free < 2**60
    check_room(tmp_path, "version 1", 0)


def test_other_trouble_of_the_disk_is_named_too(tmp_path: Path) -> None:
    error = disk_error(OSError(5, "Input/output error"), tmp_path, "the marker")
    assert type(error) is DiskError
    assert error.errno == 5
    assert "the marker" in str(error)
    assert disk_error(error, tmp_path, "another") is error
    assert free_bytes(tmp_path / "no" / "such") > 0


# Clocks.


def jumping() -> Callable[[], float]:
    """A wall clock that goes back and forth by years, and before 1970."""
    times = [1.7e9, 1.7e9 + 3e8, 5.0, -100.0, 4e9, 0.0]
    calls = [0]

    def clock() -> float:
        calls[0] += 1
        return times[calls[0] % len(times)]

    return clock


def test_an_agent_whose_wall_clock_jumps_at_every_look_follows_all_the_same(tmp_path: Path) -> None:
    run = make_run()

    async def main() -> None:
        async with island(tmp_path, run.store) as it:
            it.agent.state.clock = jumping()
            running = asyncio.create_task(it.agent.run())
            for version in range(1, 6):
                run.extend(1)
                while it.served != version:
                    await asyncio.sleep(0)
            while it.agent.state.scrub.passes < 2:
                await asyncio.sleep(0)
            it.agent.stop()
            await running
            assert not it.agent.state.failures
            assert_is(it.mirror, run.versions[5])
            for report in it.agent.state.history:
                assert min(phase.seconds for phase in report.phases.values()) >= 0

    asyncio.run(main())


def test_what_is_announced_by_a_clock_that_jumps_can_be_read() -> None:
    store = MemoryStore()
    status = IslandStatus(island="a", clock=jumping())
    announcer = Announcer(store, status, interval_s=1, heartbeat_s=1, clock=jumping())
    for version in range(12):
        status.wanted = version
        announcer.tell()
        report = IslandReport.from_bytes(
            store.get("islands/a.json", limit_bytes=10**6), what="islands/a.json"
        )
        assert report.target == version


@given(st.lists(st.floats(-1e9, 1e9), min_size=20, max_size=20), st.booleans())
def test_no_clock_makes_a_phase_shorter_than_nothing(times: list[float], full: bool) -> None:
    left = iter(times)
    watch = StopWatch(clock=lambda: next(left))
    watch.note("manifest", seconds=times[0], nbytes=7)
    watch.start()
    steps = ["objects-spooled", "decoded", "journal-durable", "words-written", "leaves-checked"]
    for step in ["objects-spooled", "full-verified", "assembled"] if full else steps:
        watch.mark(step)
    watch.mark("marker-moved")
    watch.note("journal", seconds=times[1], nbytes=9)
    phases = watch.phases()
    assert tuple(phases) == PHASES
    assert all(phase.seconds >= 0 for phase in phases.values())
    assert min(watch.seconds().values()) >= 0
    assert (phases["manifest"].nbytes, phases["journal"].nbytes) == (7, 9)


# A mirror in RAM.


def test_a_mirror_in_memory_keeps_the_same_rules_and_is_built_anew_after_a_reboot(
    tmp_path: Path,
) -> None:
    run = make_run(1)
    directory = tmp_path / "island"
    root = AgentConfig(directory=directory, in_memory=True).root
    assert root.parent == Path("/dev/shm")

    async def follow(version: int) -> bool:
        async with island(directory, run.store, in_memory=True) as it:
            await it.settle(version)
            assert it.mirror.is_relative_to(root)
            assert_is(it.mirror, run.versions[version])
            assert not directory.exists()
            reports = it.agent.state.history
            return bool(reports) and reports[-1].full

    try:
        assert asyncio.run(follow(0))
        assert root.stat().st_mode & 0o777 == 0o700
        assert not asyncio.run(follow(1))  # a new process goes on from what is there
        shutil.rmtree(root)  # a reboot
        assert asyncio.run(follow(1))
        other = AgentConfig(directory=tmp_path / "other", in_memory=True).root
        assert other != root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def test_a_place_in_shared_memory_that_somebody_else_made_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises((DiskDenied, FileExistsError)):
        own_directory(link)
    if os.geteuid() == 0:
        with as_nobody() as home, pytest.raises(DiskDenied, match="belongs to user 0"):
            own_directory(Path("/tmp"))
        assert not home.exists()
    own_directory(tmp_path / "mine")
    own_directory(tmp_path / "mine")


def test_an_agent_without_an_island_to_write_to_says_so_when_it_opens(tmp_path: Path) -> None:
    with as_nobody() as home:
        home.chmod(0o500)

        async def main() -> None:
            agent = Agent(AgentConfig(directory=home / "island"), make_run().reader())
            with pytest.raises(DiskDenied, match="Permission denied"):
                await agent.open()
            await agent.close()

        asyncio.run(main())
        home.chmod(0o700)
