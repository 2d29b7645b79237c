"""The directories of an island and its small state files.

    DIR/mirror/            the version, a plain Hugging Face directory: the layout's files only
    DIR/mirror.partial/    in its place where a part is mirrored: the same files, with holes
    DIR/mirror.incoming/   a full version under way      DIR/mirror.outgoing/   the one it replaced
    DIR/journal/install    the install record            DIR/journal/swap       the intent of a swap
    DIR/journal/repair     a repair under way
    DIR/spool/             objects under way
    DIR/comparing/         patches between two versions that somebody has compared
    DIR/state/             lock, marker, layouts/<digest>, weights/<digest>

Layouts and leaf digests are written before the marker names them and removed after it no longer
does.  Other processes read the mirror as `reading` says.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from skerry.codec.digest import Digest
from skerry.codec.errors import FormatError
from skerry.codec.layout import Layout
from skerry.codec.weights import WeightsDigest
from skerry.island_agent.errors import MirrorBusy, MirrorDamaged
from skerry.island_agent.files import (
    TEMPORARY,
    remove,
    seal,
    sync_directory,
    unseal,
    write_atomically,
)
from skerry.island_agent.marker import Held, Marker
from skerry.island_agent.parts import is_damage

logger = logging.getLogger(__name__)

PARTIAL = "mirror.partial"


@dataclass(frozen=True, slots=True)
class Places:
    """Where everything of one island lies below `root`.

    A partial mirror has another name: who expects a whole version must not find one with holes.
    """

    root: Path
    partial: bool = False

    @property
    def mirror(self) -> Path:
        return self.root / (PARTIAL if self.partial else "mirror")

    @property
    def incoming(self) -> Path:
        return self.root / "mirror.incoming"

    @property
    def outgoing(self) -> Path:
        return self.root / "mirror.outgoing"

    @property
    def spool(self) -> Path:
        return self.root / "spool"

    @property
    def comparing(self) -> Path:
        return self.root / "comparing"

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def marker(self) -> Path:
        return self.state / "marker"

    @property
    def install_record(self) -> Path:
        return self.root / "journal" / "install"

    @property
    def swap_intent(self) -> Path:
        return self.root / "journal" / "swap"

    @property
    def repair_record(self) -> Path:
        return self.root / "journal" / "repair"

    def create(self) -> None:
        """Make the directories; their names below `root` are durable."""
        for path in (self.spool, self.state / "layouts", self.state / "weights"):
            path.mkdir(parents=True, exist_ok=True)
        self.install_record.parent.mkdir(exist_ok=True)
        for path in (self.state, self.root):
            sync_directory(path)

    def drop_temporaries(self) -> None:
        """Remove what a crash left half written: nothing refers to it."""
        for folder in (self.state, self.install_record.parent):
            for path in folder.rglob(f"*{TEMPORARY}"):
                path.unlink()


class State:
    """The state files of one island, exclusively locked as long as this object is open."""

    def __init__(self, places: Places, part: str | None = None) -> None:
        """Lock the island's directory, made if need be.  Raises MirrorBusy.

        `part` is the text of the selection that every marker is to carry.
        """
        self.places = places
        self.part = part
        self._layouts: dict[Digest, Layout] = {}
        self._weights: dict[Digest, WeightsDigest] = {}
        places.create()
        self._lock = os.open(places.state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            places.drop_temporaries()
        except BlockingIOError as error:
            self.close()
            raise MirrorBusy(f"{places.root}: another process holds this directory") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock.  Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def marker(self) -> Marker | None:
        """Return the marker; None before the first one.  Raises MirrorDamaged."""
        try:
            return Marker.from_bytes(self.places.marker.read_bytes())
        except FileNotFoundError:
            return None
        except FormatError as error:
            raise MirrorDamaged(f"marker: {error}") from error

    def set_marker(self, marker: Marker) -> None:
        """Move the marker atomically, then drop the layouts and leaf digests of other versions."""
        write_atomically(self.places.marker, replace(marker, part=self.part).to_bytes())
        held = marker.held
        layout, weights = (None, None) if held is None else (held.layout, held.weights)
        self._layouts = {d: kept for d, kept in self._layouts.items() if d == layout}
        self._weights = {d: kept for d, kept in self._weights.items() if d == weights}
        for folder, digest in (("layouts", layout), ("weights", weights)):
            for path in (self.places.state / folder).iterdir():
                if path.name != digest:
                    remove(path)

    def put(self, held: Held, layout: Layout, weights: WeightsDigest) -> None:
        """Make layout and leaf digests durable, before anything names them."""
        layouts, digests = self.places.state / "layouts", self.places.state / "weights"
        write_atomically(layouts / held.layout, seal(layout.to_bytes()))
        write_atomically(digests / held.weights, seal(weights.to_bytes()))
        self._layouts[held.layout], self._weights[held.weights] = layout, weights

    def restore(self, marker: Marker, layout: Layout, weights: WeightsDigest) -> list[str]:
        """Write each file anew that does not say this; return the names of those that did not."""
        held = marker.held
        assert held is not None

        def says_layout() -> bool:
            return self._sealed("layouts", held.layout) == layout.to_bytes()

        def says_weights() -> bool:
            stored = self._sealed("weights", held.weights)
            return WeightsDigest.from_bytes(stored, layout) == weights

        def says_held() -> bool:
            return self.marker() == replace(marker, part=self.part)

        wrong = []
        for name, says in (("layout", says_layout), ("leaf digests", says_weights)):
            if not _is_sound(says):
                wrong.append(name)
        if wrong:
            self.put(held, layout, weights)
        if not _is_sound(says_held):
            wrong.append("marker")
            self.set_marker(marker)
        for name in wrong:
            logger.error("state damaged and written anew version=%d file=%s", held.version, name)
        return wrong

    def layout(self, digest: Digest) -> Layout:
        """Return a stored layout.  Raises MirrorDamaged."""
        if digest in self._layouts:
            return self._layouts[digest]
        try:
            return Layout.from_bytes(self._sealed("layouts", digest))
        except FormatError as error:
            raise MirrorDamaged(f"layout {digest}: {error}") from error

    def weights(self, held: Held) -> WeightsDigest:
        """Return stored leaf digests, checked to be those of `held`.  Raises MirrorDamaged."""
        if held.weights in self._weights:
            return self._weights[held.weights]
        try:
            stored = self._sealed("weights", held.weights)
            weights = WeightsDigest.from_bytes(stored, self.layout(held.layout))
        except FormatError as error:
            raise MirrorDamaged(f"leaf digests: {error}") from error
        if weights.version() != held.weights:
            raise MirrorDamaged(f"leaf digests give {weights.version()}, not {held.weights}")
        return weights

    def _sealed(self, folder: str, digest: Digest) -> bytes:
        try:
            return unseal((self.places.state / folder / digest).read_bytes(), folder)
        except (FileNotFoundError, FormatError) as error:
            raise MirrorDamaged(f"state/{folder}/{digest}: {error}") from error


def _is_sound(says: Callable[[], bool]) -> bool:
    try:
        return says()
    except (FormatError, MirrorDamaged):
        return False
    except OSError as error:
        if is_damage(error):
            return False
        raise
