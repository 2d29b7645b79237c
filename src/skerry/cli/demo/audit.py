"""The judge of a finished run: rebuilds every version from the bulletin, and believes nobody.

Each version's weights are hashed in full and compared with the signed record, with what the trainer
had and with what each island said it installed; at the end each island's files are compared byte
for byte.  The same bytes give the sizes of rival encodings and the bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from skerry.benchmarks.rivals import RIVALS
from skerry.bulletin import BulletinReader, Commit
from skerry.codec.bound import conditioned_bits
from skerry.codec.digest import Bytes, DigestStream, digest_bytes
from skerry.codec.fold import fold_changes
from skerry.codec.layout import Layout
from skerry.codec.pack import Pack
from skerry.codec.tensors import TensorSpec
from skerry.codec.weights import digest_weights
from skerry.publisher.progress import Progress

_PIECE = 16 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class Audit:
    """What is wrong (nothing, one hopes), and the sizes of every version that came as a patch."""

    problems: list[str] = field(default_factory=list)
    sizes: dict[int, Mapping[str, float]] = field(default_factory=dict)  # bytes, by encoding


@dataclass(slots=True, kw_only=True)
class _Replay:
    """A run in memory, one version at a time: shards as they lie in files, side files."""

    layout: Layout
    shards: dict[str, Bytes]
    side_files: dict[str, bytes]

    def read(self, spec: TensorSpec) -> Bytes:
        return self.shards[spec.file][spec.offset : spec.offset + spec.nbytes]


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
    replay: _Replay | None = None
    for done, commit in enumerate(commits):
        progress("audit", done, len(commits))
        replay = _next(reader, commit, replay, result)
        found = digest_weights(replay.layout, replay.read).version()
        _expect(result, f"version {commit.version}: rebuilt weights", commit.result, found)
        for island, reports in installs.items():
            if commit.version in reports:
                said = reports[commit.version]["digest"]
                _expect(result, f"island {island}, version {commit.version}", commit.result, said)
    progress("audit", len(commits), len(commits))
    if replay is not None:
        for island, mirror in mirrors.items():
            result.problems += _compare(f"island {island}", mirror, replay)
    return result


def _next(reader: BulletinReader, commit: Commit, before: _Replay | None, result: Audit) -> _Replay:
    layout = reader.layout(commit.layout)
    if commit.full is not None:
        files = {
            file.name: reader.read(reader.full_file(commit.full, file))
            for file in commit.full.files
        }
        names = {shard.name for shard in layout.shards}
        return _Replay(
            layout=layout,
            shards={n: np.frombuffer(files[n], np.uint8).copy() for n in sorted(names)},
            side_files={n: data for n, data in files.items() if n not in names},
        )
    if before is None:
        raise ValueError(f"version {commit.version} is a patch and nothing comes before it")
    packs = [Pack.parse(reader.read(ref), layout) for ref in commit.packs]
    after = _Replay(
        layout=layout,
        shards={name: shard.copy() for name, shard in before.shards.items()},
        side_files=dict(before.side_files),
    )
    for shard in layout.shards:
        after.shards[shard.name][: len(shard.header)] = np.frombuffer(shard.header, np.uint8)
    for pack in packs:
        for changes in fold_changes(layout, [pack], before.read):
            words = changes.spec.view(after.read(changes.spec))
            words[changes.positions] = changes.new
        after.side_files.update({name: pack.file(name, size) for name, size in pack.files.items()})
    kept = {file.name for file in layout.side_files}
    after.side_files = {name: data for name, data in after.side_files.items() if name in kept}
    result.sizes[commit.version] = _sizes(before, after)
    return after


def _sizes(before: _Replay, after: _Replay) -> Mapping[str, float]:
    """Return the bytes of rivals and of the bound."""
    pairs = [
        (spec.type, spec.view(before.read(spec)), spec.view(after.read(spec)))
        for spec in after.layout.tensors
    ]
    bound = conditioned_bits(pairs)
    sizes: dict[str, float] = {"bound": bound.total / 8, "changed": bound.changed}
    moved = [(old, new) for _, old, new in pairs if not np.array_equal(old, new)]
    for rival in RIVALS:
        sizes[rival.name] = sum(len(p) for old, new in moved for p in rival.encode(old, new))
    return sizes


def _compare(who: str, mirror: Path, replay: _Replay) -> list[str]:
    digests = {name: digest_bytes(data) for name, data in replay.shards.items()}
    digests.update({name: digest_bytes(data) for name, data in replay.side_files.items()})
    found = {p.relative_to(mirror).as_posix() for p in mirror.rglob("*") if p.is_file()}
    return [
        *(f"{who}: {name} is missing" for name in sorted(digests.keys() - found)),
        *(f"{who}: {name} is not part of the version" for name in sorted(found - digests.keys())),
        *(
            f"{who}: {name} differs"
            for name in sorted(found & digests.keys())
            if _digest_file(mirror / name) != digests[name]
        ),
    ]


def _digest_file(path: Path) -> str:
    stream = DigestStream()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            stream.update(piece)
    return stream.digest()


def _expect(result: Audit, what: str, expected: str, found: str) -> None:
    if found != expected:
        result.problems.append(f"{what}: expected {expected}, found {found}")
