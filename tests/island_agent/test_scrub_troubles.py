"""What the scrub does when something else goes wrong: it tells, goes on, and hides no damage."""

from __future__ import annotations

import asyncio
import errno
import os
from concurrent.futures import BrokenExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from skerry.bulletin.errors import StoreUnavailable
from skerry.bulletin.stores import MemoryStore
from skerry.codec.digest import Digest, digest_bytes
from skerry.inference.gate import AdmissionGate
from skerry.island_agent.fleet import Fleet
from skerry.island_agent.marker import Held
from skerry.island_agent.mirror import Mirror
from skerry.island_agent.reading import look
from skerry.island_agent.status import IslandStatus
from tests.island_agent.engines import ByteEngine
from tests.island_agent.islands import Island, island
from tests.island_agent.runs import Snapshot, assert_is, make_run
from tests.island_agent.test_scrub import Counted, flip, tensor_byte

RUN = make_run(2)


def spoil(mirror: Path, version: Snapshot, name: str) -> None:
    """Flip a bit of one tensor."""
    flip(mirror, *tensor_byte(version, name))


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("?"), BrokenExecutor("?")])
def test_an_error_that_nobody_foresaw_ends_neither_the_scrub_nor_the_loading_of_engines(
    tmp_path: Path, error: Exception
) -> None:
    left = [2]

    def hook(step: str) -> None:
        if step == "repair-fetched" and left[0]:
            left[0] -= 1
            raise error

    async def main() -> None:
        async with island(tmp_path, RUN.store, hook=hook) as it:
            await it.settle(2)
            spoil(it.mirror, RUN.versions[2], "norm")
            running = asyncio.create_task(it.agent.run())
            while it.agent.state.scrub.failures < 2:
                await asyncio.sleep(0)
            it.engine._version = None  # it was restarted, and needs a mirror that is trusted
            loads = it.engine.loads
            while it.engine.loads == loads or it.served != 2:
                await asyncio.sleep(0)
            it.agent.stop()
            await running
            assert it.agent.state.failures[type(error).__name__] == 2
            assert it.agent.state.scrub.repaired == 1
            assert_is(it.mirror, RUN.versions[2])

    asyncio.run(main())


def test_a_part_that_cannot_be_mended_hides_no_damage_of_others(tmp_path: Path) -> None:
    memory = RUN.store
    assert isinstance(memory, MemoryStore)
    store = Counted(memory)

    async def turns(it: Island, count: int) -> None:
        for _ in range(count):
            with suppress(StoreUnavailable):
                await it.scrubber.turn()

    async def main() -> None:
        async with island(tmp_path, store) as it:
            await it.settle(2)
            it.scrubber.slice_bytes = 1
            store.cut()
            scrub = it.agent.state.scrub
            count = len(it.scrubber._parts) or 16
            for name in ("norm", "embed"):
                spoil(it.mirror, RUN.versions[2], name)
            await turns(it, 3 * count)
            assert scrub.damaged == len(scrub.suspects) == 2
            passes = scrub.passes
            assert passes
            spoil(it.mirror, RUN.versions[2], "block.weight")  # while the others wait
            await turns(it, 3 * count)
            assert scrub.damaged == len(scrub.suspects) == 3
            assert scrub.passes > passes
            store.on_range = None
            await turns(it, 3 * count)
            assert (scrub.repaired, scrub.suspects) == (3, [])
            assert_is(it.mirror, RUN.versions[2])
            assert it.agent._fleet.trust.problem is None

    asyncio.run(main())


def test_all_damage_that_one_turn_found_is_told_before_the_first_repair(tmp_path: Path) -> None:
    told: list[list[str]] = []

    async def main() -> None:
        async with island(tmp_path, RUN.store) as it:
            await it.settle(2)

            def hook(step: str) -> None:
                if step == "repair-fetched":
                    told.append(it.agent.state.scrub.suspects)

            it.hook = hook
            for name in ("norm", "embed"):
                spoil(it.mirror, RUN.versions[2], name)
            await it.scrubber.turn()
            assert [len(names) for names in told] == [2, 2]
            assert_is(it.mirror, RUN.versions[2])

    asyncio.run(main())


def failing_reads(monkeypatch: pytest.MonkeyPatch, path: Path, number: int) -> None:
    """Have every read of a file by the scrub fail."""
    read = os.pread

    def pread(fd: int, size: int, offset: int) -> bytes:
        if os.path.samestat(os.fstat(fd), path.stat()):
            raise OSError(number, os.strerror(number))
        return read(fd, size, offset)

    monkeypatch.setattr(os, "pread", pread)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.EACCES])
def test_what_could_not_be_looked_at_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    async def main() -> None:
        async with island(tmp_path, RUN.store) as it:
            await it.settle(2)
            with monkeypatch.context() as patched:
                failing_reads(patched, it.mirror / "config.json", number)
                spoil(it.mirror, RUN.versions[2], "norm")
                for _ in range(2):
                    with pytest.raises(OSError, match=os.strerror(number)):
                        await it.scrub()
            scrub = it.agent.state.scrub
            assert scrub.damaged == scrub.repaired == 1  # what could be read was
            assert scrub.passes
            assert it.served == 2
            await it.scrub()

    asyncio.run(main())


def test_a_file_that_the_disk_cannot_read_any_more_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with island(tmp_path, RUN.store) as it:
            await it.settle(2)
            with monkeypatch.context() as patched:
                failing_reads(patched, it.mirror / "config.json", errno.EIO)
                await it.scrub()
            assert it.agent.state.scrub.repaired >= 1
            assert_is(it.mirror, RUN.versions[2])

    asyncio.run(main())


@pytest.mark.parametrize("file", ["marker", "layouts/*", "weights/*"])
@pytest.mark.parametrize("how", ["flipped", "gone", "of another time"])
def test_the_words_about_the_mirror_are_mended_from_memory(
    tmp_path: Path, file: str, how: str
) -> None:
    async def main() -> None:
        async with island(tmp_path, RUN.store) as it:
            await it.settle(1)
            (path,) = (tmp_path / "state").glob(file)
            earlier = path.read_bytes()
            await it.settle(2)
            await it.scrubber.turn()
            it.scrubber.slice_bytes = 1  # in the middle of a pass, too
            await it.scrubber.turn()
            (path,) = (tmp_path / "state").glob(file)
            if how == "flipped":
                flip(path.parent, path.name, 20)
            elif how == "gone":
                path.unlink()
            else:
                path.write_bytes(earlier)
            while not await it.scrubber.turn():
                pass
            await it.scrub()
            harmless = how == "of another time" and path.read_bytes() == earlier  # a layout
            scrub = it.agent.state.scrub
            assert scrub.damaged == scrub.repaired == (0 if harmless else 1)
            found = look(tmp_path)
            assert found is not None
            assert found.held == it.agent.mirror.held
            assert it.served == 2
        mirror = Mirror.open(tmp_path)
        assert mirror.version == 2
        mirror.close()

    asyncio.run(main())


def test_an_engine_that_loaded_well_takes_no_hurry_from_one_that_did_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with island(tmp_path, RUN.store) as it:
            await it.settle(2)
        good, bad = ByteEngine(), ByteEngine()
        gate = AdmissionGate({"a": bad, "b": good})
        fleet = Fleet(
            engines={"a": bad, "b": good}, gate=gate, status=IslandStatus(island="x"), verify=True
        )
        wrong = [True]

        async def weights_digest() -> Digest:
            return digest_bytes(b"") if wrong else RUN.versions[2].weights

        bad.weights_digest = weights_digest  # type: ignore[method-assign]
        held = Held(version=2, layout=digest_bytes(b""), weights=RUN.versions[2].weights)
        await fleet.load_behind(tmp_path / "mirror", held)
        assert [view.version for view in gate.view().values()] == [None, 2]
        assert fleet.trust.hurry == {"a"}
        wrong.clear()
        await fleet.load_behind(tmp_path / "mirror", held)
        assert not fleet.trust.hurry

    asyncio.run(main())
