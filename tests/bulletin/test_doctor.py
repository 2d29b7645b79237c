"""The doctor: one verdict per question, true of sound stores and of those that are not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from skerry.bulletin import keys
from skerry.bulletin.doctor import Doctor, Verdict
from skerry.bulletin.errors import (
    AlreadyExists,
    ListUnsupported,
    ReadOnly,
    StoreDenied,
    StoreUnavailable,
)
from skerry.bulletin.patience import Patience
from skerry.bulletin.signing import PublicKey
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores.memory import MemoryStore
from skerry.bulletin.writer import new_nonce
from tests.bulletin.faults import FakeTime, FaultyStore, RacyStore, SilentStore, UnsafeStore
from tests.bulletin.log_builder import OTHER_SIGNER, SIGNER, START_MS, LogBuilder
from tests.bulletin.runs import open_writer, publish
from tests.bulletin.test_reader import stored
from tests.bulletin.test_start import put_checkpoint, put_hint

WRITES = ("conditional writes", "races", "list after write", "ranges", "replace", "delete")
READS = ("log", "key", "hint", "checkpoint", "clock")


def examine(
    store: ObjectStore,
    *,
    pinned: PublicKey | None = SIGNER.public_key,
    read_only: bool = False,
    now_ms: int = START_MS,
    patience: Patience | None = None,
) -> dict[str, tuple[str, str]]:
    doctor = Doctor(
        store=store,
        pinned_key=pinned,
        read_only=read_only,
        nonce=new_nonce,
        now=lambda: now_ms,
        patience=patience or FakeTime().patience(5),
    )
    return {check.name: (check.verdict.value, check.detail) for check in doctor.examine()}


def verdicts(found: dict[str, tuple[str, str]], *names: str) -> set[str]:
    return {found[name][0] for name in names or found}


def run(versions: int = 3) -> MemoryStore:
    log = LogBuilder.with_versions(versions)
    store = stored(log)
    put_hint(store, log, None)
    return store


def test_a_sound_store_with_a_sound_run_is_well_and_nothing_is_left_behind() -> None:
    store = run()
    before = list(store.list_after(""))
    found = examine(store)
    assert tuple(found) == (*WRITES, *READS)
    assert verdicts(found) == {"ok"}
    assert "4 records" in found["log"][1]
    assert "newest version 2" in found["log"][1]
    assert SIGNER.public_key.hex in found["key"][1]
    assert list(store.list_after("")) == before


def test_a_place_without_a_log_is_tried_out_all_the_same() -> None:
    found = examine(MemoryStore())
    assert verdicts(found, *WRITES) == {"ok"}
    assert found["log"] == ("warn", "there is no log yet")


def test_what_a_real_writer_leaves_is_well() -> None:
    store = MemoryStore()
    publish(open_writer(store), "zero")
    assert verdicts(examine(store, now_ms=2**50)) == {"ok"}


class StaleList(MemoryStore):
    def list_after(self, prefix: str, after: str = "") -> Iterator[str]:
        return iter(())


class WrongRanges(MemoryStore):
    def get_range(self, key: str, start: int, stop: int) -> bytes:
        return bytes(stop - start)


class LongRanges(MemoryStore):
    def get_range(self, key: str, start: int, stop: int) -> bytes:
        return super().get_range(key, start, min(stop, self.size(key)))


class StaleReplace(MemoryStore):
    def replace(self, key: str, data: bytes) -> None:
        pass


class Immortal(MemoryStore):
    def delete(self, key: str) -> None:
        pass


class Taken(MemoryStore):
    def put_if_absent(self, key: str, data: bytes) -> None:
        raise AlreadyExists(key)


@pytest.mark.parametrize(
    ("store", "name"),
    [
        (UnsafeStore(), "conditional writes"),
        (SilentStore(), "conditional writes"),
        (Taken(), "conditional writes"),
        (RacyStore(), "races"),
        (StaleList(), "list after write"),
        (WrongRanges(), "ranges"),
        (LongRanges(), "ranges"),
        (StaleReplace(), "replace"),
        (Immortal(), "delete"),
    ],
)
def test_a_store_that_breaks_a_promise_is_told_which(store: ObjectStore, name: str) -> None:
    verdict, detail = examine(store)[name]
    assert verdict == "failed"
    assert "hint/probe-" in detail


class WriteNothing(FaultyStore):
    """A store as an island has it."""

    def __init__(self, inner: MemoryStore, error: type[StoreDenied]) -> None:
        super().__init__(inner)
        self.error = error

    def put_if_absent(self, key: str, data: bytes) -> None:
        raise ReadOnly(key) if self.error is ReadOnly else self.error(key, "403")

    def put(self, key: str, parts: Iterable[bytes]) -> int:
        raise ReadOnly(key) if self.error is ReadOnly else self.error(key, "403")

    def list_after(self, prefix: str, after: str = "") -> Iterator[str]:
        raise ListUnsupported(prefix)


def test_a_store_that_can_only_be_read_is_asked_only_that() -> None:
    found = examine(WriteNothing(run(), ReadOnly))
    assert verdicts(found, *WRITES) == {"skipped"}
    assert verdicts(found, *READS) == {"ok"}


def test_who_may_not_write_is_told_so_unless_nothing_is_to_be_written() -> None:
    store = WriteNothing(run(), StoreDenied)
    assert verdicts(examine(store), *WRITES) == {"failed"}
    found = examine(store, read_only=True)
    assert verdicts(found, *WRITES) == {"skipped"}
    assert verdicts(found, *READS) == {"ok"}


def test_a_store_without_a_list_is_no_failure() -> None:
    class NoList(MemoryStore):
        def list_after(self, prefix: str, after: str = "") -> Iterator[str]:
            raise ListUnsupported(prefix)

    assert examine(NoList())["list after write"][0] == "skipped"


def test_a_store_that_does_not_answer_fails_and_is_not_waited_for_for_ever() -> None:
    def down(verb: str, key: str) -> None:
        raise StoreUnavailable(key, "503")

    found = examine(FaultyStore(run(), before=down))
    assert found["conditional writes"][0] == found["log"][0] == "failed"
    assert "503" in found["log"][1]
    assert verdicts(found, *READS[1:]) == {"skipped"}


def test_a_log_that_is_not_what_it_was_fails() -> None:
    store = run()
    store.replace(keys.log(2), b"junk")
    assert examine(store)["log"][0] == "failed"
    assert examine(run(), pinned=OTHER_SIGNER.public_key)["log"][0] == "failed"


def test_a_key_that_is_not_pinned_and_an_unsigned_run_are_pointed_out() -> None:
    verdict, detail = examine(run(), pinned=None)["key"]
    assert verdict == "warn"
    assert "--key" in detail
    unsigned = stored(LogBuilder.with_versions(1, signer=None))
    found = examine(unsigned, pinned=None)
    assert found["key"][0] == "warn"
    assert found["checkpoint"][0] == "skipped"


def test_hint_and_checkpoint_are_said_to_be_fresh_behind_or_wrong() -> None:
    log = LogBuilder.with_versions(600)
    store = stored(log)
    assert examine(store)["hint"] == ("warn", "hint/latest.json is missing or makes no sense")
    assert examine(store)["checkpoint"][0] == "warn"
    put_hint(store, log, None, seq=590)
    assert examine(store)["hint"] == ("ok", "10 records behind")
    put_hint(store, log, None, seq=10)
    assert examine(store)["hint"] == ("warn", "590 records behind")
    put_hint(store, log, None, seq=999)
    assert examine(store)["hint"][0] == "warn"
    put_checkpoint(store, log, 10)
    assert examine(store)["checkpoint"] == ("warn", "of slot 10, 590 records behind")
    put_checkpoint(store, log, 511)
    assert examine(store)["checkpoint"] == ("ok", "of slot 511, 89 records behind")


def test_a_record_of_the_future_shows_a_clock_that_is_off() -> None:
    assert examine(run(), now_ms=START_MS - 3_600_000)["clock"][0] == "warn"


def test_verdicts_are_words() -> None:
    assert [verdict.value for verdict in Verdict] == ["ok", "warn", "failed", "skipped"]
