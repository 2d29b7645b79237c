"""A run that is published, compacted and collected while readers follow, join late and pin.

`live` is one such life; it fails if a reader fails in any way but "collected" for what the rules of
that moment did not keep, or if any reader ever holds other bytes than were published.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from skerry.bulletin.errors import VersionGone
from skerry.bulletin.lineage import plan
from skerry.bulletin.patience import Patience
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.retention import KeepRules
from skerry.bulletin.state import LogState
from skerry.bulletin.store import ObjectStore
from skerry.island_agent.agent import Agent
from skerry.island_agent.config import AgentConfig
from skerry.island_agent.errors import VersionCollected
from skerry.island_agent.fetch import FetchConfig
from skerry.island_agent.files import remove
from skerry.island_agent.pull import pull
from skerry.publisher import Checkpoint, MemoryStorage, Publisher, PublisherConfig
from skerry.publisher.audit import audit
from skerry.publisher.collect import Collector
from skerry.publisher.compact import Compactor
from skerry.publisher.survey import RetentionPolicy

SHARD = "model.safetensors"
WORDS = 4096
FETCH = FetchConfig(attempts=2, backoff_s=0.0)


@dataclass(slots=True)
class Figures:
    """What happened; `worst` is the longest way to the newest version, in patches, at the end."""

    versions: int = 0
    retired: int = 0
    skips: int = 0
    collections: int = 0
    objects_deleted: int = 0
    bytes_deleted: int = 0
    bytes_left: int = 0
    bytes_published: int = 0
    reads: Counter[str] = field(default_factory=Counter)
    worst: int = 0
    log2: float = 0.0
    seconds: float = 0.0

    def __str__(self) -> str:
        reads = ", ".join(f"{name} {count}" for name, count in sorted(self.reads.items()))
        return (
            f"{self.versions} versions, {self.retired} retired in {self.collections} collections, "
            f"{self.skips} skips; {self.objects_deleted} objects and {self.bytes_deleted:,} of "
            f"{self.bytes_published:,} bytes deleted, {self.bytes_left:,} left; {reads}; worst way "
            f"to the newest {self.worst} patches, log2(n) = {self.log2:.1f}; {self.seconds:.1f} s"
        )


class World:
    """One life: a publisher, a keeper, three readers, each in its own thread."""

    def __init__(self, store: ObjectStore, directory: Path, *, versions: int, seed: int) -> None:
        self.store = store
        self.directory = directory
        self.versions = versions
        self.seed = seed
        self.figures = Figures()
        self.truth: dict[int, bytes] = {}
        self.over = threading.Event()
        self.failures: list[BaseException] = []
        self.publisher = Publisher.open(
            store, config=PublisherConfig(threads=1, anchor_versions=60, anchor_ratio=None)
        )

    def live(self) -> Figures:
        begun = time.monotonic()
        self.publish_one(np.random.default_rng(self.seed), None)
        work = (self.publish, self.keep, self.follow, self.join_late, self.pin)
        threads = [threading.Thread(target=self.guarded, args=(each,)) for each in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failures:
            raise self.failures[0]
        self.sum_up()
        self.figures.seconds = time.monotonic() - begun
        return self.figures

    def guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # told by the test's own thread
            self.failures.append(error)
            self.over.set()

    def publish(self) -> None:
        rng, moments = np.random.default_rng(self.seed + 1), random.Random(self.seed)
        while len(self.truth) < self.versions and not self.over.is_set():
            with self.publisher._turn:  # so that the parent is not retired before the record
                state = self.publisher.reader.state
                line = [v for v in state.commits if v not in state.retired | state.abandoned]
                back = moments.random() < 0.01 and len(line) > 3
                self.publish_one(rng, line[-3] if back else None)
            self.over.wait(0.003)  # the lock is not fair, and trainers have steps between versions
        self.over.set()

    def publish_one(self, rng: np.random.Generator, parent: int | None) -> None:
        newest = max(self.truth, default=None)
        at = newest if parent is None else parent
        if at is None:
            words = rng.integers(0, 2**16, WORDS, dtype=np.uint16)
        else:
            words = np.frombuffer(self.truth[at][-2 * WORDS :], np.uint16).copy()
            words[rng.choice(WORDS, 40, replace=False)] ^= rng.integers(1, 5, 40, dtype=np.uint16)
        checkpoint = Checkpoint.from_arrays({"w": words.view(np.float16)})
        self.truth[len(self.truth)] = b"".join(checkpoint.file_chunks(SHARD))
        self.publisher.publish(checkpoint, parent=parent)

    def keep(self) -> None:
        moments = random.Random(self.seed + 2)
        compactor = Compactor(self.publisher.writer, MemoryStorage(), turn=self.publisher._turn)
        while not self.over.is_set():
            for pair in compactor.missing()[:30]:  # collection must not depend on the rest
                compactor.make(*pair)
            state = self.publisher.reader.state
            live = sorted(set(state.commits) - state.retired)
            rules = KeepRules(
                last=moments.randint(1, 30),
                every=moments.choice([None, 7, 16, 50]),
                pinned=frozenset(moments.sample(live, min(len(live), moments.randint(0, 3)))),
            )
            policy = RetentionPolicy(rules=rules, grace_s=0, skew_s=0)
            collector = Collector(self.publisher.writer, policy, turn=self.publisher._turn)
            chosen, found = collector.retire(), collector.sweep()
            self.figures.collections += bool(chosen.versions)
            self.figures.objects_deleted += found.count
            self.figures.bytes_deleted += found.nbytes
        for pair in compactor.missing():
            compactor.make(*pair)

    def reader(self) -> BulletinReader:
        return BulletinReader(self.store, wait=Patience(limit_s=0))

    def check(self, directory: Path, version: int) -> None:
        if (directory / SHARD).read_bytes() != self.truth[version]:
            raise AssertionError(f"{directory} is not version {version}")

    def follow(self) -> None:
        """An island, step by step; after "collected" it must get on."""

        async def steps() -> None:
            config = AgentConfig(directory=self.directory / "follower", fetch=FETCH, threads=1)
            agent = Agent(config, self.reader())
            await agent.open()
            in_a_row = 0
            try:
                while not self.over.is_set() or agent.mirror.version != max(self.truth):
                    try:
                        moved = await agent.step()
                        in_a_row = 0
                    except VersionCollected:
                        self.figures.reads["follower met collected"] += 1
                        in_a_row += 1
                        assert in_a_row < 50, "an island never gets on"
                        continue
                    if moved and agent.mirror.version is not None:
                        self.figures.reads["follower installs"] += 1
                        self.check(agent.mirror.directory, agent.mirror.version)
            finally:
                await agent.close()

        asyncio.run(steps())

    def join_late(self) -> None:
        """A newcomer after the other; none may fail, whatever is collected on its way."""
        number = 0
        while not self.over.is_set():
            target = self.directory / f"late-{number}"
            held = pull(self.reader(), target, config=FETCH, threads=1)
            self.check(target, held.version)
            remove(target)
            number += 1
            self.figures.reads["late joins"] += 1

    def pin(self) -> None:
        """Old versions, of the log as one reader saw it: some are outside the rules by then."""
        moments, number = random.Random(self.seed + 3), 0
        seen = self.reader()
        while not self.over.is_set():
            if number % 5 == 0:
                seen.refresh()
            state = seen.state
            choice = [v for v in state.commits if v not in state.retired | state.abandoned]
            version = moments.choice(choice)
            target = self.directory / f"pinned-{number}"
            number += 1
            reader = self.reader()
            try:
                pull(reader, target, version, config=FETCH, threads=1)
            except (VersionCollected, VersionGone):
                assert version in reader.state.retired | reader.state.abandoned
                self.figures.reads["pins outside the rules"] += 1
                with contextlib.suppress(FileNotFoundError):
                    remove(target.parent / f".{target.name}.pulling")
                continue
            self.check(target, version)
            remove(target)
            self.figures.reads["pins"] += 1

    def sum_up(self) -> None:
        reader = self.reader()
        reader.refresh()
        assert list(audit(reader, deep=True, threads=1)) == []
        state, figures = reader.state, self.figures
        figures.versions, figures.retired = len(state.commits), len(state.retired)
        figures.skips = len(state.skips)
        figures.bytes_left = sum(
            self.store.size(key)
            for prefix in ("packs/", "full/")
            for key in self.store.list_after(prefix)
        )
        figures.bytes_published = figures.bytes_deleted + figures.bytes_left
        figures.worst, figures.log2 = worst_way(state), math.log2(figures.versions)
        assert figures.worst <= 2 * math.ceil(figures.log2) + 1


def worst_way(state: LogState) -> int:
    """Return how many patches the longest way to the newest version has, from nothing or from any
    kept version of its line."""
    assert state.newest is not None
    newest = state.newest.version
    line = [v for v in state.commits if v not in state.retired | state.abandoned]
    return max(
        sum(step.kind == "patch" for step in plan(state, have=have, want=newest))
        for have in [None, *line]
    )
