"""How two versions differ, as far as the statistics of the versions between them tell.  Pure.

Each manifest compares a version with its parent, so the way from one version to another is up to
their nearest common ancestor and down again.  One step on it is exact.  Of several, an element that
changed twice was counted twice, and one that changed back is no difference: the sum is a bound.

Law: the true number of differing elements is at most `at_most`, and equal to it when `exact`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from skerry.bulletin.inspection.described import Described
from skerry.bulletin.inspection.table import Counts, TensorTable
from skerry.bulletin.inspection.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """From version `old` to version `new`.

    `compared` are the versions whose statistics lead from one to the other, None where they have
    no common ancestor; of those in `uncompared` nobody made any, and `at_most` is all `elements`.
    `layout_changed`: files, tensors or side files differ as well.
    """

    old: int
    new: int
    identical_weights: bool
    layout_changed: bool
    compared: list[int] | None
    uncompared: list[int]
    exact: bool
    at_most: int
    elements: int
    share_at_most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDifference:
    """At most `at_most` of a tensor's elements differ; `versions` of those compared changed it."""

    name: str
    layer: int | None
    projection: str
    elements: int
    at_most: int
    share_at_most: float
    versions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDifferences:
    """The tensors that may differ, most first, and those that only one of the versions has."""

    difference: Difference
    total: int
    tensors: list[TensorDifference]
    only_old: list[str]
    only_new: list[str]


def difference(view: View, old: int, new: int) -> Difference:
    """Raises VersionUnknown."""
    before, after = view.commit(old), view.commit(new)
    way = _way(view, old, new)
    counts = None if way is None else [view.commit(version).changed for version in way]
    uncompared = [] if way is None or counts is None else [
        version for version, changed in zip(way, counts, strict=True) if changed is None
    ]  # fmt: skip
    elements = max(before.elements, after.elements)
    same = before.result == after.result
    if same:
        at_most = 0
    elif counts is None or uncompared:
        at_most = elements
    else:
        at_most = min(elements, sum(changed or 0 for changed in counts))
    known = counts is not None and not uncompared
    return Difference(
        old=old,
        new=new,
        identical_weights=same,
        layout_changed=before.layout != after.layout,
        compared=way,
        uncompared=uncompared,
        exact=same or (known and len(counts or ()) == 1),
        at_most=at_most,
        elements=elements,
        share_at_most=at_most / elements if elements else 0.0,
    )


def tensor_differences(
    found: Difference, described: Mapping[int, Described], *, limit: int
) -> TensorDifferences:
    """Add up the manifests of `found.compared`; `described` has them, and both ends'."""
    old, new = described[found.old].table, described[found.new].table
    at_most, touched = _bounds(found, new, described)
    rows = []
    for number in np.flatnonzero(at_most).tolist():
        spec, where = new.specs[number], new.wheres[number]
        if spec.name not in old.numbers:
            continue
        rows.append(
            TensorDifference(
                name=spec.name,
                layer=where.layer,
                projection=where.projection,
                elements=spec.words,
                at_most=int(at_most[number]),
                share_at_most=int(at_most[number]) / spec.words,
                versions=int(touched[number]),
            )
        )
    rows.sort(key=lambda row: (-row.at_most, row.name))
    return TensorDifferences(
        difference=found,
        total=len(rows),
        tensors=rows[:limit],
        only_old=sorted(old.numbers.keys() - new.numbers.keys()),
        only_new=sorted(new.numbers.keys() - old.numbers.keys()),
    )


def _bounds(
    found: Difference, new: TensorTable, described: Mapping[int, Described]
) -> tuple[Counts, Counts]:
    """Return how many elements of each tensor of `new` may differ, and in how many versions it
    changed, both of shape [tensors]."""
    sums, touched = np.zeros_like(new.words), np.zeros_like(new.words)
    for version in found.compared or ():
        changed = described[version].onto(new)
        sums = np.minimum(new.words, sums + np.minimum(new.words, changed))
        touched += changed > 0
    if found.identical_weights:
        return np.zeros_like(sums), touched
    unknown = found.compared is None or bool(found.uncompared)
    return (new.words if unknown else sums), touched


def _way(view: View, old: int, new: int) -> list[int] | None:
    """Return the versions whose comparison with their parents leads from one to the other."""
    up: list[int] = []
    down: list[int] = []
    a: int | None = old
    b: int | None = new
    while a != b:  # a parent has a smaller number, so the larger of the two is no ancestor
        if b is None or (a is not None and a > b):
            assert a is not None
            up.append(a)
            a = view.commit(a).parent
        else:
            down.append(b)
            b = view.commit(b).parent
    return None if a is None else up + down[::-1]
