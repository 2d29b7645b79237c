"""The state of a log: what it says, and what it refuses to believe."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.bulletin import keys
from skerry.bulletin.errors import BulletinError, RecordInvalid, Tampered, UntrustedKey
from skerry.bulletin.records import Commit, Fence, Record, Retire, Rotate
from skerry.bulletin.state import LogState
from skerry.codec.digest import digest_bytes
from tests.bulletin.log_builder import OTHER_SIGNER, SIGNER, LogBuilder, digest
from tests.bulletin.random_logs import logs


def replay(slots: list[bytes]) -> LogState:
    state = LogState()
    for data in slots:
        state = state.apply(data)
    return state


@given(logs())
def test_a_log_read_again_says_the_same(log: LogBuilder) -> None:
    state, again = log.state, replay(log.slots)
    for name in ("seq", "head", "epoch", "writer", "key", "newest", "abandoned", "retired"):
        assert getattr(again, name) == getattr(state, name)
    assert dict(again.commits) == dict(state.commits)
    assert list(again.skips) == list(state.skips)
    assert again.retired_keys == state.retired_keys
    assert again.run == state.run == digest_bytes(log.slots[0])
    assert [gone.body.keys for gone in again.retirements] == [
        record.body.keys for record in log.records if isinstance(record.body, Retire)
    ]


@given(logs())
def test_earlier_states_stay_as_they_were(log: LogBuilder) -> None:
    for length, state in enumerate(log.states):
        assert length == state.seq + 1
        assert dict(state.commits) == dict(replay(log.slots[:length]).commits)


@given(logs())
def test_abandoned_are_exactly_the_versions_that_the_newest_does_not_descend_from(
    log: LogBuilder,
) -> None:
    for state in log.states:
        ancestors = set()
        version = None if state.newest is None else state.newest.version
        while version is not None:
            ancestors.add(version)
            version = state.commits[version].parent
        assert state.abandoned == set(state.commits) - ancestors


@given(logs())
def test_versions_and_epochs_are_dense(log: LogBuilder) -> None:
    bodies = [record.body for record in log.records]
    versions = [body.version for body in bodies if isinstance(body, Commit)]
    assert versions == list(range(len(versions))) == list(log.state.commits)
    fences = [r.epoch for r in log.records if isinstance(r.body, Fence)]
    assert fences == list(range(1, len(fences) + 1))


@given(logs(), st.data())
@settings(max_examples=50)
def test_a_record_is_refused_anywhere_but_in_its_own_slot(
    log: LogBuilder, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(log.slots)))
    for slot, record in enumerate(log.slots):
        if slot != at:
            with pytest.raises(BulletinError):
                log.states[at].apply(record)


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_every_flipped_byte_of_a_signed_record_is_refused(slot: int) -> None:
    log = LogBuilder.with_versions(2)
    state, data = log.states[slot], log.slots[slot]
    state.apply(data)
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            with pytest.raises((RecordInvalid, Tampered)):
                state.apply(bytes(flipped))


def test_every_cut_of_a_record_is_refused() -> None:
    log = LogBuilder.with_versions(1)
    for length in range(len(log.slots[1])):
        with pytest.raises(RecordInvalid):
            log.states[1].apply(log.slots[1][:length])


def test_the_first_record_must_be_a_fence_of_epoch_one() -> None:
    log = LogBuilder()
    with pytest.raises(RecordInvalid, match="expected a fence in slot 0"):
        log.append(log.full(parent=None), epoch=1)
    with pytest.raises(RecordInvalid, match="expected epoch 1"):
        log.append(log.fence(), epoch=2)
    with pytest.raises(Tampered, match="prev"):
        log.append(log.fence(), prev=digest("something"))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"seq": 9}, "seq"),
        ({"seq": 2}, "seq"),
        ({"prev": None}, "prev"),
        ({"prev": digest("fork")}, "prev"),
    ],
)
def test_a_record_that_does_not_continue_the_chain_is_tampering(
    changes: dict[str, object], rule: str
) -> None:
    log = LogBuilder.with_versions(2)
    with pytest.raises(Tampered, match=rule):
        log.append(log.patch(parent=1), **changes)


@pytest.mark.parametrize("epoch", [1, 3, 4])
def test_a_record_of_another_epoch_than_the_newest_is_refused(epoch: int) -> None:
    log = LogBuilder.with_versions(1)
    log.append(log.fence())
    assert log.state.epoch == 2
    with pytest.raises(RecordInvalid, match="expected epoch 2"):
        log.append(log.patch(parent=0), epoch=epoch)


@pytest.mark.parametrize("epoch", [1, 2, 4])
def test_a_fence_that_is_not_the_newest_epoch_plus_one_is_refused(epoch: int) -> None:
    log = LogBuilder.with_versions(1)
    log.append(log.fence())
    with pytest.raises(RecordInvalid, match="expected epoch 3"):
        log.append(log.fence(), epoch=epoch)


def test_a_record_by_another_writer_than_the_epochs_is_refused() -> None:
    log = LogBuilder.with_versions(1)
    with pytest.raises(RecordInvalid, match="belongs to writer, found thief"):
        log.append(log.patch(parent=0), writer="thief")


def test_a_version_number_must_be_the_count_of_commits() -> None:
    log = LogBuilder.with_versions(3)
    for version in (2, 4):
        with pytest.raises(RecordInvalid, match="expected version 3"):
            log.append(replace(log.patch(parent=1), version=version))


def test_a_base_must_be_the_parents_result() -> None:
    log = LogBuilder.with_versions(3)
    with pytest.raises(RecordInvalid, match="the parent's result is"):
        log.append(log.patch(parent=2, base=log.state.commits[1].result))


def test_a_patch_without_packs_cannot_change_the_layout() -> None:
    log = LogBuilder.with_versions(1)
    with pytest.raises(RecordInvalid, match="layout"):
        log.append(log.patch(parent=0, packs=0, layout=digest("another layout")))
    log.append(log.patch(parent=0, packs=0))


def test_an_object_of_an_epoch_to_come_is_refused() -> None:
    log = LogBuilder.with_versions(1)
    name = digest("pack 1 0")
    future = replace(log.pack("pack 1 0", 10), key=keys.pack(2, name))
    with pytest.raises(RecordInvalid, match="epoch to come"):
        log.append(replace(log.patch(parent=0), packs=(future,)))


def test_a_skip_must_name_versions_and_their_digests() -> None:
    log = LogBuilder.with_versions(3)
    with pytest.raises(RecordInvalid, match="version 9 does not exist"):
        log.append(log.skip(0, 2, version=9))
    with pytest.raises(RecordInvalid, match="has the digest"):
        log.append(log.skip(0, 2, base=digest("another")))
    with pytest.raises(RecordInvalid, match="has the digest"):
        log.append(log.skip(0, 2, result=digest("another")))
    log.append(log.skip(2, 0))


def test_the_newest_version_and_versions_to_come_cannot_be_retired() -> None:
    log = LogBuilder.with_versions(3)
    for version, rule in ((2, "newest"), (3, "does not exist")):
        with pytest.raises(RecordInvalid, match=rule):
            log.append(Retire(versions=(version,), keys=(), grace_s=0))


def test_a_retired_version_cannot_be_a_parent_and_its_objects_cannot_come_back() -> None:
    log = LogBuilder.with_versions(3)
    gone = log.state.commits[1]
    log.append(Retire(versions=(1,), keys=(gone.packs[0].key,), grace_s=0))
    with pytest.raises(RecordInvalid, match="parent 1 is retired"):
        log.append(log.patch(parent=1))
    with pytest.raises(RecordInvalid, match="retired"):
        log.append(replace(log.patch(parent=2), packs=gone.packs))


@pytest.mark.parametrize(
    "key",
    [keys.log(0), "layouts/" + "0" * 64, keys.HINT, "packs/00000001", "full/x", "../x"],
)
def test_only_packs_and_fulls_can_be_retired(key: str) -> None:
    log = LogBuilder.with_versions(2)
    with pytest.raises(RecordInvalid):
        log.append(Retire(versions=(), keys=(key,), grace_s=0))


def test_a_pinned_reader_refuses_an_unsigned_run() -> None:
    log = LogBuilder(signer=None, pinned_key=SIGNER.public_key)
    with pytest.raises(UntrustedKey, match="an unsigned run"):
        log.append(log.fence())


def test_a_pinned_reader_refuses_another_key() -> None:
    log = LogBuilder(signer=OTHER_SIGNER, pinned_key=SIGNER.public_key)
    with pytest.raises(UntrustedKey, match=SIGNER.public_key.hex):
        log.append(log.fence())


def test_a_fence_signed_by_another_key_than_it_names_is_refused() -> None:
    log = LogBuilder()
    with pytest.raises(Tampered, match="sig"):
        log.states[0].apply(log.next(log.fence(), signer=OTHER_SIGNER))


def test_without_a_pin_the_key_of_slot_0_holds_for_everything_later() -> None:
    log = LogBuilder.with_versions(1)
    for forged in (
        log.next(log.patch(parent=0), signer=OTHER_SIGNER),
        log.next(Fence(key=OTHER_SIGNER.public_key), signer=OTHER_SIGNER),
        log.next(Rotate(key=OTHER_SIGNER.public_key), signer=OTHER_SIGNER),
        log.record(log.patch(parent=0)).to_bytes(),
        log.record(Fence(key=None)).to_bytes(),
    ):
        with pytest.raises(Tampered):
            log.state.apply(forged)


def test_a_signature_of_another_record_is_refused() -> None:
    log = LogBuilder.with_versions(2)
    old = Record.parse(log.slots[-1])
    forged = log.record(log.patch(parent=1), signature=old.signature)
    with pytest.raises(Tampered, match="sig"):
        log.state.apply(forged.to_bytes())


def test_rotation_moves_trust_to_the_next_key_and_away_from_the_old_one() -> None:
    log = LogBuilder.with_versions(1)
    log.append(Rotate(key=OTHER_SIGNER.public_key))
    with pytest.raises(Tampered):
        log.append(log.patch(parent=0))
    with pytest.raises(UntrustedKey):
        log.append(log.fence())
    log.signer = OTHER_SIGNER
    log.append(log.patch(parent=0))
    log.append(log.fence())
    assert log.state.key == OTHER_SIGNER.public_key


def test_an_unsigned_run_has_no_signatures_and_no_rotation() -> None:
    log = LogBuilder.with_versions(1, signer=None)
    with pytest.raises(RecordInvalid, match="no signature"):
        log.states[-1].apply(log.next(log.patch(parent=0), signer=SIGNER))
    with pytest.raises(RecordInvalid, match="no key to rotate"):
        log.append(Rotate(key=SIGNER.public_key))
    with pytest.raises(UntrustedKey):
        log.append(Fence(key=SIGNER.public_key))


def test_a_refused_record_leaves_the_state_usable() -> None:
    log = LogBuilder.with_versions(2)
    good = log.next(log.patch(parent=1))
    with pytest.raises(RecordInvalid):
        log.append(log.patch(parent=0, version=7))
    assert log.state.apply(good).newest == Record.parse(good).body


def test_two_successors_of_one_state_do_not_see_each_other() -> None:
    log = LogBuilder.with_versions(2)
    one = log.state.apply(log.next(log.patch(parent=1)))
    other = log.state.apply(log.next(log.patch(parent=0)))
    fence, further = one.read(log.next(log.fence(), prev=one.head, seq=one.seq + 1))
    assert [one.commits[2].parent, other.commits[2].parent] == [1, 0]
    assert (further.seq, other.seq) == (fence.seq, one.seq)
    assert further.commits[2] == one.commits[2]


def test_head_is_the_digest_of_the_stored_bytes() -> None:
    log = LogBuilder.with_versions(1)
    assert log.state.head == digest_bytes(log.slots[-1]) == log.records[-1].digest
    assert json.loads(log.next(log.fence()))["prev"] == log.state.head
