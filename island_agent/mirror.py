"""An island's byte-exact copy of one version, on disk.

Law: whatever happens to the process, after `Mirror.open` the directory `mirror/` is exactly one
published version and the marker names it, or the marker says that nothing sound is held.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from pathlib import Path

from skerry.codec.digest import Digest
from skerry.codec.errors import FormatError
from skerry.codec.layout import Layout
from skerry.codec.pack import Pack
from skerry.codec.weights import WeightsDigest
from skerry.island_agent import install, swap
from skerry.island_agent.checkpoint import Checkpoint, weight_differences
from skerry.island_agent.errors import (
    JournalInvalid,
    MirrorDamaged,
    RunMismatch,
    RunUnknown,
    SelectionRefused,
)
from skerry.island_agent.files import remove, sync_tree, tree_files, write_atomically
from skerry.island_agent.hooks import Hook, no_hook
from skerry.island_agent.journal import Journal
from skerry.island_agent.marker import Held, Marker
from skerry.island_agent.repair import Repair
from skerry.island_agent.selection import Part, Selection
from skerry.island_agent.state import Places, State
from skerry.publisher.threads import thread_count

logger = logging.getLogger(__name__)


class Mirror:
    """One open mirror; only `open` makes one.  Not for concurrent use."""

    def __init__(
        self, state: State, hook: Hook, threads: int, selection: Selection | None = None
    ) -> None:
        self._state = state
        self._selection = selection
        self._part: Part | None = None
        self._hook = hook
        self.threads = threads
        self._marker: Marker | None = None
        self._checkpoint: Checkpoint | None = None
        self._weights: WeightsDigest | None = None
        self._unsettled = True
        self._condemned = False  # in memory, but not yet in the marker
        self.damage: str | None = None

    @classmethod
    def open(
        cls,
        root: Path,
        *,
        verify: bool = True,
        hook: Hook = no_hook,
        threads: int | None = None,
        selection: Selection | None = None,
    ) -> Mirror:
        """Lock the island's directory, finish what a crash interrupted, and look at what is held.

        `verify` hashes every byte; `threads` decode, None: one for each usable CPU.  A damaged
        mirror opens as one that holds nothing; `damage` says why.  With a `selection` it holds that
        part of every version.  Raises MirrorBusy, or SelectionRefused if another part lies there.
        """
        text = None if selection is None else str(selection)
        count = thread_count(threads)
        state = State(Places(root, partial=selection is not None), text)
        mirror = cls(state, hook, count, selection)
        try:
            mirror._check_part(text)
            mirror.settle()
            if verify and mirror.held is not None:
                mirror.check()
        except BaseException:
            mirror.close()
            raise
        return mirror

    @property
    def places(self) -> Places:
        return self._state.places

    @property
    def directory(self) -> Path:
        """The plain directory that any engine can load while `held` is not None.

        In this process, and between passes: `reading` says how another process reads it.
        """
        return self.places.mirror

    @property
    def run(self) -> Digest | None:
        return None if self._marker is None else self._marker.run

    @property
    def held(self) -> Held | None:
        return None if self._marker is None else self._marker.held

    @property
    def version(self) -> int | None:
        return None if self.held is None else self.held.version

    @property
    def is_settled(self) -> bool:
        """Whether nothing that was begun is half done: the bytes are those of `held`."""
        return not self._unsettled

    @property
    def part(self) -> Part | None:
        """What is held of the version; None: all of it, or nothing."""
        return self._part

    @property
    def selection(self) -> Selection | None:
        return self._selection

    def bind(self, run: Digest) -> None:
        """Follow `run` from now on.

        Raises RunMismatch if the mirror follows another one, RunUnknown if it follows one and no
        marker says which.
        """
        if self._marker is None:
            if tree_files(self.directory):
                raise RunUnknown(
                    f"{self.directory} holds files and {self.damage or 'no marker'}: remove it if "
                    f"it may be replaced by run {run}"
                )
            self._set_marker(Marker(run=run, held=None))
        elif self._marker.run != run:
            raise RunMismatch(
                f"{self.places.root} follows run {self._marker.run}, the log is of run {run}"
            )

    def settle(self) -> None:
        """Finish an install or a swap that was interrupted, by a crash or by an error.

        Cheap when there is nothing to finish.
        """
        if self._condemned:
            self._write_condemned()
        if not self._unsettled:
            if not self.places.install_record.exists():
                return
            self._unsettled = True  # until the record could be read
            if self._is_done():
                self._unsettled = False
                self.acknowledge()
                return
        suspect = swap.finish_swap(self._state, hook=self._hook)
        try:
            self._load()
            suspect |= self._finish_repair()
            suspect |= self._finish_install()
            self._remove_strays()
        except (MirrorDamaged, OSError) as error:
            if isinstance(error, OSError) and error.errno != errno.EIO:
                raise  # a full disk, or a read-only one: that may change
            self.condemn(str(error))
            suspect = False
        if suspect and self.held is not None:
            self.check()
        for record in (self.places.swap_intent, self.places.repair_record):
            remove(record)  # only now: until here a crash must find what made the mirror suspect
        self.acknowledge()
        self._unsettled = False

    def _is_done(self) -> bool:
        """Say whether the record is about what is held: a failure kept it from going."""
        try:
            journal = Journal.open(self.places.install_record, self.layout())
        except (JournalInvalid, MirrorDamaged):
            return False
        return journal.run == self.run and journal.target == self.held

    def check(self) -> list[str]:
        """Compare every byte with what the marker names; condemn the mirror if any differs.

        Files that do not belong there are removed first.  Returns one line per file or tensor that
        differs.
        """
        checkpoint, weights = self._open_parts()
        self._remove_strays()
        found = checkpoint.differences() or weight_differences(checkpoint, weights, self._part)
        if found:
            self.condemn("; ".join(found[:8]))
        return found

    def condemn(self, reason: str) -> None:
        """Say, durably, that nothing sound is held: the next install starts from a full version.

        The marker is written before the record goes, or a crash in between would leave half written
        words below a marker that names a version.
        """
        self.damage = reason
        logger.error("mirror condemned version=%s reason=%s", self.version, reason)
        self._checkpoint = self._weights = self._part = None
        if self._marker is not None:
            self._marker = Marker(run=self._marker.run, held=None)
        self._condemned = True  # even if that cannot be written yet
        self._write_condemned()

    def _write_condemned(self) -> None:
        if self._marker is not None:
            self._state.set_marker(self._marker)
        remove(self.places.repair_record)
        self.acknowledge()
        self._condemned = False

    def stage(
        self,
        packs: Sequence[Pack],
        target: Held,
        layout: Layout,
        *,
        foreign: install.Leaves | None = None,
    ) -> Journal:
        """Decode, check, and record an install; not a byte of the mirror changes.

        A partial mirror is told the changed leaves that it does not hold, `foreign`.
        Raises BaseMismatch, StructureMismatch, ResultMismatch, FormatError or OSError (disk full):
        nothing has changed then.
        """
        checkpoint, weights = self._open_parts()
        assert self._marker is not None
        return install.stage(
            self._state,
            checkpoint,
            weights,
            self._marker,
            packs=packs,
            target=target,
            layout=layout,
            hook=self._hook,
            threads=self.threads,
            foreign=foreign or {},
        )

    def apply(self, journal: Journal) -> None:
        """Write a recorded install in place.  Raises MirrorDamaged or OSError; then `settle`."""
        self._unsettled = True
        self._open_parts()
        layout = self._state.layout(journal.target.layout)
        install.redo(self._state, self._writable(), journal, layout, hook=self._hook)
        self._load()
        self._unsettled = False

    def repair(self, repair: Repair) -> bool:
        """Put the right bytes of a damaged part in place; say whether that was still wanted.

        Readers see the mirror changing meanwhile.  Raises MirrorDamaged or OSError; then `settle`.
        """
        if self._unsettled or self.held != repair.held or self.places.install_record.exists():
            return False
        write_atomically(self.places.repair_record, repair.to_bytes())
        self._unsettled = True
        self._hook("repair-recorded")
        self._finish_repair()
        self._unsettled = False
        return True

    def parts(self) -> tuple[Held, Layout, WeightsDigest, Part | None] | None:
        """Return what is held, all leaf digests, and which leaves lie here; None: nothing sound."""
        if self._unsettled or self._checkpoint is None or self._weights is None:
            return None
        assert self.held is not None
        return self.held, self._checkpoint.layout, self._weights, self._part

    def restore_state(self) -> list[str]:
        """Write marker, layout and leaf digests anew where they do not say what is held.

        Returns the names of those that did not.  Raises OSError.
        """
        if self._unsettled or self._condemned or self.places.install_record.exists():
            return []
        if self._marker is None or self._checkpoint is None or self._weights is None:
            return []
        return self._state.restore(self._marker, self._checkpoint.layout, self._weights)

    def swap_in(self, target: Held, layout: Layout, weights: WeightsDigest) -> None:
        """Put the assembled directory `places.incoming` in the mirror's place."""
        assert self._marker is not None
        self._unsettled = True
        self._state.put(target, layout, weights)
        self._checkpoint = None
        marker = Marker(run=self._marker.run, held=target, part=self._state.part)
        swap.swap_in(self._state, marker, hook=self._hook)
        self._load()
        self.damage = None
        self._unsettled = False

    def acknowledge(self) -> None:
        """Drop the install record: every engine has what it brings, or will load the mirror."""
        remove(self.places.install_record)

    def layout(self) -> Layout:
        return self._open_parts()[0].layout

    def weights(self) -> WeightsDigest:
        """Return the leaf digests of the version, also of leaves that are not held."""
        return self._open_parts()[1]

    def close(self) -> None:
        """Let go of the directory."""
        self._checkpoint = None
        self._state.close()

    def _open_parts(self) -> tuple[Checkpoint, WeightsDigest]:
        if self._checkpoint is None or self._weights is None:
            raise MirrorDamaged(self.damage or "the mirror holds no version")
        return self._checkpoint, self._weights

    def _set_marker(self, marker: Marker) -> None:
        self._state.set_marker(marker)
        self._marker = marker

    def _load(self) -> None:
        self._checkpoint = self._weights = self._part = None
        try:
            self._marker = self._state.marker()
        except MirrorDamaged as error:
            self._marker = None
            self.damage = str(error)
            logger.exception("marker unreadable, nothing is held")
        held = self.held
        if held is not None:
            self._weights = self._state.weights(held)
            layout = self._state.layout(held.layout)
            self._checkpoint = Checkpoint(self.places.mirror, layout)
            if self._selection is not None:
                self._part = self._selection.resolve(layout)

    def _check_part(self, part: str | None) -> None:
        """Raises SelectionRefused if the directory was made for another part."""
        try:
            marker = self._state.marker()
        except MirrorDamaged:
            return  # it says nothing
        if marker is not None and marker.part != part:
            named = [text or "whole versions" for text in (marker.part, part)]
            raise SelectionRefused(
                f"{self.places.root} mirrors {named[0]}, asked for {named[1]}: give another "
                "directory, or remove this one"
            )

    def _writable(self) -> Checkpoint:
        """Return the mirror's files to write to.  Raises MirrorDamaged or OSError."""
        return Checkpoint(self.places.mirror, self._open_parts()[0].layout, writable=True)

    def _finish_repair(self) -> bool:
        """Do a durable repair, if there is one about what is held.  Raises MirrorDamaged.

        Says whether the mirror needs a look, because a record cannot be read, which stays.
        """
        record = self.places.repair_record
        try:
            repair = Repair.from_bytes(record.read_bytes())
        except FileNotFoundError:
            return False
        except FormatError as error:
            logger.warning("repair discarded: %s", error)
            return True
        marker, checkpoint = self._marker, self._checkpoint
        if marker is not None and checkpoint is not None:
            if (marker.run, marker.held) == (repair.run, repair.held):
                if repair.offset is None:
                    contents = {repair.file: repair.data}
                    checkpoint.write_side_files(contents, scratch=self.places.state)
                    sync_tree(self.directory)
                else:
                    checkpoint.write_range(repair.file, repair.offset, repair.data)
                self._hook("repair-written")
                if checkpoint.content(repair.file, repair.offset, len(repair.data)) != repair.data:
                    raise MirrorDamaged(f"{repair.file} differs after it was repaired")
                self._hook("repair-checked")
            self._set_marker(marker)  # anew, before the record goes: readers must notice
        remove(record)
        self._hook("repair-acknowledged")
        return False

    def _finish_install(self) -> bool:
        """Redo a durable record that is about what is held; say whether the mirror needs a look."""
        record = self.places.install_record
        if self._marker is None or self._checkpoint is None or not record.exists():
            return False
        try:
            journal = Journal.open(record, self._checkpoint.layout)
        except JournalInvalid as error:
            logger.warning("install record discarded: %s", error)
            return True
        if journal.run == self._marker.run and journal.origin == self.held:
            logger.info("install resumed version=%d", journal.target.version)
            layout = self._state.layout(journal.target.layout)
            install.redo(self._state, self._writable(), journal, layout, hook=self._hook)
            self._load()
            return False
        return journal.target != self.held

    def _remove_strays(self) -> None:
        if self._checkpoint is None:
            return
        expected = dict(self._checkpoint.layout.files())
        for name in tree_files(self.directory):
            if name not in expected:
                logger.warning("stray file removed name=%s", name)
                remove(self.directory / name)
