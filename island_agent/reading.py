"""How another process reads a mirror that its agent may be changing.

A patch is written in place, so for a moment `mirror/` is a mixture, a full version takes its place
by two renames, and damaged bytes are repaired in place.  Around each of these a file lies in
`journal/`, and the marker is written anew before that file goes.  So what was read between two
equal looks is the version they name:

    before = look(root)
    ...  # read or copy root/mirror
    if before is None or look(root) != before:
        ...  # it was changing: begin again

A reader locks nothing and delays nobody; a map of a shard is not a read, its words may change.
Who wants to map a version takes a `copy_version` of it, which nobody writes to: where the file
system shares blocks between files (XFS, Btrfs) it costs neither time nor room.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from skerry.codec.errors import FormatError
from skerry.island_agent.errors import MirrorDamaged, SelectionRefused
from skerry.island_agent.files import copy_file, remove, tree_files
from skerry.island_agent.marker import Held, Marker
from skerry.island_agent.state import Places

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Look:
    """What the mirror held, and which of all markers said so."""

    held: Held
    inode: int
    modified_ns: int
    part: str | None = None  # the selection, where `mirror.partial` holds only that part


def look(root: Path) -> Look | None:
    """Say what the island's mirror holds; None while it changes or when nothing sound is held.

    Raises MirrorDamaged.
    """
    places = Places(root)
    # The record goes after the marker was written, so it is looked for before that is read.
    if any(
        path.exists() for path in (places.install_record, places.swap_intent, places.repair_record)
    ):
        return None
    try:
        with places.marker.open("rb") as file:
            found = os.fstat(file.fileno())
            marker = Marker.from_bytes(file.read())
    except FileNotFoundError:
        return None
    except FormatError as error:
        raise MirrorDamaged(f"marker: {error}") from error
    if marker.held is None:
        return None
    return Look(marker.held, found.st_ino, found.st_mtime_ns, marker.part)


def copy_version(root: Path, target: Path, *, partial: bool = False) -> Held | None:
    """Copy what the mirror holds to the new directory `target`, which then stays as it is.

    A mirror of a part is copied for who says `partial`, and then no other: its files have holes.
    Returns what it is; None, and nothing is left, if the mirror was changing or holds nothing.
    Raises FileExistsError, SelectionRefused, MirrorDamaged or OSError.
    """
    before = look(root)
    if before is None:
        return None
    if partial != (before.part is not None):
        raise SelectionRefused(
            f"{root} mirrors {before.part or 'whole versions'}, asked for a copy of "
            f"{'a part' if partial else 'whole versions'}"
        )
    mirror = Places(root, partial=partial).mirror
    target.mkdir(parents=True)
    try:
        ways = set()
        for name in tree_files(mirror):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            ways.add(copy_file(mirror / name, target / name))
    except FileNotFoundError:  # it is being replaced: the look below says so
        before = None
    except BaseException:
        remove(target)
        raise
    if before is None or look(root) != before:
        remove(target)
        return None
    logger.info(
        "mirror copied version=%d to=%s by=%s",
        before.held.version, target, "+".join(sorted(ways)),
    )  # fmt: skip
    return before.held
