"""The mirror is one published version, or says that it holds nothing sound."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import shutil
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skerry.bulletin.stores import LocalStore
from skerry.codec import kernel
from skerry.codec.digest import digest_bytes
from skerry.codec.errors import BaseMismatch, FormatError, ResultMismatch, StructureMismatch
from skerry.codec.pack import Pack
from skerry.codec.tensors import TensorChanges
from skerry.codec.weights import digest_weights
from skerry.island_agent import hashing
from skerry.island_agent.checkpoint import Checkpoint, weight_differences
from skerry.island_agent.errors import (
    MirrorBusy,
    MirrorDamaged,
    RunMismatch,
    RunUnknown,
    Stopped,
)
from skerry.island_agent.hooks import TENSOR_DECODED, no_hook
from skerry.island_agent.install import load_packs, write_in_place
from skerry.island_agent.marker import Held
from skerry.island_agent.mirror import Mirror
from skerry.island_agent.plan import PatchStep
from skerry.island_agent.reading import look
from skerry.island_agent.state import State
from tests.island_agent.crash import follow
from tests.island_agent.runs import (
    Run,
    Snapshot,
    assert_is,
    make_run,
    random_snapshot,
    shard,
)


@pytest.fixture(name="run")
def published(tmp_path: Path) -> Run:
    run = make_run(2, store=LocalStore(tmp_path / "store"))
    asyncio.run(follow(tmp_path / "store", tmp_path / "island", 0))
    return run


def packs(run: Run, *versions: int) -> list[Pack]:
    layout = run.versions[0].layout
    commits = run.writer.reader.state.commits
    return [
        Pack.parse(run.store.get(ref.key, limit_bytes=10**9), layout)
        for version in versions
        for ref in commits[version].packs
    ]


def held(run: Run, version: int) -> Held:
    commit = run.writer.reader.state.commits[version]
    return Held(version=version, layout=commit.layout, weights=commit.result)


def codec_threads() -> set[threading.Thread]:
    """The codec's threads; an error that somebody holds keeps those of its test."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("codec")}


@pytest.mark.parametrize("threads", [1, 3])
def test_an_install_does_not_depend_on_threads(tmp_path: Path, run: Run, threads: int) -> None:
    before, seen = codec_threads(), set[bool]()

    def look(step: str) -> None:
        if step == TENSOR_DECODED:
            seen.add(bool(codec_threads() - before))

    mirror = Mirror.open(tmp_path / "island", hook=look, threads=threads)
    target = held(run, 2)
    mirror.apply(mirror.stage(packs(run, 1, 2), target, run.versions[2].layout))
    assert (True in seen) == (threads > 1 and not kernel.current().lockstep)
    assert mirror.held == target
    assert_is(mirror.directory, run.versions[2])
    mirror.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_staging_that_is_stopped_half_way_changes_nothing_on_any_number_of_threads(
    tmp_path: Path, run: Run, threads: int
) -> None:
    def stop(step: str) -> None:
        if step == TENSOR_DECODED:
            raise Stopped("for the test")

    before = codec_threads()
    mirror = Mirror.open(tmp_path / "island", hook=stop, threads=threads)
    with pytest.raises(Stopped):
        mirror.stage(packs(run, 1, 2), held(run, 2), run.versions[2].layout)
    assert mirror.held == held(run, 0)
    assert_is(mirror.directory, run.versions[0])
    assert codec_threads() <= before
    mirror.close()


def test_two_agents_never_share_a_directory(tmp_path: Path, run: Run) -> None:
    mirror = Mirror.open(tmp_path / "island")
    with pytest.raises(MirrorBusy):
        Mirror.open(tmp_path / "island")
    mirror.close()
    Mirror.open(tmp_path / "island").close()


def test_a_log_of_another_run_is_refused(tmp_path: Path, run: Run) -> None:
    mirror = Mirror.open(tmp_path / "island")
    with pytest.raises(RunMismatch):
        mirror.bind(digest_bytes(b"another run"))
    mirror.close()


@pytest.mark.parametrize(
    ("base", "target", "error"), [(2, 2, BaseMismatch), (1, 2, ResultMismatch)]
)
def test_a_refused_pack_touches_no_byte(
    tmp_path: Path, run: Run, base: int, target: int, error: type[Exception]
) -> None:
    mirror = Mirror.open(tmp_path / "island")
    with pytest.raises(error):
        mirror.stage(packs(run, base), held(run, target), run.versions[target].layout)
    assert not mirror.places.install_record.exists()
    assert_is(mirror.directory, run.versions[0])
    mirror.close()
    assert_is(tmp_path / "island" / "mirror", run.versions[0])


def test_a_damaged_pack_touches_no_byte(tmp_path: Path, run: Run) -> None:
    mirror = Mirror.open(tmp_path / "island")
    ref = run.writer.reader.state.commits[1].packs[0]
    data = bytearray(run.store.get(ref.key, limit_bytes=10**9))
    data[-10] ^= 4
    with pytest.raises((FormatError, ResultMismatch)):
        mirror.stage(
            [Pack.parse(bytes(data), mirror.layout())], held(run, 1), run.versions[1].layout
        )
    assert not mirror.places.install_record.exists()
    assert_is(mirror.directory, run.versions[0])
    mirror.close()


def test_a_change_of_structure_is_refused_by_a_patch(tmp_path: Path, run: Run) -> None:
    mirror = Mirror.open(tmp_path / "island")
    other = random_snapshot(words=5000)
    with pytest.raises(StructureMismatch, match="embed was"):
        mirror.stage(packs(run, 1), held(run, 1), other.layout)
    mirror.close()


def test_a_recorded_install_goes_forward_and_backward_any_number_of_times(
    tmp_path: Path, run: Run
) -> None:
    mirror = Mirror.open(tmp_path / "island")
    journal = mirror.stage(packs(run, 1, 2), held(run, 2), run.versions[2].layout)
    checkpoint = Checkpoint(mirror.directory, run.versions[0].layout, writable=True)
    for backward in (False, False, True, True, False):
        for changes in journal.changes:
            checkpoint.write_words(changes, backward=backward)
        assert_is(mirror.directory, run.versions[0 if backward else 2])
    mirror.apply(journal)
    assert mirror.version == 2
    mirror.close()


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_words_land_where_they_belong_and_nowhere_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Dense and sparse changes, at the ends, over gaps and blocks of more than a mebibyte."""
    words = 1_200_000
    raw = np.arange(words, dtype="<u2").view(np.uint8)
    version = Snapshot({"x.safetensors": shard("x", {"w": ("BF16", (words,), raw)})})
    directory = tmp_path_factory.mktemp("words")
    version.write(directory)
    checkpoint = Checkpoint(directory, version.layout, writable=True)
    (spec,) = version.layout.tensors
    expected = spec.view(version.read(spec)).copy()
    near = st.integers(0, words - 1).flatmap(
        lambda at: st.lists(st.integers(at, min(at + 9000, words - 1)), max_size=20)
    )
    chosen = data.draw(st.lists(near, min_size=1, max_size=4))
    positions = np.unique(np.array([0, *(at for part in chosen for at in part)], np.int64))
    new = (expected[positions] ^ 5).astype("<u2")
    changes = TensorChanges(spec=spec, positions=positions, old=expected[positions], new=new)
    checkpoint.write_words(changes)
    expected[positions] = new
    assert np.array_equal(spec.view(checkpoint.read(spec)), expected)
    checkpoint.write_words(changes, backward=True)
    assert_is(directory, version)


def flip_bit(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 8]))


def corrupt_word(directory: Path, version: Snapshot) -> None:
    spec = next(t for t in version.layout.tensors if t.name == "norm")
    flip_bit(directory / spec.file, spec.offset + 17)


DAMAGES: dict[str, Callable[[Path, Snapshot], object]] = {
    "word": corrupt_word,
    "header": lambda d, v: _overwrite(d / "model-00001-of-00003.safetensors", 20, b"X"),
    "side file": lambda d, v: _overwrite(d / "config.json", 3, b"M"),
    "missing side file": lambda d, v: (d / "config.json").unlink(),
    "missing shard": lambda d, v: (d / "model-00002-of-00003.safetensors").unlink(),
    "cut shard": lambda d, v: os.truncate(d / "model-00002-of-00003.safetensors", 500),
    "longer shard": lambda d, v: os.truncate(d / "model-00002-of-00003.safetensors", 99_999),
    "linked shard": lambda d, v: _link(d / "model-00002-of-00003.safetensors"),
    "shard that is a directory": lambda d, v: _replace_by_directory(
        d / "model-00002-of-00003.safetensors"
    ),
    "linked directory": lambda d, v: _link(d / "tokenizer"),
    "layout": lambda d, v: _only(d.parent / "state" / "layouts").write_bytes(b"?"),
    "leaf digests": lambda d, v: _only(d.parent / "state" / "weights").unlink(),
}


def _overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def _link(path: Path) -> None:
    moved = path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(moved)


def _replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _only(directory: Path) -> Path:
    (path,) = directory.iterdir()
    return path


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_at_open_and_repaired_from_the_bulletin(
    tmp_path: Path, run: Run, damage: str
) -> None:
    DAMAGES[damage](tmp_path / "island" / "mirror", run.versions[0])
    mirror = Mirror.open(tmp_path / "island")
    assert mirror.held is None
    assert mirror.damage
    mirror.close()
    asyncio.run(follow(tmp_path / "store", tmp_path / "island", 2))
    assert_is(tmp_path / "island" / "mirror", run.versions[2])


def test_a_stray_file_is_removed(tmp_path: Path, run: Run) -> None:
    (tmp_path / "island" / "mirror" / "stray.bin").write_bytes(b"?")
    mirror = Mirror.open(tmp_path / "island")
    assert mirror.version == 0
    assert_is(mirror.directory, run.versions[0])
    mirror.close()


def test_a_flipped_bit_that_open_did_not_look_for_is_never_built_upon(
    tmp_path: Path, run: Run
) -> None:
    corrupt_word(tmp_path / "island" / "mirror", run.versions[0])
    mirror = Mirror.open(tmp_path / "island", verify=False)
    assert mirror.version == 0
    with pytest.raises(ResultMismatch):
        mirror.stage(packs(run, 1), held(run, 1), run.versions[1].layout)
    assert mirror.check()
    assert mirror.held is None
    mirror.close()


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_a_torn_record_is_discarded(tmp_path: Path, run: Run, data: st.DataObject) -> None:
    mirror = Mirror.open(tmp_path / "island")
    mirror.stage(packs(run, 1), held(run, 1), run.versions[1].layout)
    mirror.close()
    record = tmp_path / "island" / "journal" / "install"
    content = bytearray(record.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    record.write_bytes(content)
    mirror = Mirror.open(tmp_path / "island")
    assert mirror.version == 0
    assert not record.exists()
    mirror.close()
    assert_is(tmp_path / "island" / "mirror", run.versions[0])


def test_a_torn_record_over_half_written_words_condemns_the_mirror(
    tmp_path: Path, run: Run
) -> None:
    mirror = Mirror.open(tmp_path / "island", verify=False)
    journal = mirror.stage(packs(run, 1), held(run, 1), run.versions[1].layout)
    Checkpoint(mirror.directory, run.versions[0].layout, writable=True).write_words(
        journal.changes[0]
    )
    mirror.close()
    os.truncate(tmp_path / "island" / "journal" / "install", 100)
    mirror = Mirror.open(tmp_path / "island", verify=False)
    assert mirror.held is None
    mirror.close()


@contextmanager
def full_disk(limit_bytes: int) -> Iterator[None]:
    """No file can grow beyond `limit_bytes`, as if the disk were full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_keeps_the_old_version_and_needs_no_restart(tmp_path: Path, run: Run) -> None:
    run.publish(run.versions[0].mutated(9, 0.5), parent=0)
    mirror = Mirror.open(tmp_path / "island")
    with full_disk(4000), pytest.raises(OSError, match="too large"):
        mirror.stage(packs(run, 3), held(run, 3), run.versions[3].layout)
    assert mirror.version == 0
    assert_is(mirror.directory, run.versions[0])
    assert list(mirror.places.install_record.parent.iterdir()) == []
    mirror.apply(mirror.stage(packs(run, 3), held(run, 3), run.versions[3].layout))
    assert_is(mirror.directory, run.versions[3])
    mirror.close()


def test_a_disk_that_fills_up_while_writing_is_finished_later(tmp_path: Path, run: Run) -> None:
    run.publish(run.versions[0].mutated(9).with_file("config.json", bytes(9000)), parent=0)
    mirror = Mirror.open(tmp_path / "island")
    journal = mirror.stage(packs(run, 3), held(run, 3), run.versions[3].layout)
    with full_disk(8000), pytest.raises(OSError, match="too large"):
        mirror.apply(journal)
    mirror.settle()
    assert mirror.version == 3
    assert_is(mirror.directory, run.versions[3])
    mirror.close()


def test_words_that_did_not_reach_the_mirror_are_noticed_and_undone(
    tmp_path: Path, run: Run
) -> None:
    touched: list[TensorChanges] = []

    def flip(step: str) -> None:
        if step == "words-written":
            spec, position = touched[0].spec, int(touched[0].positions[0])
            path = tmp_path / "island" / "mirror" / spec.file
            flip_bit(path, spec.offset + position * spec.type.word)

    mirror = Mirror.open(tmp_path / "island", hook=flip)
    before = look(tmp_path / "island")
    journal = mirror.stage(packs(run, 1), held(run, 1), run.versions[1].layout)
    touched.append(journal.changes[0])
    with pytest.raises(MirrorDamaged, match=touched[0].spec.name):
        mirror.apply(journal)
    mirror.settle()
    assert mirror.version == 0
    assert_is(mirror.directory, run.versions[0])
    after = look(tmp_path / "island")
    assert before is not None
    assert after is not None
    assert after.held == before.held
    assert after != before  # or a reader would not notice what lay there in between
    mirror.close()


def test_a_word_lost_on_its_way_into_a_new_directory_is_found_by_reading_back(
    tmp_path: Path, run: Run
) -> None:
    class Forgetful(Checkpoint):
        def write_words(self, changes: TensorChanges, *, backward: bool = False) -> None:
            super().write_words(changes, backward=backward)
            if changes.spec.name == "norm":
                first = replace(
                    changes,
                    positions=changes.positions[:1],
                    old=changes.old[:1],
                    new=changes.new[:1],
                )
                super().write_words(first, backward=True)

    old, new = run.versions[:2]
    old.write(tmp_path / "new")
    with pytest.raises(ResultMismatch, match="weights of version 1"):
        write_in_place(
            Forgetful(tmp_path / "new", old.layout, writable=True),
            digest_weights(old.layout, old.read),
            packs=packs(run, 1),
            target=held(run, 1),
            layout=new.layout,
            scratch=tmp_path,
            hook=no_hook,
        )


def test_a_version_that_changes_nothing_moves_the_marker_alone(tmp_path: Path, run: Run) -> None:
    run.publish(run.versions[2])
    asyncio.run(follow(tmp_path / "store", tmp_path / "island", 2))
    asyncio.run(follow(tmp_path / "store", tmp_path / "island", 3))
    mirror = Mirror.open(tmp_path / "island")
    assert mirror.version == 3
    assert_is(mirror.directory, run.versions[2])
    mirror.close()


def test_numpy_views_outlive_a_closed_mirror(tmp_path: Path, run: Run) -> None:
    mirror = Mirror.open(tmp_path / "island")
    checkpoint, _ = mirror._open_parts()
    view = checkpoint.read(checkpoint.layout.tensors[0])
    mirror.close()
    assert int(np.sum(view)) >= 0


# Who the mirror belongs to.


@pytest.mark.parametrize("damage", ["corrupt", "gone"])
def test_a_mirror_whose_marker_is_lost_is_never_bound_to_a_run_by_itself(
    tmp_path: Path, run: Run, damage: str
) -> None:
    marker = tmp_path / "island" / "state" / "marker"
    if damage == "corrupt":
        _overwrite(marker, 30, b"#")
    else:
        marker.unlink()
    mirror = Mirror.open(tmp_path / "island")
    assert mirror.held is None
    identity = run.writer.reader.state.run
    assert identity is not None
    with pytest.raises(RunUnknown, match="remove it if it may be replaced") as caught:
        mirror.bind(identity)
    assert caught.value.acts == "the operator"
    assert_is(mirror.directory, run.versions[0])
    shutil.rmtree(mirror.directory)
    mirror.bind(digest_bytes(b"another run"))
    assert mirror.run == digest_bytes(b"another run")
    mirror.close()
    reopened = Mirror.open(tmp_path / "island")
    assert (reopened.run, reopened.held) == (digest_bytes(b"another run"), None)
    reopened.close()


# Crashes between two writes of one step.


class Crash(BaseException):
    """Stands for kill -9: nothing that would run after it may matter."""


def dying(*_: object) -> None:
    raise Crash


def half_written(tmp_path: Path, run: Run, version: int = 1) -> Path:
    """Leave a mirror with one tensor of a version written under a record; return the record."""
    mirror = Mirror.open(tmp_path / "island", verify=False)
    journal = mirror.stage(packs(run, version), held(run, version), run.versions[version].layout)
    Checkpoint(mirror.directory, mirror.layout(), writable=True).write_words(journal.changes[0])
    mirror.close()
    return tmp_path / "island" / "journal" / "install"


def test_a_crash_while_a_mirror_is_condemned_leaves_no_mixture_under_the_old_marker(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = run.publish(run.versions[0].mutated(9).with_file("config.json", b"{}"), parent=0)
    half_written(tmp_path, run, new)
    layouts = tmp_path / "island" / "state" / "layouts"
    (layouts / run.versions[new].layout.digest()).write_bytes(b"?")
    with monkeypatch.context() as patched:
        patched.setattr(State, "set_marker", dying)
        with pytest.raises(Crash):
            Mirror.open(tmp_path / "island", verify=False)
    mirror = Mirror.open(tmp_path / "island", verify=False)
    assert mirror.held is None
    mirror.close()


def test_a_crash_before_a_suspect_mirror_was_looked_at_leaves_it_suspect(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.truncate(half_written(tmp_path, run), 100)
    with monkeypatch.context() as patched:
        patched.setattr(Mirror, "check", dying)
        with pytest.raises(Crash):
            Mirror.open(tmp_path / "island", verify=False)
    mirror = Mirror.open(tmp_path / "island", verify=False)
    assert mirror.held is None
    mirror.close()


def test_a_mirror_that_cannot_be_condemned_on_disk_is_condemned_in_memory(
    tmp_path: Path, run: Run
) -> None:
    mirror = Mirror.open(tmp_path / "island")
    corrupt_word(mirror.directory, run.versions[0])
    with full_disk(10), pytest.raises(OSError, match="too large"):
        mirror.check()
    assert mirror.held is None
    mirror.close()


@pytest.mark.parametrize("back", [False, True])
def test_a_file_takes_a_directorys_place_even_when_that_is_done_twice(
    tmp_path: Path, run: Run, back: bool
) -> None:
    nested = run.versions[2]
    flat = nested.with_file("tokenizer/vocab.txt", None).with_file("tokenizer", b"flat")
    run.publish(flat)
    run.publish(nested)
    before, after = (3, 4) if back else (2, 3)
    asyncio.run(follow(tmp_path / "store", tmp_path / "island", before))

    def die(step: str) -> None:
        if step == "words-written":
            raise Crash

    mirror = Mirror.open(tmp_path / "island", hook=die)
    journal = mirror.stage(packs(run, after), held(run, after), run.versions[after].layout)
    with pytest.raises(Crash):
        mirror.apply(journal)
    mirror.close()
    with pytest.raises(Crash):
        Mirror.open(tmp_path / "island", hook=die)
    mirror = Mirror.open(tmp_path / "island")
    assert mirror.version == after
    assert_is(mirror.directory, run.versions[after])
    mirror.close()


def test_what_a_crash_left_half_written_is_removed(tmp_path: Path, run: Run) -> None:
    island = tmp_path / "island"
    for name in ("journal/install.new", "state/.x.new", "state/layouts/.y.new"):
        (island / name).write_bytes(b"?")
    Mirror.open(island).close()
    assert list(island.rglob("*.new")) == []


# Names from layouts.


def test_the_longest_name_that_a_layout_may_hold_arrives(tmp_path: Path, run: Run) -> None:
    longest = "é" * 127 + "x"
    run.publish(run.versions[2].with_file(longest, b"1"))
    asyncio.run(follow(tmp_path / "store", tmp_path / "island", 3))
    assert_is(tmp_path / "island" / "mirror", run.versions[3])
    with pytest.raises(FormatError, match="256 bytes, the limit is 255"):
        run.versions[2].with_file("a/" + "x" * 256, b"2").layout  # noqa: B018


def test_nothing_is_written_through_a_linked_directory(tmp_path: Path) -> None:
    """A recorded install meets a link in place of a directory of shards and of side files."""
    first = random_snapshot()
    name = "model-00001-of-00003.safetensors"
    nested = first.with_file(name, None).with_file(f"sub/{name}", first.files[name])
    run = Run(LocalStore(tmp_path / "store"))
    run.publish(nested)
    run.publish(nested.mutated(1).with_file("sub/new", b"new"))
    asyncio.run(follow(tmp_path / "store", tmp_path / "island", 0))
    half_written(tmp_path, run)
    outside = tmp_path / "outside"
    (tmp_path / "island" / "mirror" / "sub").rename(outside)
    (tmp_path / "island" / "mirror" / "sub").symlink_to(outside)
    before = {path.name: path.read_bytes() for path in outside.iterdir()}
    mirror = Mirror.open(tmp_path / "island", verify=False)
    assert mirror.held is None
    assert "below a link" in (mirror.damage or "")
    mirror.close()
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == before


# Memory.


def test_a_chain_of_packs_of_any_length_is_not_read_into_memory(tmp_path: Path) -> None:
    run = make_run()
    for seed in range(1, 9):
        blob = np.random.default_rng(seed).bytes(2_000_000)
        run.publish(run.versions[-1].mutated(seed).with_file("blob", blob))
    steps = []
    for version in range(1, 9):
        commit = run.writer.reader.state.commits[version]
        assert commit.base is not None
        steps.append(PatchStep(version=version, base=commit.base, packs=commit.packs))
        for ref in commit.packs:
            (tmp_path / ref.digest).write_bytes(run.store.get(ref.key, limit_bytes=10**9))
    total = sum(path.stat().st_size for path in tmp_path.iterdir())
    load_packs(steps[:1], tmp_path, run.versions[0].layout)
    tracemalloc.start()
    try:
        loaded = load_packs(steps, tmp_path, run.versions[0].layout)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [step.base for step in steps] == [pack.base for pack in loaded]
    assert total > 16_000_000
    assert peak < 1_000_000
    print(f"{total} bytes in 8 packs, {peak} bytes of memory at most")


# Pages that cannot be read.


def test_a_page_that_cannot_be_read_is_damage_and_not_the_end_of_the_process(
    tmp_path: Path,
) -> None:
    """The end of a shard goes under its map, as a bad sector would."""
    version = random_snapshot(words=40_000)
    version.write(tmp_path)
    checkpoint = Checkpoint(tmp_path, version.layout)
    weights = digest_weights(version.layout, version.read)
    assert weight_differences(checkpoint, weights) == []
    assert checkpoint.hash_weights() == weights
    os.truncate(tmp_path / "model-00001-of-00003.safetensors", 4096)
    (line,) = {line for line in weight_differences(checkpoint, weights) if "embed" in line}
    assert line.endswith("tensor embed: leaf 0 cannot be read")
    assert checkpoint.hash_weights() != weights


@pytest.mark.parametrize("name", ["model-00002-of-00003.safetensors", "config.json"])
def test_a_file_that_the_disk_cannot_read_condemns_the_mirror(
    tmp_path: Path, run: Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = Mirror.open(tmp_path / "island")
    read, bad = os.preadv, mirror.directory / name

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        if os.path.samestat(os.fstat(fd), bad.stat()):
            raise OSError(errno.EIO, "Input/output error")
        return read(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    assert any(name in line for line in mirror.check())
    assert mirror.held is None
    mirror.close()


def test_leaves_hashed_on_many_threads_are_those_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = 12 * 1024 * 1024  # two leaves
    data = np.random.default_rng(1).integers(0, 256, 2 * words, np.uint8)
    version = random_snapshot().with_file(
        "z.safetensors", shard("z", {"w": ("F16", (words,), data)})
    )
    version.write(tmp_path)
    checkpoint = Checkpoint(tmp_path, version.layout)
    expected = digest_weights(version.layout, version.read)
    for cpus in (1, 3, 8):
        monkeypatch.setattr(hashing, "usable_cpus", lambda cpus=cpus: cpus)
        assert checkpoint.hash_weights() == expected
