"""The exact difference of two versions, against the weights themselves."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.bulletin.errors import NoPath, VersionUnknown
from skerry.bulletin.inspection.difference import difference
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.stores import LocalStore
from skerry.codec.errors import CodecError, ResultMismatch
from skerry.island_agent.errors import FetchError, LeavesUnknown, MirrorDamaged, Stopped
from skerry.island_agent.exact import ExactDifference, exact_difference
from tests.bulletin.faults import FaultyStore
from tests.bulletin.inspection.views import view_at
from tests.island_agent.crash import follow
from tests.island_agent.runs import Run, Snapshot, make_run, random_snapshot


def reader_of(run: Run) -> BulletinReader:
    reader = run.reader()
    reader.refresh()
    return reader


def exact(run: Run, old: int, new: int, mirror: Path | None = None) -> ExactDifference:
    with TemporaryDirectory() as scratch:
        return exact_difference(reader_of(run), old, new, Path(scratch), mirror=mirror)


def truth(old: Snapshot, new: Snapshot) -> Mapping[str, int]:
    """Return how many words of each tensor that both have differ; none where none do."""
    specs = {spec.name: spec for spec in old.layout.tensors}
    counts = {
        spec.name: int(
            np.count_nonzero(spec.view(old.read(specs[spec.name])) != spec.view(new.read(spec)))
        )
        for spec in new.layout.tensors
        if spec.name in specs and specs[spec.name].shape == spec.shape
    }
    return {name: count for name, count in counts.items() if count}


def said(found: ExactDifference) -> Mapping[str, int]:
    return {tensor.name: tensor.changed for tensor in found.tensors}


@settings(max_examples=10)
@given(st.integers(0, 2**32), st.booleans())
def test_it_is_the_difference_of_the_weights_over_rollbacks_and_reverts(
    seed: int, lists_leaves: bool
) -> None:
    rng = random.Random(seed)
    run = Run(lists_leaves=lists_leaves)
    run.publish(random_snapshot(seed, 200))
    for _ in range(4):
        parent = rng.randrange(len(run.versions))
        old = run.versions[parent]
        reverts = rng.random() < 0.4
        new = run.versions[0] if reverts else old.mutated(rng.randrange(2**32), 0.05)
        run.publish(new, parent=parent, full=rng.random() < 0.3)
    view = view_at(run.store)
    for a in range(5):
        for b in range(5):
            found = exact(run, a, b)
            assert said(found) == truth(run.versions[a], run.versions[b])
            assert found.changed == sum(said(found).values()) <= difference(view, a, b).at_most
            assert found.old_weights == run.versions[a].weights
            assert found.new_weights == run.versions[b].weights


def test_a_tensor_of_several_leaves_is_compared_whole_and_leaves_that_are_the_same_not_at_all() -> (
    None
):
    run = Run(lists_leaves=True)
    run.publish(random_snapshot(words=12_000_000))  # the embedding has two leaves
    run.publish(run.versions[0].with_words("embed", {5: 1, 11_000_000: 2}))
    run.publish(run.versions[1].with_words("embed", {11_000_000: 3, 11_000_001: 4}))
    assert said(exact(run, 0, 2)) == truth(run.versions[0], run.versions[2]) == {"embed": 3}
    found = exact(run, 1, 2)
    assert said(found) == {"embed": 2}
    packs = sum(run.writer.reader.state.commits[v].packs[0].size for v in (1, 2))
    assert found.fetched_bytes == packs + 24_000_000 - (16 << 20)  # one leaf of the full


def other_structure(run: Run) -> None:
    snapshot = random_snapshot(7, 400)
    assert snapshot.layout.tensors != run.versions[-1].layout.tensors
    run.publish(snapshot)


def test_of_other_tensors_those_that_both_have_are_compared_and_the_others_named() -> None:
    run = Run(lists_leaves=True)
    run.publish(random_snapshot(7, 200))
    other_structure(run)
    found = exact(run, 0, 1)
    assert said(found) == truth(run.versions[0], run.versions[1])
    assert found.only_old == found.only_new == ("embed", "head")  # of another shape


def test_other_tensors_whose_leaves_nobody_states_are_refused_in_words() -> None:
    run = make_run(words=200)
    other_structure(run)
    with pytest.raises(LeavesUnknown, match="versions 0 and 1 have other tensors"):
        exact(run, 0, 1)


@pytest.fixture(name="stored")
def stored_run(tmp_path: Path) -> Run:
    return make_run(4, store=LocalStore(tmp_path / "store"))


def island(run: Run, version: int, tmp_path: Path) -> Path:
    asyncio.run(follow(tmp_path / "store", tmp_path / "island", version))
    return tmp_path / "island"


@pytest.mark.parametrize(("held", "old", "new"), [(0, 1, 3), (1, 1, 4), (4, 0, 4), (2, 4, 2)])
def test_an_island_that_holds_weights_reads_less(
    tmp_path: Path, stored: Run, held: int, old: int, new: int
) -> None:
    found = exact(stored, old, new, island(stored, held, tmp_path))
    alone = exact(stored, old, new)
    assert said(found) == said(alone) == truth(stored.versions[old], stored.versions[new])
    assert found.from_mirror
    assert not alone.from_mirror
    assert found.fetched_bytes < alone.fetched_bytes


def test_a_mirror_that_moves_on_meanwhile_is_done_without(tmp_path: Path, stored: Run) -> None:
    mirror = island(stored, 0, tmp_path)
    moved: list[int] = []

    def before(verb: str, key: str) -> None:
        if key.startswith("packs/") and not moved:
            moved.append(1)
            island(stored, 2, tmp_path)

    reader = reader_of(stored)
    reader.store = FaultyStore(reader.store, before=before)
    found = exact_difference(reader, 1, 3, tmp_path / "scratch", mirror=mirror)
    assert moved
    assert said(found) == truth(stored.versions[1], stored.versions[3])
    assert not found.from_mirror


def test_a_mirror_with_other_bytes_than_it_says_is_named(tmp_path: Path, stored: Run) -> None:
    mirror = island(stored, 0, tmp_path)
    file = next((mirror / "mirror").glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(MirrorDamaged, match="is not version 0"):
        exact(stored, 0, 3, mirror)


def test_objects_that_are_gone_or_other_than_the_log_says_give_no_answer(
    tmp_path: Path, stored: Run
) -> None:
    commits = stored.writer.reader.state.commits
    full = commits[0].full
    assert full is not None
    for ref in full.objects:
        if ref.key.endswith(".safetensors"):
            stored.store.delete(ref.key)
            stored.store.put(ref.key, [bytes(ref.size)])
    with pytest.raises((ResultMismatch, CodecError)):
        exact(stored, 1, 2)
    stored.store.delete(commits[2].packs[0].key)
    with pytest.raises(FetchError, match=commits[2].packs[0].key):
        exact(stored, 1, 2)


def test_what_is_not_there_or_cannot_be_reached_is_said(stored: Run) -> None:
    with pytest.raises(VersionUnknown):
        exact(stored, 1, 99)
    assert exact(stored, 1, 1).changed == 0
    run = make_run(2, words=200)
    full = run.writer.reader.state.commits[0].full
    assert full is not None
    run.writer.retire(names=(full.prefix,), grace_s=0)
    with pytest.raises(NoPath):
        exact(run, 1, 2)


def test_whoever_does_not_want_it_any_more_ends_it(tmp_path: Path, stored: Run) -> None:
    stop = threading.Event()

    def progress(phase: str, done: int, total: int) -> None:
        stop.set()

    with pytest.raises(Stopped):
        exact_difference(
            reader_of(stored), 0, 3, tmp_path / "scratch", progress=progress, stop=stop
        )
