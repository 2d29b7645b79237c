"""Names that come from untrusted bytes: checked once, at the door."""

from __future__ import annotations

import re

from skerry.codec.errors import FormatError

MAX_NAME_BYTES = 1024
MAX_PART_BYTES = 255  # what file systems take for one name
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_RESERVED = {"", ".", ".."}


def check_name(name: str) -> str:
    """Return `name` if it is a safe relative POSIX path below a checkpoint's directory.

    Refused, with FormatError: empty, absolute, `.` and `..` parts, doubled or trailing slashes,
    backslashes, colons (drives, streams), control characters, lone surrogates, over-long names and
    parts.
    """
    _check_text(name, "file name")
    if "\\" in name or ":" in name:
        raise FormatError(f"file name {name!r:.120} holds a backslash or a colon")
    parts = name.split("/")
    if any(part in _RESERVED for part in parts):
        raise FormatError(f"file name {name!r:.120} is not a plain relative path")
    longest = max(len(part.encode()) for part in parts)
    if longest > MAX_PART_BYTES:
        raise FormatError(
            f"a part of file name {name!r:.120} has {longest} bytes, the limit is {MAX_PART_BYTES}"
        )
    return name


def check_tensor_name(name: str) -> str:
    """Return `name` if it can name a tensor: any short text without control characters."""
    return _check_text(name, "tensor name")


def _check_text(name: str, what: str) -> str:
    try:
        size = len(name.encode("utf-8", errors="strict"))
    except UnicodeEncodeError as error:
        raise FormatError(f"{what} {name!r:.120} is not valid Unicode") from error
    if not 0 < size <= MAX_NAME_BYTES:
        raise FormatError(f"{what} of {size} bytes, expected 1 to {MAX_NAME_BYTES}")
    if _CONTROL.search(name):
        raise FormatError(f"{what} {name!r:.120} holds a control character")
    return name
