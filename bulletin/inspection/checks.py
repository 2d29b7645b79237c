"""Is what a record names there, and is it what was named?  Asked of the store, object by object.

The log itself was verified when it was read.  Presence and size cost a request for each object;
`deep` reads every byte and compares digests, in bounded memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from skerry.bulletin import keys
from skerry.bulletin.errors import BulletinError, NotFound, StoreError, Tampered
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.records import Commit, Full, ObjectRef
from skerry.codec.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question about a version, and its answer: `problem` is None when all is well."""

    version: int
    what: str
    checked_bytes: int
    problem: str | None

    def __str__(self) -> str:
        return f"version {self.version}: {self.what}: {self.problem or 'ok'}"


def check_version(
    reader: BulletinReader,
    commit: Commit,
    *,
    deep: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Check]:
    """Yield a check of every object of a version, then of its descriptions.

    Of a retired version nothing is asked: it may be there or not.  Raises StoreError but for
    NotFound.  When `stopped` says so a deep check ends between two pieces of an object.
    """
    version = commit.version
    if version in reader.state.retired:
        problem = "retired, may be deleted"
        yield Check(version=version, what="objects", checked_bytes=0, problem=problem)
        return
    missing = False
    for key in (keys.layout(commit.layout), keys.manifest(commit.manifest)):
        try:
            size = reader.store.size(key)
            yield Check(version=version, what=key, checked_bytes=size, problem=None)
        except NotFound:
            missing = True
            yield Check(version=version, what=key, checked_bytes=0, problem="missing")
    full = full_of(reader, commit)
    for ref in (*usable(reader, commit.packs), *(() if full is None else full.objects)):
        yield check_object(reader, version, ref, deep=deep, stopped=stopped)
        if stopped():
            return
    if not missing:
        yield from _descriptions(reader, commit, full)


def check_object(
    reader: BulletinReader,
    version: int,
    ref: ObjectRef,
    *,
    deep: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> Check:
    """Ask for one object.  Raises StoreError but for NotFound."""
    done, problem = 0, None
    try:
        if deep:
            for piece in reader.pieces(ref):
                done += len(piece)
                if stopped():
                    break
        else:
            done = reader.store.size(ref.key)
            if done != ref.size:
                problem = f"expected {ref.size} bytes, found {done}"
    except NotFound:
        problem = "missing"
    except Tampered as error:
        problem = f"expected {error.expected}, found {error.found}"
    return Check(version=version, what=ref.key, checked_bytes=done, problem=problem)


def usable(reader: BulletinReader, refs: tuple[ObjectRef, ...]) -> tuple[ObjectRef, ...]:
    """Return `refs`, or none of them when a record says that one may be deleted."""
    gone = reader.state.retired_keys
    return refs if gone.isdisjoint(ref.key for ref in refs) else ()


def full_of(reader: BulletinReader, commit: Commit) -> Full | None:
    """Return a version's full if no record says that it may be deleted."""
    if commit.full is None or commit.full.prefix in reader.state.retired_keys:
        return None
    return commit.full


def _descriptions(reader: BulletinReader, commit: Commit, full: Full | None) -> Iterator[Check]:
    """Compare layout, manifest and record with each other."""
    version = commit.version

    def check(what: str, problem: str | None) -> Check:
        return Check(version=version, what=what, checked_bytes=0, problem=problem)

    try:
        layout = reader.layout(commit.layout)
        manifest = reader.manifest(commit.manifest)
    except BulletinError as error:
        if isinstance(error, StoreError) and not isinstance(error, NotFound):
            raise  # it says nothing about the description
        yield check("description", str(error))
        return
    problem = None
    if manifest.layout != commit.layout:
        problem = "names another layout"
    yield check("manifest", problem)
    unknown = {stat.name for stat in manifest.tensors} - {spec.name for spec in layout.tensors}
    if unknown:
        yield check("manifest", f"names tensor {min(unknown)!r:.120}, which the layout lacks")
    if commit.elements != layout.words:
        yield check("record", f"expected {layout.words} elements, found {commit.elements}")
    if full is not None:
        yield from _files(version, layout, full)


def _files(version: int, layout: Layout, full: Full) -> Iterator[Check]:
    """Compare the files of a full with those of the layout: names, sizes, side files' digests."""
    expected, found = dict(layout.files()), {file.name: file.size for file in full.files}
    digests = {file.name: file.digest for file in full.files}
    sides = {side.name: side.digest for side in layout.side_files}
    for name in sorted(expected.keys() | found.keys()):
        problem = None
        if expected.get(name) != found.get(name):
            problem = f"expected {expected.get(name)} bytes, found {found.get(name)}"
        elif name in sides and digests.get(name, sides[name]) != sides[name]:
            problem = "another digest than in the layout"
        what = f"{full.prefix}/{name}"
        yield Check(version=version, what=what, checked_bytes=0, problem=problem)
