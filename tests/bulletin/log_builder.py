"""Builds logs in memory, record by record, with fixed keys and counted nonces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

from skerry.bulletin import keys
from skerry.bulletin.bodies import download_bytes
from skerry.bulletin.records import Body, Commit, Fence, FileRef, Full, ObjectRef, Record, Skip
from skerry.bulletin.signing import PublicKey, Signer
from skerry.bulletin.state import LogState
from skerry.codec.digest import Digest, digest_bytes

SIGNER = Signer.from_seed(b"\x01" * 32)
OTHER_SIGNER = Signer.from_seed(b"\x02" * 32)
START_MS = 1_700_000_000_000


def digest(text: str) -> Digest:
    return digest_bytes(text.encode())


class LogBuilder:
    """A log and its states; `states[-1]` is the newest.  Nothing is stored anywhere."""

    def __init__(
        self, *, signer: Signer | None = SIGNER, pinned_key: PublicKey | None = None
    ) -> None:
        self.signer = signer
        self.states = [LogState(pinned_key=pinned_key)]
        self.slots: list[bytes] = []

    @classmethod
    def with_versions(cls, count: int, *, signer: Signer | None = SIGNER) -> Self:
        """Return a log of a fence, a full version 0, and a patch per version after it."""
        log = cls(signer=signer)
        log.append(log.fence())
        for version in range(count):
            log.append(log.full(parent=None) if version == 0 else log.patch(parent=version - 1))
        return log

    @property
    def state(self) -> LogState:
        return self.states[-1]

    @property
    def records(self) -> list[Record]:
        return [Record.parse(data) for data in self.slots]

    def record(self, body: Body, **changes: Any) -> Record:
        """Return the record that comes next, unsigned, with fields changed."""
        state = self.state
        record = Record(
            seq=state.seq + 1,
            prev=state.head,
            epoch=state.epoch + isinstance(body, Fence),
            writer="writer",
            nonce=f"{state.seq + 1:032x}",
            time=START_MS + state.seq + 1,
            body=body,
        )
        return replace(record, **changes)

    def next(self, body: Body, *, signer: Signer | None = None, **changes: Any) -> bytes:
        """Return the bytes of the record that comes next."""
        record = self.record(body, **changes)
        signer = signer or self.signer
        return (record if signer is None else record.signed(signer)).to_bytes()

    def append(self, body: Body, **changes: Any) -> bytes:
        data = self.next(body, **changes)
        self.states.append(self.state.apply(data))
        self.slots.append(data)
        return data

    def fence(self) -> Fence:
        return Fence(key=None if self.signer is None else self.signer.public_key)

    def full(self, *, parent: int | None, size: int = 1000, **changes: Any) -> Commit:
        return self._commit(parent, patch=False, packs=0, full=True, size=size, **changes)

    def patch(
        self,
        *,
        parent: int,
        packs: int = 1,
        size: int = 10,
        with_full: bool = False,
        **changes: Any,
    ) -> Commit:
        return self._commit(parent, patch=True, packs=packs, full=with_full, size=size, **changes)

    def skip(self, start: int, end: int, *, size: int = 15, **changes: Any) -> Skip:
        commits = self.state.commits
        skip = Skip(
            base_version=start,
            version=end,
            base=commits[start].result,
            result=commits[end].result,
            packs=(self.pack(f"skip {start} {end} {self.state.seq}", size),),
        )
        return replace(skip, **changes)

    def pack(self, text: str, size: int) -> ObjectRef:
        name = digest(text)
        return ObjectRef(key=keys.pack(max(self.state.epoch, 1), name), size=size, digest=name)

    def _commit(
        self,
        parent: int | None,
        *,
        patch: bool,
        packs: int,
        full: bool,
        size: int,
        full_size: int = 1000,
        **changes: Any,
    ) -> Commit:
        version = len(self.state.commits)
        refs = tuple(self.pack(f"pack {version} {n}", size) for n in range(packs))
        files = None
        if full:
            file = FileRef(
                name="model.safetensors",
                size=full_size if patch else size,
                digest=digest(f"file {version}"),
            )
            prefix = keys.full_prefix(max(self.state.epoch, 1), f"{version:032x}")
            files = Full(prefix=prefix, files=(file,))
        base = self.state.commits[parent].result if patch and parent is not None else None
        commit = Commit(
            version=version,
            parent=parent,
            step=10 * version,
            layout=digest("layout"),
            manifest=digest(f"manifest {version}"),
            base=base,
            result=base if patch and not packs and base else digest(f"weights {version}"),
            packs=refs,
            full=files,
            elements=10,
            changed=3 if patch else None,
            nbytes=download_bytes(base, refs, files),
        )
        return replace(commit, **changes)
