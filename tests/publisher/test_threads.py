"""Threads change how long something takes, and nothing else."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.stores import MemoryStore
from skerry.codec.parallel import ordered
from skerry.publisher import Checkpoint, Publisher, PublisherConfig
from skerry.publisher.apply_file import apply_patch_file
from skerry.publisher.audit import audit
from skerry.publisher.background import BackgroundPublisher
from skerry.publisher.draft import encode, prove
from skerry.publisher.patch_file import MeasuredCheckpoint, PatchFile, make_patch
from skerry.publisher.threads import thread_count, usable_cpus
from tests.publisher.samples import edit_weights, make, read_tree


def test_all_usable_cpus_are_taken_unless_somebody_says_otherwise() -> None:
    assert 1 <= usable_cpus() <= (os.cpu_count() or 1)
    assert thread_count(None) == usable_cpus()
    assert thread_count(7) == 7
    assert PublisherConfig().threads == usable_cpus()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no CPU affinity here")
def test_a_cpu_that_this_process_may_not_use_does_not_count() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert usable_cpus() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_no_threads_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="1 or more, found 0"):
        thread_count(0)
    with pytest.raises(ValueError, match="1 or more, found 0"):
        PublisherConfig(threads=0)


def test_the_objects_of_a_run_do_not_depend_on_threads(tmp_path: Path) -> None:
    first = make(8, sharded=True)
    directories = [first.write(tmp_path / "0"), edit_weights(first, 8).write(tmp_path / "1")]
    packs = set()
    for threads in (1, 3):
        store = MemoryStore()
        publisher = Publisher.open(store, config=PublisherConfig(threads=threads))
        for directory in directories:
            publisher.publish(Checkpoint.scan(directory))
        again = Publisher.open(store, config=PublisherConfig(threads=threads))  # fetches its base
        assert again.publish(Checkpoint.scan(directories[1])).changed == 0
        reader = BulletinReader(store)
        reader.refresh()
        assert list(audit(reader, deep=True, threads=threads)) == []
        packs.add(tuple(ref.digest for ref in reader.state.commits[1].packs))
    assert len(packs) == 1


@pytest.mark.parametrize("threads", [1, 3])
def test_encoding_and_proving_take_the_threads_they_are_given_and_no_more(threads: int) -> None:
    arrays = {f"t{n}": np.arange(5000, dtype=np.float32) + n for n in range(9)}
    base = MeasuredCheckpoint(Checkpoint.from_arrays(arrays))
    new = Checkpoint.from_arrays({name: array * 2 for name, array in arrays.items()})
    weights = MeasuredCheckpoint(new).weights
    seen: list[int] = []

    def look(*_: object) -> None:
        seen.append(sum(t.name.startswith("codec") for t in threading.enumerate()))

    encoded = encode(base, new, weights, threads=threads, progress=look)
    assert (max(seen) > 0) == (threads > 1)
    assert max(seen) <= threads
    prove(encoded, base, new, weights, threads=threads)
    seen.clear()
    look()
    assert seen == [0]


def test_patch_files_do_not_depend_on_threads(tmp_path: Path) -> None:
    old, new = make(9, sharded=True), edit_weights(make(9, sharded=True), 9)
    old.write(tmp_path / "old")
    new.write(tmp_path / "new")
    files = set()
    for threads in (1, 3):
        before, after = Checkpoint.scan(tmp_path / "old"), Checkpoint.scan(tmp_path / "new")
        data, _ = make_patch(before, after, threads=threads)
        files.add(data)
        directory = old.write(tmp_path / f"model-{threads}")
        assert apply_patch_file(directory, PatchFile.parse(data), threads=threads)
        assert read_tree(directory) == new.files()
    assert len(files) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priorities of their own here")
def test_training_comes_before_the_thread_that_publishes_and_those_it_starts() -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def publish(weights: None, step: int) -> list[int]:
        return [niceness(), *ordered(lambda _: niceness(), range(4), 2)]

    before, told = niceness(), list[list[int]]()
    with BackgroundPublisher(publish, lambda: None, published=told.append) as background:
        background.publish(1)
        background.flush()
    assert niceness() == before
    assert told == [[max(before, 10)] * 5]
