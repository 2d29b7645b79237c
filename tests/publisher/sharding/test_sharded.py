"""Versions from several ranks are those of one process, byte for byte, or are not there at all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from skerry.bulletin.errors import StoreUnavailable
from skerry.bulletin.patience import Patience
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores import MemoryStore
from skerry.codec.digest import LEAF_BYTES
from skerry.island_agent.pull import pull
from skerry.publisher import Checkpoint, Publisher, PublisherConfig, ServedTensor
from skerry.publisher.audit import audit
from skerry.publisher.errors import PeerLost, RankFailed
from skerry.publisher.sharding import ShardedPublisher, ShardedReport, TensorPart
from tests.bulletin.faults import FaultyStore
from tests.publisher.samples import read_tree
from tests.publisher.sharding.world import Killed, ThreadFabric, on_ranks

SIDE_FILES = {"config.json": b"{}\n"}
CONFIG = PublisherConfig(anchor_versions=None, anchor_ratio=None, threads=1)
ONCE = Patience(limit_s=0.0)
Weights = Mapping[str, ServedTensor]


def model(step: int, *, rows: int = 7) -> dict[str, ServedTensor]:
    """Return a model that changes at every step, but for `frozen`."""
    rng = np.random.default_rng(0)
    weights = {
        "expert": rng.integers(0, 1 << 16, (4, 10), dtype=np.uint16),
        "frozen": rng.integers(0, 1 << 16, (rows, 40), dtype=np.uint16),
        "moving.0": rng.integers(0, 1 << 16, (rows, 30), dtype=np.uint16),
        "moving.1": rng.integers(0, 1 << 16, (3, 50), dtype=np.uint16),
        "replicated": rng.integers(0, 1 << 16, (64,), dtype=np.uint16),
    }
    for number in range(step):
        changes = np.random.default_rng(number + 1)
        for name in ("expert", "moving.0", "moving.1", "replicated"):
            flat = weights[name].reshape(-1)
            flat[changes.choice(flat.size, 5, replace=False)] ^= 1
    return {
        name: ServedTensor(dtype="BF16", shape=data.shape, data=data)
        for name, data in weights.items()
    }


def shard(weights: Weights, rank: int, size: int) -> list[TensorPart]:
    """Return a rank's rows, as FSDP cuts them: equal but for the last ranks, which may be empty."""
    parts = []
    for name, tensor in weights.items():
        rows = tensor.shape[0]
        each = -(-rows // size)
        width = tensor.data.nbytes // rows
        start, stop = min(rank * each, rows) * width, min((rank + 1) * each, rows) * width
        if name == "replicated" or (name == "expert" and rank == size - 1):
            start, stop = 0, tensor.data.nbytes
        elif name == "expert":
            start = stop = 0
        parts.append(
            TensorPart(
                name=name,
                dtype=tensor.dtype,
                shape=tensor.shape,
                start=start,
                data=tensor.raw[start:stop].copy(),
            )
        )
    return parts


def opened(
    fabric: ThreadFabric, store: ObjectStore, config: PublisherConfig = CONFIG
) -> ShardedPublisher:
    parts = shard(model(0), fabric.rank, fabric.size)
    return ShardedPublisher.open(fabric, store, parts, side_files=SIDE_FILES, config=config)


def train(
    store: ObjectStore, steps: Sequence[int], config: PublisherConfig = CONFIG
) -> Callable[[ThreadFabric], list[ShardedReport]]:
    def work(fabric: ThreadFabric) -> list[ShardedReport]:
        publisher = opened(fabric, store, config)
        return [
            publisher.publish(shard(model(step), fabric.rank, fabric.size), step=step)
            for step in steps
        ]

    return work


def steps_of(store: ObjectStore) -> list[int]:
    reader = BulletinReader(store)
    reader.refresh()
    return [commit.step for commit in reader.state.commits.values()]


def assert_versions_are_whole(store: ObjectStore, tmp_path: Path) -> list[int]:
    """Compare every version with the oracle: one process's layout of the gathered weights."""
    reader = BulletinReader(store)
    reader.refresh()
    assert list(audit(reader, deep=True)) == []
    run = len(list(tmp_path.iterdir()))
    for version, commit in reader.state.commits.items():
        if version in reader.state.abandoned:
            continue
        target = tmp_path / f"{run}-{version}"
        pull(reader, target, version)
        oracle = Checkpoint.from_arrays(model(commit.step), side_files=SIDE_FILES)
        files = {name: b"".join(oracle.file_chunks(name)) for name, _ in oracle.layout.files()}
        assert read_tree(target) == files
    return [commit.step for commit in reader.state.commits.values()]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_version_of_several_ranks_is_that_of_one_process(size: int, tmp_path: Path) -> None:
    store = MemoryStore()
    reports = on_ranks(size, train(store, range(4)))
    assert reports[1:] == reports[:-1]  # every rank is told the same
    assert [report.kind for report in reports[0]] == ["full", "patch", "patch", "patch"]
    assert assert_versions_are_whole(store, tmp_path) == [0, 1, 2, 3]
    alone = MemoryStore()
    publisher = Publisher.open(alone, config=CONFIG)
    for step, report in enumerate(reports[0]):
        expected = publisher.publish_arrays(model(step), step=step, side_files=SIDE_FILES)
        assert (report.digest, report.changed) == (expected.digest, expected.changed)
        commits = [BulletinReader(s) for s in (store, alone)]
        for reader in commits:
            reader.refresh()
        ours, theirs = (reader.state.commits[report.version] for reader in commits)
        assert ours.layout == theirs.layout
        manifests = [r.manifest(c.manifest) for r, c in zip(commits, (ours, theirs), strict=True)]
        assert manifests[0].leaves == manifests[1].leaves
        assert [(t.name, t.changed) for t in manifests[0].tensors] == [
            (t.name, t.changed) for t in manifests[1].tensors
        ]


def big(step: int) -> dict[str, ServedTensor]:
    """Return a tensor of two leaves and a half, one word of each changed at step 1."""
    data = np.zeros(5 * LEAF_BYTES // 4, np.uint16)
    if step:
        data[[3, LEAF_BYTES // 2, LEAF_BYTES]] = 1
    return {"big": ServedTensor(dtype="BF16", shape=data.shape, data=data)}


def test_each_rank_uploads_a_pack_of_its_own_leaves(tmp_path: Path) -> None:
    store = MemoryStore()
    sent: dict[int, int] = {}

    def work(fabric: ThreadFabric) -> list[ShardedReport]:
        parts = [shard_of_big(fabric, step) for step in (0, 1)]
        publisher = ShardedPublisher.open(fabric, store, parts[0], config=CONFIG)
        reports = [publisher.publish(part, step=step) for step, part in enumerate(parts)]
        sent[fabric.rank] = fabric.bytes_sent
        return reports

    def shard_of_big(fabric: ThreadFabric, step: int) -> list[TensorPart]:
        tensor = big(step)["big"]
        half = tensor.data.nbytes // 2
        part = tensor.raw[:half] if fabric.rank == 0 else tensor.raw[half:]
        return [
            TensorPart(
                name="big", dtype="BF16", shape=tensor.shape, start=fabric.rank * half, data=part
            )
        ]

    report = on_ranks(2, work)[0][1]
    assert (report.kind, report.changed) == ("patch", 3)
    assert min(report.pack_bytes) > 0
    assert sent == {0: 0, 1: 2 * 3 * LEAF_BYTES // 4}  # of the shared leaf, at both steps
    pull(BulletinReader(store), tmp_path / "v", 1)
    data = (tmp_path / "v" / "model.safetensors").read_bytes()
    assert data[-5 * LEAF_BYTES // 2 :] == big(1)["big"].raw.tobytes()


def test_a_rank_without_changes_uploads_nothing_and_frozen_weights_cost_nothing() -> None:
    def work(fabric: ThreadFabric) -> tuple[ShardedReport, ShardedReport]:
        publisher = opened(fabric, store)
        weights = model(0)
        publisher.publish(shard(weights, fabric.rank, fabric.size), step=0)
        same = publisher.publish(shard(weights, fabric.rank, fabric.size), step=1)
        moved = publisher.publish(shard(model(1), fabric.rank, fabric.size), step=2)
        return same, moved

    store = MemoryStore()
    same, moved = on_ranks(2, work)[0]
    assert (same.kind, same.changed, same.pack_bytes) == ("patch", 0, (0, 0))
    reader = BulletinReader(store)
    reader.refresh()
    assert len(list(store.list_after("packs/"))) == sum(size > 0 for size in moved.pack_bytes)
    tensors = reader.manifest(reader.state.commits[2].manifest).tensors
    assert [stat.name for stat in tensors] == [
        "expert",
        "moving.0",
        "moving.1",
        "replicated",
    ]
    # Held by both ranks, published by one: five changes, and not ten.
    assert tensors[3].changed == 5


class Countdown:
    """Kills one rank at its N-th call of the fabric or the store."""

    def __init__(self, rank: int, count: int) -> None:
        self.rank = rank
        self.left = count

    def __call__(self, rank: int) -> None:
        if rank == self.rank:
            self.left -= 1
            if self.left == 0:
                raise Killed


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_anywhere_leaves_whole_versions_and_a_lineage_to_go_on_from(
    victim: int, tmp_path: Path
) -> None:
    for count in itertools.count(1):
        inner = MemoryStore()
        dying = Countdown(victim, count)

        def work(
            fabric: ThreadFabric, inner: MemoryStore = inner, dying: Countdown = dying
        ) -> list[ShardedReport]:
            rank = fabric.rank
            store = FaultyStore(inner, before=lambda verb, key: dying(rank))
            return train(store, range(3))(fabric)

        results = on_ranks(2, work, dying)
        before = steps_of(inner)
        assert before == list(range(len(before)))
        if dying.left > 0:
            assert before == [0, 1, 2]
            return
        assert isinstance(results[victim], Killed)
        assert isinstance(results[1 - victim], PeerLost)

        def restarted(fabric: ThreadFabric, inner: MemoryStore = inner) -> bool:
            done = steps_of(inner)
            publisher = opened(fabric, inner)
            fabric.all_gather(None)  # every rank has looked before anyone publishes
            at_hand = bool(done) and publisher.resume(
                done[-1], shard(model(done[-1]), fabric.rank, 2)
            )
            parts = shard(model(len(done)), fabric.rank, 2)
            report = publisher.publish(parts, step=len(done))
            return at_hand == (report.kind == "patch") == bool(done)

        assert on_ranks(2, restarted) == [True, True]
        assert assert_versions_are_whole(inner, tmp_path) == list(range(len(before) + 1))


@pytest.mark.parametrize("prefix", ["full/", "packs/", "manifests/"])
def test_a_failed_upload_on_one_rank_fails_on_all_and_the_next_publish_works(
    prefix: str, tmp_path: Path
) -> None:
    inner = MemoryStore()
    broken: list[bool] = []

    def before(verb: str, key: str) -> None:
        if verb == "put" and key.startswith(prefix) and broken:
            broken.clear()
            raise StoreUnavailable(key, "is away")

    def work(fabric: ThreadFabric) -> tuple[str, ShardedReport]:
        publisher = opened(fabric, FaultyStore(inner, before=before))
        parts = [shard(model(step), fabric.rank, fabric.size) for step in range(2)]
        publisher.publish(parts[0], step=0)
        broken.append(True)
        fabric.all_gather(None)
        with pytest.raises(RankFailed, match="is away") as caught:
            publisher.publish(parts[1], step=1, force_full=prefix == "full/")
        return str(caught.value), publisher.publish(parts[1], step=1)

    results = on_ranks(3, work)
    assert len(set(results)) == 1  # every rank is told the same
    assert results[0][1].kind == "patch"  # against the parent, which all still have
    assert assert_versions_are_whole(inner, tmp_path) == [0, 1]


@pytest.mark.parametrize("arrived", [False, True])
def test_after_a_commit_of_unknown_outcome_the_next_patch_has_the_right_parent(
    arrived: bool, tmp_path: Path
) -> None:
    inner = MemoryStore()
    armed: list[bool] = []
    dark: list[bool] = []

    def before(verb: str, key: str) -> None:
        if dark or (armed and verb == "put_if_absent" and not arrived):
            dark.append(True)
            raise StoreUnavailable(key, "is away")

    def after(verb: str, key: str) -> None:
        if armed and verb == "put_if_absent":
            dark.append(True)
            raise StoreUnavailable(key, "the reply is lost")

    def work(fabric: ThreadFabric) -> ShardedReport:
        parts = [shard(model(step), fabric.rank, 2) for step in range(3)]
        store = FaultyStore(inner, before=before, after=after)
        publisher = ShardedPublisher.open(
            fabric, store, parts[0], side_files=SIDE_FILES, config=CONFIG, patience=ONCE
        )
        publisher.publish(parts[0], step=0)
        armed.append(True)
        fabric.all_gather(None)
        with pytest.raises(RankFailed, match="OutcomeUnknown"):
            publisher.publish(parts[1], step=1)
        armed.clear()
        dark.clear()
        fabric.all_gather(None)
        return publisher.publish(parts[2], step=2)

    report = on_ranks(2, work)[0]
    # Repeating the same bytes brings the record in, whether it had arrived or not.
    assert (report.kind, report.parent) == ("patch", 1)
    assert assert_versions_are_whole(inner, tmp_path) == [0, 1, 2]


def test_parts_that_are_no_whole_tensors_are_refused_on_every_rank() -> None:
    def work(fabric: ThreadFabric) -> None:
        ShardedPublisher.open(fabric, MemoryStore(), shard(model(0), fabric.rank, 3))

    for error in on_ranks(2, work):
        assert isinstance(error, RankFailed)
        assert "no rank holds bytes" in str(error)


def test_ranks_that_publish_different_steps_are_refused() -> None:
    store = MemoryStore()

    def work(fabric: ThreadFabric) -> None:
        publisher = opened(fabric, store)
        publisher.publish(shard(model(0), fabric.rank, 2), step=fabric.rank)

    for error in on_ranks(2, work):
        assert "the ranks publish different ones" in str(error)
    assert steps_of(store) == []


def test_a_restart_with_other_weights_than_the_versions_publishes_a_full_one(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    on_ranks(2, train(store, range(3)))

    def work(fabric: ThreadFabric) -> tuple[bool, ShardedReport]:
        publisher = opened(fabric, store)
        at_hand = publisher.resume(2, shard(model(1), fabric.rank, 2))
        return at_hand, publisher.publish(shard(model(3), fabric.rank, 2), step=3)

    at_hand, report = on_ranks(2, work)[0]
    assert (at_hand, report.kind, report.parent) == (False, "full", 2)
    assert assert_versions_are_whole(store, tmp_path) == [0, 1, 2, 3]


def test_a_restart_behind_the_newest_version_forks(tmp_path: Path) -> None:
    store = MemoryStore()
    on_ranks(2, train(store, range(4)))

    def work(fabric: ThreadFabric) -> ShardedReport:
        publisher = opened(fabric, store)
        assert publisher.resume(1, shard(model(1), fabric.rank, 2))
        return publisher.publish(shard(model(2), fabric.rank, 2), step=2)

    report = on_ranks(2, work)[0]
    assert (report.kind, report.parent, report.version) == ("patch", 1, 4)
    assert assert_versions_are_whole(store, tmp_path) == [0, 1, 2, 3, 2]
    reader = BulletinReader(store)
    reader.refresh()
    assert reader.state.abandoned == {2, 3}
