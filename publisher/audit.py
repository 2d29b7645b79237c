"""Does a bulletin hold what its log promises?  Every object that a live version needs, looked at.

The log itself (chain, signatures, epochs) was verified when the reader read it.  The quick audit
asks for presence and size; the deep one reads every object, rebuilds every version by its own
patch and by its own full, and compares with the digests in the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from skerry.bulletin.errors import BulletinError, StoreError
from skerry.bulletin.inspection.checks import (
    Check,
    check_object,
    check_version,
    full_of,
    usable,
)
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.records import Commit, Full, Skip
from skerry.codec.errors import CodecError, ResultMismatch
from skerry.codec.layout import Layout
from skerry.publisher.baseline import Baseline, measure, rebuild
from skerry.publisher.errors import BaselineUnavailable
from skerry.publisher.progress import Meter, Progress, silent
from skerry.publisher.replay import apply_packs, carried_file, load_full
from skerry.publisher.storage import MemoryStorage
from skerry.publisher.threads import thread_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as the log says."""

    version: int
    what: str
    problem: str

    def __str__(self) -> str:
        return f"version {self.version}: {self.what}: {self.problem}"


def audit(
    reader: BulletinReader,
    *,
    deep: bool = False,
    progress: Progress = silent,
    threads: int | None = None,
) -> Iterator[Finding]:
    """Yield what is wrong with the live versions of a run.  Raises StoreError but for NotFound."""
    live = [c for v, c in sorted(reader.state.commits.items()) if v not in reader.state.retired]
    sound = set()
    for commit in live:
        findings = [_finding(check) for check in check_version(reader, commit) if check.problem]
        yield from findings
        if not findings:
            sound.add(commit.version)
    for skip in reader.state.skips:
        for ref in usable(reader, skip.packs):
            check = check_object(reader, skip.version, ref)
            if check.problem:
                yield _finding(check)
    if deep:
        whole = [c for c in live if c.version in sound]
        yield from _deep(reader, whole, progress, thread_count(threads))


def _finding(check: Check) -> Finding:
    return Finding(version=check.version, what=check.what, problem=str(check.problem))


def _deep(
    reader: BulletinReader, commits: list[Commit], progress: Progress, threads: int
) -> Iterator[Finding]:
    storage = MemoryStorage()
    held: Baseline | None = None
    for commit in commits:
        layout = reader.layout(commit.layout)
        full = full_of(reader, commit)
        rebuilt: Baseline | None = None
        try:
            if full is not None:
                rebuilt = _by_full(reader, commit, layout, full, storage, progress)
            if commit.base is not None and usable(reader, commit.packs) == commit.packs:
                rebuilt = _by_patch(reader, commit, layout, held, storage, progress, threads)
                held = None
        except (StoreError, BulletinError, CodecError, BaselineUnavailable) as error:
            held = None
            yield Finding(version=commit.version, what="weights", problem=str(error))
            continue
        held = rebuilt
    for skip in reader.state.skips:
        if reader.state.retired.isdisjoint((skip.base_version, skip.version)) and usable(
            reader, skip.packs
        ):
            yield from _by_skip(reader, skip, storage, progress, threads)


def _by_full(
    reader: BulletinReader,
    commit: Commit,
    layout: Layout,
    full: Full,
    storage: MemoryStorage,
    progress: Progress,
) -> Baseline:
    buffers = storage.allocate(layout)
    meter = Meter(progress, f"full {commit.version}", layout.nbytes)
    load_full(reader, layout, full, buffers, meter)
    sides = {side.name for side in layout.side_files}
    for file in full.files:
        if file.name in sides:
            reader.read(reader.full_file(full, file))
    return _measured(commit, measure(commit, layout, buffers, storage, progress), "full")


def _by_patch(
    reader: BulletinReader,
    commit: Commit,
    layout: Layout,
    held: Baseline | None,
    storage: MemoryStorage,
    progress: Progress,
    threads: int,
) -> Baseline:
    assert commit.parent is not None
    if commit.parent in reader.state.retired:  # at best a step on the way to this version
        return rebuild(reader, commit.version, storage, progress=progress, threads=threads)
    if held is None or held.version != commit.parent:
        held = rebuild(reader, commit.parent, storage, progress=progress, threads=threads)
    meter = Meter(progress, f"patch {commit.version}", sum(ref.size for ref in commit.packs))
    packs = apply_packs(
        reader, layout, commit.packs, commit.base, held.buffers, meter, threads=threads
    )
    before = {side.name: side.digest for side in held.layout.side_files}
    for side in layout.side_files:
        if before.get(side.name) != side.digest:
            carried_file(packs, side)
    baseline = measure(commit, layout, held.buffers, storage, progress)
    return _measured(commit, baseline, "patch")


def _measured(commit: Commit, found: Baseline | None, way: str) -> Baseline:
    if found is None:
        raise ResultMismatch(what=f"the {way}", expected=commit.result, found="other weights")
    return found


def _by_skip(
    reader: BulletinReader,
    skip: Skip,
    storage: MemoryStorage,
    progress: Progress,
    threads: int,
) -> Iterator[Finding]:
    commit = reader.state.commits[skip.version]
    try:
        layout = reader.layout(commit.layout)
        held = rebuild(reader, skip.base_version, storage, progress=progress, threads=threads)
        meter = Meter(progress, f"skip to {skip.version}", skip.nbytes)
        apply_packs(reader, layout, skip.packs, skip.base, held.buffers, meter, threads=threads)
        baseline = measure(commit, layout, held.buffers, storage, progress)
        _measured(commit, baseline, f"skip patch from {skip.base_version}")
    except (BulletinError, CodecError, BaselineUnavailable) as error:
        yield Finding(version=skip.version, what="skip patch", problem=str(error))
