"""How another process reads a mirror that its agent may be changing.

A patch is written in place, so for a moment `mirror/` is a mixture, and a full version takes its
place by two renames.  Around each of these a file lies in `journal/`, and the marker is written
anew before that file goes.  So what was read between two equal looks is the version they name:

    before = look(root)
    ...  # read or copy root/mirror
    if before is None or look(root) != before:
        ...  # it was changing: begin again

A reader locks nothing and delays nobody; a map of a shard is not a read, its words may change.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from skerry.codec.errors import FormatError
from skerry.island_agent.errors import MirrorDamaged
from skerry.island_agent.marker import Held, Marker
from skerry.island_agent.state import Places


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
    if places.install_record.exists() or places.swap_intent.exists():
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
