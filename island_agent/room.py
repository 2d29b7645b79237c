"""Room on this host's disk: what a write needs, what is free, and what an OSError means.

The errors made here say bytes needed and free and who acts; whoever raises them has left what is
served as it was.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skerry.island_agent.errors import DiskDenied, DiskError, DiskFull

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EROFS, errno.EACCES, errno.EPERM}


def free_bytes(where: Path) -> int:
    """Return what an unprivileged user may still write where `where` is, or would be."""
    while not where.exists() and where != where.parent:
        where = where.parent
    try:
        found = os.statvfs(where)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def is_full(error: OSError) -> bool:
    """Say whether more room would have helped."""
    return isinstance(error, DiskFull) or error.errno in _FULL


def disk_error(error: OSError, where: Path, what: str, needed: int | None = None) -> DiskError:
    """Return what to raise for `error`, met while writing `what` below `where`."""
    if isinstance(error, DiskError):
        return error
    why = error.strerror or repr(error)
    free = free_bytes(where)
    found: DiskError
    if error.errno in _FULL:
        found = DiskFull(where, what, needed=needed, free=free, why=why)
    elif error.errno in _DENIED:
        found = DiskDenied(where, what, needed=needed, free=free, why=why)
    else:
        found = DiskError(f"{where}: {what}: {error}")
    found.errno = error.errno
    return found


@contextmanager
def writing(where: Path, what: str, needed: int | None = None) -> Iterator[None]:
    """Turn an OSError of the body into a DiskError that says what it was about."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, where, what, needed) from error


def check_room(where: Path, what: str, needed: int) -> None:
    """Raises DiskFull if so much cannot be written there, before a byte is."""
    free = free_bytes(where)
    if needed > free:
        raise DiskFull(where, what, needed=needed, free=free, why="nothing was written")


def own_directory(path: Path) -> None:
    """Make a directory that nobody else may enter, in a place where anybody may make one.

    Raises DiskDenied if somebody else has made it.
    """
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        why = f"it belongs to user {found.st_uid}, not to {os.geteuid()}"
        raise DiskDenied(path, "the island", needed=None, free=free_bytes(path), why=why)
