"""Everything the bulletin can refuse, and who acts on it.

BulletinError
├── StoreError            the store could not do what was asked; names the key
│   ├── NotFound          no such object                       the caller: wait, then report
│   ├── AlreadyExists     a conditional put lost               the writer: read the slot back
│   ├── ShortObject       not as many bytes as promised        the caller: fetch or upload again
│   ├── ObjectTooLarge    more bytes than the stated limit     the operator: who wrote that?
│   ├── ObjectChanged     replaced while it was being read     the caller: read it from the start
│   ├── TooSlow           still not whole after a stated time  the caller: ask another store
│   ├── Unanswered        nothing that settles it
│   │   ├── OutcomeUnknown    a write may or may not have landed   the writer: repeat the same bytes
│   │   └── StoreUnavailable  no answer, and nothing was changed   the caller: try again later
│   ├── StoreDenied       a refusal that repeating won't help  the operator: permissions, address
│   │   ├── ListUnsupported  this store cannot list keys       the caller: start from the hint
│   │   └── ReadOnly         this store takes no writes        the operator: another address
│   └── StoreUnsafe       a condition was ignored              the operator: ALARM, writer stopped
├── InvalidKey            no key, or none to write at          the caller: a bug, or hostile bytes
├── UnsupportedStore      no store for this address            the operator: another address
├── LogTooLong            the log passes the stated limit      the operator: raise it, or don't
├── RecordInvalid         a record or manifest breaks a rule   the operator: the writer has a bug
├── Tampered              bytes are not those that were named  the operator: whose is the road?
│   └── UntrustedKey      another key, or no key at all        the operator: compare the pinned key
├── KeyMismatch           the signer is not the run's          the operator: use the run's key
├── KeyFileInvalid        a key file that must not be used     the operator: fix the file
├── Fenced                another writer has taken the run     this writer: stop for good
├── CommitConflict        what is appended does not fit        the publisher: read the log, rebuild
├── VersionUnknown        no such version (yet)                the caller: wait or correct
├── VersionGone           abandoned or retired                 the caller: take a newer one
└── NoPath                nothing leads there any more         the publisher: publish a full version
"""

from __future__ import annotations

_RULE_LENGTH = 500  # a rule may quote what it refuses, and that may be a mebibyte


class BulletinError(Exception):
    """Base of every error raised by skerry.bulletin."""


class StoreError(BulletinError):
    """The store could not do what was asked."""

    def __init__(self, key: str, rule: str) -> None:
        super().__init__(f"{key}: {rule}")
        self.key = key


class NotFound(StoreError):
    """There is no such object."""

    def __init__(self, key: str, *, waited_s: float | None = None) -> None:
        waited = "" if waited_s is None else f" after waiting {waited_s:g} s"
        super().__init__(key, f"no such object{waited}")


class AlreadyExists(StoreError):
    """A conditional put found the key taken."""

    def __init__(self, key: str) -> None:
        super().__init__(key, "the key is taken")


class ShortObject(StoreError):
    """The object has not as many bytes as were promised."""

    def __init__(self, key: str, *, expected: int, found: int) -> None:
        super().__init__(key, f"expected {expected} bytes, found {found}")
        self.expected = expected
        self.found = found


class ObjectTooLarge(StoreError):
    """The object has more bytes than the caller is ready to take."""

    def __init__(self, key: str, *, limit_bytes: int, found: int | None = None) -> None:
        size = "more" if found is None else str(found)
        super().__init__(key, f"expected at most {limit_bytes} bytes, found {size}")
        self.limit_bytes = limit_bytes
        self.found = found


class ObjectChanged(StoreError):
    """Another object has taken its place while it was read: what came so far is of the old one."""


class TooSlow(StoreError):
    """An answer is still not whole after a stated time; the same request would take as long."""


class Unanswered(StoreError):
    """No answer that settles it; `retry_after_s` is what the store asked for, if it did."""

    def __init__(self, key: str, rule: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(key, rule)
        self.retry_after_s = retry_after_s


class OutcomeUnknown(Unanswered):
    """A put may or may not have landed; only the same bytes may be tried again."""


class StoreUnavailable(Unanswered):
    """The store gave no answer, and nothing was changed."""


class StoreDenied(StoreError):
    """The store refuses, and will refuse again: permissions, a read-only or unfit place."""


class ListUnsupported(StoreDenied):
    """Keys cannot be listed here: `hint/latest.json` says where the log has got to."""

    def __init__(self, key: str) -> None:
        super().__init__(key, "this store cannot list keys")


class ReadOnly(StoreDenied):
    """Nothing can be written here."""

    def __init__(self, key: str) -> None:
        super().__init__(key, "this store can only be read; write to the bucket that it serves")


class StoreUnsafe(StoreError):
    """A store on which a condition does not hold, or on which a record was replaced."""


class InvalidKey(BulletinError):
    """The text is not a key, or no object can be written there."""

    def __init__(self, key: object, rule: str) -> None:
        super().__init__(f"key {key!r:.120}: {rule}")


class UnsupportedStore(BulletinError):
    """No store is known for this address."""


class LogTooLong(BulletinError):
    """The records of the log have more bytes together than the reader is ready to keep."""

    def __init__(self, key: str, *, limit_bytes: int) -> None:
        super().__init__(f"{key}: the log has more than {limit_bytes} bytes up to here")
        self.limit_bytes = limit_bytes


class RecordInvalid(BulletinError):
    """A record or manifest breaks a rule of its format or of the log."""

    def __init__(self, what: str, rule: str) -> None:
        rule = rule if len(rule) <= _RULE_LENGTH else rule[:_RULE_LENGTH] + "…"
        super().__init__(f"{what}: {rule}")
        self.what = what
        self.rule = rule


class Tampered(BulletinError):
    """Bytes are not the ones that a digest, the chain or a signature names."""

    def __init__(self, what: str, *, expected: str, found: str) -> None:
        super().__init__(f"{what}: expected {expected}, found {found}")
        self.what = what
        self.expected = expected
        self.found = found


class UntrustedKey(Tampered):
    """The log is signed by a key that is not trusted, or not at all."""


class KeyMismatch(BulletinError):
    """The signer at hand is not the one that this run's log asks for."""

    def __init__(self, *, expected: str, found: str) -> None:
        super().__init__(f"the run is written with {expected}, the signer at hand is {found}")
        self.expected = expected
        self.found = found


class KeyFileInvalid(BulletinError):
    """A key file that cannot or must not be used."""


class Fenced(BulletinError):
    """Another writer has opened the run since; this one must not write again."""

    def __init__(self, *, epoch: int, found: int, writer: str) -> None:
        super().__init__(f"epoch {epoch} is fenced by epoch {found} of writer {writer}")
        self.epoch = epoch
        self.found = found


class CommitConflict(BulletinError):
    """What is to be appended does not fit the log; nothing was written."""


class VersionUnknown(BulletinError):
    """The log has no such version."""

    def __init__(self, version: int, *, newest: int | None) -> None:
        super().__init__(f"version {version} is not in the log, the newest is {newest}")
        self.version = version


class VersionGone(BulletinError):
    """The version is no target any more."""

    def __init__(self, version: int, why: str) -> None:
        super().__init__(f"version {version} is {why}")
        self.version = version


class NoPath(BulletinError):
    """No chain of objects that still exist leads to the version."""

    def __init__(self, *, have: int | None, want: int) -> None:
        start = "nothing" if have is None else f"version {have}"
        super().__init__(f"no path leads from {start} to version {want}")
        self.have = have
        self.want = want
