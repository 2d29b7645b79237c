"""A store that is slow, dead, denied or false: health answers, what was seen stays, and it is said.

Case L-2 and its kinds.
"""

from __future__ import annotations

import json
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from skerry.bulletin import keys
from skerry.bulletin.errors import StoreDenied, StoreUnavailable
from skerry.bulletin.inspection import cells, store_state
from skerry.bulletin.inspection.described import Described
from skerry.bulletin.inspection.descriptions import Descriptions, Stored
from skerry.bulletin.inspection.service import site, storage, tensors
from skerry.bulletin.inspection.service.config import ServiceConfig
from skerry.bulletin.inspection.storage import Amount, Forecast
from skerry.bulletin.records import Commit
from skerry.bulletin.status import IslandReport
from skerry.bulletin.stores.memory import MemoryStore
from skerry.codec.compress import compress, decompress
from skerry.codec.layout import MAX_LAYOUT_BYTES, Layout
from tests.bulletin.faults import FaultyStore
from tests.bulletin.inspection.service.serving import Served, serving, small_run
from tests.bulletin.log_builder import LogBuilder


class Switch:
    """A store that answers until it is told to hang or to fail, for keys that start so."""

    def __init__(self, inner: MemoryStore) -> None:
        self.store = FaultyStore(inner, before=self.before)
        self.open = threading.Event()
        self.open.set()
        self.fails: BaseException | None = None
        self.prefix = ""
        self.hanging = threading.Event()

    def before(self, verb: str, key: str) -> None:
        if not key.startswith(self.prefix):
            return
        if self.fails is not None:
            raise self.fails
        if not self.open.is_set():
            self.hanging.set()
            self.open.wait()

    def hang(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.open.clear()


@contextmanager
def switched(**changes: object) -> Iterator[tuple[Switch, Served]]:
    switch = Switch(small_run())
    config = ServiceConfig(port=0, store_limit_s=0.2)
    with serving(switch.store, config=config) as service:
        try:
            yield switch, service
        finally:
            switch.fails = None
            switch.open.set()


def test_a_store_that_hangs_delays_neither_health_nor_what_was_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_state, "SLOW_S", 0.1)
    with switched() as (switch, service):
        before = service.get("versions").json
        switch.hang()
        assert switch.hanging.wait(60)
        service.until("slow")
        assert service.get("/health").json["status"] == "ok"
        assert service.get("versions").json == before
        told = service.get("run").json["store"]
        assert told["state"] == "slow"
        assert told["pending_s"] >= 0.1
        late = service.get("versions/7/layers")
        assert (late.status, late.json["error"]["kind"]) == (504, "StoreSilent")
        heat = service.get("heat?columns=3")
        assert heat.status == 200
        assert "etag" not in heat.headers  # it will be better
        whys = {column["why"] for column in heat.json["columns"]}
        assert whys == {"the store did not answer in time"}
        switch.open.set()
        service.until("ok")
        assert service.get("versions/7/layers").status == 200


def test_a_store_that_hangs_from_the_start_is_told_of_and_not_waited_for() -> None:
    switch = Switch(small_run())
    switch.hang()
    with serving(switch.store, wait_for=None) as service:
        assert switch.hanging.wait(60)
        assert service.get("/health").json["store"]["state"] in ("opening", "slow")
        answer = service.get("versions")
        assert (answer.status, answer.json["error"]["kind"]) == (503, "NotRead")
        assert answer.headers["retry-after"]
        assert service.get("run").json["versions"] == 0
        switch.open.set()
        service.until("ok")
        assert service.get("versions").status == 200


@pytest.mark.parametrize("error", [StoreUnavailable("log", "no answer"), StoreDenied("log", "no")])
def test_a_store_that_fails_is_named_and_tried_again(error: Exception) -> None:
    with switched() as (switch, service):
        switch.fails = error
        service.until("failing")
        told = service.get("run").json["store"]["problem"]
        assert told["kind"] == type(error).__name__
        assert told["acts"]
        assert service.get("versions").status == 200
        switch.fails = None
        service.until("ok")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_health_says_when_nothing_is_followed_any_more() -> None:
    with switched() as (switch, service):
        assert service.get("/health").status == 200
        switch.fails = SystemExit()  # what no loop goes on after
        while service.follower._thread.is_alive():
            service.get("run")
        answer = service.get("/health")
        assert (answer.status, answer.json["status"]) == (503, "ended")


def test_many_calls_on_a_dead_store_take_nothing_from_others() -> None:
    with switched() as (switch, service):
        switch.hang(keys.MANIFEST_PREFIX)
        for version in range(20, 50):
            assert service.get(f"versions/{version}/layers").status in (503, 504)
        assert service.get("timeline").status == 200
        assert service.get("forecast?keep_last=3").status == 200


def test_forecasts_that_take_long_take_nothing_from_others_and_blame_no_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = threading.Event()

    def slow(*_: object) -> Forecast:
        gate.wait(60)
        return Forecast(
            keep_last=1, keep_every=None, kept_versions=0, retired_versions=0,
            freed=Amount(objects=0, total_bytes=0), left=Amount(objects=0, total_bytes=0),
        )  # fmt: skip

    monkeypatch.setattr(storage, "forecast", slow)
    monkeypatch.setattr(site, "COMPUTING_LIMIT_S", 0.3)
    with serving(small_run()) as service:
        answers = [service.get("forecast?keep_last=3") for _ in range(3)]
        told = [(answer.status, answer.json["error"]["kind"]) for answer in answers]
        assert told == [(504, "TooLong"), (504, "TooLong"), (503, "Busy")]
        monkeypatch.setattr(site, "COMPUTING_LIMIT_S", 30.0)
        assert service.get("timeline").status == 200
        gate.set()
        while (again := service.get("forecast?keep_last=4")).status == 503:
            pass  # the thread is about to drop what was given up on
        assert again.status == 200


def test_manifests_that_take_long_to_parse_blame_no_store_and_come_when_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, parse = threading.Event(), Descriptions.parse

    def slow(read: Descriptions, commit: Commit, stored: Stored) -> Described:
        gate.wait(60)
        return parse(read, commit, stored)

    monkeypatch.setattr(Descriptions, "parse", slow)
    monkeypatch.setattr(tensors, "EACH_LIMIT_S", 0.2)
    monkeypatch.setattr(site, "COMPUTING_LIMIT_S", 0.2)
    config = ServiceConfig(port=0, store_limit_s=0.1)  # the store is quick enough for that
    with serving(small_run(), config=config) as service:
        one = service.get("versions/40/layers")
        assert (one.status, one.json["error"]["kind"]) == (504, "TooLong")
        for path in ("heat?columns=5&first=30", "tensor?columns=5&first=30&name=model.norm.weight"):
            part = service.get(path)
            assert (part.status, part.json["unread"]) == (200, 5)
            assert "etag" not in part.headers
        gate.set()
        monkeypatch.setattr(site, "COMPUTING_LIMIT_S", 30.0)
        while service.get("heat?columns=5&first=30").json["unread"]:
            pass
        whole = service.get("tensor?columns=5&first=30&name=model.norm.weight")
        assert (whole.json["unread"], "etag" in whole.headers) == (0, True)


def test_a_map_of_more_places_than_anybody_sees_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "PLACES_MOST", 20)
    with serving(small_run()) as service:
        for path in ("heat", "versions/40/layers"):
            answer = service.get(path)
            assert (answer.status, answer.json["error"]["kind"]) == (422, "RequestInvalid")
        assert service.get("versions/40/tensors").status == 200


def test_what_is_due_is_told_before_the_islands_have_been_seen() -> None:
    switch = Switch(small_run())
    switch.hang(keys.ISLAND_PREFIX)
    with serving(switch.store, wait_for=None) as service:
        while (answer := service.get("storage")).status == 503:
            pass
        assert service.follower.snapshot.islands.looked_ms is None
        assert [due["passed"] for due in answer.json["retirements"]] == [False, True]
        assert "etag" not in answer.headers  # it will be due later
        switch.open.set()
        service.until_islands_are_seen()


def test_a_place_without_a_log_says_so() -> None:
    with serving(MemoryStore(), wait_for="empty") as service:
        answer = service.get("versions")
        assert answer.status == 503
        assert "no log" in answer.json["error"]["message"]


def test_a_log_that_breaks_a_rule_is_an_alarm_and_what_was_good_stays() -> None:
    store = small_run()
    with serving(store) as service:
        count = service.get("run").json["records"]
        store.put(keys.log(count), [LogBuilder.with_versions(1).slots[0]])
        service.until("refused")
        run = service.get("run").json
        assert run["records"] == count
        assert run["store"]["problem"]["kind"] == "Tampered"
        assert service.get("versions").json["total"] == run["versions"]


def test_islands_are_seen_also_while_the_log_is_refused() -> None:
    store = small_run()
    with serving(store) as service:
        count = service.get("run").json["records"]
        store.put(keys.log(count), [LogBuilder.with_versions(1).slots[0]])
        service.until("refused")
        store.replace(keys.island("late"), IslandReport(island="late", version=1).to_bytes())
        service.until_island("late")
        assert service.get("/health").json["store"]["state"] == "refused"


def test_another_key_than_the_pinned_one_shows_nothing() -> None:
    store = MemoryStore()
    log = LogBuilder.with_versions(3)
    for seq, data in enumerate(log.slots):
        store.put_if_absent(keys.log(seq), data)
    with serving(store, wait_for="refused") as service:
        assert service.get("/health").json["store"]["problem"]["kind"] == "UntrustedKey"
        assert service.get("versions").status == 503


def test_a_collected_manifest_is_a_404_and_a_hole_in_the_map() -> None:
    store = small_run()
    with serving(store) as service:
        store.delete(keys.manifest(service.get("versions/40").json["manifest"]))
        assert service.get("versions/40/layers").status == 404
        column = service.get("heat?columns=1&last=40").json["columns"][0]
        assert column["why"] == "its manifest is not there any more"


@pytest.mark.parametrize(("version", "kept"), [(40, False), (2, True)])
def test_a_map_with_a_hole_is_kept_only_if_the_version_is_retired(version: int, kept: bool) -> None:
    store = small_run()
    with serving(store) as service:
        found = service.get(f"versions/{version}").json
        assert (found["row"]["state"] == "retired") == kept
        store.delete(keys.manifest(found["manifest"]))
        answer = service.get(f"heat?columns=1&last={version}")
        assert ("etag" in answer.headers) == kept


def test_a_false_manifest_is_refused_and_named() -> None:
    store = small_run()
    with serving(store) as service:
        key = keys.manifest(service.get("versions/40").json["manifest"])
        store.put(key, [b"something else"])
        answer = service.get("versions/40/layers")
        assert (answer.status, answer.json["error"]["kind"]) == (502, "Tampered")
        assert key in answer.json["error"]["message"]


def test_statuses_that_are_none_are_listed_and_not_dropped() -> None:
    store = small_run()
    store.put("islands/junk.json", [b"<script>alert(1)</script>"])
    with serving(store) as service:
        page = service.get("islands").json
        assert page["refused_total"] == 1
        assert page["refused"][0]["key"] == "islands/junk.json"
        assert page["total"] == 42


@pytest.mark.parametrize("field", ["error", "island", "phase"])
def test_a_status_of_lone_surrogates_is_listed_as_none(field: str) -> None:
    store = small_run()
    fields = json.loads(IslandReport(island="evil").to_bytes())
    store.put("islands/evil.json", [json.dumps({**fields, field: "\ud800"}).encode()])
    with serving(store) as service:
        answer = service.get("islands?limit=1000")
        assert answer.status == 200
        assert [one["key"] for one in answer.json["refused"]] == ["islands/evil.json"]


@pytest.mark.parametrize(
    "recipe", [b'{"a":' * 400 + b"1" + b"}" * 400, b'{"a":"\\ud800"}'], ids=["deep", "surrogate"]
)
def test_a_recipe_that_is_no_answer_is_refused_and_said(
    monkeypatch: pytest.MonkeyPatch, recipe: bytes
) -> None:
    to_bytes = Layout.to_bytes

    def changed(layout: Layout) -> bytes:
        text = decompress(to_bytes(layout), MAX_LAYOUT_BYTES)
        assert b'"recipe":{}' in text
        return compress(text.replace(b'"recipe":{}', b'"recipe":' + recipe))

    monkeypatch.setattr(Layout, "to_bytes", changed)
    with serving(small_run()) as service:
        manifest = service.get("versions/40").json["manifest"]
        for path in ("versions/40/sizes", f"manifests/{manifest}"):
            answer = service.get(path)
            assert (answer.status, answer.json["error"]["kind"]) == (502, "NotJson")
            assert answer.headers["x-content-type-options"] == "nosniff"


def test_clients_that_vanish_free_their_places() -> None:
    store = small_run()
    config = ServiceConfig(port=0, listeners=2)
    with serving(store, config=config) as service:
        for _ in range(6):  # three times as many as there are places
            with listening(service) as stream:
                assert stream.readline() == b"event: store\n"
            closed(service)
        with listening(service) as one, listening(service) as two:
            assert one.readline() == two.readline() == b"event: store\n"
            full = service.get("events")
            assert (full.status, full.json["error"]["kind"]) == (503, "Busy")


def test_a_verification_that_nobody_listens_to_stops() -> None:
    with switched() as (switch, service):
        switch.hang(keys.PACK_PREFIX)
        request = f"{service.url}/api/v1/versions/40/verification"
        with urllib.request.urlopen(request, timeout=60) as stream:
            assert json.loads(stream.readline())["what"].startswith("layouts/")
        assert service.get("versions").status == 200


def listening(service: Served) -> LineReader:
    return LineReader(service)


class LineReader:
    """An events stream over a plain socket, which closes when it is told to."""

    def __init__(self, service: Served) -> None:
        host, port = service.url.removeprefix("http://").split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> LineReader:
        self._socket.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while self._file.readline() not in (b"\r\n", b""):
            pass
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    def readline(self) -> bytes:
        """Return the next line of an event, without chunk sizes."""
        while True:
            line = self._file.readline()
            assert line, "the stream has ended"
            if line.startswith((b"event", b"data", b":")):
                return line


def closed(service: Served) -> None:
    """Wait until the service has noticed that a client left."""
    deadline = threading.Event()
    for _ in range(600):
        if not service.follower.listeners:
            return
        deadline.wait(0.05)
    raise AssertionError("the place was not given back")
