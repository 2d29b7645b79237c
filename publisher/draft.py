"""A version that is about to be published: what was compared, encoded and decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from skerry.bulletin.manifest import Manifest
from skerry.bulletin.records import Commit, Record
from skerry.codec.digest import Bytes, Digest, digest_bytes
from skerry.codec.dtypes import DTYPES
from skerry.codec.encode import EncodedPack, encode_pack
from skerry.codec.errors import ResultMismatch
from skerry.codec.fold import fold_changes
from skerry.codec.layout import Layout, SideFile
from skerry.codec.level import Level
from skerry.codec.pack import Pack
from skerry.codec.tensors import Read, TensorSpec
from skerry.codec.weights import WeightsDigest
from skerry.publisher.checkpoint import Checkpoint
from skerry.publisher.errors import VerifyFailed
from skerry.publisher.levels import Choice, Coded
from skerry.publisher.plan import Decision
from skerry.publisher.progress import Meter, Progress, silent
from skerry.publisher.report import PublishReport

_MOST_LISTED_LEAVES = 250_000  # a manifest is read whole; without a list readers take all bytes


class Base(Protocol):
    """Weights that a patch is made against."""

    @property
    def layout(self) -> Layout: ...

    @property
    def weights(self) -> WeightsDigest: ...

    def read(self, spec: TensorSpec) -> Bytes: ...


class Encoder(Protocol):
    """`encode_pack`, or what makes the same pack of weights that it has elsewhere."""

    def __call__(
        self,
        layout: Layout,
        old: Read,
        new: Read,
        *,
        base: Digest,
        files: Mapping[str, bytes],
        level: Level,
        threads: int,
        digests: WeightsDigest,
    ) -> EncodedPack:
        """Return the patch from the weights of `old`, whose version digest is `base`, to `new`.

        `digests` were measured on the bytes of `new`, and the patch is proven against them.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One version before its commit.

    `base` is None without a parent whose bytes are known; `encoded` is None without a patch from
    it, and may be there although the decision is for the full form alone; `level` is the one it
    was encoded at.  `same` says that the version equals its parent byte for byte: a patch without
    packs.
    """

    checkpoint: Checkpoint
    weights: WeightsDigest
    base: Base | None
    encoded: EncodedPack | None
    level: Choice | None
    same: bool
    decision: Decision

    @property
    def layout(self) -> Layout:
        return self.checkpoint.layout

    @property
    def patch_base(self) -> Digest | None:
        """The weights that the patch is for, None when no patch is published."""
        if self.base is None or not self.decision.patch:
            return None
        return self.base.weights.version()

    @property
    def changed(self) -> int | None:
        """How many elements changed, None when they were not compared."""
        return None if self.encoded is None else self.encoded.changed

    @property
    def changed_tensors(self) -> set[str] | None:
        if self.encoded is None:
            return None
        return {stat.name for stat in self.encoded.stats if stat.changed}

    @property
    def raw_bytes(self) -> int | None:
        """The size of the changed elements themselves."""
        if self.encoded is None:
            return None
        words = {spec.name: DTYPES[spec.dtype].word for spec in self.layout.tensors}
        return sum(stat.changed * words[stat.name] for stat in self.encoded.stats)

    def coded(self, seconds: Mapping[str, float]) -> Coded | None:
        """Return what the patch took, given the seconds of each phase; None without one."""
        if self.encoded is None or self.level is None:
            return None
        return Coded(
            level=self.level.level,
            weights_bytes=self.layout.nbytes,
            changed=self.encoded.changed,
            pack_bytes=sum(stat.nbytes for stat in self.encoded.stats),
            encode_s=seconds["encode"],
            decode_s=seconds.get("verify"),
        )

    def manifest(self, layout: Digest) -> Manifest:
        encoded = self.encoded
        return Manifest(
            layout=layout,
            side_files=tuple(side.name for side in _changed_sides(self.base, self.checkpoint)),
            tensors=() if encoded is None else encoded.stats,
            leaves=self._leaves(),
            recipe=self.layout.recipe,
        )

    def _leaves(self) -> Mapping[str, Mapping[int, Digest]]:
        """Return the leaves that changed; of a full version all, for readers of a part of it."""
        listed = sum(map(len, self.weights.leaves)) <= _MOST_LISTED_LEAVES
        if self.encoded is None and not listed:
            return {}
        if self.encoded is None or (self.decision.full and listed):
            return {
                spec.name: dict(enumerate(leaves))
                for spec, leaves in zip(self.weights.tensors, self.weights.leaves, strict=True)
                if leaves
            }
        return self.encoded.leaves

    def report(self, record: Record, commit: Commit, seconds: Mapping[str, float]) -> PublishReport:
        """Return what to tell about the commit that this draft became."""
        return PublishReport(
            version=commit.version,
            parent=commit.parent,
            step=commit.step,
            digest=commit.result,
            kind=self.decision.kind,
            reason=self.decision.reason,
            elements=commit.elements,
            changed=commit.changed,
            raw_bytes=self.raw_bytes,
            patch_bytes=None if commit.base is None else sum(ref.size for ref in commit.packs),
            full_bytes=self.layout.nbytes,
            record_bytes=record.size,
            level=None if self.level is None else self.level.level,
            level_reason=None if self.level is None else self.level.reason,
            seconds=seconds,
        )


def is_same(base: Base, checkpoint: Checkpoint, weights: WeightsDigest) -> bool:
    """Say whether nothing at all differs from the base."""
    return base.layout == checkpoint.layout and base.weights.version() == weights.version()


def encode(
    base: Base,
    checkpoint: Checkpoint,
    weights: WeightsDigest,
    *,
    level: Level = Level.DEFAULT,
    threads: int = 1,
    progress: Progress = silent,
    encoder: Encoder = encode_pack,
) -> EncodedPack:
    """Encode what leads from `base` to `checkpoint`; side files that changed travel whole.

    `weights` are the digests of the checkpoint's bytes: nothing is hashed again.
    """
    layout = checkpoint.layout
    files = {
        side.name: checkpoint.side_file(side.name) for side in _changed_sides(base, checkpoint)
    }
    meter = Meter(progress, "encode", layout.nbytes)
    return encoder(
        layout,
        base.read,
        meter.read(checkpoint.read),
        base=base.weights.version(),
        files=files,
        level=level,
        threads=threads,
        digests=weights,
    )


def prove(
    encoded: EncodedPack,
    base: Base,
    checkpoint: Checkpoint,
    weights: WeightsDigest,
    *,
    threads: int = 1,
) -> None:
    """Decode the patch against its base: the last gate before anything is uploaded.

    `weights` was measured on the new bytes, without the encoder's help.  Raises VerifyFailed.
    """
    pack = Pack.parse(encoded.data, checkpoint.layout)
    decoded = fold_changes(checkpoint.layout, [pack], base.read, threads=threads)
    try:
        leaves = {changes.spec.name: changes.leaves for changes in decoded}
    except ResultMismatch as error:
        raise VerifyFailed(expected=error.expected, found=error.found) from error
    found = base.weights.replace(leaves).version()
    if found != weights.version():
        raise VerifyFailed(expected=weights.version(), found=found)
    for side in _changed_sides(base, checkpoint):
        content = digest_bytes(pack.file(side.name, side.size))
        if content != side.digest:
            raise VerifyFailed(expected=f"{side.name} of {side.digest}", found=content)


def _changed_sides(base: Base | None, checkpoint: Checkpoint) -> Iterator[SideFile]:
    """Yield the side files that the base lacks or has other bytes of."""
    known = {} if base is None else {side.name: side.digest for side in base.layout.side_files}
    for side in checkpoint.layout.side_files:
        if known.get(side.name) != side.digest:
            yield side
