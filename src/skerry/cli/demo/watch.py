"""What the demo has seen so far: the trainer's events and the islands' installs, by version."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

Fields = Mapping[str, Any]


@dataclass(slots=True)
class EventFile:
    """Reads the trainer's JSON lines as they are written."""

    path: Path
    _at: int = 0

    def new(self) -> Iterator[Fields]:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # still being written
                self._at += len(line)
                yield json.loads(line)


@dataclass(slots=True)
class Seen:
    """The run so far.  `installs[island][version]` is an island's report of that install."""

    islands: Sequence[str]
    published: dict[int, Fields] = field(default_factory=dict)
    steps: dict[int, Fields] = field(default_factory=dict)
    rollouts: dict[int, int] = field(default_factory=dict)
    installs: dict[str, dict[int, Fields]] = field(default_factory=dict)
    failures: dict[str, Fields] = field(default_factory=dict)
    done: bool = False

    def event(self, fields: Fields) -> None:
        kind = fields["event"]
        if kind == "published":
            self.published[fields["version"]] = fields
        elif kind in ("step", "rollouts"):
            if kind == "step":
                self.steps[fields["version"]] = fields
            for version, count in fields["versions"].items():
                self.rollouts[int(version)] = self.rollouts.get(int(version), 0) + count
        elif kind == "done":
            self.done = True

    def status(self, island: str, status: Fields) -> None:
        agent = status["agent"]
        seen = self.installs.setdefault(island, {})
        seen.update({report["version"]: report for report in agent["history"]})
        if agent["failures"]:
            self.failures[island] = agent["failures"]

    def arrived(self) -> bool:
        """Say whether every island has installed the newest version."""
        newest = max(self.published, default=-1)
        return all(newest in self.installs.get(island, {}) for island in self.islands)

    def exact(self, island: str, version: int) -> bool | None:
        """Compare what the island installed with what the trainer published; None if it did not."""
        report = self.installs.get(island, {}).get(version)
        return None if report is None else report["digest"] == self.published[version]["digest"]

    def row(self, version: int) -> Fields:
        """Return one version's figures: sizes in bytes, times in seconds; None for none."""
        report = self.published[version]
        installs = [seen[version] for seen in self.installs.values() if version in seen]
        changed, patch = report["changed"], report["patch_bytes"]
        wire = None if patch is None else patch + report["record_bytes"]
        return {
            "version": version,
            "step": report["step"],
            "kind": report["kind"],
            "elements": report["elements"],
            "changed": changed,
            "changed_share": None if changed is None else changed / report["elements"],
            "patch_bytes": patch,
            "wire_bytes": wire,
            "full_bytes": report["full_bytes"],
            "bytes_per_changed": wire / changed if wire and changed else None,
            "ratio_to_full": report["full_bytes"] / wire if wire else None,
            "encode_s": report["seconds"].get("encode"),
            "verify_s": report["seconds"].get("verify"),
            "transfer_and_stage_s": max(
                (i["fetch_s"] + i["stage_s"] + i["journal_s"] for i in installs), default=None
            ),
            "pause_s": max((i["pause_s"] for i in installs), default=None),
            "rollouts": self.rollouts.get(version, 0),
            "reward": self.steps[version]["reward"] if version in self.steps else None,
            "exact": {island: self.exact(island, version) for island in self.islands},
        }

    def rows(self) -> list[Fields]:
        return [self.row(version) for version in sorted(self.published)]

    def table(self) -> Table:
        """Return the live table."""
        table = Table(title="versions", title_justify="left")
        for column in (
            "version", "changed", "B/changed", "patch", "full/patch", "encode",
            "fetch+stage", "pause", "reward", "rollouts", *self.islands,
        ):  # fmt: skip
            table.add_column(column, justify="right", no_wrap=True)
        for row in self.rows():
            share, per = row["changed_share"], row["bytes_per_changed"]
            table.add_row(
                str(row["version"]),
                "full" if share is None else f"{share:.3%}",
                "" if per is None else f"{per:.3f}",
                f"{row['wire_bytes'] or row['full_bytes']:,} B",
                "" if row["ratio_to_full"] is None else f"{row['ratio_to_full']:,.0f} x",
                _seconds(row["encode_s"]),
                _seconds(row["transfer_and_stage_s"]),
                "" if row["pause_s"] is None else f"{1000 * row['pause_s']:.0f} ms",
                "" if row["reward"] is None else f"{row['reward']:.3f}",
                str(row["rollouts"]),
                *(_verdict(exact) for exact in row["exact"].values()),
            )
        return table


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def _verdict(exact: bool | None) -> str:
    if exact is None:
        return "…"
    return "exact" if exact else "DIFFERS"
