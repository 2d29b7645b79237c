"""One bulletin in several places: read from the nearest that has it, written in the first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from skerry.bulletin.errors import (
    ListUnsupported,
    NotFound,
    ReadOnly,
    ShortObject,
    StoreDenied,
    StoreUnavailable,
)
from skerry.bulletin.log import BulletinReader
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores.memory import MemoryStore
from skerry.bulletin.stores.mirrored import Mirrored
from tests.bulletin.faults import FakeTime, FaultyStore
from tests.bulletin.runs import open_writer, publish, read_log
from tests.bulletin.store_contract import StoreContract


class TestMirrored(StoreContract):
    @pytest.fixture
    def store(self) -> Mirrored:
        return Mirrored([MemoryStore(), MemoryStore()])


class Distant(FaultyStore):
    """Answers after so many seconds; counts what it is asked; may be down."""

    def __init__(self, time: FakeTime, seconds: float) -> None:
        super().__init__(MemoryStore(), before=self._travel)
        self.seconds = seconds
        self.down = False
        self.asked = 0
        self._time = time

    def _travel(self, verb: str, key: str) -> None:
        self.asked += 1
        self._time.now_s += self.seconds
        if self.down:
            raise StoreUnavailable(key, "down")


def test_reads_go_to_the_nearest_and_come_back_to_one_that_got_nearer() -> None:
    time = FakeTime()
    far, near = Distant(time, 0.2), Distant(time, 0.01)
    for store in (far, near):
        store.inner.put("k", [b"x"])
    mirrored = Mirrored([far, near], clock=time.clock)
    for _ in range(20):
        mirrored.get("k", limit_bytes=1)
    assert far.asked <= 2
    far.seconds, near.seconds = 0.001, 0.2
    far.asked = near.asked = 0
    for _ in range(60):
        time.now_s += 5
        mirrored.get("k", limit_bytes=1)
    assert far.asked > near.asked


def test_one_that_is_down_is_asked_last_for_a_while() -> None:
    time = FakeTime()
    first, second = Distant(time, 0.01), Distant(time, 0.1)
    for store in (first, second):
        store.inner.put("k", [b"x"])
    first.down = True
    mirrored = Mirrored([first, second], clock=time.clock)
    for _ in range(10):
        assert mirrored.get("k", limit_bytes=1) == b"x"
    assert first.asked == 1
    first.down = False
    time.now_s += 10
    second.asked = 0
    for _ in range(10):
        mirrored.size("k")
    assert first.asked == 11
    assert second.asked <= 1


def test_a_record_that_arrived_before_its_packs_is_completed_from_another_mirror() -> None:
    origin = MemoryStore()
    publish(open_writer(origin), "zero")
    publish(open_writer(origin, writer="next"), "one")
    early = MemoryStore()
    for name in origin.list_after("log/"):
        if name.startswith("log/"):
            early.put(name, [origin.get(name, limit_bytes=1 << 20)])
    reader = read_log(Mirrored([origin, early]))
    assert len(reader.state.commits) == 2
    only_early = BulletinReader(early, wait=FakeTime().patience(0))
    only_early.refresh()
    with pytest.raises(NotFound):
        only_early.layout(reader.state.commits[0].layout)


def test_a_copy_that_is_behind_does_not_end_the_log() -> None:
    origin, behind = MemoryStore(), MemoryStore()
    origin.put("log/1", [b"x"])
    assert Mirrored([behind, origin]).get("log/1", limit_bytes=1) == b"x"


def test_not_found_is_said_only_when_all_say_so() -> None:
    time = FakeTime()
    down, empty = Distant(time, 0), MemoryStore()
    down.down = True
    orders: list[list[ObjectStore]] = [[down, empty], [empty, down]]
    for stores in orders:
        with pytest.raises(StoreUnavailable):
            Mirrored(stores).get("k", limit_bytes=1)
        with pytest.raises(StoreUnavailable):
            list(Mirrored(stores).stream("k", 0, 1))
    with pytest.raises(NotFound):
        Mirrored([empty, empty]).get("k", limit_bytes=1)


def test_a_stream_goes_on_with_another_mirror_from_the_byte_reached() -> None:
    class Breaking(MemoryStore):
        def stream(self, key: str, start: int, stop: int) -> Iterator[bytes]:
            yield self.get_range(key, start, start + 4)
            raise StoreUnavailable(key, "gone")

    breaking, cut, whole = Breaking(), MemoryStore(), MemoryStore()
    for store in (breaking, whole):
        store.put("k", [b"0123456789"])
    cut.put("k", [b"0123"])
    assert b"".join(Mirrored([breaking, cut, whole]).stream("k", 0, 10)) == b"0123456789"
    with pytest.raises(ShortObject):
        list(Mirrored([cut]).stream("k", 0, 10))


def test_a_writer_is_answered_by_the_store_it_writes_to_alone() -> None:
    first, copy = MemoryStore(), MemoryStore()
    copy.put("packs/p", [b"old copy"])
    mirrored = Mirrored([first, copy])
    assert mirrored.size("packs/p") == 8
    mirrored.put("packs/q", [b"x"])
    with pytest.raises(NotFound):  # or it would name in a record what its own store has not
        mirrored.size("packs/p")
    assert copy.get("packs/p", limit_bytes=8) == b"old copy"
    assert list(mirrored.list_after("")) == ["packs/q"]


def test_status_written_by_a_follower_leaves_its_reads_where_they_were() -> None:
    first, copy = MemoryStore(), MemoryStore()
    copy.put("packs/p", [b"x"])
    mirrored = Mirrored([first, copy])
    mirrored.replace("islands/a.json", b"{}")
    assert mirrored.get("packs/p", limit_bytes=1) == b"x"
    assert first.get("islands/a.json", limit_bytes=2) == b"{}"


def test_a_list_comes_from_the_first_store_that_has_lists() -> None:
    class Unlisted(MemoryStore):
        def list_after(self, prefix: str, after: str = "") -> Iterator[str]:
            raise ListUnsupported(prefix)

    listed = MemoryStore()
    listed.put("a", [b""])
    assert list(Mirrored([Unlisted(), listed]).list_after("")) == ["a"]
    with pytest.raises(ListUnsupported):
        list(Mirrored([Unlisted()]).list_after(""))


def test_a_read_only_first_store_refuses_writes() -> None:
    class Reading(MemoryStore):
        def put_if_absent(self, key: str, data: bytes) -> None:
            raise ReadOnly(key)

    with pytest.raises(StoreDenied, match="can only be read"):
        Mirrored([Reading(), MemoryStore()]).put_if_absent("k", b"x")


def test_no_store_is_no_mirror() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Mirrored([])
