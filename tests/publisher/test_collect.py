"""Collection: grace, leases, orphans, crashes at every step, and who may do it at all."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.bulletin import keys
from skerry.bulletin.errors import Fenced, ListUnsupported, StoreUnavailable
from skerry.bulletin.lineage import plan
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.retention import KeepRules
from skerry.bulletin.status import IslandReport, Lease
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores import MemoryStore, open_store
from skerry.bulletin.writer import BulletinWriter
from skerry.publisher.collect import Collector
from skerry.publisher.survey import RetentionPolicy
from tests.bulletin.faults import FakeTime, FaultyStore
from tests.bulletin.log_builder import START_MS
from tests.bulletin.runs import open_writer, publish
from tests.publisher.crashing_collector import POLICY

REPOSITORY = Path(__file__).parents[2]


class Clocks:
    """A monotonic clock and a wall clock, moved by hand."""

    def __init__(self, wall_s: float = START_MS / 1000) -> None:
        self.monotonic_s = 0.0
        self.wall_s = wall_s

    def clock(self) -> float:
        return self.monotonic_s

    def now(self) -> int:
        return int(1000 * self.wall_s)

    def pass_s(self, seconds: float) -> None:
        self.monotonic_s += seconds
        self.wall_s += seconds


def policy(last: int = 2, **settings: float) -> RetentionPolicy:
    return RetentionPolicy(
        **{"rules": KeepRules(last=last), "grace_s": 100, "skew_s": 10.0, **settings}  # type: ignore[arg-type]
    )


def opened(store: ObjectStore, clocks: Clocks) -> BulletinWriter:
    return BulletinWriter.open(
        store,
        signer=None,
        writer="collector",
        wait=FakeTime().patience(0),
        now=clocks.now,
    )


def a_run(store: ObjectStore, clocks: Clocks, skip_to: int = 4) -> BulletinWriter:
    """A skip leads from 0 to the last version but one, so that the chain to that one can go."""
    writer = opened(store, clocks)
    for number in range(skip_to + 2):
        publish(writer, f"v{number}")
    pack = writer.put_pack(b"s")
    writer.skip(base_version=0, version=skip_to, packs=(pack,))
    return writer


def collector(writer: BulletinWriter, clocks: Clocks, rules: RetentionPolicy) -> Collector:
    return Collector(writer, rules, clock=clocks.clock, now=clocks.now)


def objects(store: ObjectStore) -> list[str]:
    return [*store.list_after("packs/"), *store.list_after("full/")]


def test_objects_go_when_the_grace_has_passed_and_not_before() -> None:
    store, clocks = MemoryStore(), Clocks()
    writer = a_run(store, clocks)
    gc = collector(writer, clocks, policy())
    chosen = gc.retire()
    assert chosen.kept == {4, 5}
    assert chosen.versions == (0, 1, 2, 3)
    assert len(chosen.keys) == 12  # three packs each of 1, 2, 3 and 4
    assert gc.sweep().count == 0
    clocks.pass_s(99)
    found = gc.sweep()
    assert (found.count, found.waiting) == (0, 12)
    clocks.pass_s(1)
    found = gc.sweep()
    assert set(found.objects) == set(chosen.keys)
    assert sum(found.objects.values()) == chosen.nbytes
    assert len(found.names) == 0  # these versions are alike: their layout and manifest are in use
    assert len(objects(store)) == 2 + 1 + 3
    assert gc.sweep().count == 0
    state = writer.reader.state
    for want in (4, 5):
        for step in plan(state, have=None, want=want):
            for ref in step.objects:
                assert store.size(ref.key) == ref.size


@pytest.mark.parametrize("parent", [3, 5])
def test_a_version_that_comes_while_a_collection_is_chosen_can_be_reached_afterwards(
    parent: int,
) -> None:
    store, clocks = MemoryStore(), Clocks()
    writer = a_run(store, clocks)
    published: list[str] = []

    def now() -> int:
        if not published:  # a rollback to a version that is about to go, or the next one
            published.append("meanwhile")
            publish(writer, "meanwhile", parent=parent)
        return clocks.now()

    chosen = Collector(writer, policy(last=1, grace_s=0), clock=clocks.clock, now=now).retire()
    state = writer.reader.state
    assert state.newest is not None
    assert state.newest.version == 6
    for step in plan(state, have=None, want=6):
        assert not {ref.key for ref in step.objects} & set(chosen.keys)


def test_records_are_never_deleted() -> None:
    store, clocks = MemoryStore(), Clocks()
    gc = collector(a_run(store, clocks), clocks, policy(last=1, grace_s=0))
    before = list(store.list_after("log/"))
    gc.retire()
    gc.sweep()
    assert list(store.list_after("log/"))[: len(before)] == before


def test_a_restarted_collector_waits_anew_unless_the_record_shows_that_the_grace_is_over() -> None:
    store, clocks = MemoryStore(), Clocks()
    collector(a_run(store, clocks), clocks, policy()).retire()

    clocks.pass_s(109)  # over, but not by as much as two clocks may differ
    gc = collector(opened(store, clocks), clocks, policy())
    assert gc.sweep().count == 0
    clocks.pass_s(1)
    assert gc.sweep().count == 12


def test_a_clock_that_was_set_back_only_makes_the_collector_wait() -> None:
    store, clocks = MemoryStore(), Clocks()
    collector(a_run(store, clocks), clocks, policy()).retire()
    clocks.wall_s -= 10**6
    gc = collector(opened(store, clocks), clocks, policy())
    clocks.pass_s(99)
    assert gc.sweep().count == 0
    clocks.pass_s(1)
    assert gc.sweep().count == 12


def test_a_clock_that_was_set_forward_does_not_shorten_the_grace_of_ones_own_record() -> None:
    store, clocks = MemoryStore(), Clocks()
    gc = collector(a_run(store, clocks), clocks, policy())
    gc.retire()
    clocks.wall_s += 10**6
    assert gc.sweep().count == 0


def test_a_lease_holds_what_it_names_until_its_limit_however_it_lies() -> None:
    store, clocks = MemoryStore(), Clocks()
    writer = a_run(store, clocks)
    gc = collector(writer, clocks, policy(lease_limit_s=50.0))
    gc.retire()
    lie = Lease(legs=((0, 1), (1, 2)), until_ms=2**62)
    store.replace(keys.island("liar"), IslandReport(island="liar", reading=lie).to_bytes())
    clocks.pass_s(100)
    found = gc.sweep()
    assert (found.count, found.waiting) == (6, 6)
    clocks.pass_s(49)
    assert gc.sweep().count == 0
    clocks.pass_s(1)
    assert gc.sweep().count == 6


def test_a_lease_that_has_expired_holds_nothing() -> None:
    store, clocks = MemoryStore(), Clocks()
    gc = collector(a_run(store, clocks), clocks, policy())
    gc.retire()
    old = Lease(legs=((0, 1),), until_ms=clocks.now() + 100_000)
    store.replace(keys.island("a"), IslandReport(island="a", reading=old).to_bytes())
    clocks.pass_s(100)
    assert gc.sweep().count == 12


def test_orphans_of_epochs_that_are_over_go_at_once_and_those_of_ones_own_stay() -> None:
    store, clocks = MemoryStore(), Clocks()
    zombie = a_run(store, clocks)
    zombie.put_pack(b"never named")
    zombie.put_full([("model.safetensors", [b"abc"]), ("config.json", [b"{}"])])
    writer = opened(store, clocks)
    mine = writer.put_pack(b"of the next record")
    gc = collector(writer, clocks, policy(last=99))
    assert gc.retire().versions == ()
    before = set(objects(store))
    found = gc.sweep()
    assert (found.count, found.orphans, found.nbytes) == (3, 3, 11 + 3 + 2)
    assert before - set(objects(store)) == set(found.objects)
    assert store.size(mine.key) == mine.size


def test_a_manifest_goes_with_its_last_version() -> None:
    store, clocks = MemoryStore(), Clocks()
    writer = a_run(store, clocks)
    lonely = keys.manifest(writer.reader.state.commits[0].manifest)
    store.put("manifests/" + "0" * 64, [b"of no version"])
    gc = collector(writer, clocks, policy(grace_s=0))
    gc.retire()
    assert set(gc.sweep().names) == {"manifests/" + "0" * 64}
    assert store.size(lonely)  # 4 and 5 have the same


def test_without_a_list_the_log_says_what_there_is() -> None:
    class NoList(MemoryStore):
        def list_after(self, prefix: str, after: str = "") -> Iterator[str]:
            raise ListUnsupported(prefix)

    store, clocks = NoList(), Clocks()
    writer = a_run(store, clocks)
    orphan = writer.put_pack(b"orphan")
    gc = collector(opened(store, clocks), clocks, policy(grace_s=0))
    chosen = gc.retire()
    found = gc.sweep()
    assert set(chosen.keys) <= set(found.objects)
    assert store.size(orphan.key)
    assert sum(key in store._objects for key in chosen.keys) == 0


def test_a_fenced_collector_deletes_nothing_more() -> None:
    store, clocks = MemoryStore(), Clocks()
    writer = a_run(store, clocks)
    gc = collector(writer, clocks, policy(grace_s=0))
    gc.retire()
    opened(store, clocks)
    before = objects(store)
    with pytest.raises(Fenced):
        gc.sweep()
    assert objects(store) == before
    with pytest.raises(Fenced):
        publish(writer, "more")


def test_a_store_that_fails_half_way_is_swept_further_by_the_next_one() -> None:
    inner, clocks = MemoryStore(), Clocks()
    store = FaultyStore(inner)
    gc = collector(a_run(store, clocks), clocks, policy(grace_s=0))
    gc.retire()
    deleted: list[str] = []
    lock = threading.Lock()

    def before(verb: str, key: str) -> None:
        with lock:
            if verb == "delete":
                deleted.append(key)
                if len(deleted) == 4:
                    raise StoreUnavailable(key, "for the test")

    store.before = before
    with pytest.raises(StoreUnavailable):
        gc.sweep()
    assert 6 < len(objects(inner)) < 18
    gc.sweep()
    assert len(objects(inner)) == 6


def test_many_keys_are_split_into_records_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clocks = MemoryStore(), Clocks()
    monkeypatch.setattr("skerry.publisher.collect._KEYS_PER_RECORD", 5)
    monkeypatch.setattr("skerry.publisher.collect._VERSIONS_PER_RECORD", 3)
    writer = a_run(store, clocks)
    gc = collector(writer, clocks, policy(grace_s=0))
    gc.retire()
    state = writer.reader.state
    assert [len(gone.body.keys) for gone in state.retirements] == [5, 5, 2]
    assert [len(gone.body.versions) for gone in state.retirements] == [3, 1, 0]
    assert gc.sweep().count == 12


def test_a_collector_killed_at_any_request_leaves_a_run_that_the_next_one_finishes(
    tmp_path: Path,
) -> None:
    count = 0
    left: list[int] = []
    died = True
    while died:
        count += 1
        root = tmp_path / str(count)
        store = open_store(str(root))
        a_run(store, Clocks(), skip_to=2)
        command = [sys.executable, "-m", "tests.publisher.crashing_collector", str(root)]
        code = subprocess.run(
            [*command, str(count)], cwd=REPOSITORY, check=False, timeout=60
        ).returncode
        assert code in (0, -signal.SIGKILL)
        died = code != 0
        left.append(len(objects(store)))

        reader = BulletinReader(store, wait=FakeTime().patience(0))
        reader.refresh()
        for want in (2, 3):  # every plan of the log as it is can be followed
            for have in (None, 0, 1, 2, 3):
                for step in plan(reader.state, have=have, want=want):
                    for ref in step.objects:
                        assert len(reader.read(ref)) == ref.size

        writer = open_writer(store, signer=None, writer="next")
        gc = Collector(writer, POLICY)
        gc.retire()
        gc.sweep()
        assert len(objects(store)) == 6
        assert writer.reader.state.retired == {0, 1}
    assert {12, 6} < set(left)  # before, after, and in between
