"""Who is answered: this host, whoever has the token, and nobody by somebody else's name."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import quote

import pytest

from skerry.bulletin.errors import StoreUnavailable
from skerry.bulletin.inspection.service.config import (
    BindRefused,
    ServiceConfig,
    TokenUnfit,
    is_loopback,
    read_token,
)
from skerry.bulletin.inspection.service.guard import HEADERS, cookie_of, session_of
from skerry.bulletin.stores.memory import MemoryStore
from tests.bulletin.faults import FaultyStore
from tests.bulletin.inspection.service.serving import Reply, Served, ask, serving

TOKEN = "correct-horse-battery"
COOKIE = cookie_of(TOKEN)


@pytest.fixture(scope="module")
def guarded(run: MemoryStore) -> Iterator[Served]:
    with serving(run, config=ServiceConfig(port=0, token=TOKEN)) as service:
        yield service


def login(service: Served, token: str) -> Reply:
    request = urllib.request.Request(
        f"{service.url}/session",
        data=json.dumps({"token": token}).encode(),
        headers={"Content-Type": "application/json"},
    )
    return ask(request)


def test_without_a_token_only_loopback_may_be_listened_on() -> None:
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        assert ServiceConfig(host=host).host == host
    for host in ("0.0.0.0", "::", "192.168.1.4", "example.org", ""):
        with pytest.raises(BindRefused, match="--token-file"):
            ServiceConfig(host=host)
        assert ServiceConfig(host=host, token=TOKEN).token == TOKEN
        assert ServiceConfig(host=host, proxy_authenticates=True).host == host


def test_a_token_is_neither_short_nor_shown(tmp_path: Path) -> None:
    with pytest.raises(TokenUnfit, match="16 to 512"):
        ServiceConfig(token="short")
    with pytest.raises(TokenUnfit, match="ASCII"):
        ServiceConfig(token="é" * 20)
    assert TOKEN not in repr(ServiceConfig(token=TOKEN))
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert read_token(file) == TOKEN
    for content in ("", "two words", "x" * 600):
        file.write_text(content)
        with pytest.raises(TokenUnfit):
            read_token(file)
    with pytest.raises(TokenUnfit, match="No such file"):
        read_token(tmp_path / "nothing")


def test_nothing_of_the_run_is_told_without_the_token(guarded: Served) -> None:
    for path in ("run", "versions", "events", "versions/1/verification", "nothing"):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": f"{COOKIE}=wrong"}):
            answer = guarded.get(path, **headers)
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == "Bearer"
    assert guarded.get("run", Authorization=f"Bearer {TOKEN}").status == 200


def test_a_browser_tells_the_token_once(guarded: Served) -> None:
    assert login(guarded, "wrong").status == 401
    answer = login(guarded, TOKEN)
    assert answer.status == 204
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert guarded.get("run", Cookie=cookie.split(";")[0]).status == 200


@pytest.mark.parametrize("others", ['prefs={"a":1}', "a[b]=1,2; x y", "=;;", "\xe9=\xe9"])
def test_cookies_of_other_pages_hide_no_session(guarded: Served, others: str) -> None:
    mine = f"{COOKIE}={session_of(TOKEN, until_s=2**33)}"
    for cookies in (f"{others}; {mine}", f"{mine}; {others}"):
        assert guarded.get("run", Cookie=cookies).status == 200
    assert guarded.get("run", Cookie=f"{others}; {COOKIE}=").status == 401


def test_a_session_ends_when_it_said_it_would_and_cannot_be_prolonged(guarded: Served) -> None:
    past, future = (session_of(TOKEN, until_s=int(time.time()) + s) for s in (-1, 60))
    longer = f"9{future}"
    assert guarded.get("run", Cookie=f"{COOKIE}={future}").status == 200
    for value in (past, longer, future.partition(".")[2], "", ".", "9" * 5000, f"²{future}"):
        assert guarded.get("run", Cookie=f"{COOKIE}={quote(value)}").status == 401


def test_a_browser_can_be_at_two_services_of_one_host(run: MemoryStore, guarded: Served) -> None:
    other = "another-token-of-another-run"
    with serving(run, config=ServiceConfig(port=0, token=other)) as second:
        jar = CookieJar()
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
        for service, token in ((guarded, TOKEN), (second, other)):
            request = urllib.request.Request(
                f"{service.url}/session",
                data=json.dumps({"token": token}).encode(),
                headers={"Content-Type": "application/json"},
            )
            opener.open(request, timeout=60).close()
        for service in (guarded, second):
            with opener.open(f"{service.url}/api/v1/run", timeout=60) as answer:
                assert answer.status == 200


def test_health_tells_nothing_of_the_run_to_a_page_elsewhere(run: MemoryStore) -> None:
    def before(verb: str, key: str) -> None:
        raise StoreUnavailable("s3://secret-bucket/log", "no answer")

    with serving(FaultyStore(run, before=before), wait_for="failing") as service:
        assert "secret-bucket" in service.get("/health").json["store"]["problem"]["message"]
        told = service.get("/health", Host="evil.example")
        assert (told.status, told.json["store"]["problem"]) == (200, None)


def test_whoever_asks_for_the_head_alone_gets_it(served: Served) -> None:
    for path in ("/health", "/"):
        answer = ask(urllib.request.Request(f"{served.url}{path}", method="HEAD"))
        assert (answer.status, answer.body) == (200, b"")


def test_health_and_the_page_need_no_token_and_tell_nothing(guarded: Served) -> None:
    assert guarded.get("/health").json["status"] == "ok"
    page = guarded.get("/")
    assert page.status == 200
    assert b"memory://test" not in page.body


def test_a_large_body_is_refused_unread(served: Served) -> None:
    request = urllib.request.Request(f"{served.url}/session", data=b"x" * 5000)
    assert ask(request).status == 413


@pytest.mark.parametrize("length", ["", "Content-Length: 10\r\n"])
def test_a_body_of_no_stated_length_is_refused_unread(served: Served, length: str) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        head = "POST /session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}{length}Transfer-Encoding: chunked\r\n\r\n".encode())
        # No chunk is sent: who reads the body waits for it.
        assert client.recv(12) == b"HTTP/1.1 413"


def test_a_page_elsewhere_cannot_read_by_a_name_that_it_points_here(served: Served) -> None:
    port = served.url.rpartition(":")[2]
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", ""):
        answer = served.get("run", Host=host)
        assert answer.status == 400
        assert answer.json["error"]["kind"] in ("HostRefused", "NotRouted")
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "localhost"):
        assert served.get("run", Host=host).status == 200


def test_every_answer_tells_browsers_to_run_nothing_from_elsewhere(served: Served) -> None:
    for path in ("/", "run", "/health", "versions/999", "/nothing", "/openapi.json"):
        answer = served.get(path)
        for name, value in HEADERS.items():
            assert answer.headers[name.lower()] == value, path
    assert "script-src 'self'" in HEADERS["Content-Security-Policy"]
    assert "access-control-allow-origin" not in served.get("run").headers


def test_nothing_can_be_written(served: Served) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        request = urllib.request.Request(f"{served.url}/api/v1/versions", method=method, data=b"")
        assert ask(request).status == 405


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"])
def test_loopback_is_recognised(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "localhost.evil.example", "", "::"])
def test_anything_else_is_not_loopback(host: str) -> None:
    assert not is_loopback(host)
