"""The writer on a sound store: what it appends, and what it refuses to append."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.bulletin import keys
from skerry.bulletin.errors import (
    CommitConflict,
    Fenced,
    InvalidKey,
    KeyMismatch,
    NotFound,
    RecordInvalid,
    ShortObject,
    StoreUnavailable,
    VersionUnknown,
)
from skerry.bulletin.lineage import plan
from skerry.bulletin.log import BulletinReader, BulletinWriter
from skerry.bulletin.manifest import Manifest
from skerry.bulletin.signing import Signer
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores import open_store
from skerry.bulletin.stores.memory import MemoryStore
from skerry.codec.errors import FormatError
from tests.bulletin.faults import FaultyStore
from tests.bulletin.log_builder import OTHER_SIGNER, SIGNER, digest
from tests.bulletin.runs import LAYOUT, commit_of, open_writer, publish, read_log


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return MemoryStore() if request.param == "memory" else open_store(str(tmp_path / "run"))


@pytest.fixture(params=["signed", "unsigned"])
def signer(request: pytest.FixtureRequest) -> Signer | None:
    return SIGNER if request.param == "signed" else None


def test_what_is_committed_is_what_a_stranger_reads(
    store: ObjectStore, signer: Signer | None
) -> None:
    writer = open_writer(store, signer=signer)
    records = [publish(writer, f"weights {n}") for n in range(4)]
    reader = read_log(store)
    assert list(reader.history[1:]) == records
    assert [commit.version for commit in reader.state.commits.values()] == [0, 1, 2, 3]
    assert [commit.parent for commit in reader.state.commits.values()] == [None, 0, 1, 2]
    assert reader.state.key == (None if signer is None else signer.public_key)
    assert [step.version for step in plan(reader.state, have=0, want=3)] == [1, 2, 3]


def test_opening_leaves_one_fence_and_nothing_else(store: ObjectStore) -> None:
    open_writer(store)
    assert list(store.list_after("")) == [keys.log(0)]


def test_bytes_are_what_a_follower_downloads(store: ObjectStore) -> None:
    writer = open_writer(store)
    assert commit_of(publish(writer, "zero")).nbytes == len("zero!")
    patch = commit_of(publish(writer, "one"))
    assert patch.nbytes == sum(pack.size for pack in patch.packs) == 3 * len("one pack 0")


def test_a_rollback_is_a_commit_with_an_older_parent_and_numbers_go_on(store: ObjectStore) -> None:
    writer = open_writer(store)
    for n in range(4):
        publish(writer, f"weights {n}")
    record = publish(writer, "another try", parent=1)
    assert commit_of(record).version == 4
    state = read_log(store).state
    assert state.abandoned == {2, 3}
    assert state.newest is not None
    assert state.newest.version == 4
    publish(writer, "back again", parent=3)
    assert read_log(store).state.abandoned == {4}


def test_a_second_writer_fences_the_first_for_good(store: ObjectStore) -> None:
    first = open_writer(store, writer="first")
    publish(first, "zero")
    second = open_writer(store, writer="second")
    assert (first.epoch, second.epoch) == (1, 2)
    for _ in range(2):
        with pytest.raises(Fenced, match="epoch 1 is fenced by epoch 2 of writer second"):
            publish(first, "too late")
    with pytest.raises(Fenced):
        first.put_pack(b"data")
    record = publish(second, "one")
    assert (record.epoch, commit_of(record).version) == (2, 1)
    assert len(read_log(store).history) == 4


def test_a_writer_that_wakes_up_much_later_is_fenced(store: ObjectStore) -> None:
    zombie = open_writer(store)
    publish(zombie, "zero")
    for n in range(3):
        publish(open_writer(store), f"weights {n}")
    with pytest.raises(Fenced):
        publish(zombie, "too late")
    with pytest.raises(Fenced):
        zombie.settle()


def test_a_full_is_hashed_while_it_is_written_and_never_rewritten(store: ObjectStore) -> None:
    writer = open_writer(store)
    one, two = (writer.put_full([("b", [b"1", b"2"]), ("a/c", [])]) for _ in range(2))
    assert one.prefix != two.prefix
    assert one.prefix.startswith("full/00000001-")
    assert [(f.name, f.size, f.digest) for f in one.files] == [
        ("a/c", 0, digest("")),
        ("b", 2, digest("12")),
    ]


def test_a_full_with_a_bad_or_doubled_name_is_refused(store: ObjectStore) -> None:
    writer = open_writer(store)
    for name in ("../x", "/x", "a\\b", "", "x" * 300):
        with pytest.raises(FormatError):
            writer.put_full([(name, [b"x"])])
    with pytest.raises(ValueError, match="twice"):
        writer.put_full([("a", [b"x"]), ("a", [b"y"])])
    with pytest.raises(InvalidKey):
        writer.put_full([("/".join(["x" * 200] * 5), [b"x"])])  # the key is over 1024 bytes


def test_a_commit_that_does_not_fit_the_log_writes_nothing(store: ObjectStore) -> None:
    writer = open_writer(store)
    publish(writer, "zero")
    layout, manifest = (
        writer.put_layout(LAYOUT),
        writer.put_manifest(Manifest(layout=writer.put_layout(LAYOUT))),
    )
    pack = writer.put_pack(b"pack")
    before = list(store.list_after("log/"))
    good = {
        "parent": 0, "step": 1, "layout": layout, "manifest": manifest, "base": digest("zero"),
        "result": digest("one"), "packs": (pack,), "full": None, "elements": 10, "changed": 1,
    }  # fmt: skip
    for change in (
        {"parent": 1}, {"parent": 7}, {"parent": None}, {"base": digest("other")}, {"base": None},
        {"packs": ()}, {"packs": (pack, pack)}, {"changed": 11}, {"elements": -1}, {"step": -1},
    ):  # fmt: skip
        with pytest.raises(CommitConflict):
            writer.commit(**{**good, **change})  # type: ignore[arg-type]
    assert list(store.list_after("log/")) == before
    writer.commit(**good)  # type: ignore[arg-type]


def test_a_commit_names_the_object_that_is_not_there(store: ObjectStore) -> None:
    writer = open_writer(store)
    publish(writer, "zero")
    commit = commit_of(publish(writer, "one"))
    store.delete(commit.packs[2].key)
    arguments = {
        "parent": 1, "step": 2, "layout": commit.layout, "manifest": commit.manifest,
        "base": commit.result, "result": digest("two"), "elements": 10, "changed": 1,
    }  # fmt: skip
    with pytest.raises(NotFound, match=commit.packs[2].key):
        writer.commit(**arguments, packs=commit.packs)  # type: ignore[arg-type]
    store.replace(commit.packs[1].key, b"short")
    with pytest.raises(ShortObject, match=commit.packs[1].key):
        writer.commit(**arguments, packs=commit.packs[:2])  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="manifests/"):
        writer.commit(**{**arguments, "manifest": digest("none")}, packs=commit.packs[:1])  # type: ignore[arg-type]
    assert len(read_head(store).state.commits) == 2


def read_head(store: ObjectStore) -> BulletinReader:
    reader = BulletinReader(store)
    reader.refresh()
    return reader


def test_when_the_second_of_three_packs_fails_for_ever_no_record_appears_and_it_is_named() -> None:
    inner = MemoryStore()
    second = digest("one pack 1")
    broken = True

    def fail(verb: str, key: str) -> None:
        if broken and verb == "put" and key.endswith(second):
            raise StoreUnavailable(key, "the disk is full")

    writer = open_writer(FaultyStore(inner, before=fail))
    publish(writer, "zero")
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match=second):
            publish(writer, "one")
        assert len(read_log(inner).history) == 2
    broken = False
    assert commit_of(publish(writer, "one")).version == 1
    assert read_log(inner).state.commits[1].result == digest("one")


def test_a_pack_that_arrived_short_is_named_and_no_record_appears() -> None:
    class Cutting(MemoryStore):
        def size(self, key: str) -> int:
            return super().size(key) - key.startswith("packs/")

    store = Cutting()
    writer = open_writer(store)
    publish(writer, "zero")
    with pytest.raises(ShortObject, match="packs/00000001"):
        publish(writer, "one")
    assert len(read_head(store).state.commits) == 1


def test_a_hint_that_fails_does_not_fail_the_commit() -> None:
    inner = MemoryStore()

    def fail(verb: str, key: str) -> None:
        if verb == "replace":
            raise StoreUnavailable(key, "no")

    writer = open_writer(FaultyStore(inner, before=fail))
    publish(writer, "zero")
    publish(writer, "one")
    assert len(read_log(inner).state.commits) == 2


def test_the_hint_names_the_newest_record(store: ObjectStore) -> None:
    writer = open_writer(store)
    record = publish(writer, "zero")
    hint = store.get(keys.HINT, limit_bytes=1000)
    digest, seq = record.digest, record.seq
    assert hint == f'{{"checkpoint":null,"digest":"{digest}","seq":{seq}}}'.encode()


def test_skips_and_retirements_are_appended_and_planned_with(store: ObjectStore) -> None:
    writer = open_writer(store)
    for n in range(4):
        publish(writer, f"weights {n}")
    pack = writer.put_pack(b"skip")
    writer.skip(base_version=0, version=3, packs=(pack,))
    assert [step.base for step in plan(read_log(store).state, have=0, want=3)] == [0]
    writer.retire(versions=[2, 1, 1], names=[pack.key], grace_s=60)
    state = read_log(store).state
    assert state.retired == {1, 2}
    assert state.retired_keys == {pack.key}
    assert len(plan(state, have=0, want=3)) == 3
    with pytest.raises(VersionUnknown, match="version 9"):
        writer.skip(base_version=0, version=9, packs=(pack,))
    with pytest.raises(CommitConflict, match="newest"):
        writer.retire(versions=[3], grace_s=60)


def test_rotation_hands_the_run_to_the_next_key(store: ObjectStore) -> None:
    writer = open_writer(store)
    publish(writer, "zero")
    writer.rotate(OTHER_SIGNER)
    publish(writer, "one")
    assert read_log(store).state.key == OTHER_SIGNER.public_key
    with pytest.raises(KeyMismatch):
        open_writer(store, signer=SIGNER)
    publish(open_writer(store, signer=OTHER_SIGNER), "two")


def test_a_run_is_opened_with_its_own_key_only(store: ObjectStore, signer: Signer | None) -> None:
    publish(open_writer(store, signer=signer), "zero")
    before = list(store.list_after(""))
    for other in {SIGNER, OTHER_SIGNER, None} - {signer}:
        with pytest.raises(KeyMismatch):
            open_writer(store, signer=other)
    assert list(store.list_after("")) == before
    unsigned = open_writer(MemoryStore(), signer=None)
    with pytest.raises(CommitConflict, match="no key to rotate"):
        unsigned.rotate(SIGNER)


def test_a_writers_name_is_a_plain_word(store: ObjectStore) -> None:
    for name in ("", "a b", "x" * 65, "é"):
        with pytest.raises(RecordInvalid, match="writer"):
            open_writer(store, writer=name)
    open_writer(store, writer="trainer-0.rack:4711")


def test_a_layout_is_uploaded_once() -> None:
    puts: list[str] = []
    store = FaultyStore(MemoryStore(), before=lambda verb, key: puts.append(f"{verb} {key}"))
    writer = open_writer(store)
    for n in range(3):
        publish(writer, f"weights {n}")
    layout = keys.layout(writer.put_layout(LAYOUT))
    assert puts.count(f"put {layout}") == 1


def test_the_steps_of_a_commit_come_in_the_documented_order() -> None:
    steps: list[str] = []

    def note(verb: str, key: str) -> None:
        steps.append(f"{verb} {key.split('/')[0]}")

    store = FaultyStore(MemoryStore(), before=note)
    writer = open_writer(store)
    publish(writer, "zero")
    steps.clear()
    publish(writer, "one")
    assert steps == [
        "size layouts",
        "put manifests",
        "size manifests",
        *["put packs", "size packs"] * 3,
        "get log",  # the head is still ours
        "put_if_absent log",
        "get log",  # the slot holds our record
        "replace hint",
        "replace hint",  # what it cost
    ]


def test_a_custom_clock_and_nonce_reach_the_record() -> None:
    store = MemoryStore()
    BulletinWriter.open(store, signer=None, writer="w", nonce=lambda: "a" * 32, now=lambda: 5)
    record = read_log(store).history[0]
    assert (record.nonce, record.time) == ("a" * 32, 5)
