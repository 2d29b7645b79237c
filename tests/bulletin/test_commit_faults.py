"""The commit protocol against stores that lose replies, lose requests, or break their promise."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.bulletin import keys
from skerry.bulletin.errors import (
    CommitConflict,
    Fenced,
    OutcomeUnknown,
    StoreDenied,
    StoreUnavailable,
    StoreUnsafe,
    Tampered,
)
from skerry.bulletin.log import BulletinReader
from skerry.bulletin.records import Fence, Record
from skerry.bulletin.stores.memory import MemoryStore
from tests.bulletin.faults import FakeTime, FaultyStore, RacyStore, SilentStore, UnsafeStore
from tests.bulletin.log_builder import OTHER_SIGNER, SIGNER, LogBuilder, digest
from tests.bulletin.runs import commit_of, open_writer, publish, read_log


class Unreliable(FaultyStore):
    """Fails conditional puts and reads of the log as told, one word per call, then works."""

    def __init__(self, inner: MemoryStore, faults: Iterable[str] = ()) -> None:
        super().__init__(inner, before=self._before, after=self._after)
        self.faults = iter(faults)
        self._fault = ""

    def _before(self, verb: str, key: str) -> None:
        self._fault = ""
        if verb in ("put_if_absent", "get") and key.startswith(keys.LOG_PREFIX):
            self._fault = next(self.faults, "")
        if self._fault == "lost":
            error = OutcomeUnknown if verb == "put_if_absent" else StoreUnavailable
            raise error(key, "the request was lost")
        if self._fault == "unavailable":
            raise StoreUnavailable(key, "503")

    def _after(self, verb: str, key: str) -> None:
        if self._fault == "reply lost":
            error = OutcomeUnknown if verb == "put_if_absent" else StoreUnavailable
            raise error(key, "the reply was lost")


FAULTS = st.lists(st.sampled_from(["", "lost", "reply lost", "unavailable"]), max_size=12)


@given(FAULTS)
def test_whatever_is_lost_each_version_is_in_the_log_exactly_once(faults: list[str]) -> None:
    inner = MemoryStore()
    store = Unreliable(inner)
    writer = open_writer(store)
    store.faults = iter(faults)
    published: list[Record] = []
    while len(published) < 4:
        text = f"weights {len(published)}"
        try:
            published.append(publish(writer, text))
        except StoreUnavailable:  # reading the head failed: nothing was begun
            continue
    reader = read_log(inner)
    state = reader.state
    assert list(reader.history[1:]) == published
    assert [c.result for c in state.commits.values()] == [digest(f"weights {n}") for n in range(4)]


@given(FAULTS)
def test_a_run_is_opened_once_whatever_is_lost(faults: list[str]) -> None:
    inner = MemoryStore()
    store = Unreliable(inner, faults)
    while True:
        try:
            writer = open_writer(store)
        except StoreUnavailable:
            continue
        break
    records = read_log(inner).history
    assert [record.epoch for record in records] == list(range(1, writer.epoch + 1))
    store.faults = iter(())
    publish(writer, "zero")


def test_a_lost_reply_is_recognised_as_our_own_success() -> None:
    inner = MemoryStore()
    store = Unreliable(inner)
    writer = open_writer(store)
    store.faults = iter(["", "reply lost"])  # reading the head works
    record = publish(writer, "zero")
    assert read_log(inner).history[-1] == record
    assert writer.settle() is None


@pytest.mark.parametrize("landed", [True, False])
def test_after_giving_up_nothing_else_is_appended_until_the_outcome_is_known(landed: bool) -> None:
    inner = MemoryStore()
    store = Unreliable(inner)
    writer = open_writer(store, patience=FakeTime().patience(10))
    publish(writer, "zero")
    first = "reply lost" if landed else "lost"
    store.faults = iter(["", first, *["lost"] * 1000])
    with pytest.raises(OutcomeUnknown, match=r"log/00000000000000000002\.json"):
        publish(writer, "one")
    with pytest.raises(CommitConflict, match="settle it first"):
        publish(writer, "two")
    with pytest.raises(OutcomeUnknown):
        writer.settle()
    assert len(read_log(inner).state.commits) == 1 + landed
    store.faults = iter(())
    record = writer.settle()
    assert record is not None
    assert commit_of(record).result == digest("one")
    assert writer.settle() is None
    publish(writer, "two")
    assert len(read_log(inner).state.commits) == 3


@pytest.mark.parametrize("landed", [True, False])
def test_an_unknown_outcome_is_settled_also_when_the_run_was_taken_meanwhile(landed: bool) -> None:
    inner = MemoryStore()
    store = Unreliable(inner)
    writer = open_writer(store, patience=FakeTime().patience(10))
    publish(writer, "zero")
    store.faults = iter(["", "reply lost" if landed else "lost", *["lost"] * 1000])
    with pytest.raises(OutcomeUnknown):
        publish(writer, "one")
    other = open_writer(inner, writer="other")
    store.faults = iter(())
    if landed:
        record = writer.settle()
        assert record is not None
        assert commit_of(record).result == digest("one")
        with pytest.raises(Fenced):
            publish(writer, "two")
    else:
        with pytest.raises(Fenced):
            writer.settle()
    publish(other, "theirs")
    expected = [digest("zero"), *([digest("one")] if landed else []), digest("theirs")]
    assert [c.result for c in read_log(inner).state.commits.values()] == expected


def test_a_lost_rotation_takes_the_new_key_only_once_it_is_in_the_log() -> None:
    inner = MemoryStore()
    store = Unreliable(inner)
    writer = open_writer(store, patience=FakeTime().patience(10))
    publish(writer, "zero")
    store.faults = iter(["", "reply lost", *["lost"] * 1000])
    with pytest.raises(OutcomeUnknown):
        writer.rotate(OTHER_SIGNER)
    store.faults = iter(())
    writer.settle()
    publish(writer, "one")
    assert read_log(inner).state.key == OTHER_SIGNER.public_key


@pytest.mark.parametrize("store", [UnsafeStore(), SilentStore(), RacyStore()])
def test_a_store_that_ignores_conditions_is_refused_when_the_run_is_opened(
    store: MemoryStore,
) -> None:
    with pytest.raises(StoreUnsafe, match="hint/probe-"):
        open_writer(store)
    assert list(store.list_after("log/")) == []


def test_a_store_that_accepts_but_forgets_is_refused() -> None:
    class Forgetful(MemoryStore):
        def put_if_absent(self, key: str, data: bytes) -> None:
            pass

    with pytest.raises(StoreUnsafe, match="hint/probe-"):
        open_writer(Forgetful())


def test_the_probe_leaves_nothing_behind_on_a_sound_store_that_loses_replies() -> None:
    inner = MemoryStore()
    lost: set[str] = set()

    def lose(verb: str, key: str) -> None:
        if verb == "put_if_absent" and key.startswith("hint/") and len(lost) < 9:
            lost.add(key)
            if len(lost) % 2:
                raise OutcomeUnknown(key, "the reply was lost")

    open_writer(FaultyStore(inner, after=lose))
    assert list(inner.list_after("hint/")) == []


def test_two_writers_that_both_win_one_version_raise_the_alarm() -> None:
    store = UnsafeStore(unsafe=False)
    first = open_writer(store, writer="first")
    publish(first, "zero")
    second = open_writer(store, writer="second")
    publish(second, "one")
    follower = BulletinReader(store)
    follower.refresh()
    store.unsafe = True
    for text in ("one as well", "two", "three"):  # the first two replace what `second` wrote
        publish(first, text)
    for _ in range(2):
        with pytest.raises(StoreUnsafe, match="was replaced"):
            publish(second, "two as well")
    with pytest.raises(Tampered, match="prev"):
        follower.refresh()


@pytest.mark.parametrize("content", [None, b"", b"junk", b" " * (2 << 20)])
def test_a_record_of_ours_that_was_replaced_or_deleted_stops_the_writer(
    content: bytes | None,
) -> None:
    store = MemoryStore()
    writer = open_writer(store)
    record = publish(writer, "zero")
    store.delete(keys.log(record.seq))
    if content is not None:
        store.put(keys.log(record.seq), [content])
    for _ in range(2):
        with pytest.raises(StoreUnsafe, match=keys.log(record.seq)):
            publish(writer, "one")
    assert list(store.list_after("log/", keys.log(record.seq))) == []


def test_a_record_that_is_replaced_right_after_it_was_created_raises_the_alarm() -> None:
    inner = MemoryStore()

    def replace_it(verb: str, key: str) -> None:
        if verb == "put_if_absent" and key == keys.log(1):
            inner.replace(key, b"theirs")

    writer = open_writer(FaultyStore(inner, after=replace_it))
    with pytest.raises(StoreUnsafe, match="replaced right after it was created"):
        publish(writer, "zero")
    with pytest.raises(StoreUnsafe):
        writer.put_pack(b"pack")


def test_a_slot_that_holds_no_valid_record_raises_the_alarm() -> None:
    store = MemoryStore()
    writer = open_writer(store)
    state = writer.reader.state
    unsigned = Record(
        seq=1, prev=state.head, epoch=2, writer="thief", nonce="0" * 32, time=0,
        body=Fence(key=SIGNER.public_key),
    )  # fmt: skip
    for content in (b"junk", unsigned.to_bytes(), unsigned.signed(OTHER_SIGNER).to_bytes()):
        store = MemoryStore()
        writer = open_writer(store)
        store.put(keys.log(1), [content])
        with pytest.raises(StoreUnsafe, match="neither our record nor a valid one"):
            publish(writer, "zero")


def test_a_valid_record_of_our_own_epoch_that_we_did_not_write_raises_the_alarm() -> None:
    store = MemoryStore()
    writer = open_writer(store)
    foreign = Record(
        seq=1, prev=writer.reader.state.head, epoch=1, writer="writer", nonce="0" * 32, time=0,
        body=LogBuilder().full(parent=None),
    )  # fmt: skip
    store.put(keys.log(1), [foreign.signed(SIGNER).to_bytes()])
    with pytest.raises(StoreUnsafe, match="a commit of our epoch that we did not write"):
        publish(writer, "zero")


def test_a_probe_without_an_answer_is_no_verdict() -> None:
    inner = MemoryStore()

    def lose(verb: str, key: str) -> None:
        if verb == "put_if_absent":
            raise OutcomeUnknown(key, "the reply was lost")

    def down(verb: str, key: str) -> None:
        if verb == "put_if_absent":
            raise StoreUnavailable(key, "down")

    with pytest.raises(OutcomeUnknown, match="hint/probe-"):
        open_writer(FaultyStore(inner, before=down))
    assert list(inner.list_after("")) == []
    open_writer(FaultyStore(inner, after=lose))  # every reply is lost once, every put lands
    assert list(inner.list_after("")) == [keys.log(0)]


def test_a_refusal_is_not_repeated_and_keeps_its_reason() -> None:
    def deny(verb: str, key: str) -> None:
        if verb == "put_if_absent":
            raise StoreDenied(key, "read-only file system")

    time = FakeTime()
    with pytest.raises(StoreDenied, match="read-only"):
        open_writer(FaultyStore(MemoryStore(), before=deny), patience=time.patience(60))
    assert time.sleeps == []


def test_an_append_that_is_refused_stays_open_until_it_is_settled() -> None:
    denied = False

    def deny(verb: str, key: str) -> None:
        if denied and verb == "put_if_absent":
            raise StoreDenied(key, "the credentials have ended")

    store = MemoryStore()
    writer = open_writer(FaultyStore(store, before=deny))
    denied = True
    with pytest.raises(StoreDenied):
        publish(writer, "one")
    with pytest.raises(CommitConflict, match="settle"):
        publish(writer, "two")
    denied = False
    record = writer.settle()
    assert record is not None
    assert read_log(store).history[-1] == record


@pytest.mark.parametrize("prefix", [keys.LOG_PREFIX, "hint/probe-"])
def test_giving_up_says_what_the_store_said_last(prefix: str) -> None:
    def fail(verb: str, key: str) -> None:
        if verb == "put_if_absent" and key.startswith(prefix):
            raise StoreUnavailable(key, "503 slow down")

    with pytest.raises(OutcomeUnknown, match="503 slow down"):
        open_writer(FaultyStore(MemoryStore(), before=fail))
