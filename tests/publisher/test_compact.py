"""Skip patches: equal to the direct patch, proven, along one line, and only where they save."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from skerry.bulletin.errors import CommitConflict
from skerry.bulletin.lineage import plan
from skerry.bulletin.records import ObjectRef
from skerry.bulletin.retention import KeepRules
from skerry.bulletin.stores import MemoryStore, open_store
from skerry.codec.encode import encode_pack
from skerry.codec.fold import fold_packs
from skerry.island_agent.pull import pull
from skerry.publisher import Publisher, compact
from skerry.publisher.audit import audit
from skerry.publisher.collect import Collector
from skerry.publisher.compact import Compactor, Skipped
from skerry.publisher.errors import VerifyFailed
from skerry.publisher.storage import MemoryStorage, StateDirectory
from skerry.publisher.survey import RetentionPolicy
from tests.island_agent.runs import Run, assert_is, make_run


def climb(run: Run) -> list[Skipped]:
    compactor = Compactor(run.writer, MemoryStorage())
    made = [compactor.make(*pair) for pair in compactor.missing()]
    return [skipped for skipped in made if skipped is not None]


def test_a_skip_is_the_direct_patch_byte_for_byte() -> None:
    run = make_run(8)
    made = climb(run)
    assert {(s.base, s.version) for s in made} == {
        (0, 2), (2, 4), (4, 6), (6, 8), (0, 4), (4, 8), (0, 8),
    }  # fmt: skip
    reader = run.reader()
    reader.refresh()
    for skip in reader.state.skips:
        old, new = run.versions[skip.base_version], run.versions[skip.version]
        direct = encode_pack(old.layout, old.read, new.read, base=old.weights)
        (ref,) = skip.packs
        assert reader.read(ref) == direct.data
    assert list(audit(reader, deep=True)) == []


def test_a_skip_saves_bytes_and_steps_and_says_how_many() -> None:
    run = make_run(8)
    for skipped in climb(run):
        assert skipped.nbytes < skipped.before_bytes
        assert skipped.before_steps >= 2
    assert [s.version for s in plan(run.writer.reader.state, have=0, want=8)] == [8]


def test_a_skip_carries_the_side_files_that_differ_and_no_others(tmp_path: Path) -> None:
    run = make_run(1)
    run.publish(run.versions[-1].mutated(5).with_file("config.json", b'{"a": 1}'))
    run.publish(run.versions[-1].mutated(6).with_file("extra.txt", b"x" * 100))
    run.publish(run.versions[-1].mutated(7).with_file("extra.txt", None))
    climb(run)
    reader = run.reader()
    reader.refresh()
    for version in (2, 4):
        pull(reader, tmp_path / str(version), version)
        assert_is(tmp_path / str(version), run.versions[version])
    assert list(audit(reader, deep=True)) == []


def test_what_saves_nothing_is_not_made_and_not_tried_again() -> None:
    publisher = Publisher.open(MemoryStore())
    for scale in (1, 2, 2):  # the last one has no packs: there is nothing to save over 0 -> 1
        publisher.publish_arrays({"w": np.full(300, scale, np.float16)}, step=0)
    compactor = Compactor(publisher.writer, MemoryStorage())
    assert compactor.missing() == [(0, 2)]
    assert compactor.make(0, 2) is None
    assert compactor.missing() == []
    assert list(publisher.reader.state.skips) == []


def test_each_fork_gets_a_ladder_and_they_share_what_they_have_in_common() -> None:
    run = make_run(5)
    run.publish(run.versions[2].mutated(99), parent=2)
    run.publish(run.versions[6].mutated(98), parent=6)
    assert {(s.base, s.version) for s in climb(run)} == {(0, 2), (2, 7), (0, 7)}
    reader = run.reader()
    reader.refresh()
    assert list(audit(reader, deep=True)) == []


def test_a_retired_version_can_be_the_base_while_it_is_a_link(tmp_path: Path) -> None:
    run = make_run(6)
    climb(run)
    rules = KeepRules(last=1, pinned=frozenset({1}))
    gc = Collector(run.writer, RetentionPolicy(rules=rules, grace_s=0))
    gc.retire()
    gc.sweep()
    run.extend(2)
    made = climb(run)
    assert (4, 8) in {(s.base, s.version) for s in made}
    assert 4 in run.writer.reader.state.retired
    reader = run.reader()
    reader.refresh()
    pull(reader, tmp_path / "new", 8)
    assert_is(tmp_path / "new", run.versions[8])
    steps = plan(reader.state, have=1, want=8)
    assert len(steps) <= 2 * math.ceil(math.log2(8))


def test_a_skip_that_does_not_give_the_weights_is_never_appended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = make_run(2)

    def fold_the_first_only(layout, packs, base, **settings):  # type: ignore[no-untyped-def]
        return fold_packs(layout, packs[:1], base, **settings)

    monkeypatch.setattr(compact, "fold_packs", fold_the_first_only)
    with pytest.raises(VerifyFailed):
        climb(run)
    assert run.writer.reader.state.skips[:] == ()


def test_a_state_directory_keeps_the_base_from_one_run_to_the_next(tmp_path: Path) -> None:
    run = make_run(4, store=open_store(str(tmp_path / "bulletin")))
    storage = StateDirectory(tmp_path / "state")
    compactor = Compactor(run.writer, storage)
    assert compactor.make(0, 2) is not None
    assert compactor.make(2, 4) is not None
    assert storage.kept() == 2
    storage.close()
    again = Compactor(run.writer, StateDirectory(tmp_path / "state"))
    assert again.missing() == [(0, 4)]
    assert again.make(0, 4) is not None


def test_a_skip_is_not_appended_once_its_pack_was_retired() -> None:
    run = make_run(2)
    (skipped,) = climb(run)
    (ref,) = run.writer.reader.state.skips[0].packs
    assert isinstance(ref, ObjectRef)
    run.writer.retire(names=[ref.key], grace_s=0)
    compactor = Compactor(run.writer, MemoryStorage())
    assert compactor.make(skipped.base, skipped.version) is None
    with pytest.raises(CommitConflict):
        run.writer.skip(base_version=0, version=2, packs=(ref,))
