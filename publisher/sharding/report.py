"""What one version from many ranks came to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from skerry.bulletin.records import Commit, ObjectRef
from skerry.codec.digest import Digest
from skerry.publisher.plan import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedReport:
    """One version as it was committed; the same on every rank.

    `pack_bytes` has the size of each rank's pack, by rank, 0 where it had nothing to say; `changed`
    is None for a version that was not compared with its parent.
    """

    version: int
    parent: int | None
    step: int
    digest: Digest
    kind: str
    reason: str
    elements: int
    changed: int | None
    pack_bytes: tuple[int, ...]

    @classmethod
    def of(cls, commit: Commit, decision: Decision, receipts: Iterable[ObjectRef | None]) -> Self:
        """Return what to tell about a commit, given what each rank uploaded for it."""
        return cls(
            version=commit.version,
            parent=commit.parent,
            step=commit.step,
            digest=commit.result,
            kind=decision.kind,
            reason=decision.reason,
            elements=commit.elements,
            changed=commit.changed,
            pack_bytes=tuple(0 if ref is None else ref.size for ref in receipts),
        )

    def __str__(self) -> str:
        return (
            f"version={self.version} kind={self.kind} changed={self.changed}/{self.elements} "
            f"ranks={len(self.pack_bytes)} bytes={sum(self.pack_bytes)} digest={self.digest}"
        )
