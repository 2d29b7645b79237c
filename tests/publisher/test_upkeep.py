"""Compaction and collection beside a running publisher."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.retention import KeepRules
from skerry.bulletin.stores import MemoryStore
from skerry.island_agent.plan import route
from skerry.island_agent.pull import pull
from skerry.publisher import Checkpoint, Publisher, PublisherConfig
from skerry.publisher.audit import audit
from skerry.publisher.survey import RetentionPolicy
from skerry.publisher.upkeep import Upkeep, UpkeepPolicy
from tests.bulletin.faults import FaultyStore

RULES = KeepRules(last=4, every=16)


def checkpoint(version: int, words: int = 2000) -> Checkpoint:
    weights = np.arange(words, dtype=np.uint16)
    for number in range(version + 1):
        weights[number * 7 % words :: 97] += 1
    return Checkpoint.from_arrays({"w": weights.view(np.float16)})


def test_a_publisher_keeps_its_run_while_it_publishes(tmp_path: Path) -> None:
    store = MemoryStore()
    policy = UpkeepPolicy(retention=RetentionPolicy(rules=RULES, grace_s=0), interval_s=0.001)
    publisher = Publisher.open(store, config=PublisherConfig(upkeep=policy))
    try:
        for version in range(40):
            publisher.publish(checkpoint(version))
        deadline = time.monotonic() + 60
        while len(publisher.reader.state.retired) < 40 - 7 and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        publisher.close()
        publisher.close()
    state = publisher.reader.state
    assert set(state.commits) - state.retired == {0, 16, 32, 36, 37, 38, 39}
    # How many skips were made before their versions were retired is a matter of turns.
    assert state.skips
    assert len(route(state, have=0, want=39).patches) < 39
    reader = BulletinReader(store)
    reader.refresh()
    assert list(audit(reader, deep=True)) == []
    pull(reader, tmp_path / "out")
    name = "model.safetensors"
    expected = b"".join(checkpoint(39).file_chunks(name))
    assert (tmp_path / "out" / name).read_bytes() == expected


def test_no_append_of_upkeep_comes_while_a_version_is_published() -> None:
    inner, publishing = MemoryStore(), threading.Event()
    writes: list[tuple[str, bool, str]] = []

    def before(verb: str, key: str) -> None:
        if verb == "put_if_absent" or (verb == "delete" and not key.startswith(("packs", "full"))):
            writes.append((key, publishing.is_set(), threading.current_thread().name))

    store = FaultyStore(inner)
    policy = UpkeepPolicy(retention=RetentionPolicy(rules=RULES, grace_s=0), interval_s=0.001)
    publisher = Publisher.open(store, config=PublisherConfig(upkeep=policy))
    store.before = before
    try:
        for version in range(20):
            with publisher._turn:
                publishing.set()
                publisher.publish(checkpoint(version))
                publishing.clear()
    finally:
        publisher.close()
    assert all("upkeep" not in name for _, during, name in writes if during)
    assert any("upkeep" in name for _, _, name in writes)


def test_a_patch_that_was_retired_before_is_published_as_a_full() -> None:
    store = MemoryStore()
    publisher = Publisher.open(store, config=PublisherConfig(anchor_versions=None))
    for version in (0, 1, 0):
        publisher.publish(checkpoint(version))
    again = publisher.reader.state.commits[1].packs[0].key
    publisher.writer.retire(names=[again], grace_s=0)
    report = publisher.publish(checkpoint(1))
    assert (report.kind, report.reason) == ("full", "the same patch was retired before")
    report = publisher.publish(checkpoint(2))
    assert report.kind == "patch"


def test_a_failing_store_is_tried_again_and_a_second_writer_ends_the_upkeep(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    first = Publisher.open(store)
    for version in range(3):
        first.publish(checkpoint(version))
    policy = UpkeepPolicy(retention=RetentionPolicy(), compact=False, interval_s=0.001)
    upkeep = Upkeep(first.writer, policy, threading.RLock())
    Publisher.open(store)
    upkeep.start()
    upkeep._thread.join(30)
    assert not upkeep._thread.is_alive()
    assert "upkeep has stopped" in caplog.text


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="interval_s"):
        UpkeepPolicy(interval_s=0)
