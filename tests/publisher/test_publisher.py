"""What a publish compares with, decides, proves and leaves behind."""

from __future__ import annotations

import errno
import itertools
import logging
import re
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from skerry.bulletin.errors import Fenced, StoreError, StoreUnavailable, VersionUnknown
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.records import Commit
from skerry.bulletin.signing import Signer
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores import LocalStore, MemoryStore
from skerry.codec.digest import Bytes
from skerry.codec.encode import EncodedPack
from skerry.codec.level import Level
from skerry.codec.tensors import TensorSpec
from skerry.island_agent.pull import pull
from skerry.publisher import (
    BaselineUnavailable,
    Checkpoint,
    CheckpointChanged,
    MemoryStorage,
    Publisher,
    PublisherConfig,
    ServedTensor,
    StateBusy,
    StateDirectory,
    StateUnsuitable,
    VerifyFailed,
)
from skerry.publisher.audit import audit
from skerry.publisher.baseline import rebuild
from skerry.publisher.draft import encode, prove
from skerry.publisher.patch_file import MeasuredCheckpoint
from tests.publisher.samples import edit_side_files, edit_weights, make, read_tree
from tests.publisher.stores import FailingPuts

Array = npt.NDArray[Any]
SPECIAL_BF16 = (  # 0, -0, smallest, largest subnormal, 1, -1, largest, inf, -inf, three NaNs
    0x0000, 0x8000, 0x0001, 0x007F, 0x3F80, 0xBF80, 0x7F7F, 0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFC1,
)  # fmt: skip


def bf16(bits: Array) -> ServedTensor:
    return ServedTensor(dtype="BF16", shape=bits.shape, data=bits.astype("<u2"))


def weights(seed: int = 0) -> dict[str, ServedTensor]:
    rng = np.random.default_rng(seed)
    return {"w": bf16(rng.integers(0, 1 << 16, (64, 64), dtype=np.uint16))}


def nudge(tensors: Mapping[str, ServedTensor], count: int, seed: int) -> dict[str, ServedTensor]:
    """Return the tensors with `count` elements of the first one changed."""
    name = next(iter(tensors))
    data = tensors[name].data.copy()
    chosen = np.random.default_rng(seed).choice(data.size, count, replace=False)
    data.reshape(-1)[chosen] ^= 1
    return {
        **tensors,
        name: ServedTensor(dtype=tensors[name].dtype, shape=data.shape, data=data),
    }


def assert_version(
    store: ObjectStore, version: int, tensors: Mapping[str, Any], tmp_path: Path
) -> None:
    target = tmp_path / f"pulled-{version}"
    pull(BulletinReader(store), target, version)
    expected = Checkpoint.from_arrays(tensors)
    files = {n: b"".join(expected.file_chunks(n)) for n, _ in expected.layout.files()}
    assert read_tree(target) == files


def commits(store: ObjectStore) -> dict[int, Commit]:
    reader = BulletinReader(store)
    reader.refresh()
    return dict(reader.state.commits)


def test_all_transitions_of_special_values_are_exact_and_counted_by_bits(tmp_path: Path) -> None:
    pairs = np.array(list(itertools.product(SPECIAL_BF16, repeat=2)), np.uint16)
    old, new = {"w": bf16(pairs[:, 0].copy())}, {"w": bf16(pairs[:, 1].copy())}
    store = MemoryStore()
    publisher = Publisher.open(store)
    publisher.publish_arrays(old, step=0)
    report = publisher.publish_arrays(new, step=1)
    assert (report.changed, report.elements) == (132, 144)
    assert_version(store, 1, new, tmp_path)


def test_no_dtype_is_cast(tmp_path: Path) -> None:
    """E-4."""
    tensors: dict[str, Any] = {
        **weights(),
        "router": np.array([1.0000001, -1.0000001], np.float32),
        "half": np.array([0.1, -0.0], np.float16),
        "count": np.array([2**53 + 1], np.int64),
    }
    store = MemoryStore()
    publisher = Publisher.open(store)
    publisher.publish_arrays(tensors, step=0)
    bits = tensors["router"].view(np.uint32) ^ np.array([1, 0x00FF], np.uint32)
    tensors = {**tensors, "router": bits.view(np.float32), "count": np.array([2**53 + 2])}
    report = publisher.publish_arrays(tensors, step=1)
    assert (report.kind, report.changed) == ("patch", 3)
    assert_version(store, 1, tensors, tmp_path)


@pytest.mark.parametrize("what", ["scale alone", "requantized block", "both scales"])
def test_fp8_weights_and_their_scales_switch_together(tmp_path: Path, what: str) -> None:
    """H-2."""
    rng = np.random.default_rng(3)

    def fp8(dtype: str, shape: tuple[int, ...]) -> ServedTensor:
        data = rng.integers(0, 256, shape, dtype=np.uint8)
        return ServedTensor(dtype=dtype, shape=shape, data=data)

    before: dict[str, Any] = {
        "a": fp8("F8_E4M3", (128, 128)),
        "a_scale_inv": np.array([[0.0123]], np.float32),
        "b": fp8("F8_E5M2", (32, 32)),
        "b_scale": fp8("F8_E8M0", (32, 1)),
        "marker": fp8("F8_E4M3", (0,)),
    }
    after = dict(before)
    if what != "requantized block":
        ulp = before["a_scale_inv"].view(np.uint32) + 1
        after["a_scale_inv"] = ulp.view(np.float32)
    if what == "both scales":
        after["b_scale"] = fp8("F8_E8M0", (32, 1))
    if what == "requantized block":
        after["a"], after["b"] = fp8("F8_E4M3", (128, 128)), fp8("F8_E5M2", (32, 32))
    store = MemoryStore()
    publisher = Publisher.open(store)
    publisher.publish_arrays(before, step=0)
    report = publisher.publish_arrays(after, step=1)
    assert report.changed == 1 or what != "scale alone"
    assert_version(store, 1, after, tmp_path)


def test_figures_count_all_elements_and_give_every_size() -> None:
    """M-2."""
    tensors = {
        "big": bf16(np.zeros((64, 8192), np.uint16)),
        "small": bf16(np.zeros(64, np.uint16)),
    }
    changed = {**tensors, "small": bf16(np.full(64, 0x3F80, np.uint16))}
    publisher = Publisher.open(MemoryStore())
    first = publisher.publish_arrays(tensors, step=0)
    assert (first.changed, first.share, first.bytes_per_changed) == (None, None, None)
    report = publisher.publish_arrays(changed, step=1)
    assert (report.changed, report.elements) == (64, 524_352)
    assert report.share == pytest.approx(1.2205e-4, rel=1e-3)
    assert report.raw_bytes == 128
    assert report.full_bytes > 2 * 524_352
    assert report.patch_bytes is not None
    assert report.bytes_per_changed == (report.patch_bytes + report.record_bytes) / 64


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: {**t, "x": bf16(np.zeros(3, np.uint16))}, "tensor x is new"),
        (lambda t: {"w": t["w"]}, "tensor head is gone"),
        (lambda t: {"w": t["w"], "lm_head": t["head"]}, "tensor head is gone"),
        (
            lambda t: {**t, "head": bf16(t["head"].data.reshape(6, 4))},
            r"head was BF16 \[4, 6\], is BF16 \[6, 4\]",
        ),
        (lambda t: {**t, "head": t["head"].data.view(np.float16)}, "head was BF16 .* is F16"),
        (lambda t: {**t, "head": bf16(np.zeros((5, 6), np.uint16))}, r"\[4, 6\], is BF16 \[5, 6\]"),
        (lambda t: {**t, "head": bf16(np.zeros((0, 6), np.uint16))}, r"is BF16 \[0, 6\]"),
    ],
)
def test_a_change_of_structure_becomes_a_full_version_that_says_why(
    tmp_path: Path, change: Any, said: str
) -> None:
    """H-1."""
    before = {**weights(), "head": bf16(np.arange(24, dtype=np.uint16).reshape(4, 6))}
    after = change(before)
    store = MemoryStore()
    publisher = Publisher.open(store)
    publisher.publish_arrays(before, step=0)
    report = publisher.publish_arrays(after, step=1)
    assert report.kind == "full"
    assert re.search(f"structure changed: .*{said}", report.reason)
    assert_version(store, 1, after, tmp_path)
    again = publisher.publish_arrays(nudge(after, 2, 1), step=2)
    assert (again.kind, again.changed) == ("patch", 2)
    assert_version(store, 2, nudge(after, 2, 1), tmp_path)


def test_a_patch_as_large_as_the_full_form_becomes_a_full_version(tmp_path: Path) -> None:
    store = MemoryStore()
    publisher = Publisher.open(store)
    publisher.publish_arrays({"x": np.zeros(4, np.uint8)}, step=0)
    tensors = {"x": np.arange(4, dtype=np.uint8)}
    side = {"vocab.json": np.random.default_rng(0).bytes(3000)}
    report = publisher.publish_arrays(tensors, step=1, side_files=side)
    assert (report.kind, report.patch_bytes) == ("full", None)
    assert "full form" in report.reason
    assert report.changed == 3
    assert commits(store)[1].base is None


def test_a_version_equal_to_its_parent_is_a_version_without_packs(tmp_path: Path) -> None:
    store = MemoryStore()
    publisher = Publisher.open(store)
    publisher.publish_arrays(weights(), step=0)
    report = publisher.publish_arrays(weights(), step=5)
    assert (report.version, report.kind, report.changed, report.patch_bytes) == (1, "patch", 0, 0)
    commit = commits(store)[1]
    assert commit.packs == ()
    assert commit.base == commit.result
    assert_version(store, 1, weights(), tmp_path)


def test_anchors_come_after_so_many_versions_and_carry_a_patch_too() -> None:
    store = MemoryStore()
    publisher = Publisher.open(store, config=PublisherConfig(anchor_versions=3))
    for step in range(8):
        publisher.publish_arrays(nudge(weights(), step, 0), step=step)
    found = commits(store)
    assert [v for v, commit in found.items() if commit.full is not None] == [0, 3, 6]
    assert found[3].base == found[2].result


def test_anchors_come_after_so_many_bytes() -> None:
    store = MemoryStore()
    config = PublisherConfig(anchor_versions=None, anchor_ratio=0.1)
    publisher = Publisher.open(store, config=config)
    tensors = weights()
    for step in range(30):
        publisher.publish_arrays(tensors, step=step)
        tensors = nudge(tensors, 100, step)
    full = [v for v, commit in commits(store).items() if commit.full is not None]
    assert 2 < len(full) < 20


def test_the_base_is_the_published_version_not_what_a_trainer_exported_again(
    tmp_path: Path,
) -> None:
    """A-5: the export of v0's tensors differs in one mantissa bit from what was published."""
    store = MemoryStore()
    Publisher.open(store).publish_arrays(weights(), step=0)
    exported = nudge(weights(), 1, seed=9)
    later = Publisher.open(store)
    report = later.publish_arrays(exported, step=1)
    assert report.changed == 1
    assert_version(store, 1, exported, tmp_path)


def test_the_base_never_moves_for_a_publish_that_failed(tmp_path: Path) -> None:
    """A-1: a change that was not published is in the next patch."""
    store = FailingPuts(MemoryStore())
    publisher = Publisher.open(store)
    publisher.publish_arrays(weights(), step=0)
    first = nudge(weights(), 5, seed=1)
    store.refused = {len(store.puts) + 1}
    with pytest.raises(StoreUnavailable):
        publisher.publish_arrays(first, step=1)
    second = nudge(first, 7, seed=2)
    report = publisher.publish_arrays(second, step=2)
    assert report.version == 1
    assert report.changed == np.count_nonzero(second["w"].data != weights()["w"].data)
    assert_version(store, 1, second, tmp_path)


def test_an_object_that_cannot_be_stored_is_named_and_leaves_no_record(tmp_path: Path) -> None:
    """B-5: any of the objects of a version; the same version then succeeds."""
    sample = make(5, sharded=True)
    directory = sample.write(tmp_path / "v0")
    counted = FailingPuts(MemoryStore())
    publisher = Publisher.open(counted)
    opened = len(counted.puts)
    publisher.publish(Checkpoint.scan(directory))
    assert len(counted.puts) - opened >= 3
    for number in range(opened + 1, len(counted.puts) + 1):
        store = FailingPuts(MemoryStore())
        publisher = Publisher.open(store)
        store.refused = {number}
        with pytest.raises(StoreError) as refusal:
            publisher.publish(Checkpoint.scan(directory))
        assert store.puts[-1] in str(refusal.value)
        assert commits(store) == {}
        report = publisher.publish(Checkpoint.scan(directory))
        assert report.version == 0
        reader = BulletinReader(store)
        reader.refresh()
        assert list(audit(reader, deep=True)) == []


def test_a_wrong_patch_is_refused_before_anything_is_uploaded() -> None:
    old, new = Checkpoint.from_arrays(weights(0)), Checkpoint.from_arrays(nudge(weights(0), 9, 1))
    other = Checkpoint.from_arrays(nudge(weights(0), 9, 2))
    base = MeasuredCheckpoint(old)
    measured = MeasuredCheckpoint(new).weights
    for digests in (
        MeasuredCheckpoint(other).weights,
        measured,
    ):  # its own, or those it should have
        encoded: EncodedPack = encode(base, other, digests)
        with pytest.raises(VerifyFailed):
            prove(encoded, base, new, measured)
    prove(encode(base, new, measured), base, new, measured)


def test_a_rollback_is_a_version_whose_parent_is_older(tmp_path: Path) -> None:
    store = MemoryStore()
    publisher = Publisher.open(store)
    states = [weights()]
    for step in range(4):
        publisher.publish_arrays(states[-1], step=step)
        states.append(nudge(states[-1], 3, step))
    fork = nudge(states[1], 4, 77)
    report = publisher.publish(Checkpoint.from_arrays(fork), parent=1)
    assert (report.version, report.parent, report.changed) == (4, 1, 4)
    assert_version(store, 4, fork, tmp_path)
    onwards = publisher.publish_arrays(nudge(fork, 2, 5), step=9)
    assert (onwards.parent, onwards.changed) == (4, 2)
    with pytest.raises(VersionUnknown):
        publisher.publish(Checkpoint.from_arrays(fork), parent=99)


def test_an_older_publisher_is_fenced_off_and_publishes_nothing() -> None:
    store = MemoryStore()
    older = Publisher.open(store)
    older.publish_arrays(weights(), step=0)
    newer = Publisher.open(store)
    with pytest.raises(Fenced):
        older.publish_arrays(nudge(weights(), 1, 1), step=1)
    assert newer.publish_arrays(nudge(weights(), 2, 2), step=1).changed == 2


def test_steps_go_on_by_themselves() -> None:
    publisher = Publisher.open(MemoryStore())
    checkpoint = Checkpoint.from_arrays(weights())
    assert publisher.publish(checkpoint).step == 0
    assert publisher.publish(checkpoint, step=40).step == 40
    assert publisher.publish(checkpoint).step == 41


def test_a_signed_run_goes_on_with_its_key() -> None:
    signer, store = Signer.generate(), MemoryStore()
    Publisher.open(store, signer=signer).publish_arrays(weights(), step=0)
    Publisher.open(store, signer=signer).publish_arrays(nudge(weights(), 1, 1), step=1)
    reader = BulletinReader(store, pinned_key=signer.public_key)
    reader.refresh()
    assert len(reader.state.commits) == 2


def test_a_parent_whose_objects_are_lost_takes_a_forced_full_version(tmp_path: Path) -> None:
    store = MemoryStore()
    publisher = Publisher.open(store)
    publisher.publish_arrays(weights(), step=0)
    full = commits(store)[0].full
    assert full is not None
    key = full.objects[0].key
    store.delete(key)
    store.put(key, [b"rot"])
    later = Publisher.open(store)
    with pytest.raises(BaselineUnavailable, match="version 0"):
        later.publish_arrays(weights(1), step=1)
    report = later.publish_arrays(weights(1), step=1, force_full=True)
    assert (report.kind, report.changed) == ("full", None)
    assert_version(store, 1, weights(1), tmp_path)
    assert later.publish_arrays(nudge(weights(1), 3, 1), step=2).changed == 3


def test_a_forced_full_version_carries_the_patch_too() -> None:
    store = MemoryStore()
    publisher = Publisher.open(store)
    publisher.publish_arrays(weights(), step=0)
    report = publisher.publish_arrays(nudge(weights(), 3, 1), step=1, force_full=True)
    assert (report.kind, report.reason, report.changed) == ("full", "forced", 3)
    assert commits(store)[1].packs


def test_a_checkpoint_that_changes_while_it_is_published_is_no_version(tmp_path: Path) -> None:
    sample = make(11, sharded=False)
    directory = sample.write(tmp_path / "model")
    store = MemoryStore()
    publisher = Publisher.open(store)

    def meddle(phase: str, done: int, total: int) -> None:
        if phase == "upload full":
            (directory / "config.json").write_bytes(b"other")

    with pytest.raises(CheckpointChanged, match=r"config\.json"):
        publisher.publish(Checkpoint.scan(directory), progress=meddle)
    assert commits(store) == {}


def test_a_state_directory_saves_fetching_and_is_believed_only_if_it_is_right(
    tmp_path: Path,
) -> None:
    samples = [make(21, sharded=True)]
    for number in range(4):
        samples.append(edit_weights(edit_side_files(samples[-1], number), number))
    store, state = MemoryStore(), tmp_path / "state"
    fetched: list[str] = []

    def publish(number: int) -> None:
        directory = samples[number].write(tmp_path / str(number))
        publisher = Publisher.open(store, storage=StateDirectory(state))
        publisher.publish(
            Checkpoint.scan(directory), progress=lambda phase, *_: fetched.append(phase)
        )

    publish(0)
    publish(1)
    assert "fetch base" not in fetched
    shard = next((state / "weights").glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    publish(2)
    assert "fetch base" in fetched
    fetched.clear()
    (state / "baseline.json").write_text("{}")
    publish(3)
    assert "fetch base" in fetched
    for version in range(4):
        pull(BulletinReader(store), tmp_path / f"pulled-{version}", version)
        assert read_tree(tmp_path / f"pulled-{version}") == samples[version].files()


def test_a_state_directory_of_an_older_version_is_led_forward(tmp_path: Path) -> None:
    store, state = MemoryStore(), tmp_path / "state"
    tensors = weights()
    Publisher.open(store, storage=StateDirectory(state)).publish_arrays(tensors, step=0)
    for step in (1, 2):
        tensors = nudge(tensors, 3, step)
        Publisher.open(store).publish_arrays(tensors, step=step)
    last = nudge(tensors, 4, 9)
    report = Publisher.open(store, storage=StateDirectory(state)).publish_arrays(last, step=3)
    assert report.changed == 4
    assert_version(store, 3, last, tmp_path)


def test_a_state_directory_serves_one_publisher_at_a_time(tmp_path: Path) -> None:
    held = StateDirectory(tmp_path / "state")
    with pytest.raises(StateBusy, match="another publisher"):
        StateDirectory(tmp_path / "state")
    held.close()
    StateDirectory(tmp_path / "state").close()


def test_an_abandoned_version_can_be_gone_on_from(tmp_path: Path) -> None:
    states = [nudge(weights(), n, n) for n in range(5)]
    store = MemoryStore()
    for number, parent in enumerate((None, 0, 0, 1, 3)):  # 1 is abandoned by 2, 2 by 3
        publisher = Publisher.open(store)  # with nothing in hand
        publisher.publish(Checkpoint.from_arrays(states[number]), parent=parent)
    publisher.publish(Checkpoint.from_arrays(states[2]), parent=2)
    reader = BulletinReader(store)
    reader.refresh()
    assert reader.state.abandoned == {1, 3, 4}
    assert [str(finding) for finding in audit(reader, deep=True)] == []
    assert_version(store, 5, states[2], tmp_path)


class FullDisk(MemoryStorage):
    """Storage on which a baseline can be allocated and, while `full`, not finished."""

    full = False

    def finish(self, version: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "no space left")


def test_what_happens_after_the_commit_does_not_undo_it(tmp_path: Path) -> None:
    states = [nudge(weights(), n, n) for n in range(4)]
    store, storage = MemoryStore(), FullDisk()
    publisher = Publisher.open(store, storage=storage)
    for step, state in enumerate(states):
        storage.full = step in (0, 2)
        report = publisher.publish_arrays(state, step=step)
        assert (report.version, report.step) == (step, step)
    for version, state in enumerate(states):
        assert_version(store, version, state, tmp_path)


class Shifting(Checkpoint):
    """A checkpoint whose weights change, with no trace left, once they are said to be unchanged."""

    shifted = False

    def read(self, spec: TensorSpec) -> Bytes:
        data = super().read(spec)
        return data ^ np.uint8(1) if self.shifted else data

    def check_unchanged(self) -> None:
        super().check_unchanged()
        self.shifted = True


@pytest.mark.parametrize("first", [True, False])
def test_a_baseline_is_never_what_was_not_published(tmp_path: Path, first: bool) -> None:
    states = [nudge(weights(), n, n) for n in range(3)]
    store = MemoryStore()
    publisher = Publisher.open(store)
    if not first:
        publisher.publish_arrays(states[0], step=0)
    shifting = Shifting.from_arrays(states[1])
    version = publisher.publish(shifting).version
    report = publisher.publish_arrays(states[2], step=9)
    assert report.kind == "patch"
    assert_version(store, version, states[1], tmp_path)
    assert_version(store, report.version, states[2], tmp_path)


def test_a_state_directory_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "model" / "weights" / "mine.bin"
    precious.parent.mkdir(parents=True)
    precious.write_bytes(b"x")
    with pytest.raises(StateUnsuitable, match="model"):
        StateDirectory(tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["weights"]
    (tmp_path / "empty").mkdir()
    for _ in range(2):
        StateDirectory(tmp_path / "empty").close()


def test_a_base_is_fetched_a_piece_at_a_time() -> None:
    rng = np.random.default_rng(0)
    tensors = {f"t{n}": bf16(rng.integers(0, 1 << 16, 8 << 20, dtype=np.uint16)) for n in range(4)}
    with TemporaryDirectory() as directory:  # 64 MiB in one shard
        store = LocalStore(Path(directory))
        Publisher.open(store).publish_arrays(tensors, step=0)
        del tensors
        reader = BulletinReader(store)
        reader.refresh()
        tracemalloc.start()
        try:
            base = rebuild(reader, 0, MemoryStorage())
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        held = sum(buffer.nbytes for buffer in base.buffers.values())
    assert peak - held < 24 << 20


class Trembling(Checkpoint):
    """A checkpoint whose weights are others at every look."""

    looks = 0

    def read(self, spec: TensorSpec) -> Bytes:
        self.looks += 1
        return super().read(spec) ^ np.uint8(self.looks & 7)


def test_weights_that_change_under_the_encoder_are_no_version() -> None:
    store = MemoryStore()
    publisher = Publisher.open(store)
    publisher.publish_arrays(weights(), step=0)
    with pytest.raises(VerifyFailed):
        publisher.publish(Trembling.from_arrays(weights(1)))
    assert list(commits(store)) == [0]


def test_the_encoder_hashes_nothing_and_so_reads_the_new_weights_once() -> None:
    base = MeasuredCheckpoint(Checkpoint.from_arrays(weights(0)))
    new = Checkpoint.from_arrays(weights(1))
    read: list[int] = []
    encode(
        base, new, MeasuredCheckpoint(new).weights, progress=lambda _, done, __: read.append(done)
    )
    assert read[-1] == sum(spec.nbytes for spec in new.layout.tensors)


@pytest.mark.parametrize("level", list(Level))
def test_a_stated_level_is_the_one_of_every_patch(tmp_path: Path, level: Level) -> None:
    store = MemoryStore()
    publisher = Publisher.open(store, config=PublisherConfig(level=level))
    first = publisher.publish_arrays(weights(), step=0)
    assert (first.level, first.level_reason) == (None, None)
    changed = nudge(weights(), 999, 1)
    report = publisher.publish_arrays(changed, step=1)
    assert (report.level, report.level_reason) == (level, "stated")
    assert_version(store, 1, changed, tmp_path)


def test_the_link_that_is_stated_decides_the_level_and_the_report_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = weights(), nudge(weights(), 50, 1)
    for mbit, level in ((1e7, Level.FAST), (0.01, Level.DEFAULT)):
        store = MemoryStore()
        publisher = Publisher.open(store, config=PublisherConfig(link_mbit=mbit))
        publisher.publish_arrays(old, step=0)
        with caplog.at_level(logging.INFO, logger="skerry.publisher.publisher"):
            report = publisher.publish_arrays(new, step=1)
        assert report.level is level
        assert report.level_reason is not None
        assert report.level_reason.endswith(f"at {mbit:.3g} Mbit/s, stated")
        assert f" level={level} " in caplog.messages[-1]
        assert_version(store, 1, new, tmp_path / level)


def test_a_link_is_known_once_something_large_was_uploaded() -> None:
    rng = np.random.default_rng(0)
    large = {"w": bf16(rng.integers(0, 1 << 16, 1 << 20, dtype=np.uint16))}
    for tensors, known in ((weights(), False), (large, True)):
        publisher = Publisher.open(MemoryStore())
        publisher.publish_arrays(tensors, step=0)
        report = publisher.publish_arrays(nudge(tensors, 9, 1), step=1)
        assert report.level_reason is not None
        assert report.level_reason.endswith("measured") == known


def test_a_link_without_a_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="link_mbit"):
        PublisherConfig(link_mbit=0.0)
