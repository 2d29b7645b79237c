"""Durable file operations: what returns from here survives kill -9 and a power cut."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path

from skerry.codec.digest import DigestStream, digest_bytes
from skerry.codec.errors import FormatError
from skerry.island_agent.room import writing

TEMPORARY = ".new"  # how the names of files end that nothing refers to yet

_BLOCK_BYTES = 1024 * 1024
SEAL_BYTES = 66
_FICLONE = 0x40049409  # _IOW(0x94, 9, int), linux/fs.h


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_tree(directory: Path) -> None:
    """Make the names in `directory` and in every directory below it durable."""
    for root, _, _ in os.walk(directory):
        sync_directory(Path(root))


def write_atomically(path: Path, data: bytes, *, scratch: Path | None = None) -> None:
    """Replace `path` with `data`: after a crash it holds the old bytes or the new ones.

    The temporary file lies in `scratch`, a directory of the same file system (default: beside);
    its name is short whatever the length of `path`'s.  Raises DiskError.
    """
    temporary = (scratch or path.parent) / f".{digest_bytes(path.name.encode())[:16]}{TEMPORARY}"
    with writing(path.parent, path.name, len(data)):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            rename(temporary, path)
        finally:
            with suppress(OSError):  # nothing refers to it; on a read-only disk it was never made
                temporary.unlink()


def rename(source: Path, target: Path) -> None:
    """Rename and make the new name durable."""
    source.rename(target)
    sync_directory(target.parent)
    if source.parent != target.parent:
        sync_directory(source.parent)


def remove(path: Path) -> None:
    """Remove a file or a tree; nothing to remove, or a file in place of its parent, is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        with suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()
    if path.parent.is_dir():
        sync_directory(path.parent)


def copy_file(source: Path, target: Path) -> str:
    """Copy a file's bytes; say how: "reflink" shares them until one changes, "copy" does not.

    The file system decides; across file systems and on most there is no sharing.
    """
    with source.open("rb") as old, target.open("xb") as new:
        try:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
        except OSError:
            shutil.copyfileobj(old, new, _BLOCK_BYTES)
            return "copy"
    return "reflink"


def digest_file(path: Path) -> DigestStream:
    """Hash a file in blocks; the stream tells digest and size."""
    stream = DigestStream()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            stream.update(block)
    return stream


def tree_files(directory: Path) -> dict[str, int | None]:
    """Return the relative POSIX name and size of every file below; None for what is no plain file.

    Links are not followed.
    """
    found: dict[str, int | None] = {}
    for root, directories, files in os.walk(directory):
        for name in [*files, *(d for d in directories if (Path(root) / d).is_symlink())]:
            path = Path(root) / name
            plain = path.is_file() and not path.is_symlink()
            found[path.relative_to(directory).as_posix()] = path.stat().st_size if plain else None
    return found


def seal(content: bytes) -> bytes:
    """Return `content` and a line with its digest, the form of small state files."""
    return content + b"\n" + digest_bytes(content).encode() + b"\n"


def unseal(data: bytes, what: str) -> bytes:
    """Return what was sealed.  Raises FormatError if a byte differs."""
    content = data[:-SEAL_BYTES]
    if seal(content) != data:
        raise FormatError(f"{what} does not match the digest at its end")
    return content
