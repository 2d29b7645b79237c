"""What a version changed by layer and projection: the cells of a map.  Pure.

Law: summed over all cells, elements are the layout's and changes the manifest's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from skerry.bulletin.inspection.described import Described
from skerry.bulletin.inspection.names import Place, reading_order
from skerry.bulletin.inspection.rows import share

PLACES_MOST = 4096  # of a map: no model has as many, and nobody could see them


class TooManyPlaces(Exception):
    """A layout whose tensors are in more layers and projections than a map shows."""

    def __init__(self, found: int) -> None:
        super().__init__(
            f"expected at most {PLACES_MOST} pairs of layer and projection, found {found}: "
            "ask for tensors by the start of their names"
        )


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


def cells(described: Described) -> Mapping[Place, Cell]:
    """Add up tensors by layer and projection, in the order of a model's own.

    Raises TooManyPlaces.
    """
    table = described.table
    if len(table.places) > PLACES_MOST:
        raise TooManyPlaces(len(table.places))
    sums = (
        table.tensors_of, table.by_place(described.changed), table.words_of,
        table.by_place(described.patch_bytes),
    )  # fmt: skip
    figures = zip(*(column.tolist() for column in sums), strict=True)
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
        for where, (tensors, changed, elements, nbytes) in zip(table.places, figures, strict=True)
    }


def layers(version: int, described: Described, *, compared: bool) -> Layers:
    """Raises TooManyPlaces."""
    table = cells(described)
    found, projections = axes([table])
    return Layers(
        version=version,
        compared=compared,
        layers=list(found),
        projections=list(projections),
        cells=list(table.values()),
    )


def axes(
    tables: Iterable[Mapping[Place, Cell]],
) -> tuple[Sequence[int | None], Sequence[str]]:
    """Return the layers and the projections that there are, in the order of a model's own."""
    places = sorted({where for table in tables for where in table}, key=reading_order)
    found = dict.fromkeys(where.layer for where in places)
    apart = sorted(places, key=lambda where: reading_order(where)[2:])
    inside = [where.projection for where in apart if where.layer is not None]
    return list(found), list(dict.fromkeys(inside + [where.projection for where in apart]))
