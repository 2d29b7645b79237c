"""Makes the skip patches of the ladder, so that a late joiner reads few packs and fewer bytes.

A skip is the fold of the chain that it replaces, over the weights at its base, and equals the
direct difference byte for byte.  Those weights are rebuilt from the bulletin, in a storage of the
compactor's own, and only go forward while the skips of one pass are made.  A skip is appended only
after it was decoded again and gave the digest that the log has for its version, and only when it is
smaller than every other way there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from skerry.bulletin.ladder import MAX_LEVEL, Rung, pairs, rung
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.records import Commit, ObjectRef
from skerry.bulletin.writer import BulletinWriter
from skerry.codec.errors import ResultMismatch
from skerry.codec.fold import fold_changes, fold_packs
from skerry.codec.layout import Layout
from skerry.codec.level import Level
from skerry.codec.pack import Pack
from skerry.publisher.baseline import Baseline, rebuild
from skerry.publisher.errors import VerifyFailed
from skerry.publisher.progress import Progress, silent
from skerry.publisher.replay import carried_file
from skerry.publisher.storage import Storage

logger = logging.getLogger(__name__)

Turn = AbstractContextManager[object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """One skip patch that was made, and what the way there took before."""

    base: int
    version: int
    nbytes: int
    before_bytes: int
    before_steps: int


class Compactor:
    """Compacts one run, in the process that writes it.  One thread at a time.

    `storage` is its own, beside the publisher's; `turn`, a reentrant lock, is held for the records.
    Whatever saves no bytes is tried once.
    """

    def __init__(
        self,
        writer: BulletinWriter,
        storage: Storage,
        *,
        level: Level = Level.DEFAULT,
        threads: int = 1,
        max_level: int = MAX_LEVEL,
        turn: Turn | None = None,
    ) -> None:
        self._writer = writer
        self._storage = storage
        self._level = level
        self._threads = threads
        self._max_level = max_level
        self._turn = turn or threading.RLock()
        self._reader = BulletinReader(writer.reader.store)  # the writer's is for its own thread
        self._held: Baseline | None = None
        self._declined: set[tuple[int, int]] = set()

    def missing(self) -> list[tuple[int, int]]:
        """Return the skips that are not there and were not tried yet, as (base, version)."""
        found = pairs(self._writer.reader.state, max_level=self._max_level)
        return [pair for pair in found if pair not in self._declined]

    def make(self, base: int, version: int, progress: Progress = silent) -> Skipped | None:
        """Make one skip; None when it would save nothing.

        Raises BaselineUnavailable, VerifyFailed, and what BulletinWriter.skip raises; nothing was
        appended then.
        """
        state = self._reader.state = self._writer.reader.state
        wanted = rung(state, base, version)
        if wanted is None or not wanted.nbytes:
            self._declined.add((base, version))
            return None
        held, self._held = self._held, None  # moving it may fail half way
        held = rebuild(
            self._reader,
            base,
            self._storage,
            held=held,
            retired_too=True,
            progress=progress,
            threads=self._threads,
        )
        self._held = held
        data = self._fold(held, wanted)
        if len(data) >= wanted.nbytes:
            self._declined.add((base, version))
            return None
        pack = self._writer.put_pack(data)
        if not self._append(wanted, pack):
            return None
        made = Skipped(
            base=base,
            version=version,
            nbytes=len(data),
            before_bytes=wanted.nbytes,
            before_steps=len(wanted.chain),
        )
        logger.info("skip made base=%d version=%d bytes=%d", base, version, len(data))
        return made

    def _fold(self, held: Baseline, wanted: Rung) -> bytes:
        commit = self._reader.state.commits[wanted.version]
        target = self._reader.layout(commit.layout)
        packs = self._packs(wanted, held.layout)
        before = {side.name: side.digest for side in held.layout.side_files}
        files = {
            side.name: carried_file(packs, side)
            for side in target.side_files
            if before.get(side.name) != side.digest
        }
        encoded = fold_packs(
            held.layout,
            packs,
            held.read,
            level=self._level,
            threads=self._threads,
            files=files,
        )
        self._prove(encoded.data, held, commit)
        return encoded.data

    def _packs(self, wanted: Rung, layout: Layout) -> list[Pack]:
        refs: Iterable[ObjectRef] = (ref for step in wanted.chain for ref in step.objects)
        return [Pack.parse(self._reader.read(ref), layout) for ref in refs]

    def _prove(self, data: bytes, held: Baseline, commit: Commit) -> None:
        """Decode a skip against its base: the last gate before it is uploaded."""
        pack = Pack.parse(data, held.layout)
        try:
            leaves = {
                changes.spec.name: changes.leaves
                for changes in fold_changes(held.layout, [pack], held.read, threads=self._threads)
            }
        except ResultMismatch as error:
            raise VerifyFailed(expected=error.expected, found=error.found) from error
        found = held.weights.replace(leaves).version()
        if found != commit.result:
            raise VerifyFailed(expected=commit.result, found=found)

    def _append(self, wanted: Rung, pack: ObjectRef) -> bool:
        with self._turn:
            self._writer.settle()
            if pack.key in self._writer.reader.state.retired_keys:
                self._declined.add((wanted.base, wanted.version))
                return False
            self._writer.skip(base_version=wanted.base, version=wanted.version, packs=(pack,))
            return True
