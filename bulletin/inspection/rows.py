"""One line for each record and each version: what lists, charts and `skerry log` show.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from skerry.bulletin.inspection.view import View
from skerry.bulletin.records import Commit

Form = Literal["patch", "full", "full+patch"]
Standing = Literal["live", "abandoned", "retired"]
Kind = Literal["fence", "commit", "skip", "retire", "rotate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRow:
    """One slot of the log; its signature, if the run is signed, was verified with `key`.

    `version` is the one that a commit makes, or that a skip leads to.
    """

    seq: int
    time_ms: int
    epoch: int
    writer: str
    kind: Kind
    record_bytes: int
    signed: bool
    key: str | None
    version: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRow:
    """One version.

    `share` is `changed` over all `elements`, changed or not, tensors that did not change included;
    None when nobody compared.  `patch_bytes` are the packs of its own patch.  `bytes_per_changed`
    counts record and packs, `ratio` is `full_bytes` over the same; `full_bytes_exact` is false
    where the records tell the size of an ancestor's directory only.
    """

    version: int
    parent: int | None
    step: int
    form: Form
    state: Standing
    seq: int
    time_ms: int
    epoch: int
    writer: str
    signed: bool
    changed: int | None
    elements: int
    share: float | None
    patch_bytes: int | None
    record_bytes: int
    full_bytes: int | None
    full_bytes_exact: bool
    bytes_per_changed: float | None
    ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPage:
    """Some versions of the run, in order; `following` is where the next page goes on, if it does.

    Newest first, give it as `before`; oldest first, as `after`.
    """

    total: int
    newest: int | None
    versions: list[VersionRow]
    following: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPage:
    """Some slots of the log, oldest first; `following` is the `after` of the next page."""

    total: int
    records: list[RecordRow]
    following: int | None


def form(commit: Commit) -> Form:
    if commit.full is None:
        return "patch"
    return "full" if commit.base is None else "full+patch"


def standing(view: View, version: int) -> Standing:
    if version in view.state.retired:
        return "retired"
    return "abandoned" if version in view.state.abandoned else "live"


def share(changed: int | None, elements: int) -> float | None:
    """Return changed elements over all elements; of none, none changed."""
    if changed is None:
        return None
    return changed / elements if elements else 0.0


def version_row(view: View, version: int) -> VersionRow:
    """Raises VersionUnknown."""
    commit, seen = view.commit(version), view.seen(version)
    patch = None if commit.base is None else sum(ref.size for ref in commit.packs)
    full, exact = view.full_bytes(commit)
    wire = None if patch is None else patch + seen.nbytes
    return VersionRow(
        version=version,
        parent=commit.parent,
        step=commit.step,
        form=form(commit),
        state=standing(view, version),
        seq=seen.record.seq,
        time_ms=seen.record.time,
        epoch=seen.record.epoch,
        writer=seen.record.writer,
        signed=seen.record.signature is not None,
        changed=commit.changed,
        elements=commit.elements,
        share=share(commit.changed, commit.elements),
        patch_bytes=patch,
        record_bytes=seen.nbytes,
        full_bytes=full,
        full_bytes_exact=exact,
        bytes_per_changed=wire / commit.changed if wire and commit.changed else None,
        ratio=full / wire if wire and full is not None else None,
    )


def version_page(
    view: View,
    *,
    limit: int,
    before: int | None = None,
    after: int | None = None,
    oldest_first: bool = False,
    state: Standing | None = None,
) -> VersionPage:
    """Return the versions between `after` and `before`, both excluded, at most `limit` of them."""
    total = len(view.state.commits)
    low = 0 if after is None else min(after + 1, total)
    high = total if before is None else max(low, min(before, total))
    numbers: Iterable[int] = range(low, high) if oldest_first else range(high - 1, low - 1, -1)
    matching = (n for n in numbers if state is None or standing(view, n) == state)
    rows, following = _page(matching, limit)
    return VersionPage(
        total=total,
        newest=view.newest,
        versions=[version_row(view, number) for number in rows],
        following=following,
    )


def record_row(view: View, seq: int) -> RecordRow:
    seen = view.records[seq]
    record = seen.record
    version = getattr(record.body, "version", None)
    return RecordRow(
        seq=record.seq,
        time_ms=record.time,
        epoch=record.epoch,
        writer=record.writer,
        kind=record.kind,  # type: ignore[arg-type]  # the kinds that there are
        record_bytes=seen.nbytes,
        signed=record.signature is not None,
        key=seen.key,
        version=version,
    )


def record_page(view: View, *, limit: int, after: int | None = None) -> RecordPage:
    """Return the slots after `after`, at most `limit` of them."""
    total = len(view.records)
    first = 0 if after is None else min(after + 1, total)
    slots, following = _page(iter(range(first, total)), limit)
    return RecordPage(
        total=total, records=[record_row(view, seq) for seq in slots], following=following
    )


def _page(numbers: Iterator[int], limit: int) -> tuple[list[int], int | None]:
    """Return at most `limit` numbers, and the last of them if there are more."""
    page: list[int] = []
    for number in numbers:
        if len(page) == limit:
            return page, page[-1]
        page.append(number)
    return page, None
