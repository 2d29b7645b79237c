"""Adapters: versions that are of use with other weights only, and say which.

An adapter's checkpoint is published in a run of its own, like any other: small, full or as a patch.
The recipe in its layout and manifest names the base: the run, the version, and the digest of the
weights, so that nobody merges it into others.  Law: `AdapterBase.from_recipe(b.recipe()) == b`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from skerry.bulletin.errors import VersionUnknown
from skerry.bulletin.refs import MAX_INT
from skerry.bulletin.state import LogState
from skerry.codec.digest import Digest, parse_digest
from skerry.codec.errors import FormatError
from skerry.codec.strict_json import as_int, as_object, check_fields
from skerry.publisher.errors import BaseDiffers, BaseUnnamed

CONFIG_FILE = "adapter_config.json"  # of PEFT: a directory with it holds an adapter


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterBase:
    """The version that an adapter was trained on; `run` is the digest of its log's first record."""

    run: Digest
    version: int
    weights: Digest

    @classmethod
    def of(cls, state: LogState, version: int | None = None) -> AdapterBase:
        """Return a version, None: the newest, as a base.  Raises VersionUnknown."""
        commit = state.newest if version is None else state.commits.get(version)
        if commit is None or state.run is None:
            newest = None if state.newest is None else state.newest.version
            raise VersionUnknown(0 if version is None else version, newest=newest)
        return cls(run=state.run, version=commit.version, weights=commit.result)

    def recipe(self) -> dict[str, object]:
        """Return what the adapter's versions record."""
        base = {"run": self.run, "version": self.version, "weights": self.weights}
        return {"adapter": {"base": base}}

    @classmethod
    def from_recipe(cls, recipe: Mapping[str, object]) -> AdapterBase:
        """Return the base that a version's recipe names.  Raises BaseUnnamed."""
        try:
            adapter = as_object(recipe.get("adapter"), "adapter")
            base = as_object(adapter.get("base"), "base")
            check_fields(base, "base", "run", "version", "weights")
            return cls(
                run=parse_digest(base["run"]),
                version=as_int(base["version"], "version", 0, MAX_INT),
                weights=parse_digest(base["weights"]),
            )
        except FormatError as error:
            raise BaseUnnamed(f"the recipe names no base of an adapter: {error.rule}") from error

    def check(self, weights: Digest) -> None:
        """Raise BaseDiffers unless `weights`, a version's digest, are those of the base."""
        if weights != self.weights:
            raise BaseDiffers(
                expected=f"{self.weights} (version {self.version} of run {self.run})",
                found=str(weights),
            )
