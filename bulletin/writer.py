"""Writing a run.  The commit protocol, in this order and no other:

1. every object that the record names is durable, and its size was read back;
2. the head of the log is still the record that this writer takes it for;
3. one conditional put of `log/<seq>`, the only commit point;
4. the slot is read back and holds the record;
5. a checkpoint when one is due, then the hint, then what it cost: best effort.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from typing import Self

from skerry.bulletin import keys
from skerry.bulletin.append import Appender
from skerry.bulletin.bodies import download_bytes
from skerry.bulletin.errors import VersionUnknown
from skerry.bulletin.manifest import Manifest
from skerry.bulletin.patience import Patience
from skerry.bulletin.probe import probe_store
from skerry.bulletin.reader import DEFAULT_WAIT, BulletinReader
from skerry.bulletin.records import Body, Commit, Full, ObjectRef, Record, Retire, Rotate, Skip
from skerry.bulletin.signing import PublicKey, Signer
from skerry.bulletin.signposts import Signposts
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores.metered import Metered
from skerry.bulletin.uploads import Uploads
from skerry.codec.digest import Digest
from skerry.codec.layout import Layout

DEFAULT_PATIENCE = Patience(limit_s=60.0)


def new_nonce() -> str:
    return secrets.token_hex(16)


def now_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class BulletinWriter:
    """The writer of one epoch of a run.  One thread at a time, except for the `put_…` methods.

    Everything that writes may raise Fenced (another writer has taken the run) or StoreUnsafe (the
    alarm); this writer is stopped then, and every later call raises the same error.
    """

    def __init__(
        self, reader: BulletinReader, appender: Appender, uploads: Uploads, signposts: Signposts
    ) -> None:
        """Use `open`."""
        self.reader = reader
        self._appender = appender
        self._uploads = uploads
        self._signposts = signposts

    @classmethod
    def open(
        cls,
        store: ObjectStore,
        *,
        signer: Signer | None,
        writer: str,
        pinned_key: PublicKey | None = None,
        wait: Patience = DEFAULT_WAIT,
        patience: Patience = DEFAULT_PATIENCE,
        nonce: Callable[[], str] = new_nonce,
        now: Callable[[], int] = now_ms,
    ) -> Self:
        """Test the store, read the log, and take the run: every older writer is fenced from now on.

        Raises StoreUnsafe, KeyMismatch, what BulletinReader.refresh raises, or CommitConflict when
        other writers keep taking the run first.
        """
        store = store if isinstance(store, Metered) else Metered(store)
        since = store.usage()
        probe_store(store, nonce=nonce, patience=patience)
        reader = BulletinReader(store, pinned_key=pinned_key, wait=wait)
        appender = Appender(
            reader, signer=signer, writer=writer, patience=patience, nonce=nonce, now=now
        )
        appender.open_epoch()
        signposts = Signposts(store, reader, since=since)
        return cls(reader, appender, Uploads(store, nonce=nonce), signposts)

    @property
    def epoch(self) -> int:
        return self._appender.epoch

    def put_layout(self, layout: Layout) -> Digest:
        """Store a layout, unless it is there already; return its digest."""
        self._appender.check_running()
        return self._uploads.layout(layout)

    def put_manifest(self, manifest: Manifest) -> Digest:
        """Store a manifest; return its digest."""
        self._appender.check_running()
        return self._uploads.manifest(manifest)

    def put_pack(self, data: bytes) -> ObjectRef:
        """Store a pack.  Raises StoreError, which names it; doing it again is fine."""
        self._appender.check_running()
        return self._uploads.pack(self.epoch, data)

    def put_full(self, files: Iterable[tuple[str, Iterable[bytes]]]) -> Full:
        """Store a full version under a fresh prefix, hashing while writing.

        Raises FormatError for a name that is not a plain relative path, ValueError for a name given
        twice, and StoreError, which names the file; what was stored by then is an orphan.
        """
        self._appender.check_running()
        return self._uploads.full(self.epoch, files)

    def commit(
        self,
        *,
        parent: int | None,
        step: int,
        layout: Digest,
        manifest: Digest,
        base: Digest | None,
        result: Digest,
        packs: tuple[ObjectRef, ...] = (),
        full: Full | None = None,
        elements: int,
        changed: int | None,
    ) -> Record:
        """Append the next version.  A rollback or fork is a commit with an older parent.

        Raises CommitConflict (nothing was written), StoreError for an object that is not there as
        named, or OutcomeUnknown: then call `settle`, do not commit again.
        """
        body = Commit(
            version=len(self.reader.state.commits),
            parent=parent,
            step=step,
            layout=layout,
            manifest=manifest,
            base=base,
            result=result,
            packs=packs,
            full=full,
            elements=elements,
            changed=changed,
            nbytes=download_bytes(base, packs, full),
        )
        self._appender.check_running()
        self._uploads.check(
            named=(keys.layout(layout), keys.manifest(manifest)),
            refs=(*packs, *(() if full is None else full.objects)),
        )
        return self._append(body)

    def skip(self, *, base_version: int, version: int, packs: tuple[ObjectRef, ...]) -> Record:
        """Append a skip patch.  Raises VersionUnknown, and what `commit` raises."""
        commits = self.reader.state.commits
        for number in (base_version, version):
            if number not in commits:
                raise VersionUnknown(number, newest=len(commits) - 1 if commits else None)
        self._appender.check_running()
        self._uploads.check(refs=packs)
        return self._append(
            Skip(
                base_version=base_version,
                version=version,
                base=commits[base_version].result,
                result=commits[version].result,
                packs=packs,
            )
        )

    def retire(
        self, *, versions: Iterable[int] = (), names: Iterable[str] = (), grace_s: int
    ) -> Record:
        """Append what will be deleted: versions, and `names`: keys of packs, prefixes of fulls."""
        return self._append(
            Retire(
                versions=tuple(sorted(set(versions))),
                keys=tuple(sorted(set(names))),
                grace_s=grace_s,
            )
        )

    def rotate(self, signer: Signer) -> Record:
        """Hand the run over to another key; this writer signs with it from now on."""
        return self._appended(
            self._appender.append(Rotate(key=signer.public_key), next_signer=signer)
        )

    def settle(self) -> Record | None:
        """Find out about the append whose outcome is unknown, by repeating the same bytes.

        Returns its record, which is in the log now, or None when nothing was open.  Raises Fenced
        (it is not in the log, and never will be), StoreUnsafe, or OutcomeUnknown again.
        """
        record = self._appender.settle()
        return None if record is None else self._appended(record)

    def _append(self, body: Body) -> Record:
        return self._appended(self._appender.append(body))

    def _appended(self, record: Record) -> Record:
        self._uploads.forget()
        self._signposts.put_up(record, self._appender.signer)
        return record
