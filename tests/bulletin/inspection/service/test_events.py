"""Events: what is there at once, what is new as it comes, and an end when one was asked for."""

from __future__ import annotations

import json
from typing import Any

from skerry.bulletin import keys
from skerry.bulletin.status import IslandReport
from skerry.bulletin.stores.memory import MemoryStore
from tests.bulletin.inspection.service.serving import serving
from tests.bulletin.inspection.service.test_troubles import LineReader
from tests.bulletin.log_builder import LogBuilder


def event(stream: LineReader, name: str) -> Any:
    """Return the data of the next event of that name."""
    while True:
        if stream.readline() == f"event: {name}\n".encode():
            return json.loads(stream.readline().removeprefix(b"data: "))


def test_versions_and_islands_are_told_as_they_come() -> None:
    store, log = MemoryStore(), LogBuilder.with_versions(3)
    *first, last = log.slots
    for seq, data in enumerate(first):
        store.put_if_absent(keys.log(seq), data)
    with serving(store, pinned=False) as service, LineReader(service) as stream:
        assert event(stream, "store") == {"state": "ok", "problem": None}
        assert event(stream, "log")["newest"] == 1
        before = event(stream, "islands")["changes"]
        store.put_if_absent(keys.log(len(first)), last)
        told = event(stream, "log")
        assert (told["newest"], told["versions"], told["seq"]) == (2, 3, 3)
        report = IslandReport(island="eu-1", version=2)
        store.replace(keys.island("eu-1"), report.to_bytes())
        while event(stream, "islands")["changes"] == before:
            pass
        assert service.get("islands").json["total"] == 1


def test_a_stream_ends_after_the_time_that_was_asked_for() -> None:
    store = MemoryStore()
    for seq, data in enumerate(LogBuilder.with_versions(2).slots):
        store.put_if_absent(keys.log(seq), data)
    with serving(store, pinned=False) as service:
        answer = service.get("events?seconds=1")
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.body.count(b"event: log\n") == 1
