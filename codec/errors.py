"""Everything the codec can refuse, and who acts on it.

CodecError
├── FormatError           the bytes break a rule of their format    nobody: a retry reads the same
│   └── LimitExceeded     they ask for more than a stated limit     the operator: raise it, or don't
├── BaseMismatch          a sound patch, for other weights          the agent: take another path
├── ResultMismatch        decoding gave other weights than promised the agent: discard and report
└── StructureMismatch     the two sides differ in structure         the publisher: a full version
"""

from __future__ import annotations


class CodecError(Exception):
    """Base of every error raised by skerry.codec."""


class FormatError(CodecError):
    """The bytes violate a rule of their format."""

    def __init__(self, rule: str, *, offset: int | None = None) -> None:
        at = "" if offset is None else f" at byte {offset}"
        super().__init__(f"{rule}{at}")
        self.rule = rule
        self.offset = offset


class LimitExceeded(FormatError):
    """Reading on would exceed a stated resource limit."""


class BaseMismatch(CodecError):
    """The patch is sound but was made against other weights."""

    def __init__(self, *, expected: str, found: str) -> None:
        super().__init__(f"patch expects base {expected}, found {found}")
        self.expected = expected
        self.found = found


class ResultMismatch(CodecError):
    """The patched weights are not the ones that the patch promises."""

    def __init__(self, *, what: str, expected: str, found: str) -> None:
        super().__init__(f"{what}: expected {expected}, found {found}")
        self.what = what
        self.expected = expected
        self.found = found


class StructureMismatch(CodecError):
    """Two checkpoints cannot be compared tensor by tensor."""
