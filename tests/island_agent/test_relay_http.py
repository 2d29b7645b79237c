"""A relay on the wire: what a web server over the run would answer, verified."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.bulletin import checkpoint, keys
from skerry.bulletin.errors import NotFound, StoreUnavailable
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.signing import Signer
from skerry.bulletin.stores import Relayed
from skerry.bulletin.stores.retries import Retries, RetryConfig
from skerry.bulletin.stores.web_store import WebStore
from skerry.codec.digest import digest_bytes
from skerry.island_agent import relay_http
from skerry.island_agent.relay import Relay
from skerry.island_agent.relay_config import RelayConfig
from tests.bulletin.store_contract import HOSTILE_KEYS
from tests.island_agent.relays import caught_up, relay_at
from tests.island_agent.runs import Run, make_run
from tests.island_agent.stores import TwistedStore

IMPATIENT = RetryConfig(read_s=0.2, first_delay_s=0.01)


class Place:
    def __init__(self, run: Run, relay: Relay, url: str) -> None:
        self.run, self.relay, self.url = run, relay, url
        self.pack = run.writer.reader.state.commits[1].packs[0].key
        self.data = run.store.get(self.pack, limit_bytes=1 << 30)

    def ask(
        self, key: str, method: str = "GET", **headers: str
    ) -> tuple[int, Mapping[str, str], bytes]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        connection = HTTPConnection(parts.hostname, parts.port or 80, timeout=60)
        try:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, f"{parts.path}/{key}", headers=sent)
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def store(self) -> WebStore:
        return WebStore(self.url, retries=Retries(IMPATIENT))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    run = make_run(2)
    with relay_at(run.store, tmp_path_factory.mktemp("relay")) as (relay, url):
        caught_up(relay)
        yield Place(run, relay, url)


def test_a_reader_follows_a_run_through_a_relay_alone(place: Place) -> None:
    reader = BulletinReader(place.store())
    reader.refresh()
    assert reader.state.head == place.run.writer.reader.state.head
    for commit in reader.state.commits.values():
        reader.layout(commit.layout)
        reader.manifest(commit.manifest)
        for ref in (*commit.packs, *(commit.full.objects if commit.full else ())):
            assert reader.read(ref) == place.run.store.get(ref.key, limit_bytes=1 << 30)
            assert place.store().size(ref.key) == ref.size


@settings(max_examples=40)
@given(
    first=st.integers(0, 3000), last=st.integers(0, 3000), form=st.sampled_from(["a-b", "a-", "-b"])
)
def test_any_range_is_the_bytes_of_that_range(
    place: Place, first: int, last: int, form: str
) -> None:
    size = len(place.data)
    asked = form.replace("a", str(first)).replace("b", str(last))
    status, headers, body = place.ask(place.pack, Range=f"bytes={asked}")
    if form == "-b":
        start, stop = max(0, size - last), size
    else:
        start, stop = first, min(last + 1, size) if form == "a-b" else size
    if form == "a-b" and last < first:  # no range at all
        assert (status, body) == (200, place.data)
    elif start >= stop:
        assert (status, headers["content-range"]) == (416, f"bytes */{size}")
    else:
        assert (status, body) == (206, place.data[start:stop])
        assert headers["content-range"] == f"bytes {start}-{stop - 1}/{size}"


@pytest.mark.parametrize("asked", ["bytes=0-1,3-4", "bytes=", "bytes=-", "lines=0-1", "bytes=a-b"])
def test_what_is_no_single_range_is_answered_whole(place: Place, asked: str) -> None:
    status, _, body = place.ask(place.pack, Range=asked)
    assert (status, body) == (200, place.data)


def test_etags_are_strong_and_conditions_hold(place: Place) -> None:
    status, headers, body = place.ask(place.pack)
    etag = f'"{keys.named_digest(place.pack)}"'
    assert (status, headers["etag"], body) == (200, etag, place.data)
    assert headers["cache-control"] == "public, max-age=31536000, immutable"
    assert headers["accept-ranges"] == "bytes"
    assert place.ask(place.pack, If_None_Match=f'W/"x", {etag}')[0] == 304
    assert place.ask(place.pack, If_None_Match='"x"')[0] == 200
    assert place.ask(place.pack, If_Match=etag)[0] == 200
    assert place.ask(place.pack, If_Match=f"W/{etag}")[0] == 412
    assert place.ask(place.pack, If_Match='"x"', Range="bytes=0-1")[0] == 412
    assert place.ask(place.pack, If_Range='"x"', Range="bytes=0-1")[0] == 200
    assert place.ask(place.pack, If_Range=etag, Range="bytes=0-1")[0] == 206


def test_head_says_what_get_would(place: Place) -> None:
    for key in (place.pack, keys.log(1), keys.HINT):
        status, headers, body = place.ask(key, "HEAD")
        again, same, whole = place.ask(key)
        assert (status, body) == (200, b"")
        assert again == 200
        assert headers["content-length"] == same["content-length"] == str(len(whole))
        assert headers["etag"] == same["etag"]


def test_a_record_is_cached_for_ever_and_its_absence_never(place: Place) -> None:
    last = place.run.writer.reader.state.seq
    status, headers, body = place.ask(keys.log(last))
    assert (status, body) == (200, place.run.store.get(keys.log(last), limit_bytes=1 << 20))
    assert "immutable" in headers["cache-control"]
    status, headers, _ = place.ask(keys.log(last + 1))
    assert (status, headers["cache-control"]) == (404, "no-store")
    assert place.ask(keys.HINT)[1]["cache-control"] == "no-cache"


def test_a_record_that_the_chain_does_not_lead_to_is_no_answer_for_ever(tmp_path: Path) -> None:
    run = make_run(3)
    with relay_at(run.store, tmp_path) as (relay, url):
        reader = BulletinReader(run.store)
        reader.refresh()
        relay.learned(reader.state, ())
        place = Place(run, relay, url)
        assert place.ask(keys.log(1))[1]["cache-control"] == "no-cache"
        for seq in range(reader.state.seq, 1, -1):
            assert "immutable" in place.ask(keys.log(seq))[1]["cache-control"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_is_written(place: Place, method: str) -> None:
    assert place.ask(place.pack, method)[0] == 405


@pytest.mark.parametrize(
    "key", ["", "log", "log/", "islands/a.json", "%2e%2e/etc/passwd", "packs/00000001/"]
)
def test_there_is_no_list_and_nothing_beside_the_run(place: Place, key: str) -> None:
    assert place.ask(key)[0] == 404


def test_no_hostile_key_leads_anywhere(place: Place) -> None:
    for key in HOSTILE_KEYS:
        assert place.ask(quote(key.encode(errors="surrogatepass"), safe="/"))[0] == 404, key


@pytest.mark.parametrize("wait", ["", "-1", "x", "1e9", "5s", "999999"])
def test_a_wait_that_is_no_number_of_seconds_is_refused(place: Place, wait: str) -> None:
    assert place.ask(f"{keys.log(0)}?wait={quote(wait)}")[0] == 400


def test_a_wait_is_answered_as_soon_as_the_record_is_there(tmp_path: Path) -> None:
    run = make_run(1)
    with relay_at(run.store, tmp_path) as (relay, url):
        reader = caught_up(relay)
        place = Place(run, relay, url)
        following = keys.log(reader.state.seq + 1)
        before = relay.upstream.usage()
        assert place.ask(f"{following}?wait=0.01")[0] == 404
        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(place.ask, f"{following}?wait=30") for _ in range(8)]
            while relay.slots.waiting < 8:
                threading.Event().wait(0.001)
            assert (relay.upstream.usage() - before).requests == {}  # who waits polls nobody
            run.extend(1)
            records = reader.refresh()
            relay.learned(reader.state, records)
            record = run.store.get(following, limit_bytes=1 << 20)
            assert {(f.result()[0], f.result()[2]) for f in waiting} == {(200, record)}
        with ThreadPoolExecutor(1) as pool:  # a stop lets everybody go
            late = pool.submit(place.ask, f"{keys.log(reader.state.seq + 1)}?wait=30")
            while relay.slots.waiting < 1:
                threading.Event().wait(0.001)
            relay.stop()
            assert late.result()[0] == 404


def test_too_many_who_wait_are_told_to_come_back(tmp_path: Path) -> None:
    run = make_run(1)
    config = RelayConfig(cache_bytes=1 << 20, spare_bytes=0, most_waiters=0)
    with relay_at(run.store, tmp_path, config) as (relay, url):
        reader = caught_up(relay)
        place = Place(run, relay, url)
        status, headers, _ = place.ask(f"{keys.log(reader.state.seq + 1)}?wait=5")
        assert (status, headers["retry-after"]) == (503, "1")
        assert place.ask(f"{keys.log(0)}?wait=5")[0] == 200


def test_who_comes_to_a_crowded_relay_is_told_to_come_back(tmp_path: Path) -> None:
    run, go_on = make_run(1), threading.Event()

    class Held(TwistedStore):
        def size(self, key: str) -> int:
            assert go_on.wait(60)
            return super().size(key)

    with relay_at(Held(run.store), tmp_path) as (relay, url):
        caught_up(relay)
        place = Place(run, relay, url)
        junk = [relay.begin(keys.pack(1, digest_bytes(bytes([n])))) for n in range(100)]
        assert any(flight.done() for flight in junk)
        status, headers, _ = place.ask(keys.pack(1, digest_bytes(b"x")))
        assert (status, headers["retry-after"]) == (503, "1")
        assert place.ask(place.pack)[0] == 200
        go_on.set()


def test_an_object_on_its_way_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    run = make_run(1)
    go_on = threading.Event()

    def slow(name: str, start: int, data: bytes) -> bytes:
        go_on.wait()
        return data

    config = RelayConfig(cache_bytes=1 << 24, spare_bytes=0, hold_s=0.01)
    with relay_at(TwistedStore(run.store, slow), tmp_path, config) as (relay, url):
        caught_up(relay)
        place = Place(run, relay, url)
        status, headers, _ = place.ask(place.pack)
        assert (status, headers["retry-after"]) == (503, "1")
        assert headers["x-skerry-relay"] == "1"
        timer = threading.Timer(0.3, go_on.set)  # while a neighbour comes back
        timer.start()
        through = Relayed(place.store(), make_run(0).store)
        assert b"".join(through.stream(place.pack, 0, len(place.data))) == place.data


def test_a_relay_that_upstream_lies_to_has_no_answer(tmp_path: Path) -> None:
    run = make_run(1)
    store = TwistedStore(run.store, lambda name, start, data: bytes(len(data)))
    with relay_at(store, tmp_path) as (relay, url):
        caught_up(relay)
        place = Place(run, relay, url)
        assert place.ask(place.pack)[0] == 502
        with pytest.raises(StoreUnavailable):
            list(place.store().stream(place.pack, 0, len(place.data)))
        past = Relayed(place.store(), run.store)
        assert b"".join(past.stream(place.pack, 0, len(place.data))) == place.data


def test_a_file_that_no_record_names_yet_makes_the_relay_look(tmp_path: Path) -> None:
    run = make_run(1)
    with relay_at(run.store, tmp_path) as (relay, url):
        reader = caught_up(relay)
        heard: list[int] = []
        relay.news = lambda: heard.append(1)
        place = Place(run, relay, url)
        run.publish(run.versions[-1].mutated(9), full=True)
        full = run.writer.reader.state.commits[2].full
        assert full is not None
        ref = full.objects[0]
        assert place.ask(quote(ref.key))[0] == 503
        assert heard == [1]
        records = reader.refresh()
        relay.learned(reader.state, records)
        status, _, body = place.ask(quote(ref.key))
        assert (status, digest_bytes(body)) == (200, ref.digest)


def test_an_object_without_room_is_not_found_and_read_past_the_relay(tmp_path: Path) -> None:
    run = make_run(1, words=800_000)
    config = RelayConfig(cache_bytes=4096, spare_bytes=0)
    with relay_at(run.store, tmp_path, config) as (relay, url):
        caught_up(relay)
        place = Place(run, relay, url)
        assert place.ask(place.pack)[0] == 404
        with pytest.raises(NotFound):
            place.store().size(place.pack)
        past = Relayed(place.store(), run.store)
        assert b"".join(past.stream(place.pack, 0, len(place.data))) == place.data
        assert relay.to_json()["refused"] >= 1


def test_a_large_checkpoint_is_sent_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signer = Signer.from_seed(bytes(32))
    run = make_run(1, signer=signer)
    seq = run.writer.reader.state.seq
    sound = checkpoint.make(run.writer.reader.state, signer)
    run.store.put(keys.checkpoint(seq), [sound])
    monkeypatch.setattr(relay_http, "IN_MEMORY_BYTES", len(sound) - 1)
    with relay_at(run.store, tmp_path) as (relay, url):
        caught_up(relay)
        place = Place(run, relay, url)
        status, headers, body = place.ask(keys.checkpoint(seq))
        assert (status, body) == (200, sound)
        assert headers["etag"] == f'"{digest_bytes(sound)}"'
        assert place.ask(keys.checkpoint(seq), Range="bytes=3-9")[2] == sound[3:10]


def test_a_slow_client_loses_its_place(tmp_path: Path) -> None:
    """One that takes nothing must not hold the only stream for ever."""
    run = make_run(0, words=4_000_000)
    config = RelayConfig(cache_bytes=1 << 28, spare_bytes=0, streams=1, stall_s=0.2)
    with relay_at(run.store, tmp_path, config) as (relay, url):
        caught_up(relay)
        full = run.writer.reader.state.commits[0].full
        assert full is not None
        ref = max(full.objects, key=lambda ref: ref.size)
        parts = urlsplit(url)
        assert parts.hostname is not None
        idle = HTTPConnection(parts.hostname, parts.port or 80)
        idle.sock = socket.socket()
        idle.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        idle.sock.connect((parts.hostname, parts.port))
        idle.request("GET", f"{parts.path}/{quote(ref.key)}")
        answer = idle.getresponse()  # and reads nothing of a body of megabytes
        assert answer.status == 200
        store = WebStore(url)
        assert store.get_range(ref.key, 0, 10) == run.store.get_range(ref.key, 0, 10)
        idle.close()
