"""The judge of a finished run: rebuilds every version from the bulletin, and believes nobody.

Each version's weights are hashed in full and compared with the signed record, with what the trainer
had and with what each island said it installed; at the end each island's files are compared byte
for byte.  The same bytes give the sizes of rival encodings and the bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from skerry.benchmarks.rivals import RIVALS
from skerry.bulletin import BulletinError, BulletinReader, Commit, Full
from skerry.codec.bound import conditioned_bits
from skerry.codec.digest import Bytes, Digest, digest_bytes
from skerry.codec.errors import BaseMismatch, CodecError, ResultMismatch, StructureMismatch
from skerry.codec.layout import Layout, describe_difference
from skerry.codec.weights import digest_weights
from skerry.island_agent.files import digest_file
from skerry.publisher.progress import Meter, Progress, silent
from skerry.publisher.replay import apply_packs, carried_file, load_full, reads
from skerry.publisher.storage import MemoryStorage


@dataclass(slots=True, kw_only=True)
class Audit:
    """What is wrong (nothing, one hopes), and the sizes of every version that came as a patch."""

    problems: list[str] = field(default_factory=list)
    sizes: dict[int, Mapping[str, float]] = field(default_factory=dict)  # bytes, by encoding


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """One version in memory: shards as they lie in files; side files are those of the layout."""

    layout: Layout
    buffers: Mapping[str, Bytes]
    weights: Digest  # as measured


def audit(
    reader: BulletinReader,
    installs: Mapping[str, Mapping[int, Mapping[str, Any]]],
    mirrors: Mapping[str, Path],
    progress: Progress,
) -> Audit:
    """Replay the whole run.  `installs` are the islands' reports, `mirrors` their directories."""
    reader.refresh()
    result = Audit()
    commits = sorted(reader.state.commits.values(), key=lambda commit: commit.version)
    last = _replay(reader, commits, result, progress)
    for commit in commits:
        for island, reports in installs.items():
            if commit.version in reports:
                said = reports[commit.version]["digest"]
                _expect(result, f"island {island}, version {commit.version}", commit.result, said)
    if last is not None:
        for island, mirror in mirrors.items():
            result.problems += _compare(f"island {island}", mirror, last)
    return result


def _replay(
    reader: BulletinReader, commits: Sequence[Commit], result: Audit, progress: Progress
) -> _Version | None:
    """Rebuild every version, one from the other; return the last, None if one cannot be built."""
    held: _Version | None = None
    for done, commit in enumerate(commits):
        progress("audit", done, len(commits))
        before = held
        try:
            if commit.full is not None:
                held = _load(reader, commit, commit.full)
            else:
                held = _patch(reader, commit, before)
        except (BulletinError, CodecError) as error:
            result.problems.append(f"version {commit.version}: {error}")
            return None
        what = f"version {commit.version}: rebuilt weights"
        _expect(result, what, commit.result, held.weights)
        if before is not None and commit.full is None:
            result.sizes[commit.version] = _sizes(before, held)
    progress("audit", len(commits), len(commits))
    return held


def _load(reader: BulletinReader, commit: Commit, full: Full) -> _Version:
    layout = reader.layout(commit.layout)
    buffers = MemoryStorage().allocate(layout)
    load_full(reader, layout, full, buffers, Meter(silent, "full", full.nbytes))
    expected = {side.name: side.digest for side in layout.side_files}
    found = {
        file.name: digest_bytes(reader.read(full.ref(file)))
        for file in full.files
        if file.name not in buffers
    }
    if found != expected:
        name = min(name for name, _ in found.items() ^ expected.items())
        what, none = f"{full.prefix}/{name}", "no such file"
        raise ResultMismatch(
            what=what, expected=expected.get(name, none), found=found.get(name, none)
        )
    return _measured(layout, buffers)


def _patch(reader: BulletinReader, commit: Commit, before: _Version | None) -> _Version:
    if before is None:
        raise BaseMismatch(expected=str(commit.base), found="nothing")
    layout = reader.layout(commit.layout)
    if difference := describe_difference(before.layout, layout):
        raise StructureMismatch(difference)
    buffers = {name: shard.copy() for name, shard in before.buffers.items()}
    for shard in layout.shards:
        buffers[shard.name][: len(shard.header)] = np.frombuffer(shard.header, np.uint8)
    meter = Meter(silent, "patch", sum(ref.size for ref in commit.packs))
    packs = apply_packs(reader, layout, commit.packs, before.weights, buffers, meter)
    kept = {side.name: side.digest for side in before.layout.side_files}
    for side in layout.side_files:
        if kept.get(side.name) != side.digest:
            carried_file(packs, side)
    return _measured(layout, buffers)


def _measured(layout: Layout, buffers: Mapping[str, Bytes]) -> _Version:
    weights = digest_weights(layout, reads(buffers)).version()
    return _Version(layout=layout, buffers=buffers, weights=weights)


def _sizes(before: _Version, after: _Version) -> Mapping[str, float]:
    """Return the bytes of rivals and of the bound."""
    old, new = reads(before.buffers), reads(after.buffers)
    pairs = [
        (spec.type, spec.view(old(spec)), spec.view(new(spec))) for spec in after.layout.tensors
    ]
    bound = conditioned_bits(pairs)
    sizes: dict[str, float] = {"bound": bound.total / 8, "changed": bound.changed}
    moved = [(was, now) for _, was, now in pairs if not np.array_equal(was, now)]
    for rival in RIVALS:
        sizes[rival.name] = sum(len(p) for was, now in moved for p in rival.encode(was, now))
    return sizes


def _compare(who: str, mirror: Path, version: _Version) -> list[str]:
    digests = {name: digest_bytes(data) for name, data in version.buffers.items()}
    digests.update({side.name: side.digest for side in version.layout.side_files})
    found = {p.relative_to(mirror).as_posix() for p in mirror.rglob("*") if p.is_file()}
    return [
        *(f"{who}: {name} is missing" for name in sorted(digests.keys() - found)),
        *(f"{who}: {name} is not part of the version" for name in sorted(found - digests.keys())),
        *(
            f"{who}: {name} differs"
            for name in sorted(found & digests.keys())
            if digest_file(mirror / name).digest() != digests[name]
        ),
    ]


def _expect(result: Audit, what: str, expected: str, found: str) -> None:
    if found != expected:
        result.problems.append(f"{what}: expected {expected}, found {found}")
