"""Demand reads: a host fetches only the ranges of the leaves that it mirrors.

What is trusted, and why that is enough.  The log names whole objects by digest, and no digest of a
whole can be checked from parts.  But it also states, for every version, the digest of its weights,
and that one commits to every single leaf: it is a hash over the digests of all of them.  So a list
of leaf digests that hashes to it is as good as signed, whoever gives it; manifests have it (all
leaves of a full version, the changed ones of a patch).  Each leaf that is mirrored is held against
that list in full, before a word of the mirror changes; what does not fit is refused.

* Where manifests give no complete list, a full version is read whole, file by file, each checked
  by its digest, and what is not mirrored is dropped again.  A patch is not taken then.
* Headers and side files are held against the layout, as ever.
* What a partial reader cannot see is damage outside its part, in objects and at other hosts.  It
  cannot vouch for an object that it read in parts, and so keeps none.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np

from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.records import Commit, Full, ObjectRef
from skerry.codec.digest import LEAF_BYTES, Bytes, Digest, leaf_count, leaf_digests
from skerry.codec.errors import BaseMismatch, ResultMismatch
from skerry.codec.layout import Layout, Shard
from skerry.codec.pack import Pack, PackFront, leaf_range
from skerry.codec.tensors import TensorSpec
from skerry.codec.weights import WeightsDigest
from skerry.island_agent.assemble import check_files, drop_others
from skerry.island_agent.checkpoint import Checkpoint, weight_differences
from skerry.island_agent.errors import LeavesUnknown, ObjectCorrupt
from skerry.island_agent.fetch import Fetcher
from skerry.island_agent.fetch import threads as reading
from skerry.island_agent.files import tree_files
from skerry.island_agent.hooks import FILE_FETCHED, FULL_VERIFIED, Hook
from skerry.island_agent.install import Leaves, check_result, mapped, write_in_place
from skerry.island_agent.marker import Held
from skerry.island_agent.plan import PatchStep, Route
from skerry.island_agent.room import check_room
from skerry.island_agent.selection import Part, Selection

logger = logging.getLogger(__name__)

_FRONT_BYTES = (4 * 1024, 64 * 1024)  # read at first, a sixteenth of the pack: most indexes fit
_NEAR_BYTES = 16 * 1024  # a gap that is cheaper to read than to ask around
_RUN_LEAVES = 4  # one request
_ATTEMPTS = 2  # of bytes that differ
_MOST_MANIFESTS = 4096
_MANIFESTS_AT_ONCE = 16
_NO_LEAF = Digest("0" * 64)

Run = tuple[TensorSpec, int, int]  # bytes [start, stop) of a tensor, whole leaves


def stated_leaves(reader: BulletinReader, version: int) -> WeightsDigest:
    """Return all leaf digests of a version, as manifests state them.

    They hash to what the log says of the version.  Raises LeavesUnknown.
    """
    layout = reader.layout(reader.state.commits[version].layout)
    known = _stated(reader, version, layout, until=None)
    none = tuple((_NO_LEAF,) * leaf_count(spec.nbytes) for spec in layout.tensors)
    return _proven(reader, WeightsDigest(tensors=layout.tensors, leaves=none), known, version)


def leaves_after(
    reader: BulletinReader, base: WeightsDigest, origin: int, version: int
) -> WeightsDigest:
    """Return all leaf digests of a version, given those of an earlier one of its line.

    Raises LeavesUnknown.
    """
    layout = reader.layout(reader.state.commits[version].layout)
    return _proven(reader, base, _stated(reader, version, layout, until=origin), version)


def _stated(reader: BulletinReader, version: int, layout: Layout, *, until: int | None) -> Leaves:
    """Return the leaves that the manifests of a line name, back to `until` or to all of them.

    Raises LeavesUnknown.
    """
    counts = {spec.name: leaf_count(spec.nbytes) for spec in layout.tensors}
    left = sum(counts.values())
    known: dict[str, dict[int, Digest]] = {}
    line = _line(reader, version, until)
    with ThreadPoolExecutor(_MANIFESTS_AT_ONCE, thread_name_prefix="skerry-manifest") as pool:
        while left and (commits := list(islice(line, _MANIFESTS_AT_ONCE))):
            for manifest in pool.map(lambda commit: reader.manifest(commit.manifest), commits):
                for name, changed in manifest.leaves.items():
                    if not all(i < counts.get(name, 0) for i in changed):
                        raise LeavesUnknown(f"version {version}: a manifest is of other tensors")
                    mine = known.setdefault(name, {})
                    new = {i: digest for i, digest in changed.items() if i not in mine}
                    mine |= new
                    left -= len(new)
    if left and not _reaches(reader, version, until):
        rule = f"no manifest that is left names {left} of its leaves"
        raise LeavesUnknown(f"version {version}: {rule}")
    return known


def _line(reader: BulletinReader, version: int, until: int | None) -> Iterator[Commit]:
    """Yield a version and those before it, after `until`, as far as their manifests are kept."""
    state = reader.state
    at: int | None = version
    for _ in range(_MOST_MANIFESTS):
        commit = None if at is None or at == until else state.commits.get(at)
        if commit is None or at in state.retired:
            return
        yield commit
        at = commit.parent if commit.base is not None else None


def _reaches(reader: BulletinReader, version: int, until: int | None) -> bool:
    """Say whether the manifests of a line go back to `until`."""
    if until is None or version == until:
        return version == until
    last = deque(_line(reader, version, until), maxlen=1)
    return any(commit.base is not None and commit.parent == until for commit in last)


def _proven(
    reader: BulletinReader, base: WeightsDigest, known: Leaves, version: int
) -> WeightsDigest:
    leaves = base.replace(known)
    expected = reader.state.commits[version].result
    if leaves.version() != expected:
        found = leaves.version()
        raise LeavesUnknown(f"version {version}: its manifests give {found}, expected {expected}")
    return leaves


class Demand:
    """Reads one part of each version.  For one thread at a time."""

    def __init__(
        self,
        selection: Selection,
        reader: BulletinReader,
        fetcher: Fetcher,
        on_total: Callable[[int], None] = lambda nbytes: None,
    ) -> None:
        """`on_total` is told how many bytes a job will read, as soon as that is known."""
        self._selection = selection
        self._reader = reader
        self._fetcher = fetcher
        self._on_total = on_total
        self._anchor_leaves: WeightsDigest | None = None
        self._foreign: tuple[Held, Held, Leaves] | None = None

    def part(self, layout: Layout) -> Part:
        """Return what is mirrored of versions of this layout.  Raises SelectionRefused."""
        return self._selection.resolve(layout)

    # Patches.

    def fetch_patches(self, steps: Sequence[PatchStep], layout: Layout, spool: Path) -> None:
        """Have what is needed of every pack in the spool: files of their size, with holes."""
        part = self.part(layout)
        refs = {ref.digest: ref for step in steps for ref in step.packs}
        with reading(self._fetcher.parallel) as pool:
            fronts = pool.map(lambda ref: self._plan(ref, layout, part, spool), refs.values())
            plans = [(ref, *front) for ref, front in zip(refs.values(), fronts, strict=True)]
        done = self._fetcher.progress.job_bytes
        left = sum(stop - start for _, _, ranges in plans for start, stop in ranges)
        if plans:
            largest = max((ref for ref, _, _ in plans), key=lambda ref: ref.size)
            self._fetcher.check_room(largest.key, left)
            check_room(spool, "the part of the patches, downloaded,", left)
        self._on_total(done + left)
        with reading(self._fetcher.parallel) as pool:
            for future in [pool.submit(self._fill, *plan) for plan in plans]:
                future.result()

    def packs(self, steps: Sequence[PatchStep], layout: Layout, spool: Path) -> tuple[Pack, ...]:
        """Parse what was fetched, each pack checked to start where the last one ended."""
        part, packs = self.part(layout), []
        for step in steps:
            for ref in step.packs:
                pack = Pack.parse(mapped(_ranges_path(spool, ref)), layout)
                if pack.base != step.base:
                    raise BaseMismatch(expected=pack.base, found=step.base)
                packs.append(pack.only(lambda tensor, leaf: leaf in part.leaves[tensor]))
        return tuple(packs)

    def foreign(self, base: WeightsDigest, origin: Held, target: Held) -> Leaves:
        """Return the leaves outside the part that differ between two versions.

        Raises LeavesUnknown, so it is asked for before anything is fetched; it remembers.
        """
        if self._foreign is None or self._foreign[:2] != (origin, target):
            self._foreign = origin, target, self._elsewhere(base, origin, target)
        return self._foreign[2]

    def _elsewhere(self, base: WeightsDigest, origin: Held, target: Held) -> Leaves:
        if origin.weights == target.weights:
            return {}
        part = self.part(self._reader.layout(target.layout))
        after = leaves_after(self._reader, base, origin.version, target.version)
        changed = {
            spec.name: {
                i: new for i, (old, new) in enumerate(zip(olds, news, strict=True)) if old != new
            }
            for spec, olds, news in zip(base.tensors, base.leaves, after.leaves, strict=True)
        }
        return part.outside(changed)

    def _plan(
        self, ref: ObjectRef, layout: Layout, part: Part, spool: Path
    ) -> tuple[Path, list[tuple[int, int]]]:
        """Read the front of a pack; return its file and what else of it is needed."""
        path = _ranges_path(spool, ref)
        least, most = _FRONT_BYTES
        first = min(ref.size, max(least, min(ref.size // 16, most)))
        head = b"".join(self._fetcher.pieces(ref.key, 0, first))
        size = PackFront.size(head, ref.size)
        if size > len(head):
            head += b"".join(self._fetcher.pieces(ref.key, len(head), size))
        front = PackFront.parse(head, layout, ref.size)
        with path.open("wb") as file:
            file.write(head)
            file.truncate(ref.size)
        wanted = front.ranges(lambda tensor, leaf: leaf in part.leaves[tensor])
        left = [(max(start, len(head)), stop) for start, stop in wanted if stop > len(head)]
        return path, _joined(left)

    def _fill(self, ref: ObjectRef, path: Path, ranges: Sequence[tuple[int, int]]) -> None:
        with path.open("r+b") as file:
            for start, stop in ranges:
                file.seek(start)
                for piece in self._fetcher.pieces(ref.key, start, stop):
                    file.write(piece)

    # Full versions.

    def download(self, route: Route, directory: Path, spool: Path, hook: Hook) -> None:
        """Fetch the part of the anchor into `directory` and that of the packs into the spool.

        Goes on where it was interrupted: what lies there is hashed.  Raises FetchError,
        ChainRefused, LeavesUnknown (before anything large is read), Stopped or OSError.
        """
        assert route.anchor is not None
        full, held = route.anchor.full, route.anchor.held
        layout = self._reader.layout(held.layout)
        check_files(full, layout)
        part = self.part(layout)
        whole = [full.ref(file) for file in full.files]
        self._fetcher.reserve([], keep=whole)
        directory.mkdir(parents=True, exist_ok=True)
        drop_others(directory, dict(layout.files()))
        try:
            leaves: WeightsDigest | None = stated_leaves(self._reader, held.version)
        except LeavesUnknown as error:
            _stated(self._reader, route.target.version, layout, until=held.version)
            logger.warning("full version read whole: %s", error)
            leaves = None
        if leaves is None:
            leaves = self._download_whole(full, layout, part, directory, spool)
            check_result(leaves, held)
        self.foreign(leaves, held, route.target)  # or it is all in vain
        self._download_sides(full, layout, directory, hook)
        self._download_part(full, layout, part, leaves, directory, hook)
        self.fetch_patches(route.patches, layout, spool)
        self._anchor_leaves = leaves

    def build(
        self,
        route: Route,
        directory: Path,
        spool: Path,
        *,
        scratch: Path,
        hook: Hook,
        threads: int = 1,
    ) -> tuple[Layout, WeightsDigest]:
        """Verify the downloaded part, patch it to the target, verify that; all of it durable.

        Raises as `assemble.build`, and LeavesUnknown.
        """
        assert route.anchor is not None
        leaves, held = self._anchor_leaves, route.anchor.held
        assert leaves is not None
        check_result(leaves, held)
        layout = self._reader.layout(held.layout)
        checkpoint = Checkpoint(directory, layout, writable=True)
        part = self.part(layout)
        found = checkpoint.differences() or weight_differences(checkpoint, leaves, part)
        if found:
            what = f"full version {held.version}"
            raise ResultMismatch(what=what, expected="its layout", found=found[0])
        hook(FULL_VERIFIED)
        if not route.patches:
            checkpoint.sync()
            return layout, leaves
        target_layout = self._reader.layout(route.target.layout)
        weights = write_in_place(
            checkpoint,
            leaves,
            packs=self.packs(route.patches, layout, spool),
            target=route.target,
            layout=target_layout,
            scratch=scratch,
            hook=hook,
            threads=threads,
            foreign=self.foreign(leaves, held, route.target),
        )
        return target_layout, weights

    def _download_sides(self, full: Full, layout: Layout, directory: Path, hook: Hook) -> None:
        sides = {side.name for side in layout.side_files}
        for file in full.files:
            if file.name in sides:
                self._fetcher.fetch_to(full.ref(file), directory / file.name)
                hook(FILE_FETCHED)

    def _download_part(
        self,
        full: Full,
        layout: Layout,
        part: Part,
        leaves: WeightsDigest,
        directory: Path,
        hook: Hook,
    ) -> None:
        for shard in layout.shards:
            _lay_out(directory / shard.name, shard)
        expected = {s.name: found for s, found in zip(leaves.tensors, leaves.leaves, strict=True)}
        keys = {file.name: full.ref(file).key for file in full.files}
        checkpoint = Checkpoint(directory, layout, writable=True)
        for attempt in range(_ATTEMPTS + 1):
            runs = list(_missing(checkpoint, part, expected))
            if not runs:
                return
            if attempt == _ATTEMPTS:
                break
            total = sum(stop - start for _, start, stop in runs)
            if attempt == 0:  # what differs later on has its room already
                needed = min(total, max(0, part.nbytes - _allocated(directory)))
                check_room(directory, "the part of a full version, downloaded,", needed)
            self._on_total(self._fetcher.progress.job_bytes + total)
            with reading(self._fetcher.parallel) as pool:
                for future in [
                    pool.submit(self._read_run, keys[run[0].file], directory, run) for run in runs
                ]:
                    future.result()
                    hook(FILE_FETCHED)
        spec, start, _ = runs[0]
        raise ObjectCorrupt(
            keys[spec.file], f"tensor {spec.name} from byte {start} on is not what the log promises"
        )

    def _read_run(self, key: str, directory: Path, run: Run) -> None:
        spec, start, stop = run
        with (directory / spec.file).open("r+b") as file:
            file.seek(spec.offset + start)
            for piece in self._fetcher.pieces(key, spec.offset + start, spec.offset + stop):
                file.write(piece)

    def _download_whole(
        self, full: Full, layout: Layout, part: Part, directory: Path, spool: Path
    ) -> WeightsDigest:
        """Read every shard whole, checked by its digest; keep the part and all leaf digests."""
        self._on_total(sum(file.size for file in full.files))
        files = {file.name: full.ref(file) for file in full.files}
        leaves: dict[str, tuple[Digest, ...]] = {}
        for shard in layout.shards:
            ref = files[shard.name]
            path = self._fetcher.fetch(ref)
            one = Layout(shards=(shard,))
            _lay_out(directory / shard.name, shard)
            content = mapped(path)
            with (directory / shard.name).open("r+b") as file:
                for spec in one.tensors:
                    data = content[spec.offset : spec.offset + spec.nbytes]
                    leaves[spec.name] = leaf_digests(_array(data))
                    held = part.of(spec)
                    if held:
                        start, stop = leaf_range(spec, held[0])[0], leaf_range(spec, held[-1])[1]
                        file.seek(spec.offset + start)
                        file.write(data[start:stop])
            path.unlink()
        return WeightsDigest(
            tensors=layout.tensors, leaves=tuple(leaves[spec.name] for spec in layout.tensors)
        )


def _array(data: memoryview) -> Bytes:
    return np.frombuffer(data, np.uint8)


def _ranges_path(spool: Path, ref: ObjectRef) -> Path:
    """Return where the needed ranges of a pack lie: never under the name of a whole object."""
    return spool / f"{ref.digest}.ranges"


def _lay_out(path: Path, shard: Shard) -> None:
    """Make a shard's file: its header and otherwise holes, or what lies there already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644), "r+b") as file:
        file.write(shard.header)
        file.truncate(shard.size)


def _allocated(directory: Path) -> int:
    """Return the room that files take, holes not counted: what lies there is written over."""
    return sum((directory / name).lstat().st_blocks * 512 for name in tree_files(directory))


def _missing(
    checkpoint: Checkpoint, part: Part, expected: Mapping[str, Sequence[Digest]]
) -> Iterator[Run]:
    """Yield what has to be read: leaves of the part that are not there, a few at a time."""
    wanted = [(spec, part.of(spec)) for spec in part.tensors]
    for (spec, held), found in zip(wanted, checkpoint.hash_leaves(wanted), strict=True):
        missing = [leaf for leaf in held if found[leaf] != expected[spec.name][leaf]]
        while missing:
            count = 1
            while count < min(len(missing), _RUN_LEAVES) and missing[count] == missing[0] + count:
                count += 1
            yield spec, missing[0] * LEAF_BYTES, leaf_range(spec, missing[count - 1])[1]
            del missing[:count]


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join ranges that are so near that the gap is read rather than asked around."""
    joined: list[tuple[int, int]] = []
    for start, stop in ranges:
        if joined and start - joined[-1][1] <= _NEAR_BYTES:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined
