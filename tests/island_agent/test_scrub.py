"""Bytes that change at rest are found and mended, and no engine serves what it read of them."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from skerry.bulletin.errors import StoreUnavailable
from skerry.bulletin.stores import MemoryStore, Metered
from skerry.codec.digest import Digest, digest_bytes
from skerry.codec.errors import CodecError, FormatError, ResultMismatch
from skerry.codec.weights import digest_weights
from skerry.inference.accepted import AcceptedVersions, VersionRange
from skerry.inference.errors import RequestRevoked
from skerry.island_agent.hooks import REPAIR_STEPS
from skerry.island_agent.marker import Held
from skerry.island_agent.metrics import IslandCollector
from skerry.island_agent.parts import Part, PartName, digest_part, parts_of, take
from skerry.island_agent.reading import Look, look
from skerry.island_agent.repair import Repair
from skerry.island_agent.scrub import Pacer
from tests.island_agent.islands import Island, island
from tests.island_agent.runs import Run, Snapshot, assert_is, make_run, random_snapshot
from tests.island_agent.stores import TwistedStore
from tests.island_agent.test_mirror import held, packs

SNAPSHOT = random_snapshot()
PARTS = parts_of(SNAPSHOT.layout, digest_weights(SNAPSHOT.layout, SNAPSHOT.read))
DIGEST = digest_bytes(b"")
SHARD = "model-00001-of-00003.safetensors"


def flip(directory: Path, file: str, at: int, bit: int = 3) -> None:
    with (directory / file).open("r+b") as stored:
        stored.seek(at)
        (byte,) = stored.read(1)
        stored.seek(at)
        stored.write(bytes([byte ^ 1 << bit]))


def tensor_byte(version: Snapshot, name: str) -> tuple[str, int]:
    spec = next(spec for spec in version.layout.tensors if spec.name == name)
    return spec.file, spec.offset + spec.nbytes // 2


# What is looked at, and how fast.


def test_the_parts_are_all_bytes_of_all_files_each_once() -> None:
    covered = {name: bytearray(len(data)) for name, data in SNAPSHOT.files.items()}
    for part in PARTS:
        for at in range(part.start, part.stop):
            covered[part.name.file][at] += 1
    assert all(set(counts) <= {1} for counts in covered.values())


@given(st.integers(0, len(PARTS) - 1), st.integers(0, 20_000))
def test_a_slice_is_consecutive_parts_within_its_size_or_a_single_one(
    first: int, most_bytes: int
) -> None:
    taken = take(PARTS, first, most_bytes)
    assert taken == [PARTS[(first + i) % len(PARTS)] for i in range(len(taken))]
    assert len(taken) == 1 or sum(part.nbytes for part in taken) <= most_bytes
    assert 1 <= len(taken) <= len(PARTS)


@given(
    st.integers(1, 10**9),
    st.lists(st.tuples(st.integers(0, 10**8), st.floats(0, 100)), min_size=1, max_size=30),
)
def test_no_more_bytes_are_read_than_the_rate_allows_but_for_one_slice(
    rate: int, slices: list[tuple[int, float]]
) -> None:
    pacer = Pacer(bytes_per_s=rate)
    now = total = 0.0
    for nbytes, late_s in slices:
        assert total <= rate * now * (1 + 1e-9) + 1
        total += nbytes
        delay_s = pacer.delay_s(nbytes, now)
        assert delay_s >= 0
        now += delay_s + late_s  # the loop may wake up late, never early


def test_an_install_that_begins_ends_the_reading_of_a_part_within_a_block(tmp_path: Path) -> None:
    data = bytes(5 * 1024 * 1024)
    (tmp_path / "x").write_bytes(data)
    part = Part(
        name=PartName(kind="leaf", file="x"),
        start=0,
        stop=len(data),
        size=len(data),
        digest=digest_bytes(data),
    )
    asked = []

    def begins() -> bool:
        asked.append(True)
        return len(asked) == 3

    assert digest_part(tmp_path, part, begins) is None
    assert len(asked) == 3
    assert digest_part(tmp_path, part, lambda: False) == part.digest


def test_the_scrub_reads_nothing_while_an_install_is_under_way(tmp_path: Path) -> None:
    run = make_run(1)
    seen: list[str] = []

    async def main() -> None:
        async with island(tmp_path, run.store) as it:
            await it.settle(0)
            loop = asyncio.get_running_loop()

            def hook(step: str) -> None:
                # In the mirror's thread: the loop is free to let the scrub have a turn.
                read = it.agent.state.scrub.bytes
                turn = asyncio.run_coroutine_threadsafe(it.scrubber.turn(), loop)
                if step not in ("engines-switched", "engines-installed", "acknowledged"):
                    assert turn.result() == 0
                    assert it.agent.state.scrub.bytes == read
                    seen.append(step)

            it.hook = hook
            await it.settle(1)

    asyncio.run(main())
    assert {"objects-spooled", "decoded", "journal-durable", "words-written"} <= set(seen)
    assert_is(tmp_path / "mirror", run.versions[1])


def test_what_was_read_while_the_mirror_moved_on_is_no_damage(tmp_path: Path) -> None:
    """An install from beginning to end between two blocks, unseen by `busy`."""
    calls: list[bool] = []

    async def main() -> None:
        async with island(tmp_path, RUN.store) as it:
            await it.settle(0)
            mirror = it.agent.mirror

            def busy() -> bool:
                calls.append(True)
                if len(calls) == 2:  # the first is the turn's own
                    layout = RUN.versions[1].layout
                    mirror.apply(mirror.stage(packs(RUN, 1), held(RUN, 1), layout))
                    mirror.acknowledge()
                return False

            it.scrubber.busy = busy
            assert await it.scrubber.turn() == 0
            assert it.agent.state.scrub.damaged == 0
            await it.scrub()
            assert it.agent.state.scrub.damaged == 0
            assert mirror.version == 1

    asyncio.run(main())


# Found and mended.


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_any_bit_that_flips_at_rest_is_found_in_one_pass_and_mended(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    version = data.draw(st.integers(0, 3), "version")
    run = RUN
    wanted = run.versions[version]
    files = sorted(name for name, content in wanted.files.items() if content)
    flips = [
        (name, data.draw(st.integers(0, len(wanted.files[name]) - 1)), data.draw(st.integers(0, 7)))
        for name in data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=3))
    ]
    tmp_path = tmp_path_factory.mktemp("island")

    async def main() -> None:
        async with island(tmp_path, run.store) as it:
            await it.settle(version)
            for name, at, bit in flips:
                flip(it.mirror, name, at, bit)
            differ = any(
                (it.mirror / name).read_bytes() != content for name, content in wanted.files.items()
            )
            await it.scrub()
            scrub = it.agent.state.scrub
            assert scrub.damaged == scrub.repaired
            assert (scrub.damaged > 0) == differ
            assert scrub.suspects == []
            assert it.served == version
            assert await it.engine.weights_digest() == wanted.weights
            assert_is(it.mirror, wanted)
            await it.settle(3)
        assert_is(tmp_path / "mirror", run.versions[3])

    asyncio.run(main())


def changing_run() -> Run:
    """Four versions: words, a header and side files change on the way."""
    run = make_run(1)
    new = run.versions[1].mutated(5).with_file("config.json", b'{"model_type": "other"}')
    header = new.files[SHARD.replace("00001-", "00003-")].replace(b"00000000", b"00000001")
    run.publish(new.with_file(SHARD.replace("00001-", "00003-"), header))
    run.publish(run.versions[2].mutated(6))
    return run


RUN = changing_run()


@pytest.mark.parametrize("name", ["tokenizer/vocab.txt", "config.json"])
def test_a_lost_side_file_comes_back_from_the_full_version_or_the_pack_that_carries_it(
    tmp_path: Path, name: str
) -> None:
    async def main() -> None:
        async with island(tmp_path, RUN.store) as it:
            await it.settle()
            (it.mirror / name).unlink()
            await it.scrub()
            assert it.agent.state.scrub.repaired == 1
            assert_is(it.mirror, RUN.versions[3])

    asyncio.run(main())


@pytest.mark.parametrize("how", ["gone", "cut", "link", "directory for a side file"])
def test_a_mirror_that_lacks_a_file_is_built_anew_and_the_engine_serves_on(
    tmp_path: Path, how: str
) -> None:
    async def main() -> None:
        async with island(tmp_path, RUN.store) as it:
            await it.settle()
            path = it.mirror / SHARD
            if how == "gone":
                path.unlink()
            elif how == "cut":
                path.write_bytes(b"short")
            elif how == "link":
                path.symlink_to(path.rename(tmp_path / "elsewhere"))
            else:
                (it.mirror / "config.json").unlink()
                (it.mirror / "config.json").mkdir()
            with pytest.raises(AssertionError):
                await it.scrub()
            assert it.agent.mirror.held is None
            assert it.agent.state.scrub.repaired == 0
            assert it.served == 3  # what it holds itself is sound
            await it.settle()
            assert it.agent.state.history[-1].full
            assert_is(it.mirror, RUN.versions[3])
            assert it.served == 3

    asyncio.run(main())


def test_a_leaf_is_mended_by_its_own_range_and_its_own_chunks(tmp_path: Path) -> None:
    """A tensor of several leaves: one leaf of the full version, and of the packs a part."""
    words = 12 * 1024 * 1024  # 24 MiB: two leaves
    run = Run(MemoryStore())
    run.publish(SNAPSHOT.with_file(SHARD, wide_shard(words)))
    run.publish(run.versions[0].mutated(1, 0.002))
    store = TwistedStore(run.store)

    async def main() -> None:
        async with island(tmp_path, store) as it:
            await it.settle()
            file, _ = tensor_byte(run.versions[1], "wide")
            flip(it.mirror, file, 20 * 1024 * 1024)
            store.ranges.clear()
            await it.scrub()
            assert it.agent.state.scrub.repaired == 1
            assert_is(it.mirror, run.versions[1])

    asyncio.run(main())
    read: dict[str, int] = defaultdict(int)
    for key, start, stop in store.ranges:
        read[key.split("/")[0]] += stop - start
    pack = run.writer.reader.state.commits[1].packs[0].size
    leaf = 2 * words - 16 * 1024 * 1024
    assert read["full"] == leaf
    assert read["packs"] < pack
    print(f"a leaf of {leaf} bytes: read {dict(read)}, the pack has {pack}")


def wide_shard(words: int) -> bytes:
    import numpy as np

    from tests.island_agent.runs import shard

    bits = np.random.default_rng(3).integers(15000, 15600, words, np.uint16).view(np.uint8)
    return shard("wide", {"wide": ("BF16", (words // 1024, 1024), bits)})


def test_readers_see_the_mirror_change_at_every_step_of_a_repair(tmp_path: Path) -> None:
    during: dict[str, Look | None] = {}

    def hook(step: str) -> None:
        if step in REPAIR_STEPS:
            during[step] = look(tmp_path)

    async def main() -> None:
        async with island(tmp_path, RUN.store, hook=hook) as it:
            await it.settle()
            before = look(tmp_path)
            flip(it.mirror, *tensor_byte(RUN.versions[3], "norm"))
            await it.scrub()
            assert tuple(during) == REPAIR_STEPS
            fetched, acknowledged = during.pop("repair-fetched"), during.pop("repair-acknowledged")
            assert fetched == before  # nothing was written yet
            assert set(during.values()) == {None}
            assert acknowledged is not None
            assert before is not None
            assert acknowledged.held == before.held
            assert acknowledged != before

    asyncio.run(main())


def test_a_repair_that_the_store_never_answers_does_not_hold_up_a_bounded_close(
    tmp_path: Path,
) -> None:
    asked, answers = threading.Event(), threading.Event()

    class Silent(Metered):
        """A store that stops to answer once `answers` is asked for."""

        silent = False

        def stream(self, key: str, start: int, stop: int) -> Iterator[bytes]:
            if self.silent:
                asked.set()
                answers.wait()
            return super().stream(key, start, stop)

    async def main() -> None:
        store = Silent(RUN.store)
        async with island(tmp_path, store) as it:
            await it.settle()
            store.silent = True
            flip(it.mirror, *tensor_byte(RUN.versions[3], "norm"))
            scrubbing = asyncio.create_task(it.scrub())
            await asyncio.to_thread(asked.wait)
            assert not await it.agent.close(0.01)
            answers.set()
            await asyncio.gather(scrubbing, return_exceptions=True)
            assert await it.agent.close(30.0)

    asyncio.run(main())


def test_a_repair_that_reads_other_bytes_reads_past_the_relays_before_it_condemns(
    tmp_path: Path,
) -> None:
    class Lying(Metered):
        lies = False

        def stream(self, key: str, start: int, stop: int) -> Iterator[bytes]:
            pieces = super().stream(key, start, stop)
            return (bytes(len(piece)) if self.lies else piece for piece in pieces)

    async def main() -> None:
        store = Lying(RUN.store)
        doubts: list[bool] = []

        def doubt() -> None:
            doubts.append(True)
            store.lies = False

        async with island(tmp_path, store) as it:
            await it.settle(0)
            it.scrubber.on_doubt = doubt
            store.lies = True
            flip(it.mirror, *tensor_byte(RUN.versions[0], "norm"))
            with pytest.raises(CodecError):
                await it.scrub()
            assert len(doubts) == 1
            await it.scrub()
            assert it.agent.state.scrub.repaired == 1
            assert_is(it.mirror, RUN.versions[0])

    asyncio.run(main())


# What engines read of it.


class Counted(TwistedStore):
    """A store that can be cut off, and says when it was asked then."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.asked = 0

    def cut(self) -> None:
        def lost(key: str, start: int, data: bytes) -> bytes:
            self.asked += 1
            raise StoreUnavailable(key, "no answer")

        self.on_range = lost


def test_an_engine_that_loaded_bad_bytes_serves_nothing_until_it_holds_the_right_ones(
    tmp_path: Path,
) -> None:
    memory = RUN.store
    assert isinstance(memory, MemoryStore)
    store = Counted(memory)

    async def main() -> None:
        async with island(tmp_path, store) as it:
            await it.settle()
            await it.scrub()
            flip(it.mirror, *tensor_byte(RUN.versions[3], "norm"))
            it.engine._version = None  # it was restarted: the agent lets it load the mirror
            await it.settle()
            assert it.served == 3  # nobody knows yet
            assert await it.engine.weights_digest() != RUN.versions[3].weights
            store.cut()
            with pytest.raises(StoreUnavailable):
                await it.scrub()
            assert it.served != 3
            assert not it.agent.ready
            assert it.agent.state.scrub.suspects
            assert it.agent.state.engines["a"].error
            loads = it.engine.loads
            assert not await it.agent.step()
            assert it.engine.loads == loads  # not from a mirror that is known to be damaged
            assert it.served != 3
            store.on_range = None
            assert await it.scrubber.turn()
            assert_is(it.mirror, RUN.versions[3])
            await it.settle()
            assert it.served == 3
            assert await it.engine.weights_digest() == RUN.versions[3].weights
            assert it.agent.state.last_error is None

    asyncio.run(main())


def test_a_request_that_runs_on_an_engine_with_bad_weights_is_ended(tmp_path: Path) -> None:
    async def main() -> None:
        async with island(tmp_path, RUN.store) as it:
            await it.settle()
            await it.scrub()
            flip(it.mirror, *tensor_byte(RUN.versions[3], "norm"))
            it.engine._version = None
            await it.settle()
            entered = asyncio.Event()

            async def request() -> None:
                accepted = AcceptedVersions(ranges=(VersionRange(0, 9),))
                async with it.agent.gate.admit(accepted):
                    entered.set()
                    await asyncio.Event().wait()

            running = asyncio.create_task(request())
            await entered.wait()
            await it.scrub()
            with pytest.raises(RequestRevoked, match="holds weights"):
                await running
            await it.settle()
            assert await it.engine.weights_digest() == RUN.versions[3].weights

    asyncio.run(main())


def test_a_load_that_gave_other_weights_makes_the_scrub_hurry(tmp_path: Path) -> None:
    """At the usual rate this scrub would find nothing for hours."""

    async def main() -> None:
        async with island(tmp_path, RUN.store) as it:
            await it.settle()
            it.scrubber.pacer.bytes_per_s, it.scrubber.slice_bytes = 1, 100
            it.agent._fleet = replace(it.agent._fleet, verify=True)
            it.agent._reconciler.fleet = it.scrubber.fleet = it.agent._fleet  # type: ignore[union-attr]
            flip(it.mirror, *tensor_byte(RUN.versions[3], "norm"))
            it.engine._version = None
            assert not await it.agent.step()
            assert it.agent.gate.served() == []
            running = asyncio.create_task(it.agent.run())
            while it.served != 3:
                await asyncio.sleep(0)
            it.agent.stop()
            await running
            assert it.agent.state.scrub.repaired == 1
            assert await it.engine.weights_digest() == RUN.versions[3].weights

    asyncio.run(main())


def test_an_engine_that_loaded_the_mirror_while_it_was_good_serves_on(tmp_path: Path) -> None:
    labels: set[int | None] = set()
    hashed: list[bool] = []

    async def main() -> None:
        async with island(tmp_path, RUN.store) as it:
            await it.settle()
            await it.scrub()  # after the load: every part was good then
            flip(it.mirror, *tensor_byte(RUN.versions[3], "norm"))
            it.hook = lambda step: labels.add(it.served)

            async def weights_digest() -> Digest:
                hashed.append(True)
                return RUN.versions[3].weights

            it.engine.weights_digest = weights_digest  # type: ignore[method-assign]
            await it.scrub()
            assert it.agent.state.scrub.repaired == 1
            assert labels == {3}
            assert not hashed

    asyncio.run(main())


def test_an_engine_that_may_have_loaded_bad_bytes_and_did_not_is_back_after_one_hash(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with island(tmp_path, RUN.store) as it:
            await it.settle()
            flip(it.mirror, *tensor_byte(RUN.versions[3], "norm"))  # after the load
            loads = it.engine.loads
            await it.scrub()
            assert it.served == 3
            assert it.engine.loads == loads

    asyncio.run(main())


# Repairs that fail.


def test_bytes_that_are_not_the_right_ones_are_never_put_in_place(tmp_path: Path) -> None:
    store = TwistedStore(RUN.store)

    async def main() -> None:
        async with island(tmp_path, store) as it:
            await it.settle()
            file, at = tensor_byte(RUN.versions[3], "norm")
            flip(it.mirror, file, at)
            damaged = (it.mirror / file).read_bytes()
            store.on_range = lambda key, start, data: bytes(len(data))
            for _ in range(2):
                with pytest.raises(CodecError):
                    await it.scrub()
                assert (it.mirror / file).read_bytes() == damaged
                assert it.served == 3
            store.on_range = None
            await it.scrub()
            assert_is(it.mirror, RUN.versions[3])

    asyncio.run(main())


def test_a_repair_that_the_objects_never_allow_leads_to_a_full_version(tmp_path: Path) -> None:
    store = TwistedStore(RUN.store)

    async def main() -> None:
        async with island(tmp_path, store) as it:
            await it.settle()
            flip(it.mirror, *tensor_byte(RUN.versions[3], "norm"))
            store.on_range = lambda key, start, data: bytes(len(data))
            for _ in range(2):
                with pytest.raises(CodecError):
                    await it.scrub()
            with pytest.raises(AssertionError):
                await it.scrub()
            assert it.agent.mirror.held is None
            store.on_range = None
            await it.settle()
            assert_is(it.mirror, RUN.versions[3])
            await it.scrub()

    asyncio.run(main())


def test_damage_below_an_install_is_found_by_it_or_mended_after_it(tmp_path: Path) -> None:
    """An install comes between the damage and the scrub: it never builds upon bad words."""

    async def main(name: str, directory: Path) -> None:
        run = make_run(1)
        run.publish(run.versions[1].with_words("norm", {0: 1}))
        async with island(directory, run.store) as it:
            await it.settle(1)
            flip(it.mirror, *tensor_byte(run.versions[1], name))
            it.agent.aim(replace(it.agent.config.target))
            while it.agent.mirror.version != 2:
                try:
                    await it.agent.step()
                except ResultMismatch:
                    assert it.served == 1
            await it.scrub()
            assert_is(it.mirror, run.versions[2])
            assert it.served == 2
            assert await it.engine.weights_digest() == run.versions[2].weights

    for name in ("norm", "head"):
        asyncio.run(main(name, tmp_path / name))


# The island's own words.


def test_status_and_metrics_tell_of_the_scrub(tmp_path: Path) -> None:
    async def main() -> None:
        async with island(tmp_path, RUN.store) as it:
            await it.settle()
            flip(it.mirror, *tensor_byte(RUN.versions[3], "norm"))
            await it.scrub()
            scrub = it.agent.status()["scrub"]
            assert isinstance(scrub, dict)
            assert (scrub["damaged"], scrub["repaired"], scrub["failures"]) == (1, 1, 0)
            assert scrub["last_pass_unix_s"] is not None
            registry = CollectorRegistry()
            IslandCollector(lambda: it.agent.state).register(registry)
            text = generate_latest(registry).decode()
            assert "skerry_agent_scrub_damaged_parts_total 1.0" in text
            assert "skerry_agent_scrub_repaired_parts_total 1.0" in text
            assert "skerry_agent_scrub_suspects 0.0" in text
            assert f"skerry_agent_scrub_bytes_total {float(scrub['bytes'])}" in text

    asyncio.run(main())


def test_a_running_agent_scrubs_and_goes_on_after_a_repair_that_failed(tmp_path: Path) -> None:
    memory = RUN.store
    assert isinstance(memory, MemoryStore)
    store = Counted(memory)

    async def until(it: Island, what: str, count: int) -> None:
        while getattr(it.agent.state.scrub, what) < count:
            await asyncio.sleep(0)

    async def main() -> None:
        async with island(tmp_path, store) as it:
            running = asyncio.create_task(it.agent.run())
            await until(it, "passes", 1)
            store.cut()
            flip(it.mirror, *tensor_byte(RUN.versions[3], "norm"))
            await until(it, "failures", 2)
            assert any(f.doing == "scrubbing" for f in it.agent.state.errors)
            store.on_range = None
            await until(it, "repaired", 1)
            await until(it, "passes", it.agent.state.scrub.passes + 1)
            it.agent.stop()
            await running
            assert_is(it.mirror, RUN.versions[3])

    asyncio.run(main())


# The record of a repair.


@given(
    st.builds(
        Repair,
        run=st.just(DIGEST),
        held=st.builds(
            Held, version=st.integers(0, 2**62), layout=st.just(DIGEST), weights=st.just(DIGEST)
        ),
        file=st.sampled_from(["a", "sub/b.json"]),
        offset=st.none() | st.integers(0, 2**62),
        data=st.binary(max_size=100),
    ),
    st.data(),
)
def test_a_repair_round_trips_and_a_damaged_one_is_refused(
    repair: Repair, data: st.DataObject
) -> None:
    stored = bytearray(repair.to_bytes())
    assert Repair.from_bytes(bytes(stored)) == repair
    if data.draw(st.booleans()):
        del stored[data.draw(st.integers(0, len(stored) - 1)) :]
    else:
        stored[data.draw(st.integers(0, len(stored) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FormatError):
        Repair.from_bytes(bytes(stored))
