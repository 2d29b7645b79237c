"""Everything about one version: what `skerry show` and the page's drill-down tell.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from skerry.bulletin.inspection.described import Described
from skerry.bulletin.inspection.rows import VersionRow, version_row
from skerry.bulletin.inspection.view import View
from skerry.bulletin.records import Commit
from skerry.codec.digest import Digest
from skerry.codec.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What is known of a record's signature.

    `verified`: made with `key`, to which signed rotations lead from the key of slot 0; `pinned`
    says whether that one was given by whoever started this reader, or taken as it was met.
    """

    state: Literal["verified", "unsigned"]
    key: str | None
    pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRow:
    """One object that a version's record names; `retired` ones may be deleted already."""

    key: str
    size: int
    digest: Digest
    retired: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionDetail:
    """One version, by the log alone."""

    row: VersionRow
    signature: Signature
    result: Digest
    base: Digest | None
    layout: Digest
    manifest: Digest
    packs: list[ObjectRow]
    full: str | None
    full_files: list[ObjectRow]
    children: list[int]
    lag: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """One file of a version's directory."""

    name: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a version's own layout and manifest add: exact sizes, and the side files that changed.

    `raw_bytes` are the changed elements themselves, as they are; None when nobody compared.
    `recipe` says how the served weights were made.
    """

    raw_bytes: int | None
    full_bytes: int
    tensors: int
    tensors_changed: int
    files: list[FileRow]
    side_files_changed: list[str]
    recipe: Mapping[str, object]


def version_detail(view: View, version: int) -> VersionDetail:
    """Raises VersionUnknown."""
    commit, seen = view.commit(version), view.seen(version)
    gone = view.state.retired_keys
    full = commit.full
    files = () if full is None else full.objects
    full_gone = full is not None and full.prefix in gone
    return VersionDetail(
        row=version_row(view, version),
        signature=Signature(
            state="unsigned" if seen.record.signature is None else "verified",
            key=seen.key,
            pinned=view.state.pinned_key is not None,
        ),
        result=commit.result,
        base=commit.base,
        layout=commit.layout,
        manifest=commit.manifest,
        packs=[
            ObjectRow(key=ref.key, size=ref.size, digest=ref.digest, retired=ref.key in gone)
            for ref in commit.packs
        ],
        full=None if full is None else full.prefix,
        full_files=[
            ObjectRow(key=ref.key, size=ref.size, digest=ref.digest, retired=full_gone)
            for ref in files
        ],
        children=list(view.children.get(version, ())),
        lag=view.line.get(version),
    )


def sizes(commit: Commit, described: Described) -> Sizes:
    """Return what only a version's descriptions tell."""
    return Sizes(
        raw_bytes=None if commit.changed is None else described.raw_bytes,
        full_bytes=described.layout.nbytes,
        tensors=len(described.table.specs),
        tensors_changed=int(np.count_nonzero(described.changed)),
        files=files_of(described.layout),
        side_files_changed=list(described.side_files),
        recipe=described.layout.recipe,
    )


def files_of(layout: Layout) -> list[FileRow]:
    return [FileRow(name=name, size=size) for name, size in layout.files()]
