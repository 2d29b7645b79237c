"""A bulletin behind a web server: what can be read is read, everything else is refused by name."""

from __future__ import annotations

import asyncio
import gzip
import random
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from skerry.bulletin.errors import (
    ListUnsupported,
    ObjectChanged,
    ObjectTooLarge,
    ReadOnly,
    StoreDenied,
    StoreUnavailable,
)
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores.local import LocalStore
from skerry.bulletin.stores.ranges import RangeConfig
from skerry.bulletin.stores.retries import Retries, RetryConfig
from skerry.bulletin.stores.web_store import WebStore
from tests.bulletin.store_contract import StoreContract
from tests.servers.web import WebServer, certificate, serve

IMPATIENT = RetryConfig(read_s=0.3, first_delay_s=0.01)


class Served:
    """Written to in a directory, read over HTTP: so that a read-only store can be tried."""

    def __init__(self, local: LocalStore, reading: ObjectStore) -> None:
        self._local = local
        self.get, self.get_range, self.stream = reading.get, reading.get_range, reading.stream
        self.size = reading.size
        self.put, self.put_if_absent, self.replace = local.put, local.put_if_absent, local.replace
        self.list_after, self.delete = local.list_after, local.delete


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "served"
    root.mkdir()
    return root


@pytest.fixture
def server(root: Path) -> Iterator[WebServer]:
    with serve(root) as server:
        yield server


class TestWebStore(StoreContract):
    @pytest.fixture(params=["http", "https"])
    def store(
        self, request: pytest.FixtureRequest, root: Path, tmp_path: Path
    ) -> Iterator[ObjectStore]:
        ours, theirs = certificate(tmp_path) if request.param == "https" else (None, None)
        with serve(root, tls=ours) as server:
            yield Served(LocalStore(root), WebStore(server.url, tls=theirs))


def store_at(server: WebServer, *, config: RangeConfig | None = None) -> WebStore:
    return WebStore(server.url, retries=Retries(IMPATIENT), config=config)


def test_writes_and_lists_are_refused_by_errors_of_their_own(server: WebServer) -> None:
    store = store_at(server)
    for write in (
        lambda: store.put("k", [b"x"]),
        lambda: store.put_if_absent("k", b"x"),
        lambda: store.replace("k", b"x"),
        lambda: store.delete("k"),
    ):
        with pytest.raises(ReadOnly, match="can only be read"):
            write()
    with pytest.raises(ListUnsupported, match="log/"):
        list(store.list_after("log/"))
    assert server.seen == []


def test_a_certificate_of_nobody_we_trust_is_refused_for_good(root: Path, tmp_path: Path) -> None:
    ours, _ = certificate(tmp_path)
    with serve(root, tls=ours) as server:
        store = WebStore(server.url, tls=ssl.create_default_context())
        with pytest.raises(StoreDenied, match="cannot connect"):
            store.size("k")


def test_the_log_and_the_hint_are_asked_for_past_caches_and_nothing_is_compressed(
    root: Path, server: WebServer
) -> None:
    store = store_at(server)
    for key in ("log/1", "hint/latest.json", "packs/1"):
        LocalStore(root).put(key, [b"x"])
        store.get(key, limit_bytes=1)
    assert [r.headers.get("Cache-Control") for r in server.seen] == ["no-cache", "no-cache", None]
    assert {r.headers["Accept-Encoding"] for r in server.seen} == {"identity"}
    assert not any({"Authorization", "Cookie"} & set(r.headers) for r in server.seen)


@pytest.mark.parametrize("coding", ["gzip", "br"])
def test_an_answer_in_a_coding_is_refused_not_decoded(server: WebServer, coding: str) -> None:
    body = gzip.compress(b"x" * 1000) + gzip.compress(b"y")
    server.answer = lambda request: web.Response(body=body, headers={"Content-Encoding": coding})
    store = store_at(server)
    with pytest.raises(StoreDenied, match=coding):
        store.get("k", limit_bytes=10_000)
    with pytest.raises(StoreDenied, match=coding):
        list(store.stream("k", 0, 10))


def test_a_redirect_is_followed_on_the_same_scheme_only(root: Path, server: WebServer) -> None:
    LocalStore(root).put("there", [b"x"])
    targets = {
        "/run/here": "/run/there",
        "/run/loop": "/run/loop",
        "/run/down": "ftp://127.0.0.1/run/there",
        "/run/up": server.url.replace("http", "https") + "/there",
        "/run/user": server.url.replace("//", "//user:password@") + "/there",
    }

    def answer(request: web.Request) -> web.Response | None:
        target = targets.get(request.path)
        return None if target is None else web.Response(status=302, headers={"Location": target})

    server.answer = answer
    store = store_at(server)
    assert store.get("here", limit_bytes=1) == b"x"
    assert b"".join(store.stream("here", 0, 1)) == b"x"
    for key in ("loop", "down", "up", "user"):
        with pytest.raises(StoreDenied, match="redirect") as caught:
            store.get(key, limit_bytes=1)
        assert "password" not in str(caught.value)


def test_no_redirect_leads_from_https_to_http(
    root: Path, tmp_path: Path, server: WebServer
) -> None:
    ours, theirs = certificate(tmp_path)
    LocalStore(root).put("k", [b"x"])
    with serve(root, tls=ours) as secure:
        secure.answer = lambda request: web.Response(
            status=307, headers={"Location": f"{server.url}/k"}
        )
        with pytest.raises(StoreDenied, match="from https to http is not followed"):
            WebStore(secure.url, tls=theirs).get("k", limit_bytes=1)
    assert server.seen == []


@pytest.mark.parametrize("status", [401, 403, 405, 204])
def test_a_refusal_is_not_repeated(server: WebServer, status: int) -> None:
    server.answer = lambda request: web.Response(status=status)
    with pytest.raises(StoreDenied, match=str(status)):
        store_at(server).get("k", limit_bytes=1)
    assert len(server.seen) == 1


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_no_answer_says_when_to_come_again(server: WebServer, status: int) -> None:
    server.answer = lambda request: web.Response(status=status, headers={"Retry-After": "7"})
    with pytest.raises(StoreUnavailable) as caught:
        store_at(server).get("k", limit_bytes=1)
    assert caught.value.retry_after_s == 7


def test_a_body_without_a_stated_length_is_cut_off_at_the_limit(server: WebServer) -> None:
    def answer(request: web.Request) -> web.StreamResponse:
        response = web.Response(body=b"x" * 5000)
        response.enable_chunked_encoding()
        return response

    server.answer = answer
    store = store_at(server)
    assert store.get("k", limit_bytes=5000) == b"x" * 5000
    with pytest.raises(ObjectTooLarge):
        store.get("k", limit_bytes=4999)


class Later(web.Response):
    """Sent only once an event is set."""

    when: threading.Event

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        while not self.when.is_set():
            await asyncio.sleep(0.001)
        return await super().prepare(request)


def ranged(
    request: web.Request, data: bytes, *, when: threading.Event | None = None
) -> web.Response:
    """Answer a request for a range of `data`, with no ETag; `when` says not before what."""
    part = request.http_range
    headers = {"Content-Range": f"bytes {part.start}-{part.stop - 1}/{len(data)}"}
    if when is None:
        return web.Response(status=206, body=data[part], headers=headers)
    answer = Later(status=206, body=data[part], headers=headers)
    answer.when = when
    return answer


def test_who_takes_nothing_is_sent_no_more_than_the_stated_number_of_ranges(
    root: Path, server: WebServer
) -> None:
    data = bytes(range(256)) * 4000
    LocalStore(root).put("k", [data])
    store = store_at(server, config=RangeConfig(range_bytes=10_000, ahead=5))
    stream = store.stream("k", 0, len(data))
    taken = [next(stream)]
    while len(server.seen) < 5:
        time.sleep(0.01)
    time.sleep(0.2)
    assert len(server.seen) == 5
    taken.extend(stream)
    assert b"".join(taken) == data
    assert max(map(len, taken)) == 10_000


def test_a_range_that_its_peers_left_behind_is_asked_for_once_more(server: WebServer) -> None:
    data = random.Random(1).randbytes(1 << 20)
    stuck: list[str] = []
    read = threading.Event()

    def answer(request: web.Request) -> web.StreamResponse:
        asked = request.headers["Range"]
        if asked.startswith("bytes=524288-") and not stuck:
            stuck.append(asked)
            return ranged(request, data, when=read)
        return ranged(request, data)

    server.answer = answer
    assert b"".join(store_at(server).stream("k", 0, len(data))) == data
    read.set()
    assert len([r for r in server.seen if r.headers["Range"] == stuck[0]]) == 2
    assert len(server.seen) <= 2 * 32


def test_a_second_request_that_fails_takes_nothing_from_the_first(server: WebServer) -> None:
    data = random.Random(2).randbytes(1 << 20)
    asked: Counter[str] = Counter()
    refused = threading.Event()

    def answer(request: web.Request) -> web.StreamResponse:
        name = request.headers["Range"]
        asked[name] += 1
        if not name.startswith("bytes=524288-"):
            return ranged(request, data)
        if asked[name] == 1:
            return ranged(request, data, when=refused)
        refused.set()
        return web.Response(status=403)

    server.answer = answer
    assert b"".join(store_at(server).stream("k", 0, len(data))) == data
    assert refused.is_set()


def test_a_server_without_ranges_is_refused(server: WebServer) -> None:
    server.answer = lambda request: web.Response(body=b"x" * 100)
    with pytest.raises(StoreDenied, match="asked for a range"):
        store_at(server).get_range("k", 0, 10)


@pytest.mark.parametrize("etags", [('"a"', '"b"'), ("", ""), ('W/"a"', 'W/"b"')])
def test_an_object_that_is_swapped_while_it_is_read_is_noticed(
    server: WebServer, etags: tuple[str, str]
) -> None:
    """By the ETag, or by the size where there is none."""
    count = 0

    def answer(request: web.Request) -> web.Response:
        nonlocal count
        count += 1
        etag = etags[min(count - 1, 1)]
        if request.headers.get("If-Match", etag) != etag:
            return web.Response(status=412)
        part = request.http_range
        assert part.start is not None
        total = 400 + min(count, 2)
        headers = {"Content-Range": f"bytes {part.start}-{part.stop - 1}/{total}"}
        if etag:
            headers["ETag"] = etag
        return web.Response(status=206, body=b"x" * (part.stop - part.start), headers=headers)

    server.answer = answer
    with pytest.raises(ObjectChanged):
        list(store_at(server, config=RangeConfig(range_bytes=100)).stream("k", 0, 400))


@pytest.mark.parametrize(
    ("content_range", "body"),
    [("bytes 0-9/10", b"short"), ("bytes 1-9/10", b"123456789"), ("bytes 0-10/11", b"x" * 11),
     ("bytes 0-9/10", b"0123456789+more"), ("bytes */10", b"")],
)  # fmt: skip
def test_an_answer_that_is_not_the_range_is_never_believed(
    server: WebServer, content_range: str, body: bytes
) -> None:
    headers = {"Content-Range": content_range}
    server.answer = lambda request: web.Response(status=206, body=body, headers=headers)
    with pytest.raises(StoreUnavailable):
        store_at(server).get_range("k", 0, 10)
    assert len(server.seen) > 1


@pytest.mark.parametrize("content_range", ["", "bytes 9-0/10", "bytes 0-99/10", "x"])
def test_an_answer_without_a_sound_content_range_is_refused(
    server: WebServer, content_range: str
) -> None:
    headers = {"Content-Range": content_range}
    server.answer = lambda request: web.Response(status=206, body=b"x" * 10, headers=headers)
    with pytest.raises(StoreDenied):
        store_at(server).get_range("k", 0, 10)
