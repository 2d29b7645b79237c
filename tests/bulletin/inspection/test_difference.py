"""What statistics say of a difference, against the weights themselves."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.bulletin.errors import RecordInvalid
from skerry.bulletin.inspection.described import Described
from skerry.bulletin.inspection.descriptions import Descriptions
from skerry.bulletin.inspection.details import sizes
from skerry.bulletin.inspection.difference import difference, tensor_differences
from skerry.bulletin.inspection.rows import version_row
from skerry.bulletin.inspection.table import TensorTable
from skerry.bulletin.inspection.ways import catch_up
from skerry.bulletin.manifest import Manifest
from skerry.bulletin.stores.memory import MemoryStore
from skerry.codec.layout import Layout
from skerry.codec.tensors import TensorStat
from skerry.publisher import Publisher
from tests.bulletin.inspection.views import view_at, view_of
from tests.bulletin.log_builder import LogBuilder
from tests.bulletin.random_logs import logs
from tests.island_agent.runs import Run, Snapshot, random_snapshot


def changed_words(old: Snapshot, new: Snapshot) -> Mapping[str, int]:
    return {
        spec.name: int(np.count_nonzero(spec.view(old.read(spec)) != spec.view(new.read(spec))))
        for spec in new.layout.tensors
    }


@settings(max_examples=15)
@given(st.integers(0, 2**32))
def test_the_true_difference_is_at_most_what_is_said_and_exact_where_it_says_so(seed: int) -> None:
    rng = random.Random(seed)
    run = Run()
    run.publish(random_snapshot(seed, 200))
    for _ in range(5):
        parent = rng.randrange(len(run.versions))
        old = run.versions[parent]
        reverts = rng.random() < 0.3
        new = run.versions[0] if reverts else old.mutated(rng.randrange(2**32), 0.05)
        run.publish(new, parent=parent)
    view, read = view_at(run.store), Descriptions(run.store)
    for a in range(6):
        for b in range(6):
            truth = changed_words(run.versions[a], run.versions[b])
            found = difference(view, a, b)
            assert sum(truth.values()) <= found.at_most
            if found.exact:
                assert sum(truth.values()) == found.at_most
            needed = {a, b, *(found.compared or ())}
            described = {v: read.of(view.commit(v)) for v in needed}
            rows = tensor_differences(found, described, limit=1000).tensors
            said = {row.name: row.at_most for row in rows}
            assert all(count <= said.get(name, 0) for name, count in truth.items())


def test_a_version_and_its_parent_differ_exactly_and_nothing_differs_from_itself() -> None:
    view = view_of(LogBuilder.with_versions(4))
    assert difference(view, 1, 2).exact
    assert difference(view, 2, 1).exact
    assert difference(view, 1, 2).at_most == 3
    assert difference(view, 1, 3).at_most == 6
    assert not difference(view, 1, 3).exact
    assert difference(view, 3, 3).at_most == 0


def test_the_way_over_a_rollback_is_up_and_down() -> None:
    log = LogBuilder.with_versions(4)
    log.append(log.patch(parent=1))
    assert difference(view_of(log), 3, 4).compared == [3, 2, 4]


def test_what_nobody_compared_may_differ_everywhere() -> None:
    log = LogBuilder.with_versions(2)
    log.append(log.full(parent=1))
    log.append(log.full(parent=None))
    view = view_of(log)
    found = difference(view, 0, 2)
    assert (found.uncompared, found.at_most, found.exact) == ([2], 10, False)
    apart = difference(view, 0, 3)
    assert (apart.compared, apart.at_most) == (None, 10)


@given(logs())
def test_catching_up_costs_the_sum_of_its_steps_or_says_why_not(log: LogBuilder) -> None:
    view = view_of(log)
    for want in log.state.commits:
        for have in (None, *log.state.commits):
            found = catch_up(view, have=have, want=want)
            assert found.reachable == (found.why is None)
            assert found.total_bytes == sum(step.step_bytes for step in found.steps)
            if found.steps:
                assert found.steps[-1].version == want


def test_sizes_are_given_raw_patched_and_full_with_the_share_over_all_elements() -> None:
    """Case M-2: 64 of 524,352 elements."""
    store = MemoryStore()
    publisher = Publisher.open(store)
    weights = {
        "w": np.linspace(1, 2, 524_288, dtype=np.float16),
        "frozen": np.ones(64, np.float16),
    }
    publisher.publish_arrays(weights, step=0)
    weights = {**weights, "w": weights["w"].copy()}
    weights["w"][:64] = 3.0
    publisher.publish_arrays(weights, step=1)
    view = view_at(store)
    row = version_row(view, 1)
    assert (row.changed, row.elements) == (64, 524_352)
    assert row.share == pytest.approx(1.2205e-4, rel=1e-3)
    commit = view.commit(1)
    found = sizes(commit, Descriptions(store).of(commit))
    assert found.raw_bytes == 128
    assert row.patch_bytes == sum(pack.size for pack in commit.packs)
    assert found.full_bytes == row.full_bytes == view.commit(0).nbytes
    assert row.ratio == pytest.approx(found.full_bytes / (row.patch_bytes + row.record_bytes))


@pytest.mark.parametrize(
    ("stat", "rule"),
    [
        (TensorStat(name="other", changed=1, words=9, nbytes=1), "which the layout lacks"),
        (TensorStat(name="embed", changed=1, words=9, nbytes=1), "words, not 9"),
    ],
)
def test_a_manifest_that_does_not_fit_its_layout_is_refused(stat: TensorStat, rule: str) -> None:
    layout = random_snapshot(0, 200).layout
    manifest = Manifest(layout=layout.digest(), tensors=(stat,))
    commit = LogBuilder.with_versions(2).state.commits[1]
    commit = replace(commit, layout=layout.digest())
    with pytest.raises(RecordInvalid, match=rule):
        Described.of(commit, TensorTable(layout), manifest)
    with pytest.raises(RecordInvalid, match="another layout"):
        Described.of(commit, TensorTable(layout), Manifest(layout=Layout(shards=()).digest()))
