"""What runs on several ranks, whole or killed, leave in `root/bulletin`."""

from __future__ import annotations

from pathlib import Path

from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.stores import open_store


def follow(root: Path) -> BulletinReader:
    reader = BulletinReader(open_store(str(root / "bulletin")))
    reader.refresh()
    return reader


def assert_nothing_of_the_dead_ranks_step_is_visible(root: Path, death: int) -> None:
    """A rank died at step `death` with its pack uploaded: the log ends before, and names none."""
    reader = follow(root)
    assert [commit.step for commit in reader.state.commits.values()] == list(range(death))
    named = sum(len(commit.packs) for commit in reader.state.commits.values())
    packs = list(open_store(str(root / "bulletin")).list_after("packs/"))
    assert len(packs) > named  # the dead rank had uploaded its own, which no record names
