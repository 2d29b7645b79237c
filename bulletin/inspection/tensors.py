"""What a version changed, tensor by tensor and layer by layer.  Pure: a layout and a manifest in.

Law: summed over all rows, or over all cells, elements are the layout's and changes the manifest's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from skerry.bulletin import keys
from skerry.bulletin.errors import RecordInvalid
from skerry.bulletin.inspection.names import Place, place
from skerry.bulletin.inspection.rows import share
from skerry.bulletin.manifest import Manifest
from skerry.bulletin.records import Commit
from skerry.codec.layout import Layout

NO_LAYER = -1

Order = Literal["name", "share", "changed", "bytes"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPage:
    """Tensors of one version; `compared` is false where nobody compared it with a parent."""

    version: int
    compared: bool
    total: int
    offset: int
    tensors: list[TensorRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """All tensors of one projection in one layer."""

    layer: int | None
    projection: str
    tensors: int
    changed: int
    elements: int
    share: float
    patch_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """One version's changes by layer and projection."""

    version: int
    compared: bool
    layers: list[int | None]
    projections: list[str]
    cells: list[Cell]


@dataclass(frozen=True, eq=False)
class Described:
    """A version's layout and manifest, which fit each other: `of` checks that."""

    layout: Layout
    manifest: Manifest

    @classmethod
    def of(cls, commit: Commit, layout: Layout, manifest: Manifest) -> Described:
        """Raises RecordInvalid for a manifest of another layout, or that names what it lacks."""
        what = keys.manifest(commit.manifest)
        if manifest.layout != commit.layout:
            raise RecordInvalid(what, "names another layout")
        words = {spec.name: spec.words for spec in layout.tensors}
        for stat in manifest.tensors:
            if stat.name not in words:
                rule = f"names tensor {stat.name!r:.120}, which the layout lacks"
                raise RecordInvalid(what, rule)
            if stat.words != words[stat.name]:
                rule = f"{stat.name!r:.120} has {words[stat.name]} words, not {stat.words}"
                raise RecordInvalid(what, rule)
        return cls(layout, manifest)

    @cached_property
    def rows(self) -> tuple[TensorRow, ...]:
        """Every tensor, in the order of the names."""
        stats = {stat.name: stat for stat in self.manifest.tensors}
        rows = []
        for spec in self.layout.tensors:
            stat, where = stats.get(spec.name), place(spec.name)
            changed = 0 if stat is None else stat.changed
            rows.append(
                TensorRow(
                    name=spec.name,
                    dtype=spec.dtype,
                    shape=list(spec.shape),
                    layer=where.layer,
                    projection=where.projection,
                    changed=changed,
                    elements=spec.words,
                    share=share(changed, spec.words) or 0.0,
                    raw_bytes=changed * spec.type.word,
                    patch_bytes=0 if stat is None else stat.nbytes,
                )
            )
        return tuple(rows)

    @cached_property
    def cells(self) -> Mapping[Place, Cell]:
        return cells(self.rows)


def cells(rows: Iterable[TensorRow]) -> Mapping[Place, Cell]:
    """Add up tensors by layer and projection."""
    sums: dict[Place, list[int]] = {}
    for row in rows:
        total = sums.setdefault(Place(row.layer, row.projection), [0, 0, 0, 0])
        for i, figure in enumerate((1, row.changed, row.elements, row.patch_bytes)):
            total[i] += figure
    return {
        where: Cell(
            layer=where.layer,
            projection=where.projection,
            tensors=tensors,
            changed=changed,
            elements=elements,
            share=share(changed, elements) or 0.0,
            patch_bytes=nbytes,
        )
        for where, (tensors, changed, elements, nbytes) in sums.items()
    }


def tensor_page(
    version: int,
    described: Described,
    *,
    compared: bool,
    limit: int,
    offset: int = 0,
    order: Order = "name",
    prefix: str = "",
    layer: int | None = None,
    projection: str | None = None,
) -> TensorPage:
    """Return tensors whose names start with `prefix`, of one layer (-1: of none), of one
    projection."""
    wanted = None if layer == NO_LAYER else layer
    rows = [
        row
        for row in described.rows
        if row.name.startswith(prefix)
        and (layer is None or row.layer == wanted)
        and projection in (None, row.projection)
    ]
    if order != "name":
        figure = {"share": "share", "changed": "changed", "bytes": "patch_bytes"}[order]
        rows.sort(key=lambda row: getattr(row, figure), reverse=True)
    return TensorPage(
        version=version,
        compared=compared,
        total=len(rows),
        offset=offset,
        tensors=rows[offset : offset + limit],
    )


def layers(version: int, described: Described, *, compared: bool) -> Layers:
    found, projections = axes([described.cells])
    return Layers(
        version=version,
        compared=compared,
        layers=list(found),
        projections=list(projections),
        cells=[described.cells[where] for where in ordered(described.cells)],
    )


def axes(
    tables: Iterable[Mapping[Place, Cell]],
) -> tuple[Sequence[int | None], Sequence[str]]:
    """Return the layers and the projections that there are, in the order of a model's own."""
    places = dict.fromkeys(where for table in tables for where in ordered(table))
    found = sorted({w.layer for w in places}, key=_layer_order)
    return found, list(dict.fromkeys(where.projection for where in places))


def ordered(table: Mapping[Place, Cell]) -> list[Place]:
    return sorted(table, key=lambda where: (_layer_order(where.layer), where.projection))


def _layer_order(layer: int | None) -> tuple[bool, int]:
    return layer is None, layer or 0  # what is in no layer comes last
