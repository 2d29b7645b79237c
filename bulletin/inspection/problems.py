"""What is told of an error that stands between a question and its answer: what, and who acts."""

from __future__ import annotations

from dataclasses import dataclass

from skerry.bulletin import errors

# The first class that fits decides; a subclass comes before its base.
_ACTS: tuple[tuple[type[BaseException], str], ...] = (
    (errors.NotFound, "nobody if it was collected; else the operator of the store"),
    (errors.StoreDenied, "the operator: permissions there, or another address"),
    (errors.StoreUnsafe, "the operator: stop writing, the store breaks its promises"),
    (errors.StoreError, "the operator of the store"),
    (errors.UntrustedKey, "the operator: compare the pinned key with the run's"),
    (errors.Tampered, "the operator: find out who changed the object"),
    (errors.RecordInvalid, "whoever runs the writer: it wrote against the rules"),
    (errors.LogTooLong, "the operator: find out who writes that log"),
    (errors.VersionUnknown, "you: name a version that the log has"),
    (errors.VersionGone, "you: name a newer version"),
    (OSError, "the operator: disk, permissions or network of the host that serves this"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error: its kind, what was expected and found, and whose move it is."""

    kind: str
    message: str
    acts: str


def problem_of(error: BaseException) -> Problem:
    """Return what to tell about an error of the store, the log, or a question."""
    acts = next((acts for kind, acts in _ACTS if isinstance(error, kind)), "you: read the message")
    message = " ".join(str(error).split()) or type(error).__name__
    return Problem(kind=type(error).__name__, message=message[:1000], acts=acts)
