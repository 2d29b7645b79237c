"""The tensors of one version, a page at a time.  Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from skerry.bulletin.inspection.described import Described, TensorRow
from skerry.bulletin.inspection.rows import share

NO_LAYER = -1

Order = Literal["name", "share", "changed", "bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPage:
    """Tensors of one version; `compared` is false where nobody compared it with a parent."""

    version: int
    compared: bool
    total: int
    offset: int
    tensors: list[TensorRow]


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
    table = described.table
    found = [
        number
        for number, (spec, where) in enumerate(zip(table.specs, table.wheres, strict=True))
        if spec.name.startswith(prefix)
        and (layer is None or where.layer == wanted)
        and projection in (None, where.projection)
    ]
    if order != "name":
        found.sort(key=_figures(described, order), reverse=True)
    return TensorPage(
        version=version,
        compared=compared,
        total=len(found),
        offset=offset,
        tensors=[described.row(number) for number in found[offset : offset + limit]],
    )


def _figures(described: Described, order: Order) -> Callable[[int], float]:
    changed: list[int] = described.changed.tolist()
    if order == "bytes":
        nbytes: list[int] = described.patch_bytes.tolist()
        return nbytes.__getitem__
    if order == "changed":
        return changed.__getitem__
    specs = described.table.specs
    return lambda number: share(changed[number], specs[number].words) or 0.0
