"""Which errors a command can end with: exit code, and who acts.

0 done · 1 refused, or something differs · 2 the command line is wrong · 3 store, disk or network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from skerry.bulletin import errors as bulletin
from skerry.bulletin.inspection.service import config as inspection
from skerry.codec import errors as codec
from skerry.island_agent import errors as island
from skerry.publisher import errors as publisher

REFUSED, USAGE, TROUBLE = 1, 2, 3


class CommandError(Exception):
    """A refusal of the command line's own; says who acts."""

    def __init__(self, message: str, *, acts: str, exit_code: int = REFUSED) -> None:
        super().__init__(message)
        self.acts = acts
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What a command tells when it fails."""

    kind: str
    message: str
    acts: str
    exit_code: int

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}; who acts: {self.acts}"

    def to_json(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "message": self.message,
            "acts": self.acts,
            "exit_code": self.exit_code,
        }


# The first class that fits decides; a subclass comes before its base.
_TABLE: tuple[tuple[type[BaseException], int, str], ...] = (
    (bulletin.UnsupportedStore, USAGE, "you: give another address"),
    (bulletin.InvalidKey, USAGE, "you: give another address or name"),
    (bulletin.KeyFileInvalid, USAGE, "you: give another key file, or repair this one"),
    (inspection.BindRefused, USAGE, "you: give a token, or another address to listen on"),
    (inspection.TokenUnfit, USAGE, "you: give another token"),
    (bulletin.StoreUnsafe, TROUBLE, "the operator: stop writing, the store breaks its promises"),
    (bulletin.OutcomeUnknown, TROUBLE, "you: look at the log, then run the command again"),
    (bulletin.StoreDenied, TROUBLE, "the operator: permissions there, or another address"),
    (bulletin.StoreError, TROUBLE, "the operator of the store; then run the command again"),
    (bulletin.UntrustedKey, REFUSED, "the operator: compare the pinned key with the run's"),
    (bulletin.Tampered, REFUSED, "the operator: find out who changed the object"),
    (
        bulletin.RecordInvalid,
        REFUSED,
        "whoever runs the writer: it wrote a record against the rules",
    ),
    (bulletin.LogTooLong, REFUSED, "the operator: find out who writes that log"),
    (bulletin.KeyMismatch, REFUSED, "you: give the run's key with --sign"),
    (bulletin.Fenced, REFUSED, "nobody: another publisher has taken over the run"),
    (bulletin.CommitConflict, REFUSED, "you: look at the log, then publish again"),
    (bulletin.VersionUnknown, REFUSED, "you: name a version that the log has"),
    (bulletin.VersionGone, REFUSED, "you: name a newer version"),
    (bulletin.NoPath, REFUSED, "the publisher: publish a full version"),
    (bulletin.BulletinError, REFUSED, "you: read the message"),
    (publisher.CheckpointChanged, REFUSED, "you: run the command again while nothing writes there"),
    (publisher.CheckpointError, REFUSED, "whoever wrote the checkpoint"),
    (publisher.StateBusy, REFUSED, "you: give every publisher a state directory of its own"),
    (publisher.StateUnsuitable, REFUSED, "you: give an empty or new directory to --state"),
    (publisher.BaselineUnavailable, REFUSED, "you: publish with --full"),
    (publisher.VerifyFailed, REFUSED, "the developers: report it; nothing was published"),
    (publisher.BaseUnnamed, REFUSED, "you: name the adapter's base"),
    (codec.LimitExceeded, REFUSED, "the operator: find out who wrote that"),
    (codec.FormatError, REFUSED, "whoever made the file: make it anew"),
    (codec.BaseMismatch, REFUSED, "you: take the directory that the patch was made from"),
    (codec.ResultMismatch, REFUSED, "whoever made the patch: make it anew"),
    (codec.StructureMismatch, REFUSED, "you: publish or copy the whole checkpoint"),
    (island.SettingsInvalid, USAGE, "you: mend that setting"),
    (island.ObjectUnavailable, TROUBLE, "the operator of the store; then run the command again"),
    (OSError, TROUBLE, "the operator: disk, permissions or network of this host"),
)


def explain(error: BaseException) -> Failure | None:
    """Return what to tell about a foreseen error, None for any other."""
    match error:
        case CommandError():
            return _failure(error, "", error.exit_code, error.acts)
        case ModuleNotFoundError() if not (error.name or "skerry").startswith("skerry"):
            acts = "you: install the extra that docs/operations.md names for this command"
            return _failure(error, "not installed", USAGE, acts)
    for kind, exit_code, acts in _TABLE:
        if isinstance(error, kind):
            return _failure(error, type(error).__name__, exit_code, acts)
    if isinstance(error, island.IslandError):
        return _failure(error, type(error).__name__, REFUSED, error.acts)
    return None


def usage(error: Any) -> Failure:
    """Return what to tell about a command line that typer refuses."""
    message = " ".join(error.format_message().split())
    acts = "you: see --help of the command"
    return Failure(kind="usage", message=message, acts=acts, exit_code=USAGE)


def _failure(error: BaseException, kind: str, exit_code: int, acts: str) -> Failure:
    message = " ".join(str(error).split())
    return Failure(kind=kind or "refused", message=message, acts=acts, exit_code=exit_code)
