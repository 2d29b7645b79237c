"""What a failure leaves behind is finished, dropped or told: it never stands in the way."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from skerry.bulletin.stores import Metered
from skerry.island_agent.errors import DiskDenied, DiskError, DiskFull, ObjectUnavailable
from skerry.island_agent.mirror import Mirror
from skerry.island_agent.plan import Target
from skerry.island_agent.reading import look
from skerry.island_agent.state import Places
from tests.island_agent.disks import read_only, small_disk
from tests.island_agent.islands import Island, island
from tests.island_agent.runs import Run, Snapshot, assert_is, make_run, shard
from tests.island_agent.test_mirror import Crash, dying
from tests.island_agent.test_scrub import flip, tensor_byte

# Downloads that nobody wants any more.


class Cut(Metered):
    """A store whose line is cut after so many bytes of a shard, while `after` is set."""

    after: int | None = None

    def stream(self, key: str, start: int, stop: int) -> Iterator[bytes]:
        if self.after is None or not key.endswith(".safetensors"):
            yield from super().stream(key, start, stop)
            return
        if start < self.after:
            yield from super().stream(key, start, min(stop, self.after))
        raise OSError("the line is cut")


def large(seed: int, name: str = "model") -> Snapshot:
    """A version of 1.2 MB, in one shard of that name."""
    data = np.random.default_rng(seed).integers(0, 256, 1_200_000, np.uint8)
    return Snapshot({f"{name}.safetensors": shard("a", {"w": ("BF16", (600_000,), data)})})


async def interrupted(it: Island, store: Cut) -> None:
    """Have the agent begin with the newest version, and the line cut short before its end."""
    store.after = 1_100_000
    it.agent.aim(Target())
    with pytest.raises(ObjectUnavailable):
        await it.agent.step()
    store.after = None


def test_a_download_of_a_version_that_is_obsolete_takes_no_room_from_the_next(
    tmp_path: Path,
) -> None:
    run = Run()
    run.publish(large(0))

    async def main() -> None:
        store = Cut(run.store)
        with small_disk(tmp_path / "disk", 3) as disk:
            async with island(disk.path / "island", store) as it:
                await it.settle(0)
                run.publish(large(1), patch=False)
                await interrupted(it, store)
                run.publish(large(2), patch=False)
                await it.settle()
                assert_is(it.mirror, run.versions[2])

    asyncio.run(main())


@pytest.mark.parametrize("name", ["model", "other"])
def test_files_of_a_version_that_is_obsolete_take_no_room_from_the_next(
    tmp_path: Path, name: str
) -> None:
    """Complete files, of the same name and size as those that are wanted now, or of others."""
    run = Run()
    run.publish(large(0))

    async def main() -> None:
        with small_disk(tmp_path / "disk", 3) as disk:
            async with island(disk.path / "island", run.store) as it:
                await it.settle(0)
                large(1, name).write(it.agent.mirror.places.incoming)
                run.publish(large(2), patch=False)
                await it.settle(1)
                assert_is(it.mirror, run.versions[1])

    asyncio.run(main())


def test_a_full_version_that_was_interrupted_makes_room_for_a_patch(tmp_path: Path) -> None:
    run = Run()
    run.publish(large(0))
    run.publish(run.versions[0].mutated(1, 0.3))

    async def main() -> None:
        with small_disk(tmp_path / "disk", 5) as disk:
            async with island(disk.path / "island", run.store) as it:
                await it.settle(0)
                incoming = it.agent.mirror.places.incoming
                large(2).write(incoming)
                large(2, "other").write(incoming)
                disk.fill()
                disk.shrink(100_000)
                it.agent.aim(Target(version=1))
                with pytest.raises(DiskFull):
                    await it.agent.step()
                await it.settle()
                assert_is(it.mirror, run.versions[1])

    asyncio.run(main())


# Install records.


async def failing_at(it: Island, step: str, error: Exception) -> None:
    """Make one pass, in which something fails once at a step."""
    left = [error]

    def hook(passed: str) -> None:
        if passed == step and left:
            raise left.pop()

    it.hook = hook
    with pytest.raises(type(error)):
        await it.agent.step()
    assert not left


@pytest.mark.parametrize("step", ["marker-moved", "engines-installed"])
def test_a_record_that_a_failure_kept_is_dropped_by_the_next_pass(
    tmp_path: Path, step: str
) -> None:
    run = make_run(2)

    async def main() -> None:
        async with island(tmp_path, run.store) as it:
            await it.settle(1)
            it.agent.aim(Target(version=2))
            await failing_at(it, step, MemoryError())
            await it.settle()
            found = look(tmp_path)
            assert found is not None
            assert found.held == it.agent.mirror.held
            assert it.served == 2
            assert_is(it.mirror, run.versions[2])
            await it.scrub()

    asyncio.run(main())


def test_a_read_only_journal_keeps_no_engine_from_loading_what_is_held(tmp_path: Path) -> None:
    run = make_run(2)

    async def main() -> None:
        with read_only() as disk:
            async with island(tmp_path / "island", run.store) as it:
                await it.settle(1)
                it.agent.aim(Target(version=2))
                it.hook = lambda step: (
                    disk.make(it.agent.mirror.places.install_record.parent)
                    if step == "engines-installed"
                    else None
                )
                with pytest.raises(DiskDenied):
                    await it.agent.step()
                it.hook = lambda step: None
                it.engine._version = None  # it was restarted
                with pytest.raises(DiskDenied):
                    await it.agent.step()
                assert it.served == 2
                assert await it.engine.weights_digest() == run.versions[2].weights
                disk.mend()
                await it.settle()
                assert look(tmp_path / "island") is not None

    asyncio.run(main())


@pytest.mark.parametrize("pinned", [True, False])
def test_a_record_of_a_version_that_was_rolled_back_meanwhile_does_not_stay(
    tmp_path: Path, pinned: bool
) -> None:
    run = make_run(2)

    async def main() -> None:
        async with island(tmp_path, run.store) as it:
            await it.settle(1)
            it.agent.aim(Target(version=2))
            await failing_at(it, "journal-durable", MemoryError())
            run.publish(run.versions[1], parent=1)
            it.agent.aim(Target(version=1 if pinned else None))
            await it.settle()
            found = look(tmp_path)
            assert found is not None
            assert found.held.version == it.served == (1 if pinned else 3)
            assert_is(it.mirror, run.versions[1])
            await it.scrub()

    asyncio.run(main())


def test_a_record_that_does_not_fit_what_is_held_makes_the_mirror_suspect(tmp_path: Path) -> None:
    run = make_run(2)

    async def main() -> None:
        async with island(tmp_path, run.store) as it:
            await it.settle(1)
            it.agent.aim(Target(version=2))
            await failing_at(it, "journal-durable", MemoryError())
            record = it.agent.mirror.places.install_record
            record.write_bytes(record.read_bytes()[:-1])
            await it.settle(1)
            assert look(tmp_path) is not None
            assert_is(it.mirror, run.versions[1])

    asyncio.run(main())


# Verdicts about the mirror.


def test_a_condemnation_that_could_not_be_written_is_written_when_there_is_room(
    tmp_path: Path,
) -> None:
    run = make_run(1)

    async def follow(root: Path) -> None:
        async with island(root, run.store) as it:
            await it.settle(1)

    with small_disk(tmp_path / "disk") as disk:
        root = disk.path / "island"
        asyncio.run(follow(root))
        mirror = Mirror.open(root)
        flip(mirror.directory, *tensor_byte(run.versions[1], "norm"))
        disk.fill()
        with pytest.raises(DiskFull):
            mirror.check()
        with pytest.raises(DiskFull):
            mirror.settle()
        disk.empty()
        mirror.settle()
        assert mirror.held is None
        mirror.close()
        mirror = Mirror.open(root, verify=False)
        assert mirror.held is None
        mirror.close()


def test_a_shard_that_can_never_be_written_again_is_replaced_and_not_tried_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(1)
    write, bad = os.pwrite, [0]

    def pwrite(fd: int, data: memoryview, offset: int) -> int:
        if os.fstat(fd).st_ino == bad[0]:
            raise OSError(errno.EIO, "Input/output error")
        return write(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)

    async def main() -> None:
        async with island(tmp_path, run.store) as it:
            await it.settle(0)
            bad[0] = next(it.mirror.glob("*.safetensors")).stat().st_ino
            it.agent.aim(Target())
            with pytest.raises(DiskError, match="Input/output error"):
                await it.agent.step()
            await it.settle()
            assert it.agent.state.history[-1].full
            assert it.served == 1
            assert_is(it.mirror, run.versions[1])

    asyncio.run(main())


def test_a_stray_file_never_condemns_a_sound_mirror(tmp_path: Path) -> None:
    run = make_run(1)

    async def main() -> None:
        async with island(tmp_path, run.store) as it:
            await it.settle(1)
            (it.mirror / ".lock").touch()
            assert it.agent.mirror.check() == []
            assert it.agent.mirror.version == 1
            assert_is(it.mirror, run.versions[1])

    asyncio.run(main())


@pytest.mark.parametrize("step", ["swap-intended", "old-moved", "new-moved"])
def test_a_swap_whose_intent_was_damaged_leaves_the_mirror_suspect(
    tmp_path: Path, step: str
) -> None:
    run = make_run()
    run.publish(run.versions[0].mutated(4), patch=False)

    async def main() -> None:
        async with island(tmp_path, run.store) as it:
            await it.settle(0)
            it.agent.aim(Target())
            await failing_at(it, step, MemoryError())

    asyncio.run(main())
    flip(tmp_path, "journal/swap", 30)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Mirror, "check", dying)  # a crash leaves it suspect
        with suppress(Crash):
            Mirror.open(tmp_path, verify=False)
    mirror = Mirror.open(tmp_path, verify=False)
    assert mirror.version == (None if step == "new-moved" else 0)
    if mirror.held is not None:
        assert_is(mirror.directory, run.versions[0])
    assert not mirror.places.swap_intent.exists()
    assert not mirror.places.outgoing.exists()
    mirror.close()


def test_a_torn_record_of_a_repair_leaves_the_mirror_suspect(tmp_path: Path) -> None:
    run = make_run()

    async def main() -> None:
        async with island(tmp_path, run.store) as it:
            await it.settle(0)
            flip(it.mirror, *tensor_byte(run.versions[0], "norm"))

    asyncio.run(main())
    (tmp_path / "journal" / "repair").write_bytes(b"torn")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Mirror, "check", dying)
        with pytest.raises(Crash):
            Mirror.open(tmp_path, verify=False)
    mirror = Mirror.open(tmp_path, verify=False)
    assert mirror.held is None
    assert not mirror.places.repair_record.exists()
    mirror.close()


# The lock.


def test_an_open_that_fails_holds_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="thread"):
        Mirror.open(tmp_path, threads=0)
    Mirror.open(tmp_path).close()
    with monkeypatch.context() as patched:
        patched.setattr(Places, "drop_temporaries", dying)
        with pytest.raises(Crash):
            Mirror.open(tmp_path)
    Mirror.open(tmp_path).close()


# What is told.


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("step", ["leaves-checked", "marker-moved", "engines-installed"])
def test_an_install_that_a_later_pass_finishes_is_counted_once_and_its_spool_is_released(
    tmp_path: Path, step: str, full: bool
) -> None:
    run = make_run(1)
    run.publish(run.versions[1].mutated(7), patch=not full)

    async def main() -> None:
        async with island(tmp_path, run.store) as it:
            await it.settle(1)
            it.agent.aim(Target())
            await failing_at(it, "new-moved" if full and step[0] == "l" else step, MemoryError())
            await it.settle()
            state = it.agent.state
            assert state.installs == len(state.history) == 2
            report = state.history[-1]
            assert (report.version, report.base, report.full) == (2, 1, full)
            assert report.nbytes > 0
            assert list(it.agent.mirror.places.spool.iterdir()) == []
            assert it.served == 2

    asyncio.run(main())


def test_what_an_earlier_process_left_in_the_spool_goes_when_nothing_is_wanted(
    tmp_path: Path,
) -> None:
    run = make_run(1)

    async def main() -> None:
        async with island(tmp_path, run.store) as it:
            await it.settle(1)
        (tmp_path / "spool" / "left.part").touch()
        async with island(tmp_path, run.store) as it:
            await it.settle(1)
            assert list((tmp_path / "spool").iterdir()) == []

    asyncio.run(main())


def test_a_pass_that_has_nothing_to_do_clears_nobody_elses_error(tmp_path: Path) -> None:
    run = make_run(1)

    async def main() -> None:
        async with island(tmp_path, run.store) as it:
            await it.settle(1)
            state = it.agent.state
            state.fail(MemoryError(), "scrubbing", "scrub")
            state.fail(OSError("of a pass"), "fetching")
            assert not await it.agent.step()
            assert state.last_error is not None
            assert state.last_error.doing == "scrubbing"
            state.well("scrub")
            assert state.last_error is None

    asyncio.run(main())


def test_an_error_of_the_scrub_is_told_until_all_is_mended(tmp_path: Path) -> None:
    run = make_run(1)
    left = [2]

    def hook(step: str) -> None:
        if step == "repair-fetched" and left[0]:
            left[0] -= 1
            raise MemoryError

    async def main() -> None:
        async with island(tmp_path, run.store, hook=hook) as it:
            await it.settle(1)
            flip(it.mirror, *tensor_byte(run.versions[1], "norm"))
            running = asyncio.create_task(it.agent.run())
            while it.agent.state.scrub.failures < 2:
                await asyncio.sleep(0)
            passes = it.agent.state.passes
            while it.agent.state.last_error is not None:
                assert it.agent.state.last_error.doing == "scrubbing"
                await asyncio.sleep(0)
            assert it.agent.state.scrub.repaired == 1
            assert it.agent.state.passes >= passes
            it.agent.stop()
            await running

    asyncio.run(main())
