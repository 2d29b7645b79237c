"""Makes a version's objects durable in the bulletin, before the record that names them."""

from __future__ import annotations

from dataclasses import dataclass

from skerry.bulletin.records import Full, ObjectRef
from skerry.bulletin.writer import BulletinWriter
from skerry.codec.digest import Digest
from skerry.publisher.draft import Draft
from skerry.publisher.progress import Meter, Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """What is durable in the store before the record."""

    packs: tuple[ObjectRef, ...]
    full: Full | None
    layout: Digest
    manifest: Digest

    @property
    def nbytes(self) -> int:
        """The size of the packs and the full form, beside which the rest is little."""
        full = () if self.full is None else self.full.objects
        return sum(ref.size for ref in (*self.packs, *full))


def upload(writer: BulletinWriter, draft: Draft, progress: Progress) -> Uploaded:
    """Put every object of the version.  Raises StoreError; what was put by then is an orphan."""
    packs: tuple[ObjectRef, ...] = ()
    if draft.decision.patch and draft.encoded is not None and not draft.same:
        packs = (writer.put_pack(draft.encoded.data),)
    full: Full | None = None
    if draft.decision.full:
        meter = Meter(progress, "upload full", draft.layout.nbytes)
        full = writer.put_full(
            (name, meter.chunks(draft.checkpoint.file_chunks(name)))
            for name in sorted(name for name, _ in draft.layout.files())
        )
    layout = writer.put_layout(draft.layout)
    manifest = writer.put_manifest(draft.manifest(layout))
    return Uploaded(packs=packs, full=full, layout=layout, manifest=manifest)
