"""An object store in a directory, for one host or a shared POSIX file system with hard links.

Objects are regular files below real directories: symbolic links are never followed, and names
that are not keys do not exist.  An object appears by `link` or `rename` of a file that is already
durable, so a process killed at any instant leaves the old state or the new one, and at worst a
stray temporary file that nothing ever lists.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from skerry.bulletin.errors import (
    AlreadyExists,
    InvalidKey,
    NotFound,
    ObjectTooLarge,
    OutcomeUnknown,
    ShortObject,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)
from skerry.bulletin.keys import TEMPORARY, check_key, is_key
from skerry.bulletin.store import check_range, in_ranges

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a planted FIFO must not hang; regular files ignore it.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_OBJECT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EOPNOTSUPP, errno.ENOSYS}


class LocalStore:
    """See ObjectStore."""

    def __init__(self, root: Path) -> None:
        # The root may be reached through links; below it there are none.
        self._root = root.absolute()
        self._durable: set[str] = set()  # directories whose way from the root was synced

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        with self._opened(key) as (fd, size):
            if size > limit_bytes:
                raise ObjectTooLarge(key, limit_bytes=limit_bytes, found=size)
            return _read(key, fd, 0, size)

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        check_range(start, stop)
        with self._opened(key) as (fd, size):
            if stop > size:
                raise ShortObject(key, expected=stop - start, found=max(size - start, 0))
            return _read(key, fd, start, stop)

    def stream(self, key: str, start: int, stop: int) -> Iterator[bytes]:
        return in_ranges(self.get_range, key, start, stop)

    def size(self, key: str) -> int:
        with self._opened(key) as (_, size):
            return size

    def put_if_absent(self, key: str, data: bytes) -> None:
        with self._temporary(key, [data]) as (directory, temporary, _):
            name = _name(key)
            try:
                os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
            except FileExistsError:
                if _is_directory(directory, name):
                    raise InvalidKey(key, "other keys lie below it") from None
                # The winner may not have made its link durable yet; once the loser reports the
                # slot as taken it must stay taken, also after a power cut.
                _sync(key, directory)
                raise AlreadyExists(key) from None
            except OSError as error:
                if error.errno in _DENIED:
                    rule = f"cannot make a hard link here: {error.strerror}"
                    raise StoreDenied(key, rule) from error
                raise OutcomeUnknown(key, f"link failed: {error.strerror}") from error
            _sync(key, directory)

    def put(self, key: str, parts: Iterable[bytes]) -> int:
        with self._temporary(key, parts) as (directory, temporary, size):
            try:
                os.rename(temporary, _name(key), src_dir_fd=directory, dst_dir_fd=directory)
            except IsADirectoryError:
                raise InvalidKey(key, "other keys lie below it") from None
            except OSError as error:
                raise OutcomeUnknown(key, f"rename failed: {error.strerror}") from error
            _sync(key, directory)
            return size

    def replace(self, key: str, data: bytes) -> None:
        self.put(key, [data])

    def list_after(self, prefix: str, after: str = "") -> Iterator[str]:
        try:
            root = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _trouble(prefix, "cannot open the root", error) from error
        yield from _walk(root, "", prefix, after)

    def delete(self, key: str) -> None:
        try:
            with self._directory(key, create=False) as directory:
                name = _name(key)
                if not _is_directory(directory, name):
                    os.unlink(name, dir_fd=directory)
                    _sync(key, directory)
        except OSError as error:
            if error.errno not in _NO_OBJECT:
                raise _trouble(key, "cannot delete", error) from error

    @contextmanager
    def _opened(self, key: str) -> Iterator[tuple[int, int]]:
        """Open an object for reading: its descriptor and its size."""
        try:
            with self._directory(key, create=False) as directory:
                fd = os.open(_name(key), _READ, dir_fd=directory)
        except OSError as error:
            if error.errno in _NO_OBJECT:
                raise NotFound(key) from None
            raise _trouble(key, "cannot open", error) from error
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise NotFound(key)
            yield fd, status.st_size
        finally:
            os.close(fd)

    @contextmanager
    def _temporary(self, key: str, parts: Iterable[bytes]) -> Iterator[tuple[int, str, int]]:
        """Write a durable temporary file beside the key: its directory, its name and its size."""
        with ExitStack() as stack:
            try:
                directory = stack.enter_context(self._directory(key, create=True))
            except OSError as error:
                if error.errno in _NO_OBJECT:
                    raise InvalidKey(key, "its directory is an object or a link") from None
                raise _trouble(key, "no directory", error) from error
            temporary = TEMPORARY + secrets.token_hex(16)
            stack.callback(_discard, directory, temporary)
            yield directory, temporary, _write(key, directory, temporary, parts)

    @contextmanager
    def _directory(self, key: str, *, create: bool) -> Iterator[int]:
        """Open the directory of `key`, one segment at a time, through no symbolic link."""
        path, _, _ = check_key(key).rpartition("/")
        segments = path.split("/") if path else []
        create = create and not (path in self._durable and (self._root / path).is_dir())
        if create:
            self._make_root(key)
        fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for segment in segments:
                if create:
                    with suppress(FileExistsError):
                        os.mkdir(segment, dir_fd=fd)
                    # Also when it was there: whoever made it may not have synced it yet.
                    os.fsync(fd)
                below = os.open(segment, _DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = below
            if create:
                self._durable.add(path)
            yield fd
        finally:
            os.close(fd)

    def _make_root(self, key: str) -> None:
        """Make the root and its parents, each durable in the one above it."""
        above = next(path for path in self._root.parents if path.is_dir())
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise StoreDenied(key, f"{self._root} is not a directory") from None
        for path in (p for p in self._root.parents if p.is_relative_to(above)):
            with suppress(PermissionError):  # not ours, so whoever made it has synced it
                _sync_path(path)


def _name(key: str) -> str:
    return key.rpartition("/")[2]


def _read(key: str, fd: int, start: int, stop: int) -> bytes:
    pieces = []
    while start < stop:
        try:
            piece = os.pread(fd, stop - start, start)
        except OSError as error:
            raise StoreUnavailable(key, f"cannot read: {error.strerror}") from error
        if not piece:
            raise ShortObject(key, expected=stop, found=start)
        pieces.append(piece)
        start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _write(key: str, directory: int, name: str, parts: Iterable[bytes]) -> int:
    size = 0
    with _unavailable(key):
        fd = os.open(name, _CREATE, 0o644, dir_fd=directory)
    try:
        for part in parts:  # outside _unavailable: the errors of `parts` are the caller's
            view = memoryview(part).cast("B")
            size += len(view)
            while view:
                with _unavailable(key):
                    view = view[os.write(fd, view) :]
        with _unavailable(key):
            os.fsync(fd)
    finally:
        os.close(fd)
    return size


@contextmanager
def _unavailable(key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _trouble(key, "cannot write", error) from error


def _discard(directory: int, name: str) -> None:
    with suppress(OSError):  # renamed already, or a stray that nothing lists
        os.unlink(name, dir_fd=directory)


def _sync(key: str, directory: int) -> None:
    try:
        os.fsync(directory)
    except OSError as error:
        raise OutcomeUnknown(key, f"cannot sync its directory: {error.strerror}") from error


def _sync_path(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _trouble(key: str, what: str, error: OSError) -> StoreError:
    kind = StoreDenied if error.errno in _DENIED else StoreUnavailable
    return kind(key, f"{what}: {error.strerror}")


def _is_directory(directory: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _walk(fd: int, path: str, prefix: str, after: str) -> Iterator[str]:
    """Yield the keys below the directory open at `fd`, whose own path is `path`; closes `fd`."""
    try:
        with os.scandir(fd) as entries:
            # With its slash a directory sorts as the keys below it do.
            names = sorted(
                path + entry.name + ("/" if entry.is_dir(follow_symlinks=False) else "")
                for entry in entries
                if entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False)
            )
        for name in names:
            if not name.endswith("/"):
                if name.startswith(prefix) and name > after and is_key(name):
                    yield name
            elif (name.startswith(prefix) or prefix.startswith(name)) and (
                name > after or after.startswith(name)
            ):
                try:
                    below = os.open(name.rstrip("/").rpartition("/")[2], _DIRECTORY, dir_fd=fd)
                except OSError as error:
                    if error.errno in _NO_OBJECT:  # removed, or replaced by a link, meanwhile
                        continue
                    raise _trouble(name, "cannot open", error) from error
                yield from _walk(below, name, prefix, after)
    finally:
        os.close(fd)
