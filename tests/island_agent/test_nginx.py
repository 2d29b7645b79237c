"""A stock nginx with our configuration as a relay: caches what never changes, hides no record."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from skerry.bulletin import keys
from skerry.bulletin.errors import NotFound
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.stores import open_relayed, open_store
from skerry.bulletin.stores.local import LocalStore
from skerry.codec.digest import Digest
from tests.island_agent.relays import caught_up, relay_at
from tests.island_agent.runs import Run, make_run
from tests.servers import nginx
from tests.servers import web as web_server


def program() -> str:
    found = nginx.nginx()
    if found is None:
        pytest.skip("NO NGINX: docs/deploy/nginx-relay.conf stays untested")
    return found


class Place:
    def __init__(self, run: Run, far: web_server.WebServer, url: str) -> None:
        self.run, self.far, self.url = run, far, url

    def asked(self, prefix: str) -> int:
        """How many requests for keys like this the origin has seen."""
        return sum(request.path.startswith(f"/run/{prefix}") for request in self.far.seen)

    def status(self, key: str, method: str = "GET") -> int:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        connection = HTTPConnection(parts.hostname, parts.port or 80, timeout=60)
        connection.request(method, f"{parts.path}/{key}")
        status = connection.getresponse().status
        connection.close()
        return status


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    root = tmp_path / "bulletin"
    run = make_run(2, store=LocalStore(root), words=1_500_000)  # shards of several slices
    with (
        web_server.serve(root) as far,
        nginx.serve(program(), tmp_path / "nginx", far.url) as url,
    ):
        yield Place(run, far, url)


def read_everything(place: Place, url: str) -> None:
    reader = BulletinReader(open_store(url))
    reader.refresh()
    assert reader.state.head == place.run.writer.reader.state.head
    for commit in reader.state.commits.values():
        reader.layout(commit.layout)
        for ref in (*commit.packs, *(commit.full.objects if commit.full else ())):
            data = b"".join(reader.pieces(ref))
            assert data == place.run.store.get(ref.key, limit_bytes=1 << 30)


def test_many_readers_cost_the_origin_one_and_every_byte_is_right(place: Place) -> None:
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(read_everything, place, place.url) for _ in range(4)]:
            done.result()
    sizes = {
        ref.key: ref.size
        for commit in place.run.writer.reader.state.commits.values()
        for ref in (*commit.packs, *(commit.full.objects if commit.full else ()))
    }
    slices = sum(-(-size // (1 << 20)) for size in sizes.values())
    assert slices > len(sizes)
    assert place.asked("packs/") + place.asked("full/") == slices
    before = len(place.far.seen)
    read_everything(place, place.url)
    again = [request.path for request in place.far.seen[before:]]
    free = keys.log(place.run.writer.reader.state.seq + 1)
    assert set(again) <= {f"/run/{keys.HINT}", f"/run/{free}"}


def test_a_record_is_seen_the_moment_it_is_there(place: Place) -> None:
    store = open_store(place.url)
    for _ in range(3):
        free = keys.log(place.run.writer.reader.state.seq + 1)
        with pytest.raises(NotFound):
            store.get(free, limit_bytes=1 << 20)
        place.run.extend(1, density=1e-5)
        assert store.get(free, limit_bytes=1 << 20) == place.run.store.get(
            free, limit_bytes=1 << 20
        )
    asked = place.asked("log/")
    for _ in range(3):
        store.get(free, limit_bytes=1 << 20)
    assert place.asked("log/") == asked


def test_the_hint_is_never_cached(place: Place) -> None:
    store = open_store(place.url)
    place.run.store.replace(keys.HINT, b"one")
    assert store.get(keys.HINT, limit_bytes=9) == b"one"
    place.run.store.replace(keys.HINT, b"two")
    assert store.get(keys.HINT, limit_bytes=9) == b"two"


def test_an_object_that_is_late_is_not_remembered_as_missing(place: Place) -> None:
    data = b"late" * 100
    key = keys.pack(1, Digest("0" * 64))
    store = open_store(place.url)
    with pytest.raises(NotFound):
        store.size(key)
    place.run.store.put(key, [data])
    assert store.size(key) == len(data)


def test_a_server_that_breaks_off_is_not_kept_as_an_object(place: Place) -> None:
    commit = place.run.writer.reader.state.commits[1]
    broken = [1, 1]

    def answer(request: web.Request) -> web.StreamResponse | None:
        if "packs/" in request.path and broken:
            broken.pop()
            return web.Response(status=503)
        return None

    place.far.answer = answer
    store = open_store(place.url)
    for pack in commit.packs:
        data = b"".join(store.stream(pack.key, 0, pack.size))
        assert data == place.run.store.get(pack.key, limit_bytes=1 << 30)
    assert not broken


def test_only_the_run_is_served_and_nothing_is_written(place: Place) -> None:
    for key in ("", "log", "islands/a.json", "hint/probe-00112233", "../secret", "packs"):
        assert place.status(key) == 404, key
    for method in ("PUT", "POST", "DELETE"):
        assert place.status(keys.log(0), method) == 403
    assert place.status(keys.log(0), "HEAD") == 200


def test_an_island_reads_past_an_nginx_that_is_gone(tmp_path: Path) -> None:
    root = tmp_path / "bulletin"
    run = make_run(1, store=LocalStore(root))
    with web_server.serve(root) as far:
        with nginx.serve(program(), tmp_path / "nginx", far.url) as url:
            store = open_relayed(str(root), [url])
            reader = BulletinReader(store)
            reader.refresh()
            run.extend(1)
            asked = len(far.seen)
            reader.refresh()
            assert len(far.seen) > asked
        run.extend(1)
        reader.refresh()
    assert reader.state.seq == run.writer.reader.state.seq


def test_a_wait_at_an_agents_relay_goes_through_it(tmp_path: Path) -> None:
    run = make_run(1)
    with (
        relay_at(run.store, tmp_path / "relay") as (relay, origin),
        nginx.serve(program(), tmp_path / "nginx", origin) as url,
    ):
        reader = caught_up(relay)
        place = Place(run, web_server.WebServer(url), url)
        free = keys.log(reader.state.seq + 1)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(place.status, f"{free}?wait=30")
            while relay.slots.waiting < 1:
                threading.Event().wait(0.001)
            run.extend(1)
            records = reader.refresh()
            relay.learned(reader.state, records)
            assert waiting.result() == 200
        assert place.status(free) == 200
