"""Full version, patch, or both: decided from sizes and the chain, without I/O.

An anchor carries a patch beside the full form, so that followers of its parent need not download
the full.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from skerry.bulletin.records import Commit
from skerry.publisher.config import PublisherConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The patches that lead from the nearest anchor to a version."""

    anchor: int
    versions: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a version is published as; at least one of the two."""

    patch: bool
    full: bool
    reason: str

    @property
    def kind(self) -> str:
        return "full" if self.full else "patch"


def chain_to(commits: Mapping[int, Commit], version: int) -> Chain:
    """Return the chain that ends in `version`, along its parents."""
    versions = nbytes = 0
    commit = commits[version]
    while commit.full is None and commit.parent is not None:
        versions += 1
        nbytes += commit.nbytes
        commit = commits[commit.parent]
    return Chain(anchor=commit.version, versions=versions, nbytes=nbytes)


def decide(
    *,
    chain: Chain | None,
    difference: str,
    patch_bytes: int | None,
    full_bytes: int,
    forced: bool,
    config: PublisherConfig,
    retired: bool = False,
) -> Decision:
    """Choose the form of the next version.

    `chain` leads to its parent, None for the first version; `difference` says how the structure
    changed; `patch_bytes` is None when there is no patch to choose, 0 when nothing changed;
    `retired` says that a record has given up an object of that very name.
    """
    if chain is None:
        return Decision(patch=False, full=True, reason="first version")
    if difference:
        return Decision(patch=False, full=True, reason=f"structure changed: {difference}")
    if patch_bytes is None:
        return Decision(patch=False, full=True, reason="forced, without the parent's bytes")
    if patch_bytes == 0 and not forced:
        return Decision(patch=True, full=False, reason="nothing changed")
    if retired:
        return Decision(patch=False, full=True, reason="the same patch was retired before")
    if patch_bytes >= full_bytes:
        return Decision(
            patch=False,
            full=True,
            reason=f"the patch has {patch_bytes} bytes, the full form {full_bytes}",
        )
    if forced:
        return Decision(patch=True, full=True, reason="forced")
    due = _anchor_due(chain, patch_bytes, full_bytes, config)
    if due:
        return Decision(patch=True, full=True, reason=f"anchor: {due}")
    return Decision(patch=True, full=False, reason="smaller than the full form")


def _anchor_due(chain: Chain, patch_bytes: int, full_bytes: int, config: PublisherConfig) -> str:
    versions, nbytes = chain.versions + 1, chain.nbytes + patch_bytes
    if config.anchor_versions is not None and versions >= config.anchor_versions:
        return f"{versions} versions since version {chain.anchor}"
    if config.anchor_ratio is not None and nbytes > config.anchor_ratio * full_bytes:
        return f"{nbytes} bytes of patches since version {chain.anchor}"
    return ""
