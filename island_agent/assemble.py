"""Builds one version in a directory that nobody reads yet: a full version, then patches over it.

The directory can be left half built at any time: what lies in it counts only after it was hashed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from skerry.bulletin.records import Full
from skerry.codec.digest import Digest
from skerry.codec.errors import ResultMismatch
from skerry.codec.layout import Layout
from skerry.codec.weights import WeightsDigest
from skerry.island_agent.checkpoint import Checkpoint
from skerry.island_agent.errors import ChainRefused
from skerry.island_agent.fetch import Fetcher
from skerry.island_agent.files import remove, sync_tree, tree_files
from skerry.island_agent.hooks import FILE_FETCHED, FULL_VERIFIED, Hook
from skerry.island_agent.install import check_result, load_packs, write_in_place
from skerry.island_agent.plan import Route

LayoutSource = Callable[[Digest], Layout]


def drop_others(directory: Path, sizes: Mapping[str, int]) -> None:
    """Remove every file that is none of these, by name and size: it only takes room."""
    for name, size in tree_files(directory).items():
        if sizes.get(name) != size:
            remove(directory / name)


def make_way(route: Route, directory: Path, fetcher: Fetcher) -> None:
    """Drop from directory and spool what earlier routes left and this one has no use for.

    Before anybody asks whether there is room: an agent's own leavings must not be in its way.  What
    lies in `directory` stays for a route without a full version.  Raises SpoolFull or OSError.
    """
    full = None if route.anchor is None else route.anchor.full
    fetcher.reserve(route.packs, keep=() if full is None else full.objects)
    if full is not None:
        drop_others(directory, {file.name: file.size for file in full.files})


def download(
    route: Route, directory: Path, fetcher: Fetcher, layouts: LayoutSource, hook: Hook
) -> None:
    """Fetch the anchor's files into `directory` and the packs into the spool, resuming both.

    `make_way` comes first.  Raises FetchError, ChainRefused (the full is not what its layout says),
    Stopped or OSError.
    """
    assert route.anchor is not None
    full = route.anchor.full
    check_files(full, layouts(route.anchor.held.layout))
    directory.mkdir(parents=True, exist_ok=True)
    for file, ref in zip(full.files, full.objects, strict=True):
        fetcher.fetch_to(ref, directory / file.name)
        hook(FILE_FETCHED)
    fetcher.fetch_all(route.packs)


def build(
    route: Route,
    directory: Path,
    spool: Path,
    layouts: LayoutSource,
    *,
    scratch: Path,
    hook: Hook,
    threads: int = 1,
) -> tuple[Layout, WeightsDigest]:
    """Verify the downloaded full, patch it to the target, verify that; all of it durable.

    Raises ResultMismatch, BaseMismatch, StructureMismatch, FormatError or MirrorDamaged.
    """
    assert route.anchor is not None
    layout = layouts(route.anchor.held.layout)
    checkpoint = Checkpoint(directory, layout, writable=True)
    if differences := checkpoint.differences():
        what = f"full version {route.anchor.held.version}"
        raise ResultMismatch(what=what, expected="its layout", found=differences[0])
    weights = checkpoint.hash_weights()
    check_result(weights, route.anchor.held)
    hook(FULL_VERIFIED)
    if not route.patches:
        sync_tree(directory)
        return layout, weights
    target_layout = layouts(route.target.layout)
    weights = write_in_place(
        checkpoint,
        weights,
        packs=load_packs(route.patches, spool, layout),
        target=route.target,
        layout=target_layout,
        scratch=scratch,
        hook=hook,
        threads=threads,
    )
    return target_layout, weights


def check_files(full: Full, layout: Layout) -> None:
    """Raises ChainRefused unless a full version has the files of its layout."""
    named = {file.name: file.size for file in full.files}
    expected = dict(layout.files())
    if named != expected:
        wrong = min(
            name for name in named.keys() | expected.keys() if named.get(name) != expected.get(name)
        )
        raise ChainRefused(
            f"{full.prefix}: {wrong} has {named.get(wrong)} bytes, its layout says "
            f"{expected.get(wrong)}"
        )
