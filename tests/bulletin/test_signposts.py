"""What a writer leaves for fresh readers: when it is due, in which order, and never at the cost
of a commit.
"""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.bulletin import keys
from skerry.bulletin.checkpoint import CHECKPOINT_INTERVAL
from skerry.bulletin.cost import COST_LIMIT_BYTES, VERSIONS_KEPT, CostLog, VersionCost
from skerry.bulletin.errors import RecordInvalid, StoreUnavailable
from skerry.bulletin.hint import Hint
from skerry.bulletin.log import BulletinReader
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores.memory import MemoryStore
from tests.bulletin.faults import FaultyStore
from tests.bulletin.log_builder import OTHER_SIGNER, SIGNER, LogBuilder
from tests.bulletin.runs import commit_of, open_writer, publish
from tests.bulletin.strategies import digests, numbers
from tests.bulletin.test_reader import stored


def almost_due(*, missing: int = 2) -> MemoryStore:
    """Return a signed run that lacks so many records until its first checkpoint is due."""
    return stored(LogBuilder.with_versions(CHECKPOINT_INTERVAL - 1 - missing))


def checkpoints(store: ObjectStore) -> list[str]:
    return list(store.list_after(keys.CHECKPOINT_PREFIX))


def test_a_checkpoint_comes_after_every_256th_record_and_the_hint_names_it() -> None:
    store = almost_due()
    writer = open_writer(store)  # slot 254
    assert checkpoints(store) == []
    publish(writer, "due")  # slot 255
    assert checkpoints(store) == [keys.checkpoint(255)]
    publish(writer, "not due")
    for n in range(254):
        writer.retire(versions=[n], grace_s=0)
    assert checkpoints(store) == [keys.checkpoint(255)]
    record = publish(writer, "due again")
    assert checkpoints(store) == [keys.checkpoint(255), keys.checkpoint(511)]
    hint = Hint.parse(store.get(keys.HINT, limit_bytes=1000))
    assert hint == Hint(seq=511, digest=record.digest, checkpoint=511)
    reader = BulletinReader(store, pinned_key=SIGNER.public_key)
    assert [r.seq for r in reader.refresh()] == [0]
    assert (reader.checkpoint, reader.state.head) == (511, record.digest)


def test_a_later_writer_knows_the_checkpoint_and_makes_the_next_when_it_is_due() -> None:
    store = almost_due()
    publish(open_writer(store), "due")
    publish(open_writer(store), "by the next process")
    assert checkpoints(store) == [keys.checkpoint(255)]
    assert Hint.parse(store.get(keys.HINT, limit_bytes=1000)).checkpoint == 255
    store.delete(keys.checkpoint(255))
    publish(open_writer(store), "finds none")
    assert checkpoints(store) == [keys.checkpoint(259)]


def test_a_checkpoint_is_signed_by_the_key_that_signs_the_next_record() -> None:
    store = almost_due()
    writer = open_writer(store)
    writer.rotate(OTHER_SIGNER)  # slot 255, and a checkpoint
    assert checkpoints(store) == [keys.checkpoint(255)]
    publish(writer, "with the new key")
    reader = BulletinReader(store, pinned_key=SIGNER.public_key)
    reader.refresh()
    assert (reader.checkpoint, reader.state.key) == (255, OTHER_SIGNER.public_key)


def test_an_unsigned_run_gets_no_checkpoint() -> None:
    store = stored(LogBuilder.with_versions(300, signer=None))
    publish(open_writer(store, signer=None), "one")
    assert checkpoints(store) == []


def test_record_checkpoint_hint_cost_in_this_order() -> None:
    steps: list[str] = []
    store = FaultyStore(almost_due())
    writer = open_writer(store)
    store.before = lambda verb, key: steps.append(f"{verb} {key}")
    publish(writer, "due")
    at = steps.index(f"put_if_absent {keys.log(255)}")
    assert steps[at + 1 :] == [
        f"get {keys.log(255)}",
        f"put {keys.checkpoint(255)}",
        f"replace {keys.HINT}",
        f"get {keys.COST}",
        f"replace {keys.COST}",
    ]


@pytest.mark.parametrize("key", [keys.checkpoint(255), keys.HINT, keys.COST])
def test_a_signpost_that_fails_is_logged_and_the_commit_stands(
    key: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(verb: str, name: str) -> None:
        if name == key:
            raise StoreUnavailable(name, "503")

    inner = almost_due()
    writer = open_writer(FaultyStore(inner, before=fail))
    with caplog.at_level(logging.WARNING):
        record = publish(writer, "due")
        publish(writer, "the next")
    assert f"{key}: 503" in caplog.text
    whole, fresh = BulletinReader(inner, history=True), BulletinReader(inner)
    whole.refresh()
    fresh.refresh()
    assert record in whole.history
    assert fresh.state.head == whole.state.head


def costs(store: ObjectStore) -> CostLog:
    return CostLog.parse(store.get(keys.COST, limit_bytes=COST_LIMIT_BYTES))


def test_the_cost_of_a_version_is_what_went_over_the_wire_since_the_one_before() -> None:
    steps: list[str] = []
    store = FaultyStore(MemoryStore(), before=lambda verb, key: steps.append(verb))
    writer = open_writer(store)
    opened = len(steps)
    publish(writer, "zero")
    sent = len(steps) - 2  # the cost's own get and replace belong to the version after it
    (cost,) = costs(store.inner).versions
    assert cost.opened
    assert sum(cost.requests.values()) == sent
    assert opened > 0
    steps.clear()
    commit = commit_of(publish(writer, "one"))
    cost = costs(store.inner).versions[-1]
    assert (cost.version, cost.opened) == (commit.version, False)
    assert sum(cost.requests.values()) == len(steps) - 1 + 2
    assert cost.requests["put"] == 4  # a manifest and three packs
    assert cost.bytes_up > commit.nbytes


def test_costs_go_on_from_an_earlier_process_and_junk_is_begun_anew() -> None:
    store = MemoryStore()
    publish(open_writer(store), "zero")
    publish(open_writer(store), "one")
    assert [cost.version for cost in costs(store).versions] == [0, 1]
    assert all(cost.opened for cost in costs(store).versions)
    store.replace(keys.COST, b"junk")
    publish(open_writer(store), "two")
    assert [cost.version for cost in costs(store).versions] == [2]


version_costs = st.builds(
    VersionCost,
    version=numbers,
    opened=st.booleans(),
    requests=st.dictionaries(
        st.sampled_from(["get", "put", "size", "list_after"]), st.integers(1, 10**6)
    ),
    bytes_up=numbers,
    bytes_down=numbers,
)
cost_logs = st.lists(version_costs, max_size=6, unique_by=lambda cost: cost.version).map(
    lambda found: CostLog(tuple(sorted(found, key=lambda cost: cost.version)))
)


@given(cost_logs)
def test_a_log_of_costs_has_one_spelling(log: CostLog) -> None:
    assert CostLog.parse(log.to_bytes()) == log


@given(cost_logs, version_costs)
def test_only_the_newest_costs_are_kept_in_order(log: CostLog, cost: VersionCost) -> None:
    versions = log.append(cost).versions
    assert versions[-1] == cost
    assert CostLog.parse(log.append(cost).to_bytes()).versions == versions


def test_the_last_thousand_versions_are_kept_within_the_limit() -> None:
    log = CostLog()
    requests = {f"verb_{letter}": 2**62 for letter in "abcdefghij"}
    for version in range(VERSIONS_KEPT + 5):
        log = log.append(
            VersionCost(
                version=version, opened=False, requests=requests, bytes_up=2**62, bytes_down=2**62
            )
        )
    assert [log.versions[0].version, len(log.versions)] == [5, VERSIONS_KEPT]
    assert len(log.to_bytes()) < COST_LIMIT_BYTES


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b'{"format":1,"verbs":[],"versions":[[1,0,0]]}',
        b'{"format":1,"verbs":[],"versions":[[1,2,0,0]]}',
        b'{"format":1,"verbs":[],"versions":[[1,0,0,-1]]}',
        b'{"format":1,"verbs":[],"versions":[[1,0,0,0],[1,0,0,0]]}',
        b'{"format":1,"verbs":["get"],"versions":[[1,0,0,0,0]]}',  # never used
        b'{"format":1,"verbs":["<b>"],"versions":[[1,0,0,0,1]]}',
        b'{"format":2,"verbs":[],"versions":[]}',
        b'{"format":1,"verbs":[],"versions":[]} ',
    ],
)  # fmt: skip
def test_a_cost_file_is_parsed_strictly(content: bytes) -> None:
    with pytest.raises(RecordInvalid, match=r"hint/cost\.json"):
        CostLog.parse(content)


hints = st.integers(0, 2**63 - 1).flatmap(
    lambda seq: st.builds(
        Hint, seq=st.just(seq), digest=digests, checkpoint=st.none() | st.integers(0, seq)
    )
)


@given(hints)
def test_a_hint_has_one_spelling(hint: Hint) -> None:
    assert Hint.parse(hint.to_bytes()) == hint
