"""Bitwise patches of checkpoints.  Bytes in, bytes out: no I/O, no torch, no clock."""

from skerry.codec.errors import (
    BaseMismatch,
    CodecError,
    FormatError,
    LimitExceeded,
    ResultMismatch,
    StructureMismatch,
)

__all__ = [
    "BaseMismatch",
    "CodecError",
    "FormatError",
    "LimitExceeded",
    "ResultMismatch",
    "StructureMismatch",
]
