"""What a version changed, tensor by tensor: its manifest, put into the table of its layout.  Pure.

Law: summed over all rows, elements are the layout's and changes the manifest's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from skerry.bulletin import keys
from skerry.bulletin.errors import RecordInvalid
from skerry.bulletin.inspection.rows import share
from skerry.bulletin.inspection.table import COUNT_MOST, Counts, TensorTable
from skerry.bulletin.manifest import Manifest
from skerry.bulletin.records import Commit
from skerry.codec.digest import Digest
from skerry.codec.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRow:
    """One tensor: `changed` of its `elements`, in `patch_bytes` of the packs."""

    name: str
    dtype: str
    shape: list[int]
    layer: int | None
    projection: str
    changed: int
    elements: int
    share: float
    raw_bytes: int
    patch_bytes: int


@dataclass(frozen=True, eq=False)
class Described:
    """What a version changed, and of what: its manifest put into the table of its layout.

    `changed` and `patch_bytes` have one entry for each tensor; 16 bytes a tensor is all that this
    takes beside the table, so that many can be kept.
    """

    table: TensorTable
    changed: Counts
    patch_bytes: Counts
    layout_digest: Digest
    side_files: tuple[str, ...]

    @classmethod
    def of(cls, commit: Commit, table: TensorTable, manifest: Manifest) -> Described:
        """Raises RecordInvalid for a manifest of another layout, or that names what it lacks."""
        what = keys.manifest(commit.manifest)
        if manifest.layout != commit.layout:
            raise RecordInvalid(what, "names another layout")
        if max(table.total_words, sum(stat.nbytes for stat in manifest.tensors)) > COUNT_MOST:
            raise RecordInvalid(what, "its figures add up to more than there can be")
        changed = np.zeros(len(table.specs), np.int64)
        patch_bytes = np.zeros(len(table.specs), np.int64)
        for stat in manifest.tensors:
            number = table.numbers.get(stat.name)
            if number is None:
                rule = f"names tensor {stat.name!r:.120}, which the layout lacks"
                raise RecordInvalid(what, rule)
            if stat.words != table.specs[number].words:
                words = table.specs[number].words
                raise RecordInvalid(what, f"{stat.name!r:.120} has {words} words, not {stat.words}")
            changed[number], patch_bytes[number] = stat.changed, stat.nbytes
        return cls(table, changed, patch_bytes, manifest.layout, manifest.side_files)

    @property
    def layout(self) -> Layout:
        return self.table.layout

    def onto(self, table: TensorTable) -> Counts:
        """Return `changed` for the tensors of another layout, by name; 0 for others."""
        if table is self.table or table.numbers.keys() == self.table.numbers.keys():
            return self.changed  # both are in the order of the names
        places = [self.table.numbers.get(spec.name, -1) for spec in table.specs]
        return np.append(self.changed, 0)[places]

    def row(self, number: int) -> TensorRow:
        spec, where = self.table.specs[number], self.table.wheres[number]
        changed = int(self.changed[number])
        return TensorRow(
            name=spec.name,
            dtype=spec.dtype,
            shape=list(spec.shape),
            layer=where.layer,
            projection=where.projection,
            changed=changed,
            elements=spec.words,
            share=share(changed, spec.words) or 0.0,
            raw_bytes=changed * spec.type.word,
            patch_bytes=int(self.patch_bytes[number]),
        )

    @property
    def rows(self) -> Iterator[TensorRow]:
        """Every tensor, in the order of the names."""
        return map(self.row, range(len(self.table.specs)))

    @property
    def raw_bytes(self) -> int:
        """The changed elements themselves, as they are."""
        return sum(
            int(self.changed[number]) * self.table.specs[number].type.word
            for number in np.flatnonzero(self.changed).tolist()
        )
