"""Reading through a relay: whatever it does, an island reads what the bulletin holds."""

from __future__ import annotations

import re
import socket
import threading
import time as real_time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.bulletin import keys
from skerry.bulletin.errors import (
    NotFound,
    ObjectChanged,
    StoreUnavailable,
    Tampered,
    UnsupportedStore,
)
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores import MemoryStore, Metered, Relayed, open_relayed
from skerry.bulletin.stores.relay_trust import RelayTrust
from skerry.codec.digest import digest_bytes
from tests.bulletin.store_contract import StoreContract

DATA = bytes(range(256)) * 40
PACK = keys.pack(1, digest_bytes(DATA))
TRUST = RelayTrust(log_s=60, patience_s=30, slowest_bytes_s=1000, pause_s=5, bench_s=300)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Twisted(MemoryStore):
    """A relay whose answers go through `twist`, which may raise or change them."""

    def __init__(self, twist: Callable[[str, bytes], bytes] = lambda key, data: data) -> None:
        super().__init__()
        self.twist = twist
        self.asked = 0

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        self.asked += 1
        return self.twist(key, super().get(key, limit_bytes=limit_bytes))

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        self.asked += 1
        return self.twist(key, super().get_range(key, start, stop))

    def stream(self, key: str, start: int, stop: int) -> Iterator[bytes]:
        for first in range(start, stop, 1000):
            yield self.get_range(key, first, min(first + 1000, stop))


def relayed(relay: ObjectStore, behind: ObjectStore, clock: Clock) -> Relayed:
    return Relayed(relay, behind, TRUST, clock=clock, sleep=clock.sleep)


def whole(store: ObjectStore) -> bytes:
    return b"".join(store.stream(PACK, 0, len(DATA)))


@contextmanager
def dribbling(*, breaks_off: bool) -> Iterator[str]:
    """A relay that answers everything byte by byte; or with one byte for each connection."""
    listener, ended = socket.create_server(("127.0.0.1", 0), backlog=64), threading.Event()
    threads: list[threading.Thread] = []

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            asked = connection.recv(65536).decode()
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(DATA)}\r\n"
            if found := re.search(r"bytes=([0-9]+)-([0-9]+)", asked):
                first, last = int(found[1]), int(found[2])
                head = (
                    f"HTTP/1.1 206 Partial Content\r\nContent-Length: {last + 1 - first}\r\n"
                    f"Content-Range: bytes {first}-{last}/{len(DATA)}\r\n"
                )
            connection.sendall(head.encode())
            if asked.startswith("HEAD"):  # whose answer has no body: its headers do not end
                connection.sendall(b"X-More: ")
            else:
                connection.sendall(b"\r\n")
            while not ended.wait(0.01):
                connection.sendall(b"x")
                if breaks_off:
                    return

    def accept() -> None:
        with suppress(OSError):
            while not ended.is_set():
                threads.append(threading.Thread(target=answer, args=(listener.accept()[0],)))
                threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/bulletin"
    finally:
        ended.set()
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in [accepting, *threads]:
            thread.join()


class TestRelayed(StoreContract):
    """A relay that has nothing: the store is the one behind it."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        return Relayed(MemoryStore(), MemoryStore(), RelayTrust(log_s=0))


def test_what_a_relay_has_is_not_asked_of_the_bulletin() -> None:
    relay, behind = MemoryStore(), Metered(MemoryStore())
    for place in (relay, behind.inner):
        place.put(PACK, [DATA])
    before = behind.usage()
    store = Relayed(relay, behind)
    assert whole(store) == DATA
    assert store.get(PACK, limit_bytes=len(DATA)) == DATA
    assert store.get_range(PACK, 5, 9) == DATA[5:9]
    assert store.size(PACK) == len(DATA)
    assert (behind.usage() - before).requests == {}


@given(st.lists(st.sampled_from(["down", "cut", "gone", "changed", "sound"]), min_size=1))
def test_whatever_a_relay_does_an_object_is_read_whole(moods: list[str]) -> None:
    clock, left = Clock(), list(moods)

    def twist(key: str, data: bytes) -> bytes:
        match left.pop() if left else "sound":
            case "down":
                raise StoreUnavailable(key, "down")
            case "gone":
                raise NotFound(key)
            case "changed":
                raise ObjectChanged(key, "another one")
            case "cut":
                return b""
        return data

    relay, behind = Twisted(twist), MemoryStore()
    for place in (relay, behind):
        place.put(PACK, [DATA])
    store = relayed(relay, behind, clock)
    assert whole(store) == DATA
    assert store.get(PACK, limit_bytes=len(DATA)) == DATA


def test_wrong_bytes_under_a_digest_come_once_and_then_from_the_bulletin() -> None:
    clock = Clock()
    relay, behind = Twisted(lambda key, data: bytes(len(data))), MemoryStore()
    for place in (relay, behind):
        place.put(PACK, [DATA])
    store = relayed(relay, behind, clock)
    assert store.get(PACK, limit_bytes=len(DATA)) == DATA  # whole at once: never handed on
    clock.now += TRUST.bench_s
    assert whole(store) != DATA  # the reader, which verifies, asks again
    assert whole(store) == DATA
    asked = relay.asked
    clock.now += TRUST.bench_s - 1
    assert whole(store) == DATA
    assert relay.asked == asked
    clock.now += 1
    whole(store)
    assert relay.asked > asked


def test_a_part_of_an_object_is_no_lie() -> None:
    clock = Clock()
    relay, behind = Twisted(), MemoryStore()
    relay.put(PACK, [DATA])
    store = relayed(relay, behind, clock)
    assert b"".join(store.stream(PACK, 0, 100)) == DATA[:100]
    assert whole(store) == DATA  # the bulletin has nothing


def test_a_record_that_the_relay_has_not_is_asked_of_the_bulletin_now_and_then() -> None:
    clock = Clock()
    relay, behind = MemoryStore(), Metered(MemoryStore())
    store = relayed(relay, behind, clock)
    behind.inner.put(keys.log(7), [b"withheld"])
    behind.inner.put(keys.log(8), [b"withheld, too"])
    for _ in range(int(TRUST.log_s)):
        with pytest.raises(NotFound):
            store.get(keys.log(7), limit_bytes=100)
        clock.now += 1
    assert store.get(keys.log(7), limit_bytes=100) == b"withheld"
    assert behind.usage().requests == {"get": 1}
    assert store.get(keys.log(8), limit_bytes=100) == b"withheld, too"  # all of them, at once
    clock.now += TRUST.pause_s
    with pytest.raises(NotFound):
        store.get(keys.log(8), limit_bytes=100)


def test_other_objects_that_the_relay_has_not_are_asked_of_the_bulletin_at_once() -> None:
    relay, behind = MemoryStore(), MemoryStore()
    behind.put(PACK, [DATA])
    behind.replace(keys.HINT, b"hint")
    store = relayed(relay, behind, Clock())
    assert whole(store) == DATA
    assert store.get(keys.HINT, limit_bytes=10) == b"hint"
    assert store.size(PACK) == len(DATA)


def test_an_object_on_its_way_to_the_relay_is_waited_for_within_its_size() -> None:
    clock, behind = Clock(), Metered(MemoryStore())
    behind.inner.put(PACK, [DATA])
    ready_at = clock.now + 35  # patience, and 10 s for 10,240 bytes

    def twist(key: str, data: bytes) -> bytes:
        if clock.now < ready_at:
            raise StoreUnavailable(key, "on its way", retry_after_s=1)
        return data

    relay = Twisted(twist)
    relay.put(PACK, [DATA])
    assert whole(relayed(relay, behind, clock)) == DATA
    assert behind.usage().bytes_down == 0
    ready_at = clock.now + 1000
    began = clock.now
    assert whole(relayed(relay, behind, clock)) == DATA
    assert clock.now - began < 50
    assert behind.usage().bytes_down == len(DATA)


def test_a_relay_without_an_answer_is_left_alone_for_a_while() -> None:
    def down(key: str, data: bytes) -> bytes:
        raise StoreUnavailable(key, "down")

    clock, behind = Clock(), MemoryStore()
    relay = Twisted(down)
    for place in (relay, behind):
        place.put(PACK, [DATA])
    store = relayed(relay, behind, clock)
    for _ in range(5):
        assert whole(store) == DATA
    assert relay.asked == 1
    clock.now += TRUST.pause_s
    assert whole(store) == DATA
    assert relay.asked == 2


@pytest.mark.parametrize("breaks_off", [False, True])
@pytest.mark.parametrize("verb", ["get", "get_range", "size", "stream"])
def test_a_relay_that_sends_byte_by_byte_delays_a_read_and_never_ends_it(
    verb: str, breaks_off: bool
) -> None:
    url = f"memory://dribbled-{verb}-{breaks_off}"
    behind = open_relayed(url, [])
    behind.put(PACK, [DATA])
    behind.put(keys.log(1), [b"record"])
    trust = RelayTrust(patience_s=0.2, slowest_bytes_s=1e9)
    with dribbling(breaks_off=breaks_off) as relay:
        store = open_relayed(url, [relay], trust=trust)
        match verb:
            case "get":
                assert store.get(keys.log(1), limit_bytes=1 << 20) == b"record"
            case "get_range":
                assert store.get_range(PACK, 5, 999) == DATA[5:999]
            case "size":
                assert store.size(PACK) == len(DATA)
            case "stream":
                tail = b"".join(store.stream(PACK, 0, len(DATA)))
                assert tail == DATA


def test_a_relay_that_is_slow_in_the_middle_is_left_and_its_reader_goes_on_from_there() -> None:
    clock, behind = Clock(), Metered(MemoryStore())
    asked = 0

    def slow(key: str, data: bytes) -> bytes:
        nonlocal asked
        asked += 1
        clock.now += 1 if asked < 4 else 60
        return data

    relay = Twisted(slow)
    for place in (relay, behind.inner):
        place.put(PACK, [DATA])
    store = relayed(relay, behind, clock)
    assert whole(store) == DATA
    assert behind.usage().bytes_down == len(DATA) - 4000
    assert whole(store) == DATA
    assert asked == 4  # it is left alone


def test_a_reader_that_takes_its_time_is_not_the_relays_fault() -> None:
    clock, relay, behind = Clock(), Twisted(), Metered(MemoryStore())
    relay.put(PACK, [DATA])
    for _ in relayed(relay, behind, clock).stream(PACK, 0, len(DATA)):
        clock.now += 3600
    assert behind.usage().requests == {}


def test_distrust_reads_past_every_relay() -> None:
    clock, behind = Clock(), MemoryStore()
    first, second = Twisted(), Twisted()
    behind.put(keys.log(1), [b"right"])
    for relay in (first, second):
        relay.put(keys.log(1), [b"wrong"])
    store = relayed(first, relayed(second, behind, clock), clock)
    assert store.get(keys.log(1), limit_bytes=9) == b"wrong"
    store.distrust()
    assert store.get(keys.log(1), limit_bytes=9) == b"right"


def test_which_run_it_is_the_bulletin_says_whenever_it_answers() -> None:
    """One key may have signed both runs, so a pin alone does not tell them apart."""
    relay, behind = MemoryStore(), MemoryStore()
    relay.put(keys.log(0), [b"another run"])
    with pytest.raises(NotFound):
        Relayed(relay, behind, pinned=True).get(keys.log(0), limit_bytes=99)
    behind.put(keys.log(0), [b"the run"])
    for pinned in (False, True):
        assert Relayed(relay, behind, pinned=pinned).get(keys.log(0), limit_bytes=99) == b"the run"


def test_which_run_it_is_a_relay_says_to_a_pinned_reader_until_the_bulletin_does() -> None:
    clock, down = Clock(), True

    def twist(key: str, data: bytes) -> bytes:
        if down:
            raise StoreUnavailable(key, "down")
        return data

    relay, behind = MemoryStore(), Twisted(twist)
    relay.put(keys.log(0), [b"one run"])
    behind.put(keys.log(0), [b"one run"])
    behind.put(keys.log(1), [b"record"])
    with pytest.raises(StoreUnavailable):
        relayed(relay, behind, clock).get(keys.log(0), limit_bytes=99)
    store = Relayed(relay, behind, TRUST, pinned=True, clock=clock, sleep=clock.sleep)
    assert store.get(keys.log(0), limit_bytes=99) == b"one run"
    clock.now += TRUST.log_s
    down = False
    assert store.get(keys.log(1), limit_bytes=99) == b"record"
    clock.now += TRUST.log_s
    down = True
    relay.replace(keys.log(0), b"another run")
    assert store.get(keys.log(0), limit_bytes=99) == b"another run"
    clock.now += TRUST.log_s
    down = False
    for _ in range(3):
        with pytest.raises(Tampered, match="run"):
            store.get(keys.log(1), limit_bytes=99)


def test_behind_two_relays_a_withheld_record_is_seen_as_soon_as_behind_one() -> None:
    clock, behind = Clock(), MemoryStore()
    back_at = clock.now + 1.5 * TRUST.log_s

    def twist(key: str, data: bytes) -> bytes:
        raise StoreUnavailable(key, "down") if clock.now < back_at else NotFound(key)

    first = Twisted(twist)  # so the two begin to be asked at different times
    first.put(keys.log(7), [b""])
    store = relayed(first, relayed(MemoryStore(), behind, clock), clock)
    began = clock.now
    while clock.now <= began + TRUST.log_s:
        with pytest.raises(NotFound):
            store.get(keys.log(7), limit_bytes=100)
        clock.now += 1
    behind.put(keys.log(7), [b"withheld"])
    for _ in range(int(TRUST.log_s) - 1):
        with pytest.raises(NotFound):
            store.get(keys.log(7), limit_bytes=100)
        clock.now += 1
    assert store.get(keys.log(7), limit_bytes=100) == b"withheld"


def test_behind_two_relays_the_bulletin_is_looked_at_as_rarely_as_behind_one() -> None:
    def down(key: str, data: bytes) -> bytes:
        raise StoreUnavailable(key, "down")

    for second in (MemoryStore(), Twisted(down)):
        second.put(keys.log(7), [b""])
        clock, behind = Clock(), Metered(MemoryStore())
        store = relayed(MemoryStore(), relayed(second, behind, clock), clock)
        for _ in range(10 * int(TRUST.log_s)):
            with pytest.raises(NotFound):
                store.get(keys.log(8), limit_bytes=100)
            clock.now += 1
        assert behind.usage().requests["get"] <= 10


def test_a_relay_is_at_an_http_address() -> None:
    with pytest.raises(UnsupportedStore, match="http://host:port/bulletin"):
        open_relayed("memory://relayed", ["s3://bucket/x"])
    assert isinstance(open_relayed("memory://relayed", ["http://127.0.0.1:1/bulletin"]), Relayed)
    assert isinstance(open_relayed("memory://relayed", []), MemoryStore)


@pytest.mark.parametrize("url", ["http://", "http://user@host/bulletin", "http://host/bulletin?x"])
def test_a_wrong_address_of_a_relay_is_called_that(url: str) -> None:
    with pytest.raises(UnsupportedStore, match="the address of a relay"):
        open_relayed("memory://relayed", [url])


@pytest.mark.parametrize("url", ["http://host:8000", "http://host:8000/"])
def test_an_address_of_a_relay_has_a_path(url: str) -> None:
    with pytest.raises(UnsupportedStore, match="http://host:port/bulletin, found no path"):
        open_relayed("memory://relayed", [url])


def test_a_relay_that_is_not_there_costs_little(tmp_path: object) -> None:
    behind = open_relayed("memory://little", [])
    behind.put(PACK, [DATA])
    store = open_relayed("memory://little", ["http://127.0.0.1:1/bulletin"])
    began = real_time.monotonic()
    for _ in range(20):
        assert whole(store) == DATA
    assert real_time.monotonic() - began < 10
