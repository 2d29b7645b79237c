"""How two published versions differ, word by word: what statistics can only bound.

Both are rebuilt leaf by leaf, from whichever full version, patches and mirror take fewest bytes,
and compared as bits; no copy of either is made.  Where manifests state the leaves of both (they
hash to what the log says), only those that differ are looked at.

Law: what was compared hashes to what the log says of both versions, or nothing is answered.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from skerry.bulletin.errors import VersionUnknown
from skerry.bulletin.reader import BulletinReader
from skerry.codec.digest import Digest, digest_bytes
from skerry.codec.errors import CodecError
from skerry.codec.weights import WeightsDigest
from skerry.island_agent.demand import stated_leaves
from skerry.island_agent.errors import LeavesUnknown, MirrorDamaged, Stopped
from skerry.island_agent.fetch import FetchConfig, Fetcher
from skerry.island_agent.reading import Look, look
from skerry.island_agent.rebuilt import (
    Rebuilt,
    blocks,
    common_tensors,
    prove,
    shape_of,
    unlike_leaves,
)
from skerry.island_agent.roads import Roads, roads
from skerry.island_agent.room import check_room
from skerry.island_agent.state import Places
from skerry.publisher.progress import Progress, silent


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactTensor:
    """One tensor of both versions: `changed` of its `elements` have other bits."""

    name: str
    elements: int
    changed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactDifference:
    """How many of `elements` differ between `old` and `new`, whose digests are the log's.

    `tensors` are those that differ, most first; tensors that only one version has, or in another
    shape, are `only_old` and `only_new` and are not counted in `changed`.  `fetched_bytes` were
    read from the bulletin, `from_mirror` says whether this host's own copy was of use.
    """

    old: int
    new: int
    old_weights: Digest
    new_weights: Digest
    changed: int
    elements: int
    tensors: tuple[ExactTensor, ...]
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]
    fetched_bytes: int
    from_mirror: bool

    @property
    def share(self) -> float:
        return self.changed / self.elements if self.elements else 0.0


def exact_difference(
    reader: BulletinReader,
    old: int,
    new: int,
    scratch: Path,
    *,
    mirror: Path | None = None,
    threads: int = 1,
    config: FetchConfig | None = None,
    progress: Progress = silent,
    stop: threading.Event | None = None,
) -> ExactDifference:
    """Compare two versions that the reader's log has; packs are kept in `scratch` meanwhile.

    `mirror` is an island's directory, which its agent may be changing: what it holds is of use as
    long as it stays.  Memory: 150 MB.  Raises VersionUnknown, NoPath, LeavesUnknown, FetchError,
    StoreError, DiskError, Stopped, and what packs are refused for.
    """
    for version in (old, new):
        if version not in reader.state.commits:
            newest = reader.state.newest
            raise VersionUnknown(version, newest=None if newest is None else newest.version)
    job = _Job(reader, old, new, scratch, threads, config, progress, stop or threading.Event())
    held = None if mirror is None else _held(reader, mirror)
    if mirror is not None and held is not None:
        try:
            return job.run(held.held.version, Places(mirror).mirror)
        except _MirrorOther as other:
            if look(mirror) == held:
                raise MirrorDamaged(
                    f"{mirror} is not version {held.held.version}: {other}"
                ) from other
            job.check_stop()  # it moved on while it was read
    return job.run(None, None)


class _MirrorOther(Exception):
    """What was read from a mirror is not what it held before."""


def _held(reader: BulletinReader, mirror: Path) -> Look | None:
    """Return what an island's mirror holds, if that is a whole version of this run."""
    found = look(mirror)
    if found is None or found.part is not None:
        return None
    commit = reader.state.commits.get(found.held.version)
    return found if commit is not None and commit.result == found.held.weights else None


@dataclass(slots=True)
class _Job:
    reader: BulletinReader
    old: int
    new: int
    scratch: Path
    threads: int
    config: FetchConfig | None
    progress: Progress
    stop: threading.Event
    fetched: int = 0

    def check_stop(self) -> None:
        if self.stop.is_set():
            raise Stopped("comparing two versions")

    def run(self, held: int | None, mirror: Path | None) -> ExactDifference:
        before, after = (self.reader.state.commits[version] for version in (self.old, self.new))
        if before.result == after.result:
            return self._answer({}, from_mirror=False)
        chosen = roads(self.reader.state, self.old, self.new, held)
        try:
            counts = self._compare(chosen, mirror)
        except (CodecError, MirrorDamaged, FileNotFoundError) as error:
            if chosen.from_mirror:  # patches over other words may be anything
                raise _MirrorOther(str(error)) from error
            raise
        return self._answer(counts, from_mirror=chosen.from_mirror)

    def _compare(self, chosen: Roads, mirror: Path | None) -> dict[str, int]:
        """Count the words that differ, by tensor.  Raises ResultMismatch unless all is proven."""
        self._fetch(chosen)
        both = [
            Rebuilt.of(self.reader, road, self.scratch, mirror, self._reading)
            for road in (chosen.first, chosen.second)
        ]
        stated = [self._stated(rebuilt.version) for rebuilt in both]
        common = common_tensors(*both)
        if None in stated and any(len(common) < len(rebuilt.numbers) for rebuilt in both):
            raise LeavesUnknown(
                f"versions {self.old} and {self.new} have other tensors, and no manifests that are "
                "left state the leaves of both"
            )
        wanted = [leaf for name in common for leaf in unlike_leaves(name, both, stated)]
        counts: dict[str, int] = {}
        seen: list[dict[str, dict[int, Digest]]] = [{}, {}]
        total, done = sum(map(both[0].nbytes, wanted)), 0
        for block in blocks(both[0], wanted):
            self.check_stop()
            first = both[0].block(block, None, self.threads)
            second = both[1].block(block, first, self.threads)
            for leaf in block:
                old, new = both[0].words(leaf, first), both[1].words(leaf, second)
                counts[leaf[0]] = counts.get(leaf[0], 0) + int(np.count_nonzero(old != new))
                for found, words in zip(seen, (old, new), strict=True):
                    found.setdefault(leaf[0], {})[leaf[1]] = digest_bytes(words.view(np.uint8))
            done += sum(map(both[0].nbytes, block))
            self.progress("compare", done, total)
        for rebuilt, known, found in zip(both, stated, seen, strict=True):
            prove(rebuilt, known, found)
        return counts

    def _fetch(self, chosen: Roads) -> None:
        """Have all packs in the scratch directory, and nothing else."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        refs = {ref.digest: ref for road in (chosen.first, chosen.second) for ref in road.packs}
        total = sum(ref.size for ref in refs.values())

        def fetched(done: int) -> None:
            self.fetched = done
            self.progress("fetch patches", done, total)

        fetcher = Fetcher(
            self.reader.store, self.scratch, self.config, stop=self.stop, on_bytes=fetched
        )
        fetcher.reserve(refs.values())
        check_room(self.scratch, "the patches between two versions", total)
        fetcher.fetch_all(refs.values())

    def _reading(self, nbytes: int) -> None:
        self.fetched += nbytes

    def _stated(self, version: int) -> WeightsDigest | None:
        with suppress(LeavesUnknown):
            return stated_leaves(self.reader, version)
        return None

    def _answer(self, counts: Mapping[str, int], *, from_mirror: bool) -> ExactDifference:
        commits = [self.reader.state.commits[version] for version in (self.old, self.new)]
        tables = [
            {spec.name: spec for spec in self.reader.layout(commit.layout).tensors}
            for commit in commits
        ]
        alone = [
            tuple(name for name in mine if shape_of(mine[name]) != shape_of(other.get(name)))
            for mine, other in (tables, tables[::-1])
        ]
        tensors = [
            ExactTensor(name=name, elements=tables[1][name].words, changed=changed)
            for name, changed in counts.items()
            if changed
        ]
        return ExactDifference(
            old=self.old,
            new=self.new,
            old_weights=commits[0].result,
            new_weights=commits[1].result,
            changed=sum(counts.values()),
            elements=max(commit.elements for commit in commits),
            tensors=tuple(sorted(tensors, key=lambda tensor: (-tensor.changed, tensor.name))),
            only_old=alone[0],
            only_new=alone[1],
            fetched_bytes=self.fetched,
            from_mirror=from_mirror,
        )
