"""Publishing beside training: what was copied, what waits, what is given up, and who is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.bulletin.errors import Fenced, StoreUnavailable
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.stores import MemoryStore
from skerry.island_agent.pull import pull
from skerry.publisher import (
    BackgroundPublisher,
    Backlog,
    BacklogPolicy,
    Publisher,
    PublishFailed,
    PublishReport,
    ResumeRefused,
    ServedTensor,
    parent_for,
)
from tests.bulletin.faults import FaultyStore

Snapshot = Mapping[str, ServedTensor]
COALESCE = BacklogPolicy(when_full=Backlog.COALESCE)


class Weights:
    """A model of one tensor that its trainer overwrites in place."""

    def __init__(self) -> None:
        self.live = np.zeros(256, np.uint16)

    def step(self, number: int) -> None:
        self.live[:] = 0
        self.live[:number] = number

    def copy(self) -> Snapshot:
        return {"w": ServedTensor(dtype="BF16", shape=(256,), data=self.live.copy())}


class Stepped:
    """A store whose publishing thread stops before each commit until it is let go.

    `arrived` is released when it stands there; `go` lets it on.
    """

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.arrived = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.wrong: Exception | None = None
        self.begun: list[int] = []

    def __call__(self, weights: Snapshot, step: int) -> PublishReport:
        self.begun.append(step)
        self.arrived.release()
        assert self.go.acquire(timeout=60)
        if self.wrong is not None:
            wrong, self.wrong = self.wrong, None
            raise wrong
        return self.publisher.publish_arrays(weights, step=step)


def directly(publisher: Publisher) -> Callable[[Snapshot, int], PublishReport]:
    return lambda weights, step: publisher.publish_arrays(weights, step=step)


def versions(store: MemoryStore) -> dict[int, int]:
    """Return the step of each version."""
    reader = BulletinReader(store)
    reader.refresh()
    return {number: commit.step for number, commit in reader.state.commits.items()}


def pulled(store: MemoryStore, version: int, tmp_path: Path) -> list[int]:
    pull(BulletinReader(store), tmp_path / str(version), version)
    data = (tmp_path / str(version) / "model.safetensors").read_bytes()
    return [int(word) for word in np.frombuffer(data[-512:], np.uint16)]


def test_a_version_is_the_copy_of_its_step_whatever_the_optimizer_writes_meanwhile(
    tmp_path: Path,
) -> None:
    store, weights = MemoryStore(), Weights()
    stepped = Stepped(Publisher.open(store))
    with BackgroundPublisher(stepped, weights.copy) as background:
        for step in range(4):
            weights.step(step)
            background.publish(step)
            stepped.arrived.acquire()
            weights.live[:] = 999  # the next step, while this one has not been read yet
            stepped.go.release()
    assert versions(store) == {0: 0, 1: 1, 2: 2, 3: 3}
    for step in range(4):
        assert pulled(store, step, tmp_path) == [step] * step + [0] * (256 - step)


def test_publish_returns_while_the_version_is_still_on_its_way() -> None:
    store, weights = MemoryStore(), Weights()
    stepped = Stepped(Publisher.open(store))
    background = BackgroundPublisher(stepped, weights.copy)
    background.publish(0)
    background.publish(1)  # one in work, one waiting: neither is a version
    assert versions(store) == {}
    stepped.go.release(2)
    background.close()
    assert versions(store) == {0: 0, 1: 1}


def test_with_wait_a_full_line_holds_the_trainer_and_every_step_is_a_version() -> None:
    store, weights = MemoryStore(), Weights()
    stepped = Stepped(Publisher.open(store))
    begun_at_copy: list[list[int]] = []

    def copy() -> Snapshot:
        begun_at_copy.append(list(stepped.begun))
        return weights.copy()

    background = BackgroundPublisher(stepped, copy)
    background.publish(0)
    stepped.arrived.acquire()
    background.publish(1)
    trainer = threading.Thread(target=background.publish, args=(2,))
    trainer.start()
    stepped.go.release(3)
    trainer.join()
    background.close()
    # Step 2 is not copied before step 1 has left the line: memory is bounded.
    assert begun_at_copy[2][:2] == [0, 1]
    assert versions(store) == {0: 0, 1: 1, 2: 2}


def test_with_coalesce_the_trainer_never_waits_and_the_newest_step_is_published() -> None:
    store, weights = MemoryStore(), Weights()
    stepped = Stepped(Publisher.open(store))
    background = BackgroundPublisher(stepped, weights.copy, policy=COALESCE)
    background.publish(0)
    stepped.arrived.acquire()
    for step in range(1, 6):
        background.publish(step)
    assert background.superseded == (1, 2, 3, 4)
    stepped.go.release(2)
    background.close()
    assert versions(store) == {0: 0, 1: 5}


@given(st.lists(st.sampled_from(["publish", "let one go"]), max_size=20), st.integers(1, 3))
def test_every_step_is_a_version_or_superseded_and_versions_ascend(
    acts: list[str], waiting: int
) -> None:
    store, weights = MemoryStore(), Weights()
    stepped = Stepped(Publisher.open(store))
    policy = BacklogPolicy(when_full=Backlog.COALESCE, waiting=waiting)
    background = BackgroundPublisher(stepped, weights.copy, policy=policy)
    taken = 0
    for act in acts:
        if act == "publish":
            background.publish(taken)
            taken += 1
        else:
            stepped.go.release()
    stepped.go.release(taken + 1)
    background.close()
    published = list(versions(store).values())
    assert published == sorted(published)
    assert sorted([*published, *background.superseded]) == list(range(taken))
    if taken:
        assert published[-1] == taken - 1


@pytest.mark.parametrize("policy", [BacklogPolicy(), COALESCE])
def test_a_failure_is_raised_by_the_next_call_once_and_publishing_goes_on(
    policy: BacklogPolicy, tmp_path: Path
) -> None:
    store, weights = MemoryStore(), Weights()
    stepped = Stepped(Publisher.open(store))
    stepped.go.release(100)
    background = BackgroundPublisher(stepped, weights.copy, policy=policy)
    background.publish(0)
    background.flush()
    stepped.wrong = StoreUnavailable("packs/x", "is away")
    background.publish(1)
    with pytest.raises(PublishFailed, match=r"step 1 .*is away") as caught:
        background.flush()
    assert isinstance(caught.value.__cause__, StoreUnavailable)
    background.flush()  # it was told, and is not told again
    weights.step(2)
    background.publish(2)
    background.close()
    assert versions(store) == {0: 0, 1: 2}
    assert pulled(store, 1, tmp_path) == [2, 2] + [0] * 254


def test_a_step_is_not_taken_when_its_call_raises_the_failure_of_another() -> None:
    store, weights = MemoryStore(), Weights()
    stepped = Stepped(Publisher.open(store))
    background = BackgroundPublisher(stepped, weights.copy)
    stepped.wrong = StoreUnavailable("packs/x", "is away")
    background.publish(0)
    stepped.arrived.acquire()
    background.publish(1)  # the line is full: the next call waits, for room or a failure
    stepped.go.release()
    with pytest.raises(PublishFailed, match="step 0 "):
        background.publish(2)
    stepped.go.release(2)
    background.publish(2)
    background.close()
    assert versions(store) == {0: 1, 1: 2}


def test_of_two_failures_in_a_row_each_is_raised() -> None:
    weights, go = Weights(), threading.Semaphore(0)

    def publish(weights: Snapshot, step: int) -> PublishReport:
        assert go.acquire(timeout=60)
        raise StoreUnavailable("packs/x", f"is away at step {step}")

    background = BackgroundPublisher(publish, weights.copy, policy=BacklogPolicy(waiting=2))
    background.publish(0)
    background.publish(1)
    go.release(2)
    for step in (0, 1):
        with pytest.raises(PublishFailed, match=f"step {step} "):
            background.close()
    background.close()


def test_what_failed_on_another_rank_is_raised_here_and_ones_own_failure_is_kept() -> None:
    stepped = Stepped(Publisher.open(MemoryStore()))
    told: list[int | None] = [None, None, 0]  # by the other ranks, call by call

    def meet(failed: int | None) -> int | None:
        return told.pop(0) if told else failed

    background = BackgroundPublisher(stepped, Weights().copy, meet=meet)
    background.publish(0)
    stepped.arrived.acquire()
    stepped.go.release()
    background.publish(1)
    stepped.arrived.acquire()
    stepped.wrong = StoreUnavailable("packs/x", "is away")
    stepped.go.release()
    with pytest.raises(PublishFailed, match=r"step 0 .*another rank"):
        background.flush()
    with pytest.raises(PublishFailed, match=r"step 1 .*is away"):
        background.close()


def test_a_failure_of_the_last_step_is_raised_by_close() -> None:
    stepped = Stepped(Publisher.open(MemoryStore()))
    stepped.wrong = MemoryError("no room for the pack")
    stepped.go.release()
    background = BackgroundPublisher(stepped, Weights().copy)
    background.publish(0)
    with pytest.raises(PublishFailed, match="no room for the pack"):
        background.close()
    background.close()
    with pytest.raises(ValueError, match="closed"):
        background.publish(1)


def test_a_trainer_that_fails_keeps_its_own_error() -> None:
    stepped = Stepped(Publisher.open(MemoryStore()))
    stepped.wrong = StoreUnavailable("packs/x", "is away")
    stepped.go.release()

    def train() -> None:
        with BackgroundPublisher(stepped, Weights().copy) as background:
            background.publish(0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()


def test_a_publisher_that_was_fenced_off_says_so_at_every_step() -> None:
    store, weights = MemoryStore(), Weights()
    background = BackgroundPublisher(directly(Publisher.open(store)), weights.copy)
    background.publish(0)
    background.flush()
    Publisher.open(store)
    for step in (1, 2):
        background.publish(step)
        with pytest.raises(PublishFailed) as caught:
            background.flush()
        assert isinstance(caught.value.__cause__, Fenced)
    background.close()
    assert versions(store) == {0: 0}


def run(store: MemoryStore, steps: list[int], resume: int | None = None) -> Publisher:
    weights, publisher = Weights(), Publisher.open(store)
    if resume is not None:
        publisher.resume(resume)
    for step in steps:
        weights.step(step)
        publisher.publish_arrays(weights.copy(), step=step)
    return publisher


def parents(store: MemoryStore) -> list[int | None]:
    reader = BulletinReader(store)
    reader.refresh()
    return [commit.parent for commit in reader.state.commits.values()]


def test_a_trainer_restarted_at_its_newest_version_continues_the_lineage() -> None:
    store = MemoryStore()
    run(store, [0, 1, 2])
    run(store, [3, 4], resume=2)
    assert parents(store) == [None, 0, 1, 2, 3]


def test_a_trainer_restarted_behind_its_versions_forks_where_it_was(tmp_path: Path) -> None:
    store = MemoryStore()
    run(store, [0, 2, 4, 6])
    publisher = run(store, [4, 5], resume=3)  # versions 2 and 3 are of steps it takes again
    assert parents(store) == [None, 0, 1, 2, 1, 4]
    assert publisher.reader.state.abandoned == {2, 3}
    assert pulled(store, 5, tmp_path) == [5] * 5 + [0] * 251


def test_a_resumed_trainer_whose_first_publish_fails_still_forks() -> None:
    inner = MemoryStore()
    run(inner, [0, 1, 2])
    broken = [True]

    def before(verb: str, key: str) -> None:
        if verb == "put" and key.startswith("packs/") and broken:
            broken.clear()
            raise StoreUnavailable(key, "is away")

    publisher = Publisher.open(FaultyStore(inner, before=before))
    weights = Weights()
    weights.step(9)
    publisher.resume(1)
    with pytest.raises(StoreUnavailable):
        publisher.publish_arrays(weights.copy(), step=2)
    publisher.publish_arrays(weights.copy(), step=2)
    publisher.publish_arrays(weights.copy(), step=3)
    assert parents(inner) == [None, 0, 1, 1, 3]


def test_a_checkpoint_older_than_every_version_is_refused() -> None:
    store = MemoryStore()
    publisher = run(store, [5, 6])
    with pytest.raises(ResumeRefused, match="a trainer at step 4"):
        publisher.resume(4)
    assert parent_for(Publisher.open(MemoryStore()).reader.state, 4) is None
