"""Two publishers that fight over one run, for real: threads, and the stores that exist."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from skerry.bulletin.errors import CommitConflict, Fenced
from skerry.bulletin.patience import Patience
from skerry.bulletin.records import Commit, Fence, Record
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores import open_store
from skerry.bulletin.stores.memory import MemoryStore
from tests.bulletin.faults import FaultyStore
from tests.bulletin.runs import commit_of, open_writer, publish, read_log

VERSIONS = 50
PATIENCE = Patience(limit_s=60.0)


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return MemoryStore() if request.param == "memory" else open_store(str(tmp_path / "run"))


def fight(store: ObjectStore, name: str) -> tuple[list[Record], int]:
    """Publish until the run has enough versions, taking it back whenever it was lost."""
    published: list[Record] = []
    lost = 0
    while True:
        try:
            writer = open_writer(store, writer=name, patience=PATIENCE)
        except CommitConflict:  # threads take turns so coarsely that the other one always won
            continue
        try:
            while len(writer.reader.state.commits) < VERSIONS:
                published.append(publish(writer, f"{name} {len(published)}"))
            return published, lost
        except Fenced:
            lost += 1


def test_each_slot_has_one_winner_and_the_loser_is_fenced(store: ObjectStore) -> None:
    names = ["left", "right"]
    barrier = Barrier(len(names))

    def run(name: str) -> tuple[list[Record], int]:
        barrier.wait()
        return fight(store, name)

    with ThreadPoolExecutor(len(names)) as pool:
        results = list(pool.map(run, names))
    records = read_log(store).history
    published = [record for records_of_one, _ in results for record in records_of_one]
    in_log = [record for record in records if isinstance(record.body, Commit)]
    assert sorted(published, key=lambda record: record.seq) == in_log
    assert [commit_of(record).version for record in in_log] == list(range(len(in_log)))
    assert len(in_log) >= VERSIONS
    # Both took the run in turns, and every writer but their last ones ended by being fenced.
    fences = sum(isinstance(record.body, Fence) for record in records)
    assert fences == sum(lost for _, lost in results) + len(names)
    for record in in_log:
        fence = max(
            (r for r in records if isinstance(r.body, Fence) and r.seq < record.seq),
            key=lambda r: r.seq,
        )
        assert (fence.epoch, fence.writer) == (record.epoch, record.writer)


def test_many_writers_can_open_one_run_at_once_each_with_an_epoch_of_its_own(
    store: ObjectStore,
) -> None:
    count = 8
    barrier = Barrier(count)

    def run(number: int) -> int:
        barrier.wait()
        return open_writer(store, writer=f"writer-{number}", patience=PATIENCE).epoch

    with ThreadPoolExecutor(count) as pool:
        epochs = list(pool.map(run, range(count)))
    assert sorted(epochs) == list(range(1, count + 1))
    assert [record.epoch for record in read_log(store).history] == sorted(epochs)


def test_a_writer_that_never_gets_its_fence_in_gives_up() -> None:
    inner = MemoryStore()
    writers = iter(range(1000))

    def overtake(verb: str, key: str) -> None:
        if verb == "put_if_absent" and key.startswith("log/"):
            open_writer(inner, writer=f"writer-{next(writers)}")

    with pytest.raises(CommitConflict, match="slot of the fence"):
        open_writer(FaultyStore(inner, before=overtake))


@pytest.mark.parametrize("steps_before", range(1, 14))
def test_a_takeover_at_any_step_of_a_commit_leaves_one_history(steps_before: int) -> None:
    """The new writer comes in just before the given request of the old one's commit."""
    inner = MemoryStore()
    took: list[Record] = []
    requests = 0

    def take_over(verb: str, key: str) -> None:
        nonlocal requests
        requests += 1
        if requests == steps_before and not took:
            took.append(publish(open_writer(inner, writer="new"), "new"))

    store = FaultyStore(inner)
    old = open_writer(store, writer="old")
    publish(old, "zero")
    store.before = take_over
    try:
        committed = [publish(old, "old")]
    except Fenced:
        committed = []
    records = read_log(inner).history
    in_log = [record for record in records if isinstance(record.body, Commit)]
    assert in_log[1:] == sorted(committed + took, key=lambda record: record.seq)
    if took:
        with pytest.raises(Fenced):
            publish(old, "later")


def test_packs_can_be_uploaded_from_many_threads() -> None:
    writer = open_writer(MemoryStore())
    with ThreadPoolExecutor(8) as pool:
        refs = list(pool.map(lambda n: writer.put_pack(str(n).encode()), range(64)))
    assert [writer.reader.read(ref) for ref in refs] == [str(n).encode() for n in range(64)]
