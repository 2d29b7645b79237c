"""Does a bulletin hold what its log promises?  Every object that a live version needs, looked at.

The log itself (chain, signatures, epochs) was verified when the reader read it.  The quick audit
asks for presence and size; the deep one reads every object, rebuilds every version by its own
patch and by its own full, and compares with the digests in the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from skerry.bulletin import keys
from skerry.bulletin.errors import BulletinError, NotFound, StoreError
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.records import Commit, Full, ObjectRef, Skip
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
        findings = list(_presence(reader, commit))
        yield from findings
        if not findings:
            sound.add(commit.version)
    for skip in reader.state.skips:
        for ref in _usable(reader, skip.packs):
            yield from _object(reader, skip.version, ref)
    if deep:
        whole = [c for c in live if c.version in sound]
        yield from _deep(reader, whole, progress, thread_count(threads))


def _usable(reader: BulletinReader, refs: tuple[ObjectRef, ...]) -> tuple[ObjectRef, ...]:
    """Return `refs`, or none of them when a record says that one may be deleted."""
    gone = reader.state.retired_keys
    return refs if gone.isdisjoint(ref.key for ref in refs) else ()


def _full_of(reader: BulletinReader, commit: Commit) -> Full | None:
    if commit.full is None or commit.full.prefix in reader.state.retired_keys:
        return None
    return commit.full


def _presence(reader: BulletinReader, commit: Commit) -> Iterator[Finding]:
    version = commit.version
    missing = False
    for key in (keys.layout(commit.layout), keys.manifest(commit.manifest)):
        try:
            reader.store.size(key)
        except NotFound:
            missing = True
            yield Finding(version=version, what=key, problem="missing")
    for ref in _usable(reader, commit.packs):
        yield from _object(reader, version, ref)
    full = _full_of(reader, commit)
    if full is not None:
        for ref in full.objects:
            yield from _object(reader, version, ref)
    if missing:
        return
    try:
        layout = reader.layout(commit.layout)
        manifest = reader.manifest(commit.manifest)
    except BulletinError as error:
        yield Finding(version=version, what="description", problem=str(error))
        return
    if manifest.layout != commit.layout:
        yield Finding(version=version, what="manifest", problem="names another layout")
    unknown = {stat.name for stat in manifest.tensors} - {spec.name for spec in layout.tensors}
    if unknown:
        problem = f"names tensor {min(unknown)!r:.120}, which the layout lacks"
        yield Finding(version=version, what="manifest", problem=problem)
    if commit.elements != layout.words:
        problem = f"expected {layout.words} elements, found {commit.elements}"
        yield Finding(version=version, what="record", problem=problem)
    if full is not None:
        yield from _files(version, layout, full)


def _object(reader: BulletinReader, version: int, ref: ObjectRef) -> Iterator[Finding]:
    try:
        size = reader.store.size(ref.key)
    except NotFound:
        yield Finding(version=version, what=ref.key, problem="missing")
        return
    if size != ref.size:
        problem = f"expected {ref.size} bytes, found {size}"
        yield Finding(version=version, what=ref.key, problem=problem)


def _files(version: int, layout: Layout, full: Full) -> Iterator[Finding]:
    """Compare the files of a full with those of the layout: names, sizes, side files' digests."""
    expected, found = dict(layout.files()), {file.name: file.size for file in full.files}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            problem = f"expected {expected.get(name)} bytes, found {found.get(name)}"
            yield Finding(version=version, what=f"{full.prefix}/{name}", problem=problem)
    digests = {file.name: file.digest for file in full.files}
    for side in layout.side_files:
        if digests.get(side.name, side.digest) != side.digest:
            what = f"{full.prefix}/{side.name}"
            yield Finding(version=version, what=what, problem="another digest than in the layout")


def _deep(
    reader: BulletinReader, commits: list[Commit], progress: Progress, threads: int
) -> Iterator[Finding]:
    storage = MemoryStorage()
    held: Baseline | None = None
    for commit in commits:
        layout = reader.layout(commit.layout)
        full = _full_of(reader, commit)
        rebuilt: Baseline | None = None
        try:
            if full is not None:
                rebuilt = _by_full(reader, commit, layout, full, storage, progress)
            if commit.base is not None and _usable(reader, commit.packs) == commit.packs:
                rebuilt = _by_patch(reader, commit, layout, held, storage, progress, threads)
                held = None
        except (StoreError, BulletinError, CodecError, BaselineUnavailable) as error:
            held = None
            yield Finding(version=commit.version, what="weights", problem=str(error))
            continue
        held = rebuilt
    for skip in reader.state.skips:
        if reader.state.retired.isdisjoint((skip.base_version, skip.version)) and _usable(
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
