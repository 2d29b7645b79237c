"""What a verified log says.  Pure: bytes of the next record in, the next state out, or a refusal.

Laws, each enforced before anything of a record is believed:

* slot n holds the record whose `seq` is n and whose `prev` is the digest of slot n-1's bytes;
* every record is signed by the current key, which slot 0 names and only `rotate` changes;
* epochs are dense: a fence's is the newest plus one, every other record's is the newest;
* versions are dense over commits, a parent is an earlier version, and a patch's base is exactly
  its parent's result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from skerry.bulletin import keys
from skerry.bulletin.errors import RecordInvalid, Tampered, UntrustedKey
from skerry.bulletin.growing import ByNumber, Growing
from skerry.bulletin.records import Commit, Fence, ObjectRef, Record, Retire, Rotate, Skip
from skerry.bulletin.signing import PublicKey
from skerry.codec.digest import Digest, digest_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Retirement:
    """What the record in slot `seq`, written at `time` by its writer's clock, gave up."""

    seq: int
    time: int
    body: Retire


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogState:
    """The log up to slot `seq` (-1: nothing yet), `nbytes` together.  Safe to read from any thread.

    `pinned_key` is what slot 0 must name; without it the key of slot 0 is trusted.  `key` verifies
    the next record, None in an unsigned run; `rotations` lead to it from that of slot 0.  `run` is
    the digest of slot 0: the run's identity.  `newest` is the last commit; `abandoned` versions are
    no ancestors of it.  `retired` and `retired_keys`, which `retirements` named, may be deleted, or
    are already.

    The records themselves are not kept: who needs them asks the reader for its history.
    """

    pinned_key: PublicKey | None = None
    run: Digest | None = None
    seq: int = -1
    nbytes: int = 0
    head: Digest | None = None
    epoch: int = 0
    writer: str | None = None
    key: PublicKey | None = None
    newest: Commit | None = None
    abandoned: frozenset[int] = frozenset()
    retired: frozenset[int] = frozenset()
    retired_keys: frozenset[str] = frozenset()
    rotations: Growing[Record] = field(default_factory=Growing)
    retirements: Growing[Retirement] = field(default_factory=Growing)
    skips: Growing[Skip] = field(default_factory=Growing)
    _commits: Growing[Commit] = field(default_factory=Growing)

    @property
    def commits(self) -> Mapping[int, Commit]:
        """Every version of the run, by number."""
        return ByNumber(self._commits)

    def restored(
        self,
        *,
        seq: int,
        nbytes: int,
        head: Digest,
        epoch: int,
        writer: str,
        rotations: Iterable[Record],
        commits: Iterable[Commit],
        skips: Iterable[Skip],
        retirements: Iterable[Retirement],
    ) -> LogState:
        """Return this state moved on to a later one that a checkpoint describes.

        What can be derived is derived, so that nothing is believed twice.
        """
        rotated, versions, given_up = Growing(rotations), Growing(commits), Growing(retirements)
        return replace(
            self,
            seq=seq,
            nbytes=nbytes,
            head=head,
            epoch=epoch,
            writer=writer,
            key=_key_after(rotated, self.key),
            newest=versions[-1] if versions else None,
            abandoned=frozenset(range(len(versions))) - _line(versions, len(versions) - 1),
            retired=frozenset(v for gone in given_up for v in gone.body.versions),
            retired_keys=frozenset(key for gone in given_up for key in gone.body.keys),
            rotations=rotated,
            retirements=given_up,
            skips=Growing(skips),
            _commits=versions,
        )

    def apply(self, data: bytes) -> LogState:
        """Return the state after one more record.  Raises what `read` raises."""
        return self.read(data)[1]

    def read(self, data: bytes) -> tuple[Record, LogState]:
        """Return one more record, verified, and the state after it.

        Raises RecordInvalid (the writer broke a rule), Tampered (chain or signature) or
        UntrustedKey; this state stays as it is.
        """
        what = keys.log(self.seq + 1)
        record = Record.parse(data, what=what)
        self._check_chain(record, what)
        self._check_signature(record, what)
        self._check_epoch(record, what)
        match record.body:
            case Fence() as fence:
                state = replace(self, epoch=record.epoch, writer=record.writer, key=fence.key)
            case Commit() as commit:
                state = self._committed(commit, what)
            case Skip() as skip:
                self._check_skip(skip, what)
                state = replace(self, skips=self.skips.append(skip))
            case Retire() as retire:
                state = self._retire(record, retire, what)
            case Rotate() as rotate:
                if self.key is None:
                    raise RecordInvalid(what, "an unsigned run has no key to rotate")
                state = replace(self, key=rotate.key, rotations=self.rotations.append(record))
        head = digest_bytes(data)
        return record, replace(
            state,
            run=head if self.run is None else self.run,
            seq=record.seq,
            nbytes=self.nbytes + len(data),
            head=head,
        )

    def _check_chain(self, record: Record, what: str) -> None:
        if record.seq != self.seq + 1:
            raise Tampered(f"{what} seq", expected=str(self.seq + 1), found=str(record.seq))
        if record.prev != self.head:
            raise Tampered(f"{what} prev", expected=str(self.head), found=str(record.prev))

    def _check_signature(self, record: Record, what: str) -> None:
        key = self.key
        if self.seq < 0:
            if not isinstance(record.body, Fence):
                raise RecordInvalid(what, f"expected a fence in slot 0, found a {record.kind}")
            key = record.body.key
            if self.pinned_key is not None and key != self.pinned_key:
                found = "an unsigned run" if key is None else str(key)
                raise UntrustedKey(f"{what} key", expected=str(self.pinned_key), found=found)
        elif isinstance(record.body, Fence) and record.body.key != key:
            raise UntrustedKey(f"{what} key", expected=str(key), found=str(record.body.key))
        if key is None:
            if record.signature is not None:
                raise RecordInvalid(what, "expected no signature in an unsigned run")
        elif record.signature is None:
            raise UntrustedKey(f"{what} sig", expected=f"one by {key}", found="none")
        elif not key.verifies(record.payload(), record.signature):
            raise Tampered(f"{what} sig", expected=f"one by {key}", found=record.signature)

    def _check_epoch(self, record: Record, what: str) -> None:
        fence = isinstance(record.body, Fence)
        expected = self.epoch + 1 if fence else self.epoch
        if record.epoch != expected:
            rule = f"expected epoch {expected} in a {record.kind}, found {record.epoch}"
            raise RecordInvalid(what, rule)
        if not fence and record.writer != self.writer:
            rule = f"epoch {self.epoch} belongs to {self.writer}, found {record.writer}"
            raise RecordInvalid(what, rule)

    def _committed(self, commit: Commit, what: str) -> LogState:
        if commit.version != len(self._commits):
            rule = f"expected version {len(self._commits)}, found {commit.version}"
            raise RecordInvalid(what, rule)
        if commit.parent is not None:
            if commit.parent in self.retired:
                raise RecordInvalid(what, f"the parent {commit.parent} is retired")
            parent = self._commits[commit.parent]
            if commit.base is not None:
                if commit.base != parent.result:
                    rule = f"the base is {commit.base}, the parent's result is {parent.result}"
                    raise RecordInvalid(what, rule)
                if not commit.packs and commit.layout != parent.layout:
                    raise RecordInvalid(what, "a patch without packs cannot change the layout")
        self._check_packs(commit.packs, what)
        if commit.full is not None and keys.parse_full_prefix(commit.full.prefix) > self.epoch:
            raise RecordInvalid(what, f"{commit.full.prefix} is of an epoch to come")
        if self._names_retired(commit):
            raise RecordInvalid(what, "names an object that is retired")
        return replace(
            self,
            _commits=self._commits.append(commit),
            newest=commit,
            abandoned=self._abandoned_after(commit),
        )

    def _abandoned_after(self, commit: Commit) -> frozenset[int]:
        newest = None if self.newest is None else self.newest.version
        if commit.parent == newest:
            return self.abandoned
        return frozenset(range(commit.version)) - _line(self._commits, commit.parent)

    def _check_skip(self, skip: Skip, what: str) -> None:
        for version, digest in ((skip.base_version, skip.base), (skip.version, skip.result)):
            if version >= len(self._commits):
                raise RecordInvalid(what, f"version {version} does not exist")
            expected = self._commits[version].result
            if digest != expected:
                rule = f"version {version} has the digest {expected}, found {digest}"
                raise RecordInvalid(what, rule)
        self._check_packs(skip.packs, what)
        if self._names_retired(skip):
            raise RecordInvalid(what, "names an object that is retired")

    def _check_packs(self, packs: tuple[ObjectRef, ...], what: str) -> None:
        for pack in packs:
            if keys.parse_pack(pack.key)[0] > self.epoch:
                raise RecordInvalid(what, f"{pack.key} is of an epoch to come")

    def _names_retired(self, body: Commit | Skip) -> bool:
        names = {pack.key for pack in body.packs}
        if isinstance(body, Commit) and body.full is not None:
            names.add(body.full.prefix)
        return not names.isdisjoint(self.retired_keys)

    def _retire(self, record: Record, retire: Retire, what: str) -> LogState:
        for version in retire.versions:
            if version >= len(self._commits):
                raise RecordInvalid(what, f"version {version} does not exist")
            if self.newest is not None and version == self.newest.version:
                raise RecordInvalid(what, f"version {version} is the newest and cannot be retired")
        retirement = Retirement(seq=record.seq, time=record.time, body=retire)
        return replace(
            self,
            retirements=self.retirements.append(retirement),
            retired=self.retired.union(retire.versions),
            retired_keys=self.retired_keys.union(retire.keys),
        )


def _line(commits: Sequence[Commit], version: int | None) -> set[int]:
    """Return `version`, if there is such a one, and its ancestors."""
    line: set[int] = set()
    while version is not None and version >= 0:  # ends: every parent is an earlier version
        line.add(version)
        version = commits[version].parent
    return line


def _key_after(rotations: Sequence[Record], key: PublicKey | None) -> PublicKey | None:
    last = rotations[-1].body if rotations else None
    return last.key if isinstance(last, Rotate) else key
