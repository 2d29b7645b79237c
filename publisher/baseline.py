"""The parent's bytes that the next patch is made against: always those of a published version.

Never a guess about what receivers hold, and never what a trainer exported again.  A baseline is
made from a checkpoint that was committed, or rebuilt from the bulletin and compared with the log's
digest.  It advances after a commit, not before.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from skerry.bulletin.errors import NoPath, Tampered, VersionGone, VersionUnknown
from skerry.bulletin.lineage import Step, plan
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.records import Commit
from skerry.codec.digest import Bytes, leaf_digests
from skerry.codec.errors import CodecError
from skerry.codec.layout import Layout, same_structure
from skerry.codec.tensors import TensorSpec
from skerry.codec.weights import WeightsDigest, digest_weights
from skerry.publisher.checkpoint import Checkpoint
from skerry.publisher.errors import BaselineUnavailable, CheckpointChanged
from skerry.publisher.progress import Meter, Progress, silent
from skerry.publisher.replay import apply_packs, load_full, reads
from skerry.publisher.storage import Storage

logger = logging.getLogger(__name__)


class Baseline:
    """The bytes of one published version."""

    def __init__(
        self,
        *,
        version: int,
        layout: Layout,
        weights: WeightsDigest,
        buffers: Mapping[str, Bytes],
        storage: Storage,
    ) -> None:
        self.version = version
        self.layout = layout
        self.weights = weights
        self.buffers = buffers
        self._storage = storage

    def read(self, spec: TensorSpec) -> Bytes:
        """Return a tensor's published bytes, shape [nbytes]; a view that is not to be written."""
        return reads(self.buffers)(spec)

    def advance(
        self,
        version: int,
        checkpoint: Checkpoint,
        weights: WeightsDigest,
        changed: set[str] | None = None,
    ) -> None:
        """Become `version`, which was committed from `checkpoint`.

        `changed` names the tensors that differ from what is held, None when that is not known.
        Raises CheckpointChanged when the checkpoint has not the bytes of `weights` any more; what
        is held is of no use then.
        """
        layout = checkpoint.layout
        self._storage.begin()
        if not same_structure(self.layout, layout):
            self.buffers = self._storage.allocate(layout)
            changed = None
        self.layout = layout
        for spec, leaves in zip(layout.tensors, weights.leaves, strict=True):
            if changed is None or spec.name in changed:
                held = self.read(spec)
                held[:] = checkpoint.read(spec)
                if leaf_digests(held) != leaves:
                    rule = f"the published bytes of tensor {spec.name}"
                    raise CheckpointChanged(name=spec.file, expected=rule, found="others")
        self.version, self.weights = version, weights
        self._storage.finish(version)


def from_checkpoint(
    version: int, checkpoint: Checkpoint, weights: WeightsDigest, storage: Storage
) -> Baseline:
    """Return the baseline of a version that was just committed from `checkpoint`."""
    baseline = Baseline(
        version=version,
        layout=checkpoint.layout,
        weights=weights,
        buffers=storage.allocate(checkpoint.layout),
        storage=storage,
    )
    baseline.advance(version, checkpoint, weights)
    return baseline


def rebuild(
    reader: BulletinReader,
    version: int,
    storage: Storage,
    *,
    held: Baseline | None = None,
    retired_too: bool = False,
    progress: Progress = silent,
    threads: int = 1,
) -> Baseline:
    """Return the baseline of any published version, by the cheapest path.

    The path starts at `held`, which must not be used afterwards, or at what the storage keeps, or
    at a full version.  With `retired_too` a version that is a mere link will do.  Raises
    BaselineUnavailable when none leads there or the bytes are not what the log says,
    VersionUnknown, and StoreError as it comes.
    """
    commit = reader.state.commits.get(version)
    if commit is None:
        newest = reader.state.newest
        raise VersionUnknown(version, newest=None if newest is None else newest.version)
    try:
        if held is None:
            held = _recall(reader, storage, progress)
        if held is not None and held.version == version:
            return held
        # What is left behind may be gone on from: a rollback of a rollback.
        steps = plan(
            reader.state,
            have=None if held is None else held.version,
            want=version,
            abandoned_too=True,
            retired_too=retired_too,
        )
        return _walk(reader, held, commit, steps, storage, progress, threads)
    except (NoPath, VersionGone, Tampered, CodecError) as error:
        raise BaselineUnavailable(version=version, why=str(error)) from error


def measure(
    commit: Commit,
    layout: Layout,
    buffers: Mapping[str, Bytes],
    storage: Storage,
    progress: Progress = silent,
) -> Baseline | None:
    """Return the baseline in `buffers`, or None if their bytes are not those of the version."""
    meter = Meter(progress, "check base", layout.nbytes)
    weights = digest_weights(layout, meter.read(reads(buffers)))
    if weights.version() != commit.result:
        return None
    return Baseline(
        version=commit.version, layout=layout, weights=weights, buffers=buffers, storage=storage
    )


def _recall(reader: BulletinReader, storage: Storage, progress: Progress) -> Baseline | None:
    """Return what the storage keeps, if that is what the log says."""
    version = storage.kept()
    commit = None if version is None else reader.state.commits.get(version)
    if commit is None:
        return None
    layout = reader.layout(commit.layout)
    buffers = storage.recall(commit.version, layout)
    if buffers is None:
        return None
    baseline = measure(commit, layout, buffers, storage, progress)
    if baseline is None:
        logger.warning("state of version %d is not what the log says; rebuilding", commit.version)
    return baseline


def _walk(
    reader: BulletinReader,
    held: Baseline | None,
    commit: Commit,
    steps: Sequence[Step],
    storage: Storage,
    progress: Progress,
    threads: int,
) -> Baseline:
    buffers: Mapping[str, Bytes] = {} if held is None else held.buffers
    storage.begin()
    meter = Meter(progress, "fetch base", sum(step.nbytes for step in steps))
    for step in steps:
        layout = reader.layout(step.layout)
        if step.full is not None:
            buffers = storage.allocate(layout)
            load_full(reader, layout, step.full, buffers, meter)
        else:
            base = step.base_result
            apply_packs(reader, layout, step.objects, base, buffers, meter, threads=threads)
    baseline = measure(commit, reader.layout(commit.layout), buffers, storage, progress)
    if baseline is None:
        raise BaselineUnavailable(
            version=commit.version, why=f"the bulletin's objects do not give {commit.result}"
        )
    storage.finish(commit.version)
    logger.info("rebuilt base version=%d digest=%s", commit.version, commit.result)
    return baseline
