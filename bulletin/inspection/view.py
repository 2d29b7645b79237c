"""All that a log says at one moment, and what a state does not keep of its records.  Pure.

Law: a view that has taken the records of a log one by one, or all at once, is the same view.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from skerry.bulletin.errors import VersionUnknown
from skerry.bulletin.growing import Growing
from skerry.bulletin.lineage import Graph, edges
from skerry.bulletin.records import Commit, Fence, Record, Rotate
from skerry.bulletin.state import LogState
from skerry.codec.digest import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One record of the log, its size as stored, and the key that verified it (None: unsigned)."""

    record: Record
    nbytes: int
    key: str | None


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """The log up to `state.seq`, every record of it.  Safe to read from any thread."""

    state: LogState = field(default_factory=LogState)
    records: Growing[Seen] = field(default_factory=Growing)
    _slots: Growing[int] = field(default_factory=Growing)  # of each version's commit
    _sizes: Mapping[Digest, int] = field(default_factory=dict)  # of directories, by layout
    _nearest: Growing[int | None] = field(default_factory=Growing)  # size of the last one known
    _key: str | None = None

    def after(self, records: Iterable[Record], state: LogState) -> View:
        """Return the view once `records` have been read, which have led to `state`."""
        seen, slots, nearest = self.records, self._slots, self._nearest
        sizes, key = dict(self._sizes), self._key
        for record in records:
            body = record.body
            if isinstance(body, Fence):
                key = None if body.key is None else body.key.hex
            seen = seen.append(Seen(record=record, nbytes=record.size, key=key))
            if isinstance(body, Rotate):
                key = body.key.hex
            elif isinstance(body, Commit):
                if body.full is not None:
                    sizes[body.layout] = body.full.nbytes
                inherited = None if body.parent is None else nearest[body.parent]
                nearest = nearest.append(sizes.get(body.layout, inherited))
                slots = slots.append(record.seq)
        return View(
            state=state, records=seen, _slots=slots, _sizes=sizes, _nearest=nearest, _key=key
        )

    @property
    def newest(self) -> int | None:
        return None if self.state.newest is None else self.state.newest.version

    def commit(self, version: int) -> Commit:
        """Raises VersionUnknown."""
        if version not in self.state.commits:
            raise VersionUnknown(version, newest=self.newest)
        return self.state.commits[version]

    def seen(self, version: int) -> Seen:
        """Return the record of a version's commit.  Raises VersionUnknown."""
        self.commit(version)
        return self.records[self._slots[version]]

    def full_bytes(self, commit: Commit) -> tuple[int | None, bool]:
        """Return the size of a version's directory, and whether it is that and not a guess.

        Records tell it of versions that have a full, and of those of the same layout; of others the
        guess is that of their nearest ancestor, None where there is none.
        """
        known = self._sizes.get(commit.layout)
        return (self._nearest[commit.version], False) if known is None else (known, True)

    @cached_property
    def graph(self) -> Graph:
        """Every step that can still be taken."""
        return Graph(edges(self.state))

    @cached_property
    def line(self) -> Mapping[int, int]:
        """The newest version and its ancestors: how many of them are newer than each."""
        behind: dict[int, int] = {}
        version = self.newest
        while version is not None:
            behind[version] = len(behind)
            version = self.state.commits[version].parent
        return behind

    @cached_property
    def children(self) -> Mapping[int, tuple[int, ...]]:
        """The versions that were made from each."""
        found: dict[int, list[int]] = {}
        for commit in self.state.commits.values():
            if commit.parent is not None:
                found.setdefault(commit.parent, []).append(commit.version)
        return {version: tuple(made) for version, made in found.items()}

    @cached_property
    def manifests(self) -> Mapping[Digest, int]:
        """A version that each manifest is of."""
        return {commit.manifest: commit.version for commit in self.state.commits.values()}

    def lag(self, version: int | None) -> int:
        """Count the versions of the newest one's line that are no ancestors of `version`.

        None, or a version that the log does not have, lacks all of them.
        """
        commits = self.state.commits
        while version is not None and version in commits and version not in self.line:
            version = commits[version].parent
        return len(self.line) if version is None else self.line.get(version, len(self.line))
