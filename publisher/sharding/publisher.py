"""A version from many ranks, in an order in which a rank that dies leaves nothing visible:

1. each rank copies its parts and gets the bytes of its own leaves; they agree on the parent;
2. each encodes its leaves against its own leaves of the parent, and proves the patch;
3. the committer, rank 0, decides the form; each rank uploads its pack and hands over a receipt;
4. the committer checks the receipts, uploads layout and manifest, and commits;
5. each rank keeps its leaves as those of the new parent.

A failure up to 3 leaves objects that no record names.  Where the outcome of 4 is not known, both
sets of leaves are kept until the log has told which of them is the parent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Self, TypeVar

from skerry.bulletin.patience import Patience
from skerry.bulletin.records import Full, ObjectRef
from skerry.bulletin.signing import Signer
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.uploads import Uploads
from skerry.bulletin.writer import DEFAULT_PATIENCE, BulletinWriter, new_nonce
from skerry.codec.digest import Digest, digest_bytes
from skerry.codec.encode import EncodedPack
from skerry.codec.level import Level
from skerry.publisher.config import PublisherConfig
from skerry.publisher.errors import ShardMismatch
from skerry.publisher.sharding.committer import Committer, Head, Offer, joined
from skerry.publisher.sharding.fabric import Fabric, agree
from skerry.publisher.sharding.full import put_full, send_leaves
from skerry.publisher.sharding.leaves import Snapshot, encode_leaves, measure, prove_leaves
from skerry.publisher.sharding.moves import Leaves, Moves
from skerry.publisher.sharding.plan import ShardPlan, TensorPart, plan_shards
from skerry.publisher.sharding.report import ShardedReport

logger = logging.getLogger(__name__)

T = TypeVar("T")

COMMITTER = 0


class ShardedPublisher:
    """One rank's side of publishing.  Every rank makes the same calls in the same order.

    What each rank holds is stated when it is opened: for another structure open another one.  A
    call raises RankFailed on all ranks alike, and may be repeated then; after PeerLost the job
    starts anew.
    """

    def __init__(
        self,
        fabric: Fabric,
        store: ObjectStore,
        plan: ShardPlan,
        *,
        committer: Committer | None,
        epoch: int,
        config: PublisherConfig,
    ) -> None:
        """Use `open`."""
        self.plan = plan
        self._fabric = fabric
        self._committer = committer
        self._epoch = epoch
        self._config = config
        self._level = Level.DEFAULT if config.level == "auto" else Level(config.level)
        self._uploads = Uploads(store, nonce=new_nonce)
        self._layout = digest_bytes(plan.layout.to_bytes())
        self._moves = Moves(plan, fabric, threads=config.threads)
        self._known: dict[Digest, Snapshot] = {}  # by version digest: the parent, perhaps its heir

    @classmethod
    def open(
        cls,
        fabric: Fabric,
        store: ObjectStore,
        parts: Sequence[TensorPart],
        *,
        signer: Signer | None = None,
        config: PublisherConfig | None = None,
        side_files: Mapping[str, bytes] | None = None,
        recipe: Mapping[str, object] | None = None,
        max_shard_bytes: int = 5_000_000_000,
        patience: Patience = DEFAULT_PATIENCE,
    ) -> Self:
        """Learn who holds what, on every rank; claim the run, on the committer.

        Raises RankFailed: the parts make no whole tensors, the ranks were given different files or
        recipes, or the run could not be claimed.
        """
        config = config or PublisherConfig()
        held = agree(fabric, lambda: tuple(part.held for part in parts))

        plans: list[ShardPlan] = []
        opened: list[BulletinWriter] = []

        def plan() -> Digest:
            plans.append(
                plan_shards(
                    held, side_files=side_files, recipe=recipe, max_shard_bytes=max_shard_bytes
                )
            )
            return digest_bytes(plans[0].layout.to_bytes())

        layouts = agree(fabric, plan)

        def claim() -> int:
            if len(set(layouts)) != 1:
                raise ShardMismatch("layout", "the ranks have different side files or recipes")
            if fabric.rank != COMMITTER:
                return 0
            opened.append(
                BulletinWriter.open(store, signer=signer, writer=config.writer, patience=patience)
            )
            return opened[0].epoch

        epochs = agree(fabric, claim)
        return cls(
            fabric,
            store,
            plans[0],
            committer=Committer(opened[0], plans[0], config) if opened else None,
            epoch=epochs[COMMITTER],
            config=config,
        )

    def resume(self, step: int, parts: Sequence[TensorPart]) -> bool:
        """Go on from the checkpoint of a step, whose weights are `parts`.

        `parent_for` says from which version.  Returns whether the weights are that version's, bit
        for bit; if not, the next version is a full one.
        """
        head = self._ask(lambda committer: committer.resume(step))
        taken, measured = self.take(parts), list[Snapshot]()
        offers = agree(self._fabric, lambda: self._first_offer(taken, measured))
        whole = joined(self.plan, offers).version()
        same = (head.weights, head.layout) == (whole, self._layout)
        self._known = {whole: measured[0]} if same else {}
        return same

    def publish(
        self, parts: Sequence[TensorPart], *, step: int, force_full: bool = False
    ) -> ShardedReport:
        """Publish one version; the parts may change once this returns.

        Raises RankFailed, after which no version is visible unless the log says otherwise, or
        PeerLost.
        """
        return self.publish_taken(self.take(parts), step=step, force_full=force_full)

    def publish_taken(self, taken: Leaves, *, step: int, force_full: bool = False) -> ShardedReport:
        """Publish what `take` has returned on every rank, as `publish` does."""
        if len(calls := set(agree(self._fabric, lambda: (step, force_full)))) != 1:
            raise ShardMismatch("step", f"the ranks publish different ones: {sorted(calls)}")
        head = self._ask(lambda committer: committer.head())
        measured, packs = list[Snapshot](), list[EncodedPack]()
        offers = agree(self._fabric, lambda: self._offer(head, taken, measured, packs))
        decision = self._ask(lambda committer: committer.decide(head, offers, forced=force_full))
        pack = packs[0] if packs and decision.patch else None
        receipts = agree(self._fabric, lambda: self._upload(pack))
        full = self._full(taken) if decision.full else None
        result = joined(self.plan, offers).version()
        # Until the record is known to be in the log, either may be what comes next is made against.
        self._known = {d: s for d, s in self._known.items() if d == head.weights}
        self._known[result] = measured[0]
        commit = self._ask(
            lambda committer: committer.commit(head, step, offers, decision, receipts, full)
        )
        self._known = {result: measured[0]}
        report = ShardedReport.of(commit, decision, receipts)
        if self._committer is not None:
            logger.info("published %s", report)
        return report

    def take(self, parts: Sequence[TensorPart], front: Fabric | None = None) -> Leaves:
        """Copy the parts, and get the leaves that this rank owns; the parts may change then.

        With a `front`, another fabric of the same ranks, versions may be on their way meanwhile.
        """
        return self._moves.take(front or self._fabric, parts)

    def _ask(self, work: Callable[[Committer], T]) -> T:
        """Have the committer do something; return its result on every rank."""
        committer = self._committer
        results = agree(self._fabric, lambda: None if committer is None else work(committer))
        result = results[COMMITTER]
        assert result is not None
        return result

    def _offer(
        self, head: Head, taken: Leaves, measured: list[Snapshot], packs: list[EncodedPack]
    ) -> Offer:
        """Return what this rank has for the next version; add it to `measured`, its patch to
        `packs`.
        """
        before = None if head.weights is None else self._known.get(head.weights)
        if before is None or head.weights is None or head.layout != self._layout:
            return self._first_offer(taken, measured)
        new, pack = encode_leaves(
            self.plan,
            before,
            taken,
            base=head.weights,
            level=self._level,
            threads=self._config.threads,
        )
        if self._config.verify:
            prove_leaves(self.plan, pack, before, new.digests, threads=self._config.threads)
        measured.append(new)
        if pack is not None:
            packs.append(pack)
        return Offer(
            digests=new.digests,
            compared=True,
            pack=None if pack is None else digest_bytes(pack.data),
            nbytes=0 if pack is None else len(pack.data),
            changed=frozenset(
                leaf for leaf, digest in new.digests.items() if before.digests[leaf] != digest
            ),
            stats=() if pack is None else pack.stats,
        )

    def _first_offer(self, taken: Leaves, measured: list[Snapshot]) -> Offer:
        """Return the offer of a rank that has nothing to compare with."""
        measured.append(measure(taken, threads=self._config.threads))
        return Offer(
            digests=measured[0].digests,
            compared=False,
            pack=None,
            nbytes=0,
            changed=frozenset(),
            stats=(),
        )

    def _upload(self, pack: EncodedPack | None) -> ObjectRef | None:
        return None if pack is None else self._uploads.pack(self._epoch, pack.data)

    def _full(self, leaves: Leaves) -> Full | None:
        """Stream the full form through the committer; it has the result, the others None."""

        def stream() -> Full | None:
            if self._committer is not None:
                return put_full(self.plan, self._fabric, leaves, self._committer.writer)
            send_leaves(self.plan, self._fabric, leaves, COMMITTER)
            return None

        return agree(self._fabric, stream)[COMMITTER]
