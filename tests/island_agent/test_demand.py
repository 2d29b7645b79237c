"""A host that mirrors a part: no more bytes than that, each of them proven, marked everywhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.bulletin.log import BulletinReader
from skerry.bulletin.manifest import Manifest
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores import LocalStore, MemoryStore
from skerry.codec.digest import LEAF_BYTES, Digest
from skerry.codec.encode import encode_pack
from skerry.codec.errors import CodecError
from skerry.codec.pack import Pack, PackFront
from skerry.codec.tensors import TensorSpec
from skerry.inference.engine import PartialEngine
from skerry.island_agent.agent import Agent
from skerry.island_agent.config import AgentConfig
from skerry.island_agent.errors import (
    LeavesUnknown,
    MirrorDamaged,
    ObjectCorrupt,
    SelectionRefused,
)
from skerry.island_agent.fetch import FetchConfig
from skerry.island_agent.hooks import PATCH_STEPS, SWAP_STEPS
from skerry.island_agent.marker import Held, Marker
from skerry.island_agent.mirror import Mirror
from skerry.island_agent.pull import part_of, verify_directory
from skerry.island_agent.reading import copy_version, look
from skerry.island_agent.selection import Selection
from tests.cli.test_cli import skerry
from tests.island_agent.engines import ByteEngine
from tests.island_agent.runs import Run, Snapshot, random_snapshot, shard
from tests.island_agent.stores import TwistedStore

LAYERS = 32
ROWS = 2000  # words of a layer: large against headers
QUARTER = Selection.parse(["model.layers.0-7.*"])
FEW = Selection.parse(["block.*", "norm"])


def layered(seed: int = 0) -> Snapshot:
    """Two shards with the layers of a model, every second one in each."""
    rng = np.random.default_rng(seed)
    files: dict[str, bytes] = {"config.json": b"{}"}
    for number in range(2):
        tensors = {}
        for n in range(number, LAYERS, 2):
            words = (rng.standard_normal(ROWS) * 0.02).astype(np.float32).view(np.uint32) >> 16
            data = words.astype("<u2").view(np.uint8)
            tensors[f"model.layers.{n}.weight"] = ("BF16", (ROWS,), data)
        files[f"model-{number}.safetensors"] = shard("a", tensors)
    return Snapshot(files)


def layered_run(patches: int, store: ObjectStore, *, lists_leaves: bool = True) -> Run:
    run = Run(store, lists_leaves=lists_leaves)
    run.publish(layered())
    run.extend(patches, density=0.05)
    return run


def make_run(patches: int, *, words: int) -> Run:
    run = Run(lists_leaves=True)
    run.publish(random_snapshot(words=words))
    run.extend(patches)
    return run


def agent_of(
    directory: Path,
    store: ObjectStore,
    selection: Selection,
    engines: dict[str, ByteEngine] | None = None,
) -> Agent:
    config = AgentConfig(
        directory=directory,
        selection=selection,
        fetch=FetchConfig(attempts=2, backoff_s=0.0),
        threads=1,
        announce=False,
    )
    return Agent(config, BulletinReader(store), engines=engines)


async def settle(agent: Agent) -> None:
    while await agent.step():
        pass


def follow(directory: Path, store: ObjectStore, selection: Selection) -> None:
    """Bring an island to the newest version."""

    async def main() -> None:
        agent = agent_of(directory, store, selection)
        await agent.open()
        try:
            await settle(agent)
        finally:
            await agent.close()

    asyncio.run(main())


def assert_holds(directory: Path, version: Snapshot, selection: Selection) -> None:
    """The part is that of the version, byte for byte; nothing else of the weights is there."""
    part = selection.resolve(version.layout)
    assert sorted(p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file()
                  ) == sorted(version.files)  # fmt: skip
    expected = {name: bytearray(len(data)) for name, data in version.files.items()}
    for found in version.layout.shards:
        expected[found.name][: len(found.header)] = found.header
    for side in version.layout.side_files:
        expected[side.name][:] = version.files[side.name]
    for spec, start, stop in part.ranges():
        at = slice(spec.offset + start, spec.offset + stop)
        expected[spec.file][at] = version.files[spec.file][at]
    for name, data in expected.items():
        assert (directory / name).read_bytes() == data, name


def weights_read(store: TwistedStore) -> int:
    return sum(stop - start for key, start, stop in store.ranges)


# Bytes.


def test_a_quarter_of_the_layers_is_about_a_quarter_of_the_bytes(tmp_path: Path) -> None:
    """Of a full version (ranged reads of its files) and of patches (of their chunks)."""
    run = layered_run(0, MemoryStore())
    whole = run.versions[0].layout.nbytes
    store = TwistedStore(run.store)
    follow(tmp_path / "island", store, QUARTER)
    fetched = weights_read(store)
    assert 0.24 < fetched / whole < 0.27
    assert_holds(tmp_path / "island" / "mirror.partial", run.versions[0], QUARTER)

    many = Run(MemoryStore(), lists_leaves=True)
    many.publish(large(0))
    many.publish(large(1))
    store = TwistedStore(many.store)
    many.writer.reader.refresh()
    (ref,) = many.writer.reader.state.commits[1].packs
    follow(tmp_path / "large", store, Selection.parse(["w0"]))
    pack = sum(stop - start for key, start, stop in store.ranges if key == ref.key)
    assert 0.24 < pack / ref.size < 0.30  # one of four tensors, and the index
    assert_holds(tmp_path / "large" / "mirror.partial", many.versions[1], Selection.parse(["w0"]))


def large(seed: int) -> Snapshot:
    """Four tensors of 1 MiB; versions have nothing in common, so that packs are large."""
    rng = np.random.default_rng(seed)
    tensors = {
        f"w{n}": ("U8", (1 << 20,), rng.integers(0, 256, 1 << 20, np.uint8)) for n in range(4)
    }
    return Snapshot({"model.safetensors": shard("a", tensors)})


def test_a_partial_mirror_takes_up_as_little_room_on_disk(tmp_path: Path) -> None:
    run = Run(MemoryStore(), lists_leaves=True)
    run.publish(large(0))
    follow(tmp_path / "island", run.store, Selection.parse(["w2"]))
    file = tmp_path / "island" / "mirror.partial" / "model.safetensors"
    found = file.stat()
    assert found.st_size == len(run.versions[0].files["model.safetensors"])
    if found.st_blocks * 512 >= found.st_size:
        pytest.skip("this file system keeps no holes")
    assert found.st_blocks * 512 < 0.27 * found.st_size


def test_a_leaf_is_the_smallest_part_of_a_tensor(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    data = rng.integers(0, 256, 4 * LEAF_BYTES, np.uint8)
    tensors = {"model.layers.0.self_attn.q_proj.weight": ("U8", (8, LEAF_BYTES // 2), data)}
    run = Run(MemoryStore(), lists_leaves=True)
    run.publish(Snapshot({"model.safetensors": shard("a", tensors)}))
    new = run.versions[0].with_words(
        "model.layers.0.self_attn.q_proj.weight", {3: 1, LEAF_BYTES: 2}
    )
    run.publish(new)
    store = TwistedStore(run.store)
    rank = Selection.parse((), "tp=4,rank=1")
    follow(tmp_path / "island", store, rank)
    assert weights_read(store) < 1.05 * LEAF_BYTES
    assert_holds(tmp_path / "island" / "mirror.partial", new, rank)


# Exactness.


@settings(max_examples=15)
@given(data=st.data())
def test_whatever_is_selected_is_exact_after_any_patches(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A part of version n, reached in one go or step by step, is the part of version n."""
    run = make_run(0, words=200)
    names = [spec.name for spec in run.versions[0].layout.tensors if spec.nbytes]
    chosen = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    selection = Selection.parse(chosen)
    directory = tmp_path_factory.mktemp("island")
    for _ in range(data.draw(st.integers(1, 3))):
        if data.draw(st.booleans()):
            follow(directory, run.store, selection)
        kind = data.draw(st.sampled_from(["patch", "patches", "side", "full", "zero"]))
        last = run.versions[-1]
        if kind == "side":
            run.publish(last.with_file("config.json", b'{"n": %d}' % len(run.versions)))
        elif kind == "full":
            run.publish(last.mutated(len(run.versions)), full=True)
        elif kind == "zero":
            run.publish(last)
        else:
            run.extend(1 if kind == "patch" else 3, density=0.1)
    follow(directory, run.store, selection)
    assert_holds(directory / "mirror.partial", run.versions[-1], selection)
    report = verify_directory(run.reader(), directory / "mirror.partial", selection=selection)
    assert report.identical
    assert report.found == report.expected


def test_a_rollback_and_a_change_of_structure_arrive(tmp_path: Path) -> None:
    run = make_run(2, words=200)
    island = tmp_path / "island"
    follow(island, run.store, FEW)
    run.publish(run.versions[1].mutated(9), parent=1)
    follow(island, run.store, FEW)
    assert_holds(island / "mirror.partial", run.versions[3], FEW)
    run.publish(random_snapshot(7, words=400))
    follow(island, run.store, FEW)
    assert_holds(island / "mirror.partial", run.versions[4], FEW)


def test_engines_get_the_changes_of_the_part_and_no_others(tmp_path: Path) -> None:
    run = make_run(0, words=200)

    class Rank(ByteEngine):
        def needs(self, spec: TensorSpec) -> Sequence[tuple[int, int]]:
            return [(0, spec.nbytes)] if spec.name.startswith("block") else []

    engine = Rank()
    _: PartialEngine = engine

    async def main() -> None:
        agent = agent_of(tmp_path / "island", run.store, FEW, {"a": engine})
        await agent.open()
        await settle(agent)
        run.extend(1, density=0.2)
        await settle(agent)
        assert engine.installs == [1]
        assert agent.ready
        await agent.close()

    asyncio.run(main())


class BlockRank(ByteEngine):
    """Serves the blocks only."""

    def needs(self, spec: TensorSpec) -> Sequence[tuple[int, int]]:
        return [(0, spec.nbytes)] if spec.name.startswith("block") else []


def test_the_scrub_mends_what_is_held_of_a_part_and_takes_no_hole_for_damage(
    tmp_path: Path,
) -> None:
    run = make_run(2, words=200)
    part = FEW.resolve(run.versions[2].layout)
    spec, start, _ = next(part.ranges())

    async def main() -> None:
        agent = agent_of(tmp_path / "island", run.store, FEW, {"a": BlockRank()})
        await agent.open()
        await settle(agent)
        scrubber, scrub = agent.scrubber, agent.state.scrub
        assert scrubber is not None
        with (agent.mirror.directory / spec.file).open("r+b") as file:
            file.seek(spec.offset + start)
            byte = file.read(1)[0]
            file.seek(spec.offset + start)
            file.write(bytes([byte ^ 1]))
        while scrub.passes < 2:
            assert await scrubber.turn()
        assert (scrub.damaged, scrub.repaired, scrub.suspects) == (1, 1, [])
        assert agent.gate.view()["a"].version is None  # it may have loaded the damage
        await settle(agent)
        assert agent.gate.view()["a"].version == 2
        await agent.close()

    asyncio.run(main())
    assert_holds(tmp_path / "island" / "mirror.partial", run.versions[2], FEW)


def test_a_part_is_copied_for_who_asks_for_one_only(tmp_path: Path) -> None:
    run = make_run(1, words=200)
    island, copy = tmp_path / "island", tmp_path / "copy"
    follow(island, run.store, FEW)
    with pytest.raises(SelectionRefused, match="asked for a copy of whole versions"):
        copy_version(island, copy)
    assert not copy.exists()
    held = copy_version(island, copy, partial=True)
    assert held is not None
    assert held.version == 1
    assert_holds(copy, run.versions[1], FEW)


# Marked everywhere, and refused to whom needs more.


def test_a_part_is_said_to_be_one_wherever_a_version_is_named(tmp_path: Path) -> None:
    run = make_run(1, words=200)
    island = tmp_path / "island"

    async def main() -> None:
        agent = agent_of(island, run.store, FEW)
        await agent.open()
        await settle(agent)
        status = agent.status()
        part = FEW.resolve(run.versions[1].layout)
        assert (status["partial"], status["part"]) == (True, str(FEW))
        assert status["part_bytes"] == part.nbytes < part.weights_bytes
        await agent.close()

    asyncio.run(main())
    assert not (island / "mirror").exists()
    assert Marker.from_bytes((island / "state" / "marker").read_bytes()).part == str(FEW)
    seen = look(island)
    assert seen is not None
    assert seen.part == str(FEW)
    assert part_of(island / "mirror.partial") == FEW


@given(
    part=st.none() | st.sampled_from([str(FEW), str(QUARTER), ";tp=4,tp_rank=1"]),
    version=st.none() | st.integers(0, 2**63 - 1),
)
def test_a_marker_comes_back_as_it_was(part: str | None, version: int | None) -> None:
    digest = make_run(0, words=20).versions[0].weights
    held = None if version is None else Held(version=version, layout=digest, weights=digest)
    marker = Marker(run=digest, held=held, part=part)
    assert Marker.from_bytes(marker.to_bytes()) == marker


@pytest.mark.parametrize("other", [None, Selection.parse(["norm"])])
def test_a_directory_is_of_one_part_for_good(tmp_path: Path, other: Selection | None) -> None:
    run = make_run(1, words=200)
    follow(tmp_path / "island", run.store, FEW)
    with pytest.raises(SelectionRefused, match="another directory"):
        Mirror.open(tmp_path / "island", selection=other)
    mirror = Mirror.open(tmp_path / "island", selection=FEW)
    assert mirror.version == 1
    mirror.close()


def test_an_engine_that_needs_more_is_refused_and_says_what(tmp_path: Path) -> None:
    run = make_run(1, words=200)

    class Greedy(ByteEngine):
        def needs(self, spec: TensorSpec) -> Sequence[tuple[int, int]]:
            return [(0, spec.nbytes)] if spec.name in ("norm", "head") else []

    plain, greedy = ByteEngine(), Greedy()

    async def main() -> None:
        engines: dict[str, ByteEngine] = {"plain": plain, "greedy": greedy}
        agent = agent_of(tmp_path / "island", run.store, FEW, engines)
        await agent.open()
        await settle(agent)
        assert not agent.ready
        assert (plain.loads, greedy.loads) == (0, 0)
        assert "needs every tensor" in str(agent.state.engines["plain"].error)
        assert "of head" in str(agent.state.engines["greedy"].error)
        assert agent.mirror.version == 1
        await agent.close()

    asyncio.run(main())


def test_a_selection_that_fits_nothing_is_the_operators_move(tmp_path: Path) -> None:
    run = make_run(0, words=200)
    with pytest.raises(SelectionRefused, match="no tensor"):
        follow(tmp_path / "island", run.store, Selection.parse(["model.layers.0-7.*"]))


# Trust: nothing that does not fit the log's digest is taken.


@pytest.mark.parametrize("what", ["full", "packs"])
@pytest.mark.parametrize("seed", range(8))
def test_a_changed_byte_is_refused_or_was_not_of_the_part(
    tmp_path: Path, what: str, seed: int
) -> None:
    """Either the mirror is what it was, or it is the part of the new version exactly."""
    run = layered_run(0, MemoryStore())
    island = tmp_path / "island"
    if what == "packs":
        follow(island, run.store, QUARTER)
        run.extend(1, density=0.05)
    rng = np.random.default_rng(seed)

    def on_range(key: str, start: int, data: bytes) -> bytes:
        if not key.startswith(what) or key.endswith(".json"):
            return data
        changed = bytearray(data)
        changed[int(rng.integers(len(changed)))] ^= 1 << int(rng.integers(8))
        return bytes(changed)

    try:
        follow(island, TwistedStore(run.store, on_range), QUARTER)
    except (CodecError, ObjectCorrupt):
        mirror = Mirror.open(island, selection=QUARTER)
        assert mirror.version == (0 if what == "packs" else None)
        mirror.close()
    else:
        assert what == "packs"  # every byte that is read of a full version is of the part
        assert_holds(island / "mirror.partial", run.versions[-1], QUARTER)
    follow(island, run.store, QUARTER)
    assert_holds(island / "mirror.partial", run.versions[-1], QUARTER)


def test_a_manifest_that_lies_about_leaves_is_not_believed(tmp_path: Path) -> None:
    """The publisher's key would be needed for more than that: the list must hash to the record."""
    run = Run(MemoryStore(), lists_leaves=True)
    run.publish(layered())
    liar = Run(MemoryStore(), lists_leaves=True)
    liar.publish(layered(1))
    run.writer.reader.refresh()
    commit = run.writer.reader.state.commits[0]
    other = liar.writer.reader.state.commits[0]
    reader = BulletinReader(run.store)
    reader.refresh()
    stated = reader.manifest(commit.manifest)
    reader.manifest = lambda digest: BulletinReader(liar.store).manifest(other.manifest)  # type: ignore[method-assign]
    from skerry.island_agent.demand import stated_leaves

    with pytest.raises(LeavesUnknown, match="expected"):
        stated_leaves(reader, 0)
    assert stated.leaves


def test_without_a_list_of_leaves_a_full_version_is_read_whole_and_checked(tmp_path: Path) -> None:
    """Runs of earlier publishers: no bytes are saved on the way, and all of them on disk."""
    run = layered_run(2, MemoryStore(), lists_leaves=False)
    store = TwistedStore(run.store)
    follow(tmp_path / "island", store, QUARTER)
    assert weights_read(store) > run.versions[0].layout.nbytes * 0.95
    assert_holds(tmp_path / "island" / "mirror.partial", run.versions[2], QUARTER)

    def on_range(key: str, start: int, data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1]) if "model-1" in key else data

    with pytest.raises(ObjectCorrupt):
        follow(tmp_path / "other", TwistedStore(run.store, on_range), QUARTER)


def test_bits_that_flip_at_rest_are_found_in_the_part(tmp_path: Path) -> None:
    run = layered_run(1, LocalStore(tmp_path / "bulletin"))
    island = tmp_path / "island"
    follow(island, run.store, QUARTER)
    spec, start, _ = next(QUARTER.resolve(run.versions[1].layout).ranges())
    path = island / "mirror.partial" / spec.file
    clean = path.read_bytes()
    verify = ("verify", tmp_path / "bulletin", island / "mirror.partial", "--json")
    assert json.loads(skerry(*verify).stdout)["identical"]
    harmed = bytearray(clean)
    harmed[spec.offset + start] ^= 1
    path.write_bytes(harmed)
    found = skerry(*verify)
    assert found.exit_code == 1
    answer = json.loads(found.stdout)
    assert answer["part"] == str(QUARTER)
    assert answer["differences"] == [f"{spec.file}: tensor {spec.name}: leaf 0 differs"]
    mirror = Mirror.open(island, selection=QUARTER)
    assert mirror.held is None
    mirror.close()
    follow(island, run.store, QUARTER)
    assert path.read_bytes() == clean


def test_a_partial_directory_without_its_marker_is_not_taken_for_a_version(tmp_path: Path) -> None:
    (tmp_path / "mirror.partial").mkdir()
    with pytest.raises(MirrorDamaged, match="marker"):
        part_of(tmp_path / "mirror.partial")


# An interrupted download goes on.


def test_what_was_read_before_an_interruption_is_not_read_again(tmp_path: Path) -> None:
    run = Run(MemoryStore(), lists_leaves=True)
    run.publish(large(0))
    last = next(spec for spec in run.versions[0].layout.tensors if spec.name == "w3")

    def on_range(key: str, start: int, data: bytes) -> bytes:
        if key.startswith("full/") and start > last.offset + last.nbytes // 2:
            raise ConnectionResetError("gone")
        return data

    selection = Selection.parse(["w0", "w1", "w3"])
    first, second = TwistedStore(run.store, on_range), TwistedStore(run.store)
    with pytest.raises(Exception, match="gone"):
        follow(tmp_path / "island", first, selection)
    follow(tmp_path / "island", second, selection)
    assert weights_read(second) == last.nbytes
    assert_holds(tmp_path / "island" / "mirror.partial", run.versions[0], selection)


# The front of a pack.


@given(
    seed=st.integers(0, 99),
    density=st.sampled_from([0.001, 0.05, 0.9]),
    keep=st.sets(st.integers(0, 7)),
)
def test_the_ranges_of_some_leaves_are_enough_to_decode_them(
    seed: int, density: float, keep: set[int]
) -> None:
    """Everything else of the pack may be missing; decoding is the same."""
    from skerry.codec.fold import fold_changes

    old = random_snapshot(seed, words=200)
    new = old.mutated(seed + 1, density).with_file("config.json", b"{}")
    files = {"config.json": b"{}"}
    data = encode_pack(old.layout, old.read, new.read, base=old.weights, files=files).data
    size = PackFront.size(data, len(data))
    front = PackFront.parse(data[:size], old.layout, len(data))
    ranges = front.ranges(lambda tensor, leaf: tensor in keep)
    holes = bytearray(len(data))
    holes[:size] = data[:size]
    for start, stop in ranges:
        holes[start:stop] = data[start:stop]
    assert all(a[1] < b[0] for a, b in pairwise(ranges))
    pack = Pack.parse(bytes(holes), old.layout).only(lambda tensor, leaf: tensor in keep)
    assert pack.file("config.json", 100) == b"{}"
    whole = Pack.parse(data, old.layout)
    names = {old.layout.tensors[t].name for t in keep if t < len(old.layout.tensors)}
    found = {c.spec.name: c for c in fold_changes(old.layout, [pack], old.read)}
    expected = {
        c.spec.name: c for c in fold_changes(old.layout, [whole], old.read) if c.spec.name in names
    }
    assert found.keys() == expected.keys()
    for name, changes in found.items():
        assert np.array_equal(changes.positions, expected[name].positions)
        assert np.array_equal(changes.new, expected[name].new)


# Crashes, and what has been collected.


@pytest.mark.parametrize("step", sorted({*PATCH_STEPS, *SWAP_STEPS}))
@pytest.mark.parametrize("full", [False, True])
def test_a_part_survives_an_end_at_any_step(tmp_path: Path, step: str, full: bool) -> None:
    """The record, its redo and undo, and the swap work on a file with holes as on any other."""
    run = make_run(1, words=200)
    island = tmp_path / "island"
    if not full:
        follow(island, run.store, FEW)
        run.publish(run.versions[1].mutated(5, 0.1).with_file("config.json", b"{}"))

    class Ended(BaseException):
        pass

    def hook(passed: str) -> None:
        if passed == step:
            raise Ended

    async def main() -> None:
        config = AgentConfig(directory=island, selection=FEW, threads=1, announce=False)
        agent = Agent(config, BulletinReader(run.store), hook=hook)
        await agent.open()
        try:
            await agent.step()
        except Ended:
            assert agent.mirror is not None
        finally:
            agent.mirror.close()  # no more than the end of the process does
            agent._pool.shutdown()

    asyncio.run(main())
    follow(island, run.store, FEW)
    assert_holds(island / "mirror.partial", run.versions[-1], FEW)


@pytest.mark.parametrize("lists_leaves", [True, False])
def test_where_manifests_are_collected_the_part_waits_for_a_full_version(
    tmp_path: Path, lists_leaves: bool
) -> None:
    """A skip over retired versions cannot be proven for a part: no manifest names its leaves.

    The next full version names all of them, or else is read itself.
    """
    run = make_run(0, words=200)
    run.lists_leaves = lists_leaves
    island = tmp_path / "island"
    follow(island, run.store, FEW)
    for name in ("head", "norm", "block.weight"):
        run.publish(run.versions[-1].with_words(name, {3: 7}))
    old, new = run.versions[0], run.versions[3]
    pack = run.writer.put_pack(encode_pack(old.layout, old.read, new.read, base=old.weights).data)
    run.writer.skip(base_version=0, version=3, packs=(pack,))
    run.writer.retire(versions=(1, 2), grace_s=0)
    with pytest.raises(LeavesUnknown, match="no manifest"):
        follow(island, run.store, FEW)
    mirror = Mirror.open(island, selection=FEW)
    assert mirror.version == 0
    mirror.close()
    run.publish(new.with_words("norm", {4: 1}), full=True)

    async def main() -> None:
        agent = agent_of(island, run.store, FEW)
        await agent.open()
        if not lists_leaves:
            with pytest.raises(LeavesUnknown):
                await agent.step()
        await settle(agent)
        assert agent.state.history[-1].full != lists_leaves
        await agent.close()

    asyncio.run(main())
    assert_holds(island / "mirror.partial", run.versions[4], FEW)


def test_a_patch_that_cannot_be_proven_costs_no_full_version_pass_after_pass(
    tmp_path: Path,
) -> None:
    """A new island serves the full version before it, and reads only manifests from then on."""
    run = make_run(0, words=200)
    run.lists_leaves = False
    for name in ("head", "norm", "block.weight"):
        run.publish(run.versions[-1].with_words(name, {3: 7}))
    old, new = run.versions[0], run.versions[3]
    pack = run.writer.put_pack(encode_pack(old.layout, old.read, new.read, base=old.weights).data)
    run.writer.skip(base_version=0, version=3, packs=(pack,))
    run.writer.retire(versions=(1, 2), grace_s=0)
    store = TwistedStore(run.store)

    async def main() -> None:
        agent = agent_of(tmp_path / "island", store, FEW)
        agent.reader.manifest = without_leaves(agent.reader)  # type: ignore[method-assign, assignment]
        await agent.open()
        with pytest.raises(LeavesUnknown):
            await agent.step()
        assert store.ranges == []
        assert await agent.step()
        assert agent.mirror.version == 0
        store.ranges.clear()
        for _ in range(5):
            with pytest.raises(LeavesUnknown):
                await agent.step()
        assert store.ranges == []
        await agent.close()

    asyncio.run(main())
    assert_holds(tmp_path / "island" / "mirror.partial", old, FEW)


def without_leaves(reader: BulletinReader) -> Callable[[Digest], Manifest]:
    """Return what reads manifests as earlier publishers wrote them: version 0 lists no leaves."""
    read = reader.manifest

    def manifest(digest: Digest) -> Manifest:
        found = read(digest)
        return found if found.tensors else replace(found, leaves={})

    return manifest
