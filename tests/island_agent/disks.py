"""Disks that fill up, turn read-only or belong to somebody else: real ones, where root permits."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534


def _mount(*arguments: str) -> bool:
    if os.geteuid() != 0:
        return False
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


def _unmount(path: Path) -> None:
    subprocess.run(["umount", "-l", str(path)], check=True)


class SmallDisk:
    """A tmpfs of a few MB that can be filled to the last byte."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        with self._ballast.open("wb", buffering=0) as file:
            for size in (65536, 4096, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    continue

    def shrink(self, nbytes: int) -> None:
        """Leave so much room on a disk that was filled."""
        os.truncate(self._ballast, self._ballast.stat().st_size - nbytes)

    def empty(self) -> None:
        self._ballast.unlink(missing_ok=True)


@contextmanager
def small_disk(path: Path, megabytes: int = 4) -> Iterator[SmallDisk]:
    path.mkdir()
    if not _mount("-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)):
        pytest.skip("mounting needs privileges")
    try:
        yield SmallDisk(path)
    finally:
        _unmount(path)


@contextmanager
def formatted_disk(directory: Path, kind: str) -> Iterator[Path]:
    """A file system of this kind in a file, mounted: skipped where there is no such thing."""
    make = shutil.which(f"mkfs.{kind}")
    if make is None:
        pytest.skip(f"needs mkfs.{kind}")
    image, path = directory / "image", directory / "formatted"
    path.mkdir()
    with image.open("wb") as file:
        file.truncate(512 * 2**20)
    if subprocess.run([make, "-q", str(image)], capture_output=True, check=False).returncode:
        pytest.skip(f"{make} does not work here")
    if not _mount("-o", "loop", str(image), str(path)):
        pytest.skip(f"mounting {kind} is not possible")
    try:
        yield path
    finally:
        _unmount(path)


class ReadOnly:
    """Directories that are mounted over themselves, read-only, until `mend`."""

    def __init__(self) -> None:
        self._mounted: list[Path] = []

    def make(self, path: Path) -> None:
        if not _mount("--bind", str(path), str(path)):
            pytest.skip("mounting needs privileges")
        self._mounted.append(path)
        assert _mount("-o", "remount,bind,ro", str(path))

    def mend(self) -> None:
        while self._mounted:
            _unmount(self._mounted.pop())


@contextmanager
def read_only() -> Iterator[ReadOnly]:
    disk = ReadOnly()
    try:
        yield disk
    finally:
        disk.mend()


@contextmanager
def as_nobody() -> Iterator[Path]:
    """Run the body as a user whom modes can refuse; yields a directory of that user's."""
    directory = Path(tempfile.mkdtemp(dir="/tmp"))
    directory.chmod(0o755)
    was = os.geteuid()
    if was == 0:
        os.chown(directory, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    try:
        yield directory
    finally:
        if was == 0:
            os.seteuid(0)
        shutil.rmtree(directory)
