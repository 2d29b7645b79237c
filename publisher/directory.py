"""The files of a checkpoint directory: every one of them, or a refusal with its name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from skerry.codec.errors import FormatError
from skerry.codec.layout import check_name
from skerry.publisher.errors import CheckpointError, UnsafeEntry
from skerry.publisher.index import INDEX_SUFFIX, SHARD_SUFFIX
from skerry.publisher.sources import FileSource

_MAX_DEPTH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanLimits:
    """How much a directory may hold besides weights.  Side files travel whole when they change."""

    files: int = 10_000
    side_file_bytes: int = 256 * 1024 * 1024
    side_files_bytes: int = 512 * 1024 * 1024


def list_files(directory: Path, limits: ScanLimits) -> dict[str, FileSource]:
    """Return all files below `directory` by their names relative to it, in the order of the names.

    Raises UnsafeEntry for anything but plain files and directories, CheckpointError over a limit.
    """
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: expected a directory")
    files: dict[str, FileSource] = {}
    side_bytes = 0
    for name, path in _walk(directory, "", 0):
        source = FileSource(path, name)
        files[name] = source
        if len(files) > limits.files:
            raise CheckpointError(f"{name}: more than {limits.files} files")
        if not name.endswith(SHARD_SUFFIX):
            if source.size > limits.side_file_bytes:
                raise CheckpointError(
                    f"{name}: a side file of {source.size} bytes, the limit is "
                    f"{limits.side_file_bytes}"
                )
            side_bytes += source.size
            if side_bytes > limits.side_files_bytes:
                raise CheckpointError(
                    f"{name}: side files of more than {limits.side_files_bytes} bytes together"
                )
    return dict(sorted(files.items()))


def side_files(directory: Path, limits: ScanLimits | None = None) -> dict[str, bytes]:
    """Return the files of a directory, by name, that are served beside the weights.

    Weights that lie there, and their indexes, are not among them: those of a version are its own.
    Raises as `list_files` does.
    """
    return {
        name: file.whole()
        for name, file in list_files(directory, limits or ScanLimits()).items()
        if not name.endswith((SHARD_SUFFIX, INDEX_SUFFIX))
    }


def _walk(directory: Path, prefix: str, depth: int) -> Iterator[tuple[str, Path]]:
    if depth > _MAX_DEPTH:
        raise UnsafeEntry(name=prefix, rule=f"nested deeper than {_MAX_DEPTH} directories")
    with os.scandir(directory) as entries:
        for entry in entries:
            name = prefix + entry.name
            try:
                check_name(name)
            except FormatError as error:
                raise UnsafeEntry(name=name, rule=str(error)) from error
            if entry.is_symlink():
                raise UnsafeEntry(
                    name=name, rule="a symbolic link; a version holds plain files, copy with cp -L"
                )
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(Path(entry.path), name + "/", depth + 1)
            elif entry.is_file(follow_symlinks=False):
                yield name, Path(entry.path)
            else:
                raise UnsafeEntry(name=name, rule="neither a plain file nor a directory")
