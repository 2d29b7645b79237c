"""A fresh reader: from hint and checkpoint when they are good, from slot 0 when they are not."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from itertools import count

import pytest

from skerry.bulletin import checkpoint, keys
from skerry.bulletin.errors import ListUnsupported, NotFound, StoreError, StoreUnavailable
from skerry.bulletin.hint import Hint
from skerry.bulletin.log import BulletinReader
from skerry.bulletin.stores.memory import MemoryStore
from tests.bulletin.faults import FaultyStore
from tests.bulletin.log_builder import OTHER_SIGNER, SIGNER, LogBuilder
from tests.bulletin.test_reader import stored

VERSIONS = 299  # a fence and 299 versions: slots 0 to 299


class NoList(MemoryStore):
    """A store as a plain web server is one."""

    def list_after(self, prefix: str, after: str = "") -> Iterator[str]:
        raise ListUnsupported(prefix)


@pytest.fixture(scope="module")
def log() -> LogBuilder:
    return LogBuilder.with_versions(VERSIONS)


def run_of(log: LogBuilder, *, at: int = 255, hint: bool = True) -> MemoryStore:
    """Return a store with the log, a checkpoint of slot `at`, and a hint."""
    store = stored(log)
    put_checkpoint(store, log, at)
    if hint:
        put_hint(store, log, at)
    return store


def put_checkpoint(store: MemoryStore, log: LogBuilder, at: int) -> None:
    store.put(keys.checkpoint(at), [checkpoint.make(log.states[at + 1], SIGNER)])


def put_hint(
    store: MemoryStore, log: LogBuilder, at: int | None, *, seq: int | None = None
) -> None:
    head = log.state.head
    assert head is not None
    seq = log.state.seq if seq is None else seq
    store.replace(keys.HINT, Hint(seq=seq, digest=head, checkpoint=at).to_bytes())


def read(store: MemoryStore, log: LogBuilder) -> tuple[Counter[str], BulletinReader]:
    """Read the run afresh; return the requests by the first segment of their keys."""
    counts: Counter[str] = Counter()

    def note(verb: str, key: str) -> None:
        counts[key.split("/")[0]] += 1

    reader = BulletinReader(FaultyStore(store, before=note), pinned_key=SIGNER.public_key)
    reader.refresh()
    assert (reader.state.seq, reader.state.head) == (log.state.seq, log.state.head)
    assert dict(reader.state.commits) == dict(log.state.commits)
    return counts, reader


@pytest.mark.parametrize("kind", [MemoryStore, NoList])
def test_a_fresh_reader_reads_slot_0_the_checkpoint_and_what_came_after_it(
    log: LogBuilder, kind: type[MemoryStore]
) -> None:
    store = kind()
    for key in (source := run_of(log)).list_after(""):
        store.put(key, [source.get(key, limit_bytes=1 << 30)])
    counts, reader = read(store, log)
    after = log.state.seq - 255
    # Slot 0, the checkpoint's own slot, those after it, and the free one.
    assert counts == {"hint": 1, "checkpoints": 1, "log": 1 + 1 + after + 1}
    assert reader.checkpoint == 255


def test_who_asks_for_history_reads_every_record(log: LogBuilder) -> None:
    store = run_of(log)
    reader = BulletinReader(store, history=True)
    seen: list[tuple[int, int, int]] = []
    reader.refresh(lambda *progress: seen.append(progress))
    assert [record.to_bytes() for record in reader.history] == log.slots
    assert reader.checkpoint is None
    assert seen[-1] == (log.state.seq + 1, log.state.nbytes, log.state.seq)
    with pytest.raises(ValueError, match="history=True"):
        _ = BulletinReader(store).history


def test_without_a_hint_the_newest_checkpoint_in_the_list_is_taken(log: LogBuilder) -> None:
    store = run_of(log, hint=False)
    put_checkpoint(store, log, 100)
    store.put("checkpoints/junk", [b"junk"])
    assert read(store, log)[1].checkpoint == 255


def test_a_list_without_an_end_is_not_read_to_it(log: LogBuilder) -> None:
    class Endless(MemoryStore):
        def list_after(self, prefix: str, after: str = "") -> Iterator[str]:
            return (keys.checkpoint(seq) for seq in count(1))

    store = Endless()
    for seq, data in enumerate(log.slots):
        store.put(keys.log(seq), [data])
    assert read(store, log)[1].checkpoint is None


def test_without_hint_and_list_the_log_is_read_from_its_first_slot(
    log: LogBuilder, caplog: pytest.LogCaptureFixture
) -> None:
    store = NoList()
    for seq, data in enumerate(log.slots):
        store.put(keys.log(seq), [data])
    with caplog.at_level(logging.INFO):
        counts, reader = read(store, log)
    assert reader.checkpoint is None
    assert counts["log"] >= len(log.slots) + 1
    text = caplog.text
    assert "no hint" in text
    assert "the store has no list" in text
    assert "from its first slot on" in text


@pytest.mark.parametrize(
    "content",
    [
        b"", b"junk", b"{}", b"[]", b'{"checkpoint":null,"digest":"x","seq":1}', b" " * 5000,
        b'{"checkpoint":300,"digest":"' + b"0" * 64 + b'","seq":299}',
        b'{"checkpoint":255, "digest":"' + b"0" * 64 + b'","seq":299}',
    ],
)  # fmt: skip
def test_a_hint_that_makes_no_sense_is_as_good_as_none(log: LogBuilder, content: bytes) -> None:
    store = run_of(log)
    store.replace(keys.HINT, content)
    assert read(store, log)[1].checkpoint == 255


@pytest.mark.parametrize("seq", [0, 5, 299, 2**63 - 1])
@pytest.mark.parametrize("at", [None, 0, 100, 200, 254, 256])
def test_a_lying_hint_costs_requests_and_nothing_else(
    log: LogBuilder, seq: int, at: int | None
) -> None:
    store = run_of(log)
    put_checkpoint(store, log, 100)
    put_hint(store, log, None if at is None else min(at, seq), seq=seq)
    counts, _ = read(store, log)
    assert counts["log"] <= len(log.slots) + 70
    assert counts["checkpoints"] <= 3


def test_an_old_checkpoint_costs_requests_only_and_never_leads_back(log: LogBuilder) -> None:
    store = run_of(log, at=40)
    _, reader = read(store, log)
    assert reader.checkpoint == 40
    put_hint(store, log, 10)
    put_checkpoint(store, log, 10)
    for seq in range(200, 300):
        store.delete(keys.log(seq))  # an old copy of the run, shown to one who has seen more
    assert reader.refresh() == ()
    assert reader.state.seq == 299


def test_a_checkpoint_that_is_not_the_runs_is_logged_and_passed_over(
    log: LogBuilder, caplog: pytest.LogCaptureFixture
) -> None:
    other = LogBuilder(signer=SIGNER)
    other.append(other.fence(), nonce="f" * 32)
    stranger = LogBuilder.with_versions(3, signer=OTHER_SIGNER)
    for data in (
        b"junk",
        checkpoint.make(other.state, SIGNER),
        checkpoint.make(stranger.state, OTHER_SIGNER),
        checkpoint.make(log.states[100], SIGNER),
    ):
        store = run_of(log)
        put_checkpoint(store, log, 100)
        store.replace(keys.checkpoint(255), data)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            _, reader = read(store, log)
        assert reader.checkpoint == 100
        assert f"{keys.checkpoint(255)} is not used" in caplog.text


def test_a_checkpoint_behind_the_end_of_the_log_is_not_taken_up(
    log: LogBuilder, caplog: pytest.LogCaptureFixture
) -> None:
    """A bucket that was put back to an older copy, but for its checkpoints."""
    old = LogBuilder()
    old.slots, old.states = log.slots[:200], log.states[:201]
    store = run_of(log)
    for seq in range(200, 300):
        store.delete(keys.log(seq))
    with caplog.at_level(logging.WARNING):
        _, reader = read(store, old)
    assert reader.checkpoint is None
    assert "the slot holds nothing" in caplog.text
    fork = LogBuilder()
    fork.slots, fork.states = log.slots[:200], log.states[:201]
    while len(fork.slots) < 300:
        fork.append(fork.patch(parent=0))
    for seq in range(200, 300):
        store.put(keys.log(seq), [fork.slots[seq]])
    assert read(store, fork)[1].checkpoint is None


def test_an_unsigned_run_is_read_from_slot_0_whatever_lies_there(log: LogBuilder) -> None:
    unsigned = LogBuilder.with_versions(5, signer=None)
    store = stored(unsigned)
    put_checkpoint(store, log, 3)
    put_hint(store, unsigned, 3)
    counts: Counter[str] = Counter()
    reader = BulletinReader(
        FaultyStore(store, before=lambda verb, key: counts.update([key.split("/")[0]]))
    )
    assert len(reader.refresh()) == 6
    assert counts["checkpoints"] == 0


@pytest.mark.parametrize("prefix", ["hint/", "checkpoints/"])
@pytest.mark.parametrize("error", [StoreUnavailable, NotFound])
def test_a_part_that_cannot_be_read_is_done_without(
    log: LogBuilder, prefix: str, error: type[StoreError]
) -> None:
    def fail(verb: str, key: str) -> None:
        if key.startswith(prefix):
            raise NotFound(key) if error is NotFound else StoreUnavailable(key, "503")

    reader = BulletinReader(FaultyStore(run_of(log), before=fail))
    reader.refresh()
    assert reader.state.head == log.state.head


def test_a_follower_that_is_up_to_date_asks_once_and_twice_for_one_record(
    log: LogBuilder,
) -> None:
    short = LogBuilder.with_versions(3)
    store = stored(short)
    counts: Counter[str] = Counter()
    reader = BulletinReader(FaultyStore(store, before=lambda verb, key: counts.update([key])))
    reader.refresh()
    counts.clear()
    assert reader.refresh() == ()
    assert counts == {keys.log(4): 1}
    counts.clear()
    store.put_if_absent(keys.log(4), short.append(short.patch(parent=2)))
    assert len(reader.refresh()) == 1
    assert counts == {keys.log(4): 1, keys.log(5): 1}
