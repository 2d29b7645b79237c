"""The reader: follows, verifies, waits up to its limit, and names what is wrong."""

from __future__ import annotations

import weakref
from dataclasses import replace

import pytest

from skerry.bulletin import keys
from skerry.bulletin.errors import (
    LogTooLong,
    NotFound,
    RecordInvalid,
    StoreUnavailable,
    Tampered,
    UntrustedKey,
)
from skerry.bulletin.log import BulletinReader
from skerry.bulletin.records import RECORD_LIMIT_BYTES, ObjectRef
from skerry.bulletin.stores.memory import MemoryStore
from skerry.codec.digest import digest_bytes
from skerry.codec.layout import Layout
from tests.bulletin.faults import FakeTime, FaultyStore
from tests.bulletin.log_builder import OTHER_SIGNER, SIGNER, LogBuilder
from tests.bulletin.runs import commit_of, open_writer, publish


def stored(log: LogBuilder) -> MemoryStore:
    store = MemoryStore()
    for seq, data in enumerate(log.slots):
        store.put_if_absent(keys.log(seq), data)
    return store


def test_an_empty_store_is_an_empty_run() -> None:
    reader = BulletinReader(MemoryStore())
    assert reader.refresh() == ()
    assert (reader.state.seq, reader.state.newest) == (-1, None)


def test_a_refresh_returns_only_what_is_new() -> None:
    log = LogBuilder.with_versions(3)
    store = stored(log)
    reader = BulletinReader(store)
    assert [record.seq for record in reader.refresh()] == [0, 1, 2, 3]
    assert reader.refresh() == ()
    data = log.append(log.patch(parent=2))
    store.put_if_absent(keys.log(4), data)
    assert [record.to_bytes() for record in reader.refresh()] == [data]


def test_records_before_a_bad_one_are_kept_and_the_bad_one_stays_refused() -> None:
    log = LogBuilder.with_versions(3)
    store = stored(log)
    store.replace(keys.log(2), log.slots[2].replace(b'"step":10', b'"step":11'))
    reader = BulletinReader(store)
    for _ in range(2):
        with pytest.raises(Tampered, match=r"log/00000000000000000002\.json sig"):
            reader.refresh()
        assert reader.state.seq == 1


def test_a_record_over_the_limit_is_refused_without_reading_it() -> None:
    store = MemoryStore()
    store.put(keys.log(0), [b" " * (RECORD_LIMIT_BYTES + 1)])
    with pytest.raises(RecordInvalid, match="at most"):
        BulletinReader(store).refresh()


def test_a_replaced_record_shows_at_the_next_one() -> None:
    log = LogBuilder.with_versions(2)
    store = stored(log)
    reader = BulletinReader(store)
    reader.refresh()
    other = LogBuilder(signer=SIGNER)
    other.append(other.fence(), nonce="f" * 32)
    other.append(other.full(parent=None))
    other.append(other.patch(parent=0))
    other.append(other.patch(parent=1))
    for seq, data in enumerate(other.slots):
        store.replace(keys.log(seq), data)
    with pytest.raises(Tampered, match="prev"):
        reader.refresh()


def test_an_unreachable_store_is_no_end_of_the_log() -> None:
    def down(verb: str, key: str) -> None:
        raise StoreUnavailable(key, "down")

    reader = BulletinReader(FaultyStore(stored(LogBuilder.with_versions(1)), before=down))
    with pytest.raises(StoreUnavailable):
        reader.refresh()


def test_the_pinned_key_is_the_one_of_slot_0() -> None:
    store = stored(LogBuilder.with_versions(1))
    assert BulletinReader(store, pinned_key=SIGNER.public_key).refresh()
    with pytest.raises(UntrustedKey):
        BulletinReader(store, pinned_key=OTHER_SIGNER.public_key).refresh()
    unsigned = stored(LogBuilder.with_versions(1, signer=None))
    with pytest.raises(UntrustedKey, match="an unsigned run"):
        BulletinReader(unsigned, pinned_key=SIGNER.public_key).refresh()
    assert BulletinReader(unsigned).refresh()


def test_a_named_object_that_arrives_late_is_waited_for() -> None:
    store = MemoryStore()
    writer = open_writer(store)
    publish(writer, "zero")
    ref = commit_of(publish(writer, "one")).packs[0]
    data = store.get(ref.key, limit_bytes=ref.size)
    store.delete(ref.key)

    def arrive() -> None:
        if time.now_s > 3:
            store.put(ref.key, [data])

    time = FakeTime(wake=arrive)
    reader = BulletinReader(store, wait=time.patience(30))
    assert reader.read(ref) == data
    assert 3 < time.now_s < 5


def test_a_named_object_that_never_arrives_is_named_after_the_limit() -> None:
    store = MemoryStore()
    writer = open_writer(store)
    commit = commit_of(publish(writer, "zero"))
    store.delete(keys.layout(commit.layout))
    store.delete(keys.manifest(commit.manifest))
    time = FakeTime()
    reader = BulletinReader(store, wait=time.patience(7))
    with pytest.raises(NotFound, match=rf"layouts/{commit.layout}.*after waiting 7 s"):
        reader.layout(commit.layout)
    assert time.now_s == pytest.approx(7)
    with pytest.raises(NotFound, match="manifests/"):
        reader.manifest(commit.manifest)


def test_an_object_with_another_content_or_size_is_named_as_tampered() -> None:
    store = MemoryStore()
    writer = open_writer(store)
    publish(writer, "zero")
    ref = commit_of(publish(writer, "one")).packs[1]
    reader = BulletinReader(store)
    good = reader.read(ref)
    for bad in (good[:-1], good + b"x", good[:-1] + b"x", b""):
        store.replace(ref.key, bad)
        with pytest.raises(Tampered, match=ref.key):
            reader.read(ref)
    store.replace(ref.key, good)
    with pytest.raises(Tampered, match=ref.key):
        reader.read(replace(ref, size=ref.size + 1))


def test_layouts_and_manifests_are_verified_and_layouts_fetched_once() -> None:
    store = MemoryStore()
    commit = commit_of(publish(open_writer(store), "zero"))
    fetched: list[str] = []
    counting = FaultyStore(store, before=lambda verb, key: fetched.append(key))
    reader = BulletinReader(counting)
    for _ in range(3):
        reader.layout(commit.layout)
    assert fetched == [keys.layout(commit.layout)]
    store.replace(keys.manifest(commit.manifest), b"other")
    with pytest.raises(Tampered, match="manifests/"):
        reader.manifest(commit.manifest)
    junk = digest_bytes(b"junk")
    store.put(keys.layout(junk), [b"junk"])
    store.put(keys.manifest(junk), [b"junk"])
    with pytest.raises(RecordInvalid, match="layouts/"):
        reader.layout(junk)
    with pytest.raises(RecordInvalid, match="manifests/"):
        reader.manifest(junk)


def test_the_files_of_a_full_are_read_by_reference() -> None:
    store = MemoryStore()
    full = commit_of(publish(open_writer(store), "zero")).full
    assert full is not None
    reader = BulletinReader(store)
    assert [file.name for file in full.files] == ["a.json", "model.safetensors"]
    assert [reader.read(reader.full_file(full, file)) for file in full.files] == [b"", b"zero!"]


class EndlessLog(MemoryStore):
    """An unsigned run whose owner never runs out of records."""

    def __init__(self) -> None:
        super().__init__()
        self.log = LogBuilder.with_versions(1, signer=None)

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        if key == keys.HINT:
            raise NotFound(key)
        seq = int(key.removeprefix(keys.LOG_PREFIX).removesuffix(".json"))
        while len(self.log.slots) <= seq:
            self.log.append(self.log.patch(parent=0))
        return self.log.slots[seq]


def test_a_log_without_an_end_is_refused_at_a_stated_size() -> None:
    reader = BulletinReader(EndlessLog(), log_limit_bytes=20_000)
    for _ in range(2):  # nor does it go on at the next look
        with pytest.raises(LogTooLong, match="20000 bytes"):
            reader.refresh()
    assert 0 < reader.state.nbytes <= 20_000


def test_the_layouts_of_a_long_run_are_not_all_kept() -> None:
    store, seen = MemoryStore(), []
    reader = BulletinReader(store)
    for number in range(50):
        layout = Layout(shards=(), recipe={"number": number})
        store.put(keys.layout(layout.digest()), [layout.to_bytes()])
        seen.append(weakref.ref(reader.layout(layout.digest())))
    assert 1 <= sum(layout() is not None for layout in seen) < 10


def test_an_object_is_read_in_pieces_and_verified_at_its_end() -> None:
    store = MemoryStore()
    data = bytes(range(256)) * 40
    ref = ObjectRef(key="packs/00000001/p", size=len(data), digest=digest_bytes(data))
    store.put(ref.key, [data])
    reader = BulletinReader(store, wait=FakeTime().patience(1))
    assert b"".join(reader.pieces(ref)) == data
    store.put(ref.key, [data[:-1] + b"!"])
    with pytest.raises(Tampered, match="packs/00000001/p"):
        list(reader.pieces(ref))
    store.put(ref.key, [data[:-1]])
    with pytest.raises(Tampered, match="10239 bytes"):
        list(reader.pieces(ref))
    store.delete(ref.key)
    with pytest.raises(NotFound, match="after waiting 1 s"):
        list(reader.pieces(ref))
