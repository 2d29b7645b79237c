"""Changed share by layer and projection over many versions: the columns of a heat map.  Pure.

Law: a column is what `cells.layers` says of its version, and the last version asked for is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from skerry.bulletin.inspection.cells import Cell, axes
from skerry.bulletin.inspection.described import Described
from skerry.bulletin.inspection.names import Place
from skerry.bulletin.inspection.rows import share
from skerry.bulletin.inspection.view import View

NOT_YET = "not read yet: ask again"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatColumn:
    """One version: per row of the map the elements that changed, of how many; None: no such row.

    `why` says why nothing is known of a version: nobody compared it, or its manifest is gone.
    """

    version: int
    why: str | None
    changed: list[int | None]
    elements: list[int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatRow:
    """One row: a projection in one layer."""

    layer: int | None
    projection: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """`columns` versions, of the `asked` ones between `first` and `last`, evenly chosen.

    `unread` of them are not read yet: who asks again is told more.
    """

    first: int
    last: int
    asked: int
    unread: int
    rows: list[HeatRow]
    columns: list[HeatColumn]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPoint:
    """One tensor in one version; None where nothing is known, and then `why`."""

    version: int
    changed: int | None
    elements: int | None
    share: float | None
    patch_bytes: int | None
    why: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorHistory:
    """One tensor over some versions, evenly chosen of those between `first` and `last`.

    `unread` of them are not read yet: who asks again is told more.
    """

    name: str
    first: int
    last: int
    asked: int
    unread: int
    points: list[TensorPoint]


def sampled(view: View, first: int, last: int, columns: int) -> list[int]:
    """Return at most `columns` versions that still have a place in the run, the last one included.

    All of them if that is not too many, else the multiples of a power of two: when a version comes
    the others stay the same, and what was read of them is of use.  Retired ones are left out unless
    there is nothing else: their manifests may be gone.
    """
    versions = [v for v in range(first, last + 1) if v not in view.state.retired]
    versions = versions or list(range(first, last + 1))
    *others, newest = versions
    if columns == 1:
        return [newest]
    stride = 1
    while len(others) >= columns:
        stride *= 2
        others = [version for version in others if version % stride == 0]
    return [*others, newest]


def heat_map(
    first: int, last: int, known: Mapping[int, Mapping[Place, Cell]], unknown: Mapping[int, str]
) -> HeatMap:
    """Put the versions that are `known`, and those of which is said why not, side by side."""
    found, projections = axes(known.values())
    here = set().union(*known.values()) if known else set[Place]()
    places = [Place(la, pr) for la in found for pr in projections if Place(la, pr) in here]
    columns = []
    for version in sorted(known.keys() | unknown.keys()):
        cells = [known.get(version, {}).get(where) for where in places]
        columns.append(
            HeatColumn(
                version=version,
                why=unknown.get(version),
                changed=[None if cell is None else cell.changed for cell in cells],
                elements=[None if cell is None else cell.elements for cell in cells],
            )
        )
    return HeatMap(
        first=first,
        last=last,
        asked=last - first + 1,
        unread=_unread(unknown),
        rows=[HeatRow(layer=where.layer, projection=where.projection) for where in places],
        columns=columns,
    )


def tensor_point(name: str, version: int, described: Described) -> TensorPoint:
    """Return what one version's description says of one tensor."""
    number = described.table.numbers.get(name)
    if number is None:
        return nothing_known(version, "no such tensor")
    changed, elements = int(described.changed[number]), described.table.specs[number].words
    return TensorPoint(
        version=version,
        changed=changed,
        elements=elements,
        share=share(changed, elements),
        patch_bytes=int(described.patch_bytes[number]),
        why=None,
    )


def nothing_known(version: int, why: str) -> TensorPoint:
    return TensorPoint(
        version=version, changed=None, elements=None, share=None, patch_bytes=None, why=why
    )


def tensor_history(
    name: str,
    first: int,
    last: int,
    known: Mapping[int, TensorPoint],
    unknown: Mapping[int, str],
) -> TensorHistory:
    """Follow one tensor through versions that are `known`."""
    points = {**known, **{v: nothing_known(v, why) for v, why in unknown.items()}}
    return TensorHistory(
        name=name,
        first=first,
        last=last,
        asked=last - first + 1,
        unread=_unread(unknown),
        points=[points[version] for version in sorted(points)],
    )


def _unread(unknown: Mapping[int, str]) -> int:
    return sum(why == NOT_YET for why in unknown.values())
