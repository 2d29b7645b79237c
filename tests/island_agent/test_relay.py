"""A relay's promises: one copy from upstream, and nothing handed on that differs."""

from __future__ import annotations

import errno
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from skerry.bulletin import checkpoint, keys
from skerry.bulletin.errors import NotFound, StoreUnavailable, Tampered
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.records import Record
from skerry.bulletin.signing import Signer
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores import MemoryStore
from skerry.codec.digest import Digest, digest_bytes
from skerry.island_agent.errors import Crowded, NoRoom, ObjectCorrupt, Stopped, Unreferenced
from skerry.island_agent.fetch import Fetcher
from skerry.island_agent.relay import Relay
from skerry.island_agent.relay_config import RelayConfig
from skerry.island_agent.relay_refs import kind_of
from skerry.island_agent.relay_store import RelayStore
from tests.bulletin.store_contract import HOSTILE_KEYS, StoreContract
from tests.island_agent.relays import SMALL, caught_up
from tests.island_agent.runs import Run, make_run
from tests.island_agent.stores import TwistedStore

MANY = 16


@pytest.fixture
def open_relay(tmp_path: Path) -> Iterator[Callable[..., Relay]]:
    relays: list[Relay] = []

    def make(store: ObjectStore, config: RelayConfig = SMALL, name: str = "relay") -> Relay:
        relays.append(Relay(store, tmp_path / name, config))
        return relays[-1]

    yield make
    for relay in relays:
        relay.close()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def body(relay: Relay, key: str) -> bytes:
    relay.fetch(key)
    kept = relay.open(key)
    assert kept is not None
    with kept.file as file:
        return file.read()


def named(run: Run) -> list[str]:
    """Every object of the run that records name."""
    found = set()
    for commit in run.writer.reader.state.commits.values():
        found |= {keys.layout(commit.layout), keys.manifest(commit.manifest)}
        found |= {pack.key for pack in commit.packs}
        if commit.full is not None:
            found |= {ref.key for ref in commit.full.objects}
    return sorted(found)


class TestRelayStore(StoreContract):
    """What a relay's own agent reads is the store upstream."""

    @pytest.fixture
    def store(self, open_relay: Callable[..., Relay]) -> ObjectStore:
        return RelayStore(open_relay(MemoryStore()))


def test_every_object_of_a_run_is_handed_on_byte_for_byte_and_fetched_once(
    open_relay: Callable[..., Relay],
) -> None:
    run = make_run(3)
    relay = open_relay(run.store)
    caught_up(relay)
    before = relay.upstream.usage()
    objects = named(run)
    for _ in range(3):
        for key in objects:
            assert body(relay, key) == run.store.get(key, limit_bytes=1 << 30)
    total = sum(run.store.size(key) for key in objects)
    assert (relay.upstream.usage() - before).bytes_down == total


def test_many_who_ask_at_one_time_cost_one_fetch(open_relay: Callable[..., Relay]) -> None:
    run = make_run(1)
    key = run.writer.reader.state.commits[1].packs[0].key
    begun, go_on = threading.Event(), threading.Event()

    def slow(name: str, start: int, data: bytes) -> bytes:
        begun.set()
        go_on.wait()
        return data

    relay = open_relay(TwistedStore(run.store, slow))
    caught_up(relay)
    before = relay.upstream.usage()
    with ThreadPoolExecutor(MANY) as pool:
        futures = [pool.submit(body, relay, key) for _ in range(MANY)]
        begun.wait()
        while relay.joined < MANY - 1:
            threading.Event().wait(0.001)
        go_on.set()
        data = run.store.get(key, limit_bytes=1 << 30)
        assert all(future.result() == data for future in futures)
    assert (relay.upstream.usage() - before).bytes_down == len(data)


@pytest.mark.parametrize("kind", ["packs/", "full/", "layouts/"])
def test_bytes_that_differ_are_neither_handed_on_nor_kept(
    open_relay: Callable[..., Relay], kind: str
) -> None:
    run = make_run(1)
    key = next(key for key in named(run) if key.startswith(kind))

    class Lying(TwistedStore):
        def get(self, key: str, *, limit_bytes: int) -> bytes:
            data = super().get(key, limit_bytes=limit_bytes)
            return bytes(len(data)) if key.startswith(kind) else data

    store = Lying(run.store, lambda name, start, data: bytes(len(data)))
    relay = open_relay(store)
    caught_up(relay)
    with pytest.raises((ObjectCorrupt, Tampered)):
        relay.fetch(key)
    assert relay.open(key) is None
    assert not list((relay.cache.directory / "objects").glob("[0-9a-f]*[0-9a-f]"))
    store.on_range = None
    assert kind == "layouts/" or body(relay, key) == run.store.get(key, limit_bytes=1 << 30)


def test_a_restarted_relay_goes_on_where_it_was(open_relay: Callable[..., Relay]) -> None:
    run = make_run(0)
    full = run.writer.reader.state.commits[0].full
    assert full is not None
    ref = max(full.objects, key=lambda ref: ref.size)

    def broken(name: str, start: int, data: bytes) -> bytes:
        if start >= 3000:
            raise StoreUnavailable(name, "broken")
        return data

    store = TwistedStore(run.store, broken)
    first = open_relay(store)
    caught_up(first)
    first.stop()
    with pytest.raises(Stopped):
        first.fetch(ref.key)
    part = first.cache.incoming / f"{ref.digest}.part"
    part.write_bytes(run.store.get_range(ref.key, 0, 3000))
    store.on_range = None
    first.close()
    second = open_relay(store)
    caught_up(second)
    before = second.upstream.usage()
    assert body(second, ref.key) == run.store.get(ref.key, limit_bytes=1 << 30)
    assert (second.upstream.usage() - before).bytes_down == ref.size - 3000
    second.close()
    third = open_relay(store)
    caught_up(third)
    before = third.upstream.usage()
    assert body(third, ref.key) == run.store.get(ref.key, limit_bytes=1 << 30)
    assert (third.upstream.usage() - before).bytes_down == 0


def test_a_file_that_no_record_names_is_not_handed_on(open_relay: Callable[..., Relay]) -> None:
    run = make_run(0)
    run.store.put("full/00000001-00112233445566778899aabbccddeeff/model.safetensors", [b"x"])
    relay = open_relay(run.store)
    caught_up(relay)
    with pytest.raises(Unreferenced):
        relay.fetch("full/00000001-00112233445566778899aabbccddeeff/model.safetensors")


def test_what_has_been_collected_is_not_found(open_relay: Callable[..., Relay]) -> None:
    run = make_run(1)
    relay = open_relay(run.store)
    caught_up(relay)
    key = run.writer.reader.state.commits[1].packs[0].key
    run.store.delete(key)
    with pytest.raises(NotFound):
        relay.fetch(key)
    with pytest.raises(NotFound):
        relay.fetch(keys.pack(1, digest_bytes(b"never was")))


def test_without_room_an_own_agent_reads_past_the_relay(
    open_relay: Callable[..., Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(1, words=800_000)
    key = run.writer.reader.state.commits[1].packs[0].key
    data = run.store.get(key, limit_bytes=1 << 30)
    small = open_relay(run.store, RelayConfig(cache_bytes=4096, spare_bytes=0), "small")
    caught_up(small)
    with pytest.raises(NoRoom):
        small.fetch(key)
    store = RelayStore(small)
    assert b"".join(store.stream(key, 0, len(data))) == data
    assert store.size(key) == len(data)

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    relay = open_relay(run.store)
    caught_up(relay)
    monkeypatch.setattr(Fetcher, "_complete", full)
    with pytest.raises(NoRoom):
        relay.fetch(key)
    assert b"".join(RelayStore(relay).stream(key, 0, len(data))) == data
    monkeypatch.undo()
    assert body(relay, key) == data


def test_a_size_is_asked_for_without_fetching_the_object(open_relay: Callable[..., Relay]) -> None:
    run = make_run(1)
    relay = open_relay(run.store)
    caught_up(relay)
    before = relay.upstream.usage()
    for key in named(run):
        assert RelayStore(relay).size(key) == run.store.size(key)
    assert (relay.upstream.usage() - before).requests == {"size": len(named(run))}
    for key in named(run):
        relay.fetch(key)
    before = relay.upstream.usage()
    for key in named(run):
        assert RelayStore(relay).size(key) == run.store.size(key)
    assert (relay.upstream.usage() - before).requests == {}


def test_the_own_agent_reads_along_while_an_object_arrives(
    open_relay: Callable[..., Relay],
) -> None:
    run = make_run(0, words=400_000)
    full = run.writer.reader.state.commits[0].full
    assert full is not None
    ref = max(full.objects, key=lambda ref: ref.size)
    go_on = threading.Event()

    def slow(name: str, start: int, data: bytes) -> bytes:
        assert start < 500_000 or go_on.wait(60)
        return data

    store = TwistedStore(run.store, slow)
    relay = open_relay(store)
    caught_up(relay)
    before = relay.upstream.usage()
    stream = RelayStore(relay).stream(ref.key, 0, ref.size)
    first = next(stream)
    assert 0 < len(first) <= 500_000
    assert not relay.holds(ref.key)
    go_on.set()
    data = run.store.get(ref.key, limit_bytes=1 << 30)
    assert first + b"".join(stream) == data
    assert body(relay, ref.key) == data
    assert (relay.upstream.usage() - before).bytes_down == ref.size


def test_an_own_agent_goes_on_past_a_relay_that_gives_up(open_relay: Callable[..., Relay]) -> None:
    run = make_run(0)
    full = run.writer.reader.state.commits[0].full
    assert full is not None
    ref = max(full.objects, key=lambda ref: ref.size)
    failures = 3  # as often as a relay tries

    def broken(name: str, start: int, data: bytes) -> bytes:
        nonlocal failures
        if start >= 5000 and failures:
            failures -= 1
            raise StoreUnavailable(name, "broken")
        return data

    relay = open_relay(TwistedStore(run.store, broken))
    caught_up(relay)
    data = run.store.get(ref.key, limit_bytes=1 << 30)
    assert b"".join(RelayStore(relay).stream(ref.key, 0, ref.size)) == data


class Held(TwistedStore):
    """A store upstream that answers for `keys` once `go_on` is set."""

    def __init__(self, inner: ObjectStore, held: Callable[[str], bool]) -> None:
        super().__init__(inner)
        self.held = held
        self.go_on = threading.Event()

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        assert not self.held(key) or self.go_on.wait(60)
        return super().get(key, limit_bytes=limit_bytes)

    def size(self, key: str) -> int:
        assert not self.held(key) or self.go_on.wait(60)
        return super().size(key)


def test_a_flood_of_keys_that_nobody_wrote_holds_up_neither_neighbours_nor_the_own_agent(
    open_relay: Callable[..., Relay],
) -> None:
    run = make_run(2)
    first, second = (run.writer.reader.state.commits[n].packs[0].key for n in (1, 2))
    store = Held(run.store, lambda key: key not in (first, second))
    store.go_on.set()
    relay = open_relay(store)
    caught_up(relay)
    store.go_on.clear()
    junk = [relay.begin(keys.pack(1, Digest(secrets.token_hex(32)))) for _ in range(1000)]
    crowded = [flight for flight in junk if flight.done()]
    assert len(crowded) > 900
    with pytest.raises(Crowded):
        crowded[0].result()
    relay.begin(first).result(60)
    assert body(relay, first) == run.store.get(first, limit_bytes=1 << 30)
    size = run.store.size(second)
    data = b"".join(RelayStore(relay).stream(second, 0, size))
    assert data == run.store.get(second, limit_bytes=1 << 30)
    store.go_on.set()
    for flight in junk:
        with pytest.raises((Crowded, NotFound)):
            flight.result(60)


def test_the_own_agent_reads_past_a_queue_of_neighbours(open_relay: Callable[..., Relay]) -> None:
    run = make_run(6)
    packs = [
        commit.packs[0].key for commit in run.writer.reader.state.commits.values() if commit.packs
    ]
    wanted, others = packs[0], packs[1:]
    go_on = threading.Event()

    def slow(name: str, start: int, data: bytes) -> bytes:
        assert name == wanted or go_on.wait(60)
        return data

    relay = open_relay(TwistedStore(run.store, slow))
    caught_up(relay)
    flights = [relay.begin(key) for key in others]  # more than there are threads
    flights.append(relay.begin(wanted))
    size = run.store.size(wanted)
    data = b"".join(RelayStore(relay).stream(wanted, 0, size))
    assert data == run.store.get(wanted, limit_bytes=1 << 30)
    go_on.set()
    for flight in flights:
        flight.result(60)


def test_what_was_not_there_is_not_asked_for_again_within_a_second(tmp_path: Path) -> None:
    run, clock = make_run(1), Clock()
    relay = Relay(run.store, tmp_path, SMALL, clock=clock)
    caught_up(relay)
    key, missing = keys.pack(1, digest_bytes(b"not yet")), keys.checkpoint(1)
    before = relay.upstream.usage()
    for _ in range(50):
        with pytest.raises(NotFound):
            relay.begin(key).result(60)
        assert relay.begin_passing(missing).result(60) is None
    assert (relay.upstream.usage() - before).requests == {"get": 1, "size": 1}
    run.store.put(key, [b"not yet"])
    clock.now += 1
    relay.begin(key).result(60)
    assert body(relay, key) == b"not yet"
    relay.close()


# The log.


def test_checkpoints_that_wait_for_the_first_record_do_not_hold_it_up(tmp_path: Path) -> None:
    """With a full disk nothing is kept, so each of them asks for slot 0."""
    run = make_run(1)
    store = Held(run.store, lambda key: True)
    store.go_on.set()
    relay = Relay(store, tmp_path, RelayConfig(cache_bytes=1 << 20, spare_bytes=1 << 60))
    reader = caught_up(relay)
    store.go_on.clear()
    free = [relay.begin_record(reader.state.seq + 1 + n) for n in range(16)]
    summed = [relay.begin_passing(keys.checkpoint(n)) for n in range(16)]
    first = relay.begin_record(0)
    store.go_on.set()
    assert first.result(60) == run.store.get(keys.log(0), limit_bytes=1 << 20)
    assert {flight.result(60) for flight in (*free, *summed)} == {None}
    assert RelayStore(relay).get(keys.log(1), limit_bytes=1 << 20)
    relay.close()


def test_a_record_is_read_once_for_ever_and_a_free_slot_once_in_a_second(
    tmp_path: Path,
) -> None:
    run, clock = make_run(2), Clock()
    relay = Relay(run.store, tmp_path, SMALL, clock=clock)
    reader = caught_up(relay)
    asked = relay.upstream.usage().requests["get"]
    for seq in range(reader.state.seq + 1):
        assert relay.slots.get(seq) == run.store.get(keys.log(seq), limit_bytes=1 << 20)
    assert relay.upstream.usage().requests["get"] == asked
    free = reader.state.seq + 1
    clock.now += 1  # what the agent itself has just seen is remembered, too
    for _ in range(50):
        assert relay.slots.get(free) is None
        clock.now += 0.019
    assert relay.upstream.usage().requests["get"] == asked + 1
    run.extend(1)
    clock.now += 0.1
    assert relay.slots.get(free) == run.store.get(keys.log(free), limit_bytes=1 << 20)
    relay.close()
    again = Relay(run.store, tmp_path, SMALL)
    caught_up(again)
    usage = again.upstream.usage().requests["get"]
    assert usage <= 4  # slot 0, the hint, the new record, the free slot
    again.close()


def test_a_record_that_nobody_has_verified_is_forgotten_within_a_second(tmp_path: Path) -> None:
    run, clock, store = make_run(1), Clock(), MemoryStore()
    for key in run.store.list_after(""):
        store.put(key, [run.store.get(key, limit_bytes=1 << 30)])
    relay = Relay(store, tmp_path, SMALL, clock=clock)
    reader = caught_up(relay)
    heard: list[int] = []
    relay.news = lambda: heard.append(1)
    free = reader.state.seq + 1
    clock.now += 1
    store.replace(keys.log(free), b"junk")
    assert relay.slots.get(free) == b"junk"
    assert heard == [1]
    run.extend(1)
    right = run.store.get(keys.log(free), limit_bytes=1 << 20)
    store.replace(keys.log(free), right)
    clock.now += 1
    assert relay.slots.get(free) == right
    relay.close()


class Forging(TwistedStore):
    """A store upstream, or a relay there, that forges the records in `forged`."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.forged: set[int] = set()

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        data = super().get(key, limit_bytes=limit_bytes)
        if key.startswith(keys.LOG_PREFIX) and keys.parse_log(key) in self.forged:
            return replace(Record.parse(data), nonce="ab" * 16).to_bytes()
        return data


def test_an_old_record_is_kept_only_if_the_verified_chain_leads_to_it(tmp_path: Path) -> None:
    run, clock = make_run(4), Clock()
    store = Forging(run.store)
    relay = Relay(store, tmp_path, SMALL, clock=clock)
    reader = BulletinReader(run.store)
    reader.refresh()
    relay.learned(reader.state, ())  # as after a start from a checkpoint
    newest = reader.state.seq
    right = [run.store.get(keys.log(seq), limit_bytes=1 << 20) for seq in range(newest + 1)]
    store.forged = set(range(1, newest + 1))
    for seq in range(1, newest + 1):  # upwards, and each fits the one before it no worse
        assert relay.slots.get(seq) != right[seq]
        assert relay.slots.kept(seq) is None
    clock.now += 1
    store.forged = {2}
    for seq in range(newest, 0, -1):
        assert (relay.slots.get(seq) == right[seq]) == (seq != 2)
    assert [relay.slots.kept(seq) is not None for seq in (1, 2, *range(3, newest + 1))] == [
        False, False, *[True] * (newest - 2)
    ]  # fmt: skip
    store.forged.clear()
    clock.now += 1
    for seq in (2, 1):
        assert relay.slots.get(seq) == relay.slots.kept(seq) == right[seq]
    relay.close()


def test_after_a_doubt_nothing_small_that_was_kept_is_handed_on(tmp_path: Path) -> None:
    run, clock = make_run(3), Clock()
    relay = Relay(run.store, tmp_path, SMALL, clock=clock)
    caught_up(relay)
    relay.cache.keep(f"log-{1:020d}", b"wrong, whoever wrote it")
    assert relay.slots.get(1) == b"wrong, whoever wrote it"
    relay.slots.doubt()
    right = run.store.get(keys.log(1), limit_bytes=1 << 20)
    assert relay.slots.get(1) == right
    assert relay.slots.kept(1) is None  # until the chain leads there again
    clock.now += 1
    for seq in range(relay.slots.head, 0, -1):
        assert relay.slots.get(seq) == relay.slots.kept(seq)
    relay.close()


def test_before_a_run_is_there_one_look_in_a_second_is_enough_for_everybody(tmp_path: Path) -> None:
    store, clock = MemoryStore(), Clock()
    relay = Relay(store, tmp_path, SMALL, clock=clock)
    for seq in [0, 1, 7] * 30:
        assert relay.slots.get(seq) is None
        clock.now += 0.01
    assert relay.upstream.usage().requests == {"get": 1}
    run = make_run(1, store=store)
    reader = caught_up(relay)  # the own agent looks at once
    assert reader.state.seq == run.writer.reader.state.seq
    relay.close()


def test_what_was_kept_of_another_run_is_dropped(tmp_path: Path) -> None:
    first, second = make_run(3), make_run(1)
    relay = Relay(first.store, tmp_path, SMALL)
    caught_up(relay)
    relay.close()
    relay = Relay(second.store, tmp_path, SMALL)
    reader = caught_up(relay)
    assert reader.state.run == second.writer.reader.state.run
    assert reader.state.seq == second.writer.reader.state.seq
    relay.close()


def test_a_slot_far_behind_the_end_is_not_asked_for(tmp_path: Path) -> None:
    run = make_run(1)
    relay = Relay(run.store, tmp_path, SMALL)
    reader = caught_up(relay)
    asked = relay.upstream.usage().requests["get"]
    for seq in range(reader.state.seq + 66, reader.state.seq + 1000):
        assert relay.slots.get(seq) is None
    assert relay.upstream.usage().requests["get"] == asked
    relay.close()


def test_waiting_for_a_record_is_bounded_and_ends_with_it(tmp_path: Path) -> None:
    run = make_run(0)
    config = RelayConfig(cache_bytes=1 << 20, spare_bytes=0, most_waiters=2)
    relay = Relay(run.store, tmp_path, config)
    reader = caught_up(relay)
    free = reader.state.seq + 1
    past = relay.slots.wait(0)
    assert past is not None
    assert past.done()
    waiters = [relay.slots.wait(free) for _ in range(3)]
    assert [waiter is None for waiter in waiters] == [False, False, True]
    assert relay.slots.waiting == 2
    assert waiters[0] is not None
    assert waiters[1] is not None
    waiters[0].cancel()
    assert relay.slots.waiting == 1
    run.extend(1)
    records = reader.refresh()
    relay.learned(reader.state, records)
    assert waiters[1].done()
    assert relay.slots.waiting == 0
    later = relay.slots.wait(free + 10)
    assert later is not None
    relay.stop()
    assert later.done()
    relay.close()


def test_checkpoints_are_handed_on_only_if_the_run_has_signed_them(tmp_path: Path) -> None:
    signer, other = Signer.from_seed(bytes(32)), Signer.from_seed(b"x" * 32)
    run, foreign = make_run(1, signer=signer), make_run(1, signer=other)
    sound = checkpoint.make(run.writer.reader.state, signer)
    seq = run.writer.reader.state.seq
    run.store.put(keys.checkpoint(seq), [checkpoint.make(foreign.writer.reader.state, other)])
    clock = Clock()
    relay = Relay(run.store, tmp_path, SMALL, clock=clock)
    caught_up(relay)
    assert relay.passing(keys.checkpoint(seq)) is None
    assert relay.passing(keys.checkpoint(seq + 1)) is None
    run.store.replace(keys.checkpoint(seq), sound)
    clock.now += 1
    before = relay.upstream.usage()
    for _ in range(3):  # it is kept
        assert relay.passing(keys.checkpoint(seq)) == sound
    assert (relay.upstream.usage() - before).bytes_down == len(sound)
    assert relay.passing(keys.HINT) == run.store.get(keys.HINT, limit_bytes=1024)
    relay.close()


@pytest.mark.parametrize(
    "key",
    [
        *HOSTILE_KEYS,
        "log/",
        "log/1.json",
        "log/00000000000000000001.json/x",
        "islands/a.json",
        "hint/probe-00112233445566778899",
        "hint/other",
        "packs/00000001/x",
        f"packs/{'0' * 64}",
        f"packs/00000001/{'A' * 64}",
        "full/00000001-0011223344556677",
        "full/00000001-0011223344556677/../x",
        "full/x/y",
        "secret",
        "checkpoints/1.json",
    ],
)
def test_nothing_but_the_prefixes_of_a_run_is_handed_on(key: str) -> None:
    assert kind_of(key) is None


def test_the_keys_of_a_run_are_handed_on() -> None:
    run = make_run(1)
    assert {kind_of(key) for key in named(run)} == {"object"}
    assert kind_of(keys.log(7)) == "log"
    assert {kind_of(key) for key in (keys.HINT, keys.COST, keys.checkpoint(7))} == {"passing"}
