"""The one rank that holds the epoch: it says what comes next, decides the form, and commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from skerry.bulletin import keys
from skerry.bulletin.manifest import Manifest
from skerry.bulletin.records import Commit, Full, ObjectRef
from skerry.bulletin.writer import BulletinWriter
from skerry.codec.digest import Digest, leaf_count
from skerry.codec.tensors import TensorStat
from skerry.codec.weights import WeightsDigest
from skerry.publisher.config import PublisherConfig
from skerry.publisher.plan import Decision, chain_to, decide
from skerry.publisher.resume import parent_for
from skerry.publisher.sharding.leaves import Digests
from skerry.publisher.sharding.plan import Leaf, ShardPlan

_MOST_LISTED_LEAVES = 250_000  # as in a draft: a manifest is read whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The version that the next one follows from: its number, layout and weights."""

    parent: int | None
    layout: Digest | None
    weights: Digest | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What one rank has for the next version.

    `compared` says that it has its leaves of the parent; `pack` is the digest of its patch, None
    where nothing changed; `changed` are the digests of the leaves that did.
    """

    digests: Digests
    compared: bool
    pack: Digest | None
    nbytes: int
    changed: frozenset[Leaf]
    stats: tuple[TensorStat, ...]


class Committer:
    """The writer of the run, on behalf of all ranks."""

    def __init__(self, writer: BulletinWriter, plan: ShardPlan, config: PublisherConfig) -> None:
        self.writer = writer
        self._plan = plan
        self._config = config
        self._resumed_at: int | None = None

    def head(self) -> Head:
        """Say what the next version follows from; a commit whose outcome was open is settled."""
        record = self.writer.settle()
        if record is not None and isinstance(record.body, Commit):
            self._resumed_at = None
        state = self.writer.reader.state
        if self._resumed_at is not None:
            return _head(state.commits[self._resumed_at])
        return _head(state.newest)

    def resume(self, step: int) -> Head:
        """Go on from a step's checkpoint, by the rule of `parent_for`."""
        self.head()
        commit = parent_for(self.writer.reader.state, step)
        self._resumed_at = None if commit is None else commit.version
        return _head(commit)

    def decide(self, head: Head, offers: Sequence[Offer], *, forced: bool) -> Decision:
        """Choose the form of the version, as for one from a single process."""
        compared = all(offer.compared for offer in offers)
        state = self.writer.reader.state
        names = {
            keys.pack(self.writer.epoch, offer.pack) for offer in offers if offer.pack is not None
        }
        return decide(
            chain=None if head.parent is None else chain_to(state.commits, head.parent),
            difference="",
            patch_bytes=sum(offer.nbytes for offer in offers) if compared else None,
            full_bytes=self._plan.layout.nbytes,
            forced=forced or not compared,
            config=self._config,
            retired=not names.isdisjoint(state.retired_keys),
        )

    def commit(
        self,
        head: Head,
        step: int,
        offers: Sequence[Offer],
        decision: Decision,
        packs: Iterable[ObjectRef | None],
        full: Full | None,
    ) -> Commit:
        """Make layout and manifest durable, check every receipt, append the record."""
        compared = all(offer.compared for offer in offers)
        weights = joined(self._plan, offers)
        stats = _merged(offers) if compared else ()
        layout = self.writer.put_layout(self._plan.layout)
        manifest = Manifest(
            layout=layout,
            side_files=()
            if compared
            else tuple(side.name for side in self._plan.layout.side_files),
            tensors=stats,
            leaves=self._leaves(offers, weights, everything=decision.full),
            recipe=self._plan.layout.recipe,
        )
        record = self.writer.commit(
            parent=head.parent,
            step=step,
            layout=layout,
            manifest=self.writer.put_manifest(manifest),
            base=head.weights if decision.patch else None,
            result=weights.version(),
            packs=tuple(ref for ref in packs if ref is not None),
            full=full,
            elements=self._plan.layout.words,
            changed=sum(stat.changed for stat in stats) if compared else None,
        )
        assert isinstance(record.body, Commit)
        self._resumed_at = None
        return record.body

    def _leaves(
        self, offers: Sequence[Offer], weights: WeightsDigest, *, everything: bool
    ) -> Mapping[str, Mapping[int, Digest]]:
        """Return the leaves that changed; of a full version all, for readers of a part of it."""
        listed = sum(map(len, weights.leaves)) <= _MOST_LISTED_LEAVES
        compared = all(offer.compared for offer in offers)
        if not compared and not listed:
            return {}
        changed = frozenset().union(*(offer.changed for offer in offers))
        found: dict[str, dict[int, Digest]] = {}
        for number, (spec, leaves) in enumerate(zip(weights.tensors, weights.leaves, strict=True)):
            for leaf, digest in enumerate(leaves):
                if (everything and listed) or (number, leaf) in changed:
                    found.setdefault(spec.name, {})[leaf] = digest
        return found


def joined(plan: ShardPlan, offers: Iterable[Offer]) -> WeightsDigest:
    """Return the digests of the whole version."""
    digests = {leaf: digest for offer in offers for leaf, digest in offer.digests.items()}
    return WeightsDigest(
        tensors=plan.layout.tensors,
        leaves=tuple(
            tuple(digests[number, leaf] for leaf in range(leaf_count(spec.nbytes)))
            for number, spec in enumerate(plan.layout.tensors)
        ),
    )


def _head(commit: Commit | None) -> Head:
    if commit is None:
        return Head(parent=None, layout=None, weights=None)
    return Head(parent=commit.version, layout=commit.layout, weights=commit.result)


def _merged(offers: Iterable[Offer]) -> tuple[TensorStat, ...]:
    """Return each tensor's statistics, summed over the ranks that share it, in name order."""
    found: dict[str, TensorStat] = {}
    for stat in (stat for offer in offers for stat in offer.stats):
        before = found.get(stat.name)
        if before is not None:
            stat = TensorStat(
                name=stat.name,
                changed=before.changed + stat.changed,
                words=stat.words,
                nbytes=before.nbytes + stat.nbytes,
            )
        found[stat.name] = stat
    return tuple(found[name] for name in sorted(found))
