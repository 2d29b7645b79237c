"""From a checkpoint to a published version: compare, encode, prove, upload, commit, advance.

The order is the protocol.  Objects are durable before the record that names them; the baseline
moves after the record; a failure anywhere before it leaves no version, and publishing again works.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from skerry.bulletin import keys
from skerry.bulletin.errors import BulletinError, VersionUnknown
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.records import Commit
from skerry.bulletin.signing import Signer
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.writer import BulletinWriter
from skerry.codec.digest import digest_bytes
from skerry.codec.encode import encode_pack
from skerry.codec.layout import describe_difference
from skerry.codec.weights import digest_weights
from skerry.publisher.arrays import Served
from skerry.publisher.baseline import Baseline, from_checkpoint, rebuild
from skerry.publisher.checkpoint import Checkpoint
from skerry.publisher.config import PublisherConfig
from skerry.publisher.draft import Draft, Encoder, encode, is_same, prove
from skerry.publisher.errors import BaselineUnavailable, CheckpointChanged
from skerry.publisher.levels import LevelModel
from skerry.publisher.plan import chain_to, decide
from skerry.publisher.progress import Meter, Progress, silent
from skerry.publisher.report import Clock, PublishReport
from skerry.publisher.resume import parent_for
from skerry.publisher.storage import MemoryStorage, Storage
from skerry.publisher.upkeep import Upkeep
from skerry.publisher.upload import upload

logger = logging.getLogger(__name__)


class Publisher:
    """The one writer of a run.  Not safe for use by several threads at once.

    With `upkeep` in its config a thread of its own compacts and collects the run between versions,
    until `close`.
    """

    def __init__(
        self, writer: BulletinWriter, *, config: PublisherConfig, storage: Storage
    ) -> None:
        self.writer = writer
        self._config = config
        self._storage = storage
        self._baseline: Baseline | None = None
        self._resumed_at: int | None = None  # until a version follows from there
        self._turn = threading.RLock()
        self._upkeep: Upkeep | None = None
        if config.upkeep is not None:
            self._upkeep = Upkeep(writer, config.upkeep, self._turn, threads=config.threads)
            self._upkeep.start()
        self._levels = LevelModel.of(
            config.level, threads=config.threads, link_mbit=config.link_mbit
        )

    @classmethod
    def open(
        cls,
        store: ObjectStore,
        *,
        signer: Signer | None = None,
        config: PublisherConfig | None = None,
        storage: Storage | None = None,
    ) -> Publisher:
        """Claim the run in `store`: every earlier writer is fenced off from here on."""
        config = config or PublisherConfig()
        writer = BulletinWriter.open(store, signer=signer, writer=config.writer)
        return cls(writer, config=config, storage=storage or MemoryStorage())

    def resume(self, step: int) -> Commit | None:
        """Go on from the checkpoint of a step: return the version that the next one follows from.

        `parent_for` has the rule.  It holds until a version is published.  Raises ResumeRefused.
        """
        self._settle()
        ancestor = parent_for(self.reader.state, step)
        self._resumed_at = None if ancestor is None else ancestor.version
        return ancestor

    def close(self) -> None:
        """End the upkeep beside publishing, after the step under way.  Idempotent."""
        if self._upkeep is not None:
            self._upkeep.stop()

    @property
    def reader(self) -> BulletinReader:
        return self.writer.reader

    def publish_arrays(
        self,
        arrays: Mapping[str, Served],
        *,
        step: int,
        parent: int | None = None,
        side_files: Mapping[str, bytes] | None = None,
        recipe: Mapping[str, object] | None = None,
        max_shard_bytes: int = 5_000_000_000,
        force_full: bool = False,
        encoder: Encoder = encode_pack,
    ) -> PublishReport:
        """Publish arrays in memory, which must not change until this returns."""
        checkpoint = Checkpoint.from_arrays(
            arrays, side_files=side_files, recipe=recipe, max_shard_bytes=max_shard_bytes
        )
        return self.publish(
            checkpoint, step=step, parent=parent, force_full=force_full, encoder=encoder
        )

    def publish(
        self,
        checkpoint: Checkpoint,
        *,
        step: int | None = None,
        parent: int | None = None,
        force_full: bool = False,
        progress: Progress = silent,
        encoder: Encoder = encode_pack,
    ) -> PublishReport:
        """Publish one version.  A version equal to its parent is one, too.

        `step` defaults to one more than the newest commit's, `parent` to the newest version; an
        older parent rolls back or forks.  Raises PublisherError and BulletinError; except for an
        unknown outcome of the commit itself, nothing is published then.
        """
        with self._turn:  # what is looked up and uploaded must not be collected before the record
            return self._publish(checkpoint, step, parent, force_full, progress, encoder)

    def _publish(
        self,
        checkpoint: Checkpoint,
        step: int | None,
        parent: int | None,
        force_full: bool,
        progress: Progress,
        encoder: Encoder,
    ) -> PublishReport:
        clock = Clock()
        self._settle()
        newest = self.reader.state.newest
        if parent is None:
            parent = self._resumed_at
        if step is None:
            step = 0 if newest is None else newest.step + 1
        ancestor = self._ancestor(newest, parent)
        with clock.phase("base"):
            base = self._base(ancestor, force_full, progress)
        draft = self._draft(checkpoint, ancestor, base, force_full, clock, progress, encoder)
        coded = draft.coded(clock.seconds)
        if coded is not None:
            self._levels = self._levels.after_patch(coded)
        with clock.phase("upload"):
            objects = upload(self.writer, draft, progress)
        self._levels = self._levels.after_upload(objects.nbytes, clock.seconds["upload"])
        checkpoint.check_unchanged()
        with clock.phase("commit"):
            record = self.writer.commit(
                parent=None if ancestor is None else ancestor.version,
                step=step,
                layout=objects.layout,
                manifest=objects.manifest,
                base=draft.patch_base,
                result=draft.weights.version(),
                packs=objects.packs,
                full=objects.full,
                elements=draft.layout.words,
                changed=draft.changed,
            )
        commit = record.body
        assert isinstance(commit, Commit)
        self._resumed_at = None
        with clock.phase("advance"):
            self._advance(commit.version, draft)
        logger.info(
            "published version=%d kind=%s changed=%s/%d bytes=%d level=%s digest=%s",
            commit.version,
            draft.decision.kind,
            commit.changed,
            commit.elements,
            commit.nbytes,
            None if draft.level is None else draft.level.level,
            commit.result,
        )
        return draft.report(record, commit, clock.seconds)

    def _settle(self) -> None:
        """Find out about a commit whose outcome was unknown: it is a version, or we stop."""
        record = self.writer.settle()
        if record is not None and isinstance(record.body, Commit):
            self._resumed_at = None

    def _ancestor(self, newest: Commit | None, parent: int | None) -> Commit | None:
        if parent is None:
            return newest
        commit = self.reader.state.commits.get(parent)
        if commit is None:
            raise VersionUnknown(parent, newest=None if newest is None else newest.version)
        return commit

    def _base(
        self, ancestor: Commit | None, force_full: bool, progress: Progress
    ) -> Baseline | None:
        """Return the bytes of `ancestor`: those in hand if the log agrees, else rebuilt."""
        if ancestor is None:
            return None
        held, self._baseline = self._baseline, None  # moving it may fail half way
        try:
            held = rebuild(
                self.reader,
                ancestor.version,
                self._storage,
                held=held if held is not None and self._agrees(held) else None,
                progress=progress,
                threads=self._config.threads,
            )
        except (BaselineUnavailable, BulletinError) as error:
            if not force_full:
                raise
            logger.warning("publishing a full version without its parent's bytes: %s", error)
            return None
        self._baseline = held
        return held

    def _agrees(self, held: Baseline) -> bool:
        commit = self.reader.state.commits.get(held.version)
        return commit is not None and commit.result == held.weights.version()

    def _draft(
        self,
        checkpoint: Checkpoint,
        ancestor: Commit | None,
        base: Baseline | None,
        force_full: bool,
        clock: Clock,
        progress: Progress,
        encoder: Encoder,
    ) -> Draft:
        layout = checkpoint.layout
        with clock.phase("digest"):
            meter = Meter(progress, "digest", layout.nbytes)
            weights = digest_weights(layout, meter.read(checkpoint.read))
        difference = "" if base is None else describe_difference(base.layout, layout)
        encoded = choice = None
        if base is not None and not difference:
            choice = self._levels.choose(layout.nbytes)
            with clock.phase("encode"):
                encoded = encode(
                    base,
                    checkpoint,
                    weights,
                    level=choice.level,
                    threads=self._config.threads,
                    progress=progress,
                    encoder=encoder,
                )
            if self._config.verify:
                with clock.phase("verify"):
                    prove(encoded, base, checkpoint, weights, threads=self._config.threads)
        same = base is not None and is_same(base, checkpoint, weights)
        commits = self.reader.state.commits
        decision = decide(
            chain=None if ancestor is None else chain_to(commits, ancestor.version),
            difference=difference,
            patch_bytes=None if encoded is None else 0 if same else len(encoded.data),
            full_bytes=layout.nbytes,
            forced=force_full,
            config=self._config,
            retired=encoded is not None and self._is_retired(encoded.data),
        )
        return Draft(
            checkpoint=checkpoint,
            weights=weights,
            base=base,
            encoded=encoded,
            level=choice,
            same=same,
            decision=decision,
        )

    def _is_retired(self, pack: bytes) -> bool:
        """Say whether this epoch has published, and given up, the very same patch."""
        retired = self.reader.state.retired_keys
        return bool(retired) and keys.pack(self.writer.epoch, digest_bytes(pack)) in retired

    def _advance(self, version: int, draft: Draft) -> None:
        base, self._baseline = self._baseline, None  # advancing it may fail half way
        try:
            if base is None:
                base = from_checkpoint(version, draft.checkpoint, draft.weights, self._storage)
            else:
                base.advance(version, draft.checkpoint, draft.weights, draft.changed_tensors)
        except (CheckpointChanged, OSError, MemoryError) as error:
            # The version exists all the same; its bytes are fetched from the bulletin next time.
            logger.warning("version %d is published, but not at hand any more: %s", version, error)
        else:
            self._baseline = base
