"""A full version takes the mirror's place: two renames, made one step by an intent on disk.

    journal/swap written        the incoming directory is complete, verified and durable
    mirror -> mirror.outgoing   } between these two there is no mirror, only the intent
    mirror.incoming -> mirror   }
    marker moved                the mirror is the new version
    journal/swap removed, mirror.outgoing removed

`finish_swap` does whatever of this is still to do, so a crash anywhere is finished by calling it
again.  An intent that cannot be read does not say how far that went: the mirror is then suspect.
"""

from __future__ import annotations

import logging

from skerry.codec.errors import FormatError
from skerry.island_agent.files import remove, rename, write_atomically
from skerry.island_agent.hooks import Hook
from skerry.island_agent.marker import Marker
from skerry.island_agent.state import State

logger = logging.getLogger(__name__)


def swap_in(state: State, marker: Marker, *, hook: Hook) -> None:
    """Put the assembled directory in the mirror's place; its layout and leaf digests are stored."""
    remove(state.places.outgoing)  # and make the incoming directory's name durable, beside it
    state.places.install_record.unlink(missing_ok=True)
    write_atomically(state.places.swap_intent, marker.to_bytes())
    hook("swap-intended")
    finish_swap(state, hook=hook)


def finish_swap(state: State, *, hook: Hook) -> bool:
    """Finish a swap that was intended.  Idempotent.

    Returns whether the mirror may be another version than the marker names, because the intent is
    damaged; who has looked removes it.
    """
    places = state.places
    try:
        marker = Marker.from_bytes(places.swap_intent.read_bytes())
    except FileNotFoundError:
        remove(places.outgoing)
        return False
    except FormatError:
        logger.warning("swap intent discarded: it is damaged")
        if not places.mirror.exists() and places.outgoing.exists():
            rename(places.outgoing, places.mirror)
        remove(places.outgoing)
        return True
    if places.incoming.exists():
        if places.mirror.exists():
            rename(places.mirror, places.outgoing)
        hook("old-moved")
        rename(places.incoming, places.mirror)
    hook("new-moved")
    state.set_marker(marker)
    if marker.held is not None:
        logger.info(
            "mirror swapped version=%d weights=%s", marker.held.version, marker.held.weights
        )
    hook("marker-moved")
    remove(places.swap_intent)
    remove(places.outgoing)
    return False
