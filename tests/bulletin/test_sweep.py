"""Which objects may go: verdicts for every key there can be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.bulletin import keys
from skerry.bulletin.records import Retire
from skerry.bulletin.retention import object_sizes
from skerry.bulletin.state import LogState, Retirement
from skerry.bulletin.sweep import Leased, Sweep, Verdict
from tests.bulletin.log_builder import LogBuilder, digest
from tests.bulletin.test_lineage import fork_logs


def sweep(
    state: LogState,
    *,
    elapsed: float = 0.0,
    leased: Leased = Leased(),  # noqa: B008  (frozen)
    epoch: int | None = None,
) -> Sweep:
    def passed(gone: Retirement) -> float:
        return elapsed

    return Sweep.of(
        state,
        epoch=state.epoch if epoch is None else epoch,
        elapsed=passed,
        leased=leased,
        lease_limit_s=100.0,
    )


@given(fork_logs(), st.floats(0, 500), st.integers(0, 300))
def test_what_a_record_names_goes_only_after_its_grace(
    log: LogBuilder, elapsed: float, grace_s: int
) -> None:
    before = log.state.retired_keys
    fresh = sorted(object_sizes(log.state).keys() - before)[:2]
    if fresh:
        log.append(Retire(versions=(), keys=tuple(fresh), grace_s=grace_s))
    found = sweep(log.state, elapsed=elapsed)
    for name in object_sizes(log.state):
        key = name if name.startswith("packs/") else f"{name}/model.safetensors"
        if name in fresh:
            expected = Verdict.DELETE if elapsed >= grace_s else Verdict.WAIT
        else:
            expected = Verdict.DELETE if name in before else Verdict.KEEP
        assert found.verdict(key) is expected


@pytest.mark.parametrize(
    "key",
    [
        "log/00000000000000000001.json",
        "log/junk",
        "checkpoints/00000000000000000256.json",
        "hint/latest.json",
        "islands/eu-1.json",
        "packs/junk",
        "packs/00000001/xyz",
        "full/junk/model.safetensors",
        "anything/else",
    ],
)
def test_records_and_what_is_not_ours_always_stay(key: str) -> None:
    assert sweep(LogBuilder.with_versions(3).state, elapsed=1e9, epoch=9).verdict(key) is (
        Verdict.KEEP
    )


def test_an_orphan_goes_only_when_its_epoch_is_over() -> None:
    state = LogBuilder.with_versions(3).state
    pack, full = keys.pack(1, digest("orphan")), keys.full_prefix(1, "ab" * 16) + "/a/b.txt"
    for key in (pack, full):
        assert sweep(state).verdict(key) is Verdict.KEEP  # perhaps of the next record
        assert sweep(state, epoch=2).verdict(key) is Verdict.DELETE
    assert sweep(state, epoch=2).verdict(state.commits[1].packs[0].key) is Verdict.KEEP


def test_a_lease_puts_deletion_off_by_its_limit_and_no_more() -> None:
    log = LogBuilder.with_versions(3)
    key = log.state.commits[1].packs[0].key
    log.append(Retire(versions=(1,), keys=(key,), grace_s=10))
    leased = Leased(keys=frozenset({key}), versions=frozenset({1}))
    manifest = keys.manifest(log.state.commits[1].manifest)
    for elapsed, with_lease, without in (
        (9.0, False, False),
        (10.0, False, True),
        (109.0, False, True),
        (110.0, True, True),
    ):
        for lease, gone in ((leased, with_lease), (Leased(), without)):
            found = sweep(log.state, elapsed=elapsed, leased=lease)
            assert (found.verdict(key) is Verdict.DELETE) == gone
            assert (found.verdict(manifest) is Verdict.DELETE) == gone


def test_a_key_that_was_retired_twice_waits_for_both() -> None:
    log = LogBuilder.with_versions(3)
    key = log.state.commits[1].packs[0].key
    log.append(Retire(versions=(), keys=(key,), grace_s=10))
    log.append(Retire(versions=(), keys=(key,), grace_s=20))
    assert sweep(log.state, elapsed=15).verdict(key) is Verdict.WAIT
    assert sweep(log.state, elapsed=20).verdict(key) is Verdict.DELETE


def test_a_shared_layout_stays_while_any_version_or_link_names_it() -> None:
    log = LogBuilder.with_versions(2)
    log.append(log.patch(parent=1, layout=digest("layout 2")))
    log.append(log.patch(parent=2, layout=digest("layout 3")))
    link, other = keys.layout(digest("layout 2")), keys.layout(digest("layout"))
    log.append(Retire(versions=(2,), keys=(), grace_s=0))
    assert sweep(log.state, elapsed=1).verdict(link) is Verdict.KEEP  # 1 -> 2 -> 3 is a way
    names = (log.state.commits[2].packs[0].key, log.state.commits[3].packs[0].key)
    log.append(Retire(versions=(), keys=tuple(sorted(names)), grace_s=0))
    assert sweep(log.state, elapsed=1).verdict(link) is Verdict.DELETE
    assert sweep(log.state, elapsed=1).verdict(other) is Verdict.KEEP
