"""Apply a patch file to a directory: beside it, verified, then one atomic exchange.

A crash at any moment leaves the old directory or the new one under the name, whole.  What a killed
run left beside it is removed by the next one.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from skerry.codec.errors import BaseMismatch, FormatError, ResultMismatch
from skerry.codec.fold import apply_pack
from skerry.publisher.checkpoint import Checkpoint
from skerry.publisher.errors import CheckpointError
from skerry.publisher.patch_file import MeasuredCheckpoint, PatchFile, layout_identity
from skerry.publisher.progress import Progress, silent
from skerry.publisher.replay import carried_file, reads
from skerry.publisher.threads import thread_count

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def apply_patch_file(
    directory: Path, patch: PatchFile, progress: Progress = silent, *, threads: int | None = None
) -> bool:
    """Lead `directory` to the patch's result; return False if it was there already.

    Raises BaseMismatch when the directory is not the patch's base, ResultMismatch and FormatError
    when the patch does not hold what it promises; the directory is as it was then.
    """
    directory = directory.resolve()
    new, old = (directory.with_name(f"{directory.name}.skerry-{s}") for s in ("new", "old"))
    if not directory.exists() and old.is_dir():
        old.rename(directory)  # killed between the two renames of a system without exchange
    with _locked(directory):
        for leftover in (new, old):
            if leftover.is_dir():
                shutil.rmtree(leftover)
        checkpoint = Checkpoint.scan(directory)
        held = MeasuredCheckpoint(checkpoint, progress)
        identity = layout_identity(held.layout)
        weights = held.weights.version()
        if identity == layout_identity(patch.layout) and weights == patch.result:
            return False
        if identity != patch.old_layout:
            raise BaseMismatch(expected=f"layout {patch.old_layout}", found=f"layout {identity}")
        if weights != patch.pack.base:
            raise BaseMismatch(expected=patch.pack.base, found=weights)
        try:
            _build(new, directory, patch, thread_count(threads))
            _verify(new, patch, progress)
            checkpoint.check_unchanged()
            _exchange(directory, new, old)
        finally:
            shutil.rmtree(new, ignore_errors=True)  # a refused build, or what was exchanged out
    return True


def _build(new: Path, directory: Path, patch: PatchFile, threads: int) -> None:
    buffers = {}
    new.mkdir()
    shutil.copymode(directory, new)
    for shard in patch.layout.shards:
        _copy(directory / shard.name, new / shard.name)
        buffer = np.memmap(new / shard.name, np.uint8, "r+", shape=(shard.size,))
        buffer[: len(shard.header)] = np.frombuffer(shard.header, np.uint8)
        buffers[shard.name] = buffer
    apply_pack(patch.layout, patch.pack, reads(buffers), threads=threads)
    for buffer in buffers.values():
        buffer.flush()
    for side in patch.layout.side_files:
        if side.name in patch.pack.files:
            (new / side.name).parent.mkdir(parents=True, exist_ok=True)
            (new / side.name).write_bytes(carried_file([patch.pack], side))
        else:
            _copy(directory / side.name, new / side.name)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copyfile(source, target)
        shutil.copymode(source, target)
        target.chmod(target.stat().st_mode | 0o200)
    except FileNotFoundError as error:
        raise FormatError(f"{target.name}: neither in the directory nor in the patch") from error


def _verify(new: Path, patch: PatchFile, progress: Progress) -> None:
    built = MeasuredCheckpoint(Checkpoint.scan(new, recipe=patch.layout.recipe), progress)
    if built.layout != patch.layout:
        raise ResultMismatch(
            what="layout",
            expected=layout_identity(patch.layout),
            found=layout_identity(built.layout),
        )
    if built.weights.version() != patch.result:
        raise ResultMismatch(what="weights", expected=patch.result, found=built.weights.version())
    for path in (*(p for p in new.rglob("*")), new):
        _sync(path)


def _exchange(directory: Path, new: Path, old: Path) -> None:
    """Put `new` under the name of `directory`; what was there lies under `new` or is removed."""
    libc = ctypes.CDLL(None, use_errno=True)
    renameat2 = getattr(libc, "renameat2", None)
    done = renameat2 is not None and not renameat2(
        _AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(directory), _RENAME_EXCHANGE
    )
    if not done:
        code = ctypes.get_errno()
        if renameat2 is not None and code not in (errno.ENOSYS, errno.EINVAL):
            raise OSError(code, os.strerror(code), str(directory))
        directory.rename(old)
        new.rename(directory)
    _sync(directory.parent)
    if not done:
        shutil.rmtree(old)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One run at a time: two would build in the same place."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(f"{directory}: expected a directory") from error
    try:
        _lock(descriptor, directory)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise CheckpointError(f"{directory}: another process is applying a patch") from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
