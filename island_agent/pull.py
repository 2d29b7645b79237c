"""One version as a plain directory: rebuilt byte for byte, or compared with one that exists.

No agent state is left behind.  The directory appears whole or not at all; an interrupted pull goes
on where it stopped, in a hidden directory beside the target.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from skerry.bulletin.errors import NotFound, VersionUnknown
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.records import Commit
from skerry.codec.digest import Digest
from skerry.codec.errors import FormatError
from skerry.codec.weights import WeightsDigest
from skerry.island_agent import assemble, plan
from skerry.island_agent.checkpoint import Checkpoint, compare_files, weight_differences
from skerry.island_agent.demand import stated_leaves
from skerry.island_agent.errors import (
    MirrorBusy,
    MirrorDamaged,
    ObjectUnavailable,
    PullRefused,
    VersionCollected,
)
from skerry.island_agent.fetch import FetchConfig, Fetcher
from skerry.island_agent.files import remove, rename
from skerry.island_agent.hooks import no_hook
from skerry.island_agent.marker import Held, Marker
from skerry.island_agent.selection import Selection
from skerry.island_agent.state import PARTIAL, Places
from skerry.publisher.threads import thread_count

Progress = Callable[[int, int], None]
Leaves = Mapping[str, Mapping[int, Digest]]

_MANIFESTS = 1000  # how far back the leaves of a line are looked up


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryReport:
    """How a directory compares with a version; `differences` has one line per file or tensor."""

    version: int
    expected: Digest
    found: Digest | None  # None when the shards cannot be read as the layout says
    differences: tuple[str, ...]

    @property
    def identical(self) -> bool:
        return not self.differences


def pull(
    reader: BulletinReader,
    target: Path,
    version: int | None = None,
    *,
    progress: Progress | None = None,
    config: FetchConfig | None = None,
    threads: int | None = None,
) -> Held:
    """Make `target` be `version` (default: the newest), byte for byte; return what it then is.

    A directory that is already identical is left alone.  `progress` is told bytes done and in all;
    `threads` decode, None: one for each usable CPU.  Raises PullRefused (anything else lies there,
    or it is a mount point), MirrorBusy (another pull is at work), VersionCollected (`version` was,
    meanwhile), FetchError, and what the log or the packs are refused for.
    """
    reader.refresh()
    commit = _commit(reader, version)
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise PullRefused(f"{target}: expected a directory or nothing")
    target = target.resolve()  # "." has no name that could be given to another directory
    if target.is_dir() and any(target.iterdir()):
        report = verify_directory(reader, target, commit.version)
        if not report.identical:
            raise PullRefused(
                f"{target}: not empty and not version {commit.version}: {report.differences[0]}"
            )
        return _held(commit)
    if os.path.ismount(target):
        raise PullRefused(f"{target}: a mount point cannot be replaced, name a directory below it")
    with _workplace(target) as work:
        while True:
            route = plan.route(reader.state, have=None, want=commit.version)
            try:
                _rebuild(reader, route, target, work, progress, config, threads)
                return route.target
            except (NotFound, ObjectUnavailable) as error:
                reader.refresh()
                name = plan.collected(reader.state, route)
                if name is None:
                    raise
                if commit.version in reader.state.retired and version is not None:
                    raise VersionCollected(commit.version, name) from error
                # It was no part of the plan's log, so every turn has a newer one.
                commit = _commit(reader, version)


def _rebuild(
    reader: BulletinReader,
    route: plan.Route,
    target: Path,
    work: Path,
    progress: Progress | None,
    config: FetchConfig | None,
    threads: int | None,
) -> None:
    """Follow a route in the hidden directory, and move the result to its place."""
    tree, spool = work / "tree", work / "spool"
    spool.mkdir(exist_ok=True)

    def tell(done: int) -> None:
        if progress is not None:
            progress(done, route.nbytes)

    fetcher = Fetcher(reader.store, spool, config, on_bytes=tell)
    assemble.make_way(route, tree, fetcher)
    assemble.download(route, tree, fetcher, reader.layout, no_hook)
    assemble.build(
        route,
        tree,
        spool,
        reader.layout,
        scratch=spool,
        hook=no_hook,
        threads=thread_count(threads),
    )
    if target.is_dir():
        target.rmdir()  # empty, as seen above
    rename(tree, target)


def verify_directory(
    reader: BulletinReader,
    directory: Path,
    version: int | None = None,
    *,
    scratch: Path | None = None,
    selection: Selection | None = None,
) -> DirectoryReport:
    """Compare a directory with a version, file by file and tensor by tensor.

    Needs the layout and no weights.  Tensors that differ are named as far as the manifests of the
    version's line name their leaves; given a directory `scratch`, the version is rebuilt there to
    name them all.  With a `selection` that part alone is compared; raises LeavesUnknown when
    nothing that is signed says what it must be.
    """
    reader.refresh()
    commit = _commit(reader, version)
    layout = reader.layout(commit.layout)
    found: Digest | None = None
    try:
        checkpoint = Checkpoint(directory, layout)
    except MirrorDamaged as error:
        lines = compare_files(directory, layout) or [str(error)]
        return _report(commit, found, lines)
    if selection is not None:
        leaves, part = stated_leaves(reader, commit.version), selection.resolve(layout)
        hashed = checkpoint.hash_leaves([(spec, part.of(spec)) for spec in part.tensors])
        here = {spec.name: found for spec, found in zip(part.tensors, hashed, strict=True)}
        found = leaves.replace(here).version()
        lines = checkpoint.differences() or weight_differences(checkpoint, leaves, part)
    else:
        weights = checkpoint.hash_weights()
        found = weights.version()
        lines = checkpoint.differences()
        if found != commit.result:
            if scratch is None:
                known = _known_leaves(reader, commit)
            else:
                known = _rebuilt_leaves(reader, commit, scratch)
            lines += _compare_leaves(known, weights, commit.result)
    return _report(commit, found, lines)


def part_of(directory: Path) -> Selection | None:
    """Return what part of each version an island's `mirror.partial` holds; None for any other.

    Raises MirrorDamaged.
    """
    if directory.name != PARTIAL:
        return None
    try:
        marker = Marker.from_bytes(Places(directory.parent).marker.read_bytes())
        return None if marker.part is None else Selection.from_text(marker.part)
    except (FormatError, ValueError, OSError) as error:
        raise MirrorDamaged(f"marker beside {directory}: {error}") from error


def _report(commit: Commit, found: Digest | None, lines: list[str]) -> DirectoryReport:
    return DirectoryReport(
        version=commit.version, expected=commit.result, found=found, differences=tuple(lines)
    )


def _known_leaves(reader: BulletinReader, commit: Commit) -> Leaves:
    """Return the leaf digests of a version that its line's manifests state, newest first."""
    known: dict[str, dict[int, Digest]] = {}
    at: Commit | None = commit
    for _ in range(_MANIFESTS):
        if at is None or at.layout != commit.layout or at.version in reader.state.retired:
            break
        for name, leaves in reader.manifest(at.manifest).leaves.items():
            for index, digest in leaves.items():
                known.setdefault(name, {}).setdefault(index, digest)
        at = None if at.parent is None or at.base is None else reader.state.commits[at.parent]
    return known


def _rebuilt_leaves(reader: BulletinReader, commit: Commit, scratch: Path) -> Leaves:
    rebuilt = scratch / f".version-{commit.version}.rebuilt"
    pull(reader, rebuilt, commit.version)
    try:
        layout = reader.layout(commit.layout)
        weights = Checkpoint(rebuilt, layout).hash_weights()
    finally:
        remove(rebuilt)
    return {
        spec.name: dict(enumerate(leaves))
        for spec, leaves in zip(weights.tensors, weights.leaves, strict=True)
    }


def _compare_leaves(known: Leaves, found: WeightsDigest, expected: Digest) -> list[str]:
    """Name the tensors that differ; the last line says so if there are others, not known."""
    lines = []
    for spec, leaves in zip(found.tensors, found.leaves, strict=True):
        right = known.get(spec.name, {})
        if any(right.get(index, leaf) != leaf for index, leaf in enumerate(leaves)):
            lines.append(f"{spec.file}: tensor {spec.name} differs")
    mended = found.replace(known).version()
    if mended != expected:
        lines.append(f"weights: tensors that no manifest names differ, expected digest {expected}")
    return lines


def _commit(reader: BulletinReader, version: int | None) -> Commit:
    newest = reader.state.newest
    commit = newest if version is None else reader.state.commits.get(version)
    if commit is None:
        raise VersionUnknown(version or 0, newest=None if newest is None else newest.version)
    return commit


def _held(commit: Commit) -> Held:
    return Held(version=commit.version, layout=commit.layout, weights=commit.result)


@contextmanager
def _workplace(target: Path) -> Iterator[Path]:
    """Lock the hidden directory beside the target; it goes away when the pull has ended well."""
    work = target.parent / f".{target.name}.pulling"
    work.mkdir(parents=True, exist_ok=True)
    lock = os.open(work / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise MirrorBusy(f"{work}: another pull is at work") from error
        if not _is_open(lock, work / "lock"):
            raise MirrorBusy(f"{work}: another pull ended just now, removing what was locked")
        yield work
        remove(work)
    finally:
        os.close(lock)


def _is_open(fd: int, path: Path) -> bool:
    """Say whether the open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
