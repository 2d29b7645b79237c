"""Publishing on a real S3 server that is killed, and against another publisher."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random
from threading import Barrier

import pytest

from skerry.benchmarks.seaweed import Seaweed
from skerry.bulletin.errors import Fenced, StoreError
from skerry.bulletin.log import BulletinWriter
from skerry.bulletin.patience import Patience
from skerry.bulletin.records import Record
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores import open_store
from skerry.bulletin.stores.memory import MemoryStore
from tests.bulletin.faults import FaultyStore
from tests.bulletin.log_builder import digest
from tests.bulletin.runs import commit_of, open_writer, publish, read_log
from tests.servers.fixtures import require_weed

PATIENCE = Patience(limit_s=60.0)


@pytest.fixture
def mortal(tmp_path: Path, aws: None) -> Iterator[Seaweed]:
    """A server of this test's own, to be killed."""
    server = Seaweed(require_weed(), tmp_path / "seaweed")
    try:
        server.start()
        server.make_bucket("mortal")
        yield server
    finally:
        server.kill()


def publish_surely(writer: BulletinWriter, text: str) -> Record:
    """Publish as a publisher does: an unknown outcome is settled, what failed is done again."""
    while True:
        try:
            record = writer.settle()
            if record is not None:
                return record
            return publish(writer, text)
        except StoreError:
            continue


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.soak)])
@pytest.mark.timeout(3600)
def test_every_acknowledged_version_is_whole_after_the_server_was_killed(
    mortal: Seaweed, kills: int
) -> None:
    random = Random(kills)
    store = open_store(mortal.url("mortal", "run"))
    writer = open_writer(store, patience=PATIENCE)
    acknowledged: list[Record] = []
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            acknowledged.append(publish_surely(writer, f"version {len(acknowledged)}"))

    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        stack.callback(over.set)
        publisher = pool.submit(work)
        for kill in range(kills):
            # For half a minute after a start this server refuses conditional puts, as its locks
            # are not settled: some kills come in that time, some while versions are committed.
            before = len(acknowledged)
            enough, limit_s = (2, 120.0) if kill % 4 == 0 else (1, random.uniform(0.1, 10.0))
            deadline = time.monotonic() + limit_s
            while len(acknowledged) < before + enough and time.monotonic() < deadline:
                time.sleep(random.uniform(0.0, 0.05))
            mortal.kill()
            before = len(acknowledged)
            mortal.start()
            state = read_log(open_store(mortal.url("mortal", "run"))).state  # fetches everything
            assert before <= len(state.commits) <= len(acknowledged) + 1  # a reply may be lost
        over.set()
        publisher.result(600)
    state = read_log(open_store(mortal.url("mortal", "run"))).state
    assert [commit_of(record) for record in acknowledged] == list(state.commits.values())
    expected = [digest(f"version {n}") for n in range(len(acknowledged))]
    assert [commit.result for commit in state.commits.values()] == expected
    print(f"{kills} kills, {len(acknowledged)} versions acknowledged, all whole")


class Contender(FaultyStore):
    """Meets the other one at the barrier before its first put to the log.

    The self-test's scratch keys are kept elsewhere: it is tried by itself, and takes seconds here.
    """

    def __init__(self, inner: ObjectStore, meeting: Barrier) -> None:
        super().__init__(inner, before=self._meet)
        self.armed = True
        self._meeting = meeting
        self._scratch = MemoryStore()

    def _meet(self, verb: str, key: str) -> None:
        if verb == "put_if_absent" and self.armed:
            self.armed = False
            self._meeting.wait(60)

    def put_if_absent(self, key: str, data: bytes) -> None:
        if key.startswith("hint/"):
            self._scratch.put_if_absent(key, data)
        else:
            super().put_if_absent(key, data)

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        if key.startswith("hint/probe-"):
            return self._scratch.get(key, limit_bytes=limit_bytes)
        return super().get(key, limit_bytes=limit_bytes)

    def size(self, key: str) -> int:
        return self._scratch.size(key) if key.startswith("hint/") else super().size(key)

    def delete(self, key: str) -> None:
        self._scratch.delete(key)


@pytest.mark.parametrize("versions", [10, pytest.param(200, marks=pytest.mark.soak)])
@pytest.mark.timeout(1800)
def test_of_two_writers_exactly_one_wins_each_slot_and_the_loser_always_knows(
    run_url: str, versions: int
) -> None:
    """In each round one commits and the other one takes the run, both at the same moment."""
    meeting = Barrier(2)
    won: dict[int, Record] = {}
    fenced = 0
    store = Contender(open_store(run_url), meeting)
    store.armed = False
    holder = open_writer(store, writer="0", patience=PATIENCE)
    challenges = 0
    with ThreadPoolExecutor(2) as pool:
        while len(won) < versions:
            challenges += 1
            store.armed = True
            next_store = Contender(open_store(run_url), meeting)
            name = str(challenges)
            taking = pool.submit(open_writer, next_store, writer=name, patience=PATIENCE)
            try:
                record = pool.submit(publish, holder, f"version {challenges}").result()
            except Fenced:
                fenced += 1
            else:
                assert won.setdefault(commit_of(record).version, record) is record
            challenger = taking.result()
            with pytest.raises(Fenced):
                publish(holder, "too late")
            holder, store = challenger, next_store
    state = read_log(open_store(run_url)).state
    assert {version: commit_of(record) for version, record in won.items()} == state.commits
    assert state.epoch == challenges + 1
    assert challenges == versions + fenced
    print(f"{challenges} races for a slot: the commit won {versions}, the fence {fenced}")
