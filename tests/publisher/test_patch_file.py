"""Patches as files: exact, refused on any other base, crash-safe in place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.codec.digest import digest_bytes
from skerry.codec.errors import BaseMismatch, CodecError, FormatError, StructureMismatch
from skerry.publisher import Checkpoint, CheckpointError
from skerry.publisher.apply_file import apply_patch_file
from skerry.publisher.patch_file import PatchFile, make_patch
from tests.publisher.samples import (
    Sample,
    edit_side_files,
    edit_structure,
    edit_weights,
    make,
    read_tree,
)


def patch_between(old: Sample, new: Sample, root: Path) -> bytes:
    data, _ = make_patch(
        Checkpoint.scan(old.write(root / "from")), Checkpoint.scan(new.write(root / "to"))
    )
    return data


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), sharded=st.booleans(), sides=st.booleans(), bits=st.booleans())
def test_applying_a_patch_file_gives_the_other_directory(
    seed: int, sharded: bool, sides: bool, bits: bool
) -> None:
    old = make(seed, sharded=sharded)
    new = edit_weights(old, seed) if bits else old
    new = edit_side_files(new, seed) if sides else new
    with TemporaryDirectory() as scratch:
        root = Path(scratch)
        patch = PatchFile.parse(patch_between(old, new, root))
        directory = old.write(root / "model")
        assert apply_patch_file(directory, patch) == (old != new)
        assert read_tree(directory) == new.files()
        assert not apply_patch_file(directory, patch)
        assert {path.name for path in root.iterdir()} == {"from", "to", "model"}


def test_another_base_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    old, new = make(1, sharded=True), edit_weights(make(1, sharded=True), 1)
    patch = PatchFile.parse(patch_between(old, new, tmp_path))
    for number, other in enumerate((edit_weights(old, 2), edit_side_files(old, 2))):
        directory = other.write(tmp_path / f"other-{number}")
        with pytest.raises(BaseMismatch):
            apply_patch_file(directory, patch)
        assert read_tree(directory) == other.files()
    with pytest.raises(CheckpointError):
        apply_patch_file(tmp_path / "nowhere", patch)


def test_a_change_of_structure_is_no_patch_file(tmp_path: Path) -> None:
    old = make(2, sharded=False)
    with pytest.raises(StructureMismatch, match="tensor"):
        patch_between(old, edit_structure(old, 0), tmp_path)


def test_every_cut_and_every_flipped_byte_is_refused(tmp_path: Path) -> None:
    old = make(3, sharded=False)
    data = patch_between(old, edit_weights(old, 3), tmp_path)
    for size in range(0, len(data), 97):
        with pytest.raises(FormatError):
            PatchFile.parse(data[:size])
    for at in range(0, len(data), 41):
        with pytest.raises(FormatError):
            PatchFile.parse(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(FormatError):
        PatchFile.parse(data + b"\0")


def test_a_patch_that_promises_other_weights_is_refused_before_the_exchange(
    tmp_path: Path,
) -> None:
    old = make(4, sharded=True)
    data = bytearray(patch_between(old, edit_weights(old, 4), tmp_path)[:-32])
    data[64] ^= 1  # the result's digest; the seal is made anew
    forged = bytes(data) + bytes.fromhex(digest_bytes(bytes(data)))
    directory = old.write(tmp_path / "model")
    with pytest.raises(CodecError):
        apply_patch_file(directory, PatchFile.parse(forged))
    assert read_tree(directory) == old.files()
    assert not list(tmp_path.glob("model.*"))


def test_a_kill_at_any_moment_leaves_the_old_directory_or_the_new(tmp_path: Path) -> None:
    old = make(6, sharded=True)
    new = edit_side_files(edit_weights(old, 6), 6)
    file = tmp_path / "model.patch"
    file.write_bytes(patch_between(old, new, tmp_path))
    directory = old.write(tmp_path / "model")
    script = (
        "import sys; from pathlib import Path\n"
        "from skerry.publisher.apply_file import apply_patch_file\n"
        "from skerry.publisher.patch_file import PatchFile\n"
        "patch = PatchFile.parse(Path(sys.argv[2]).read_bytes())\n"
        "print('go', flush=True)\n"
        "apply_patch_file(Path(sys.argv[1]), patch)\n"
    )
    for number in range(8):
        with subprocess.Popen(
            [sys.executable, "-c", script, str(directory), str(file)], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.004 * number)  # where the kill falls, not a wait for anything
            process.send_signal(signal.SIGKILL)
        files = read_tree(directory)
        assert files in (old.files(), new.files())
    apply_patch_file(directory, PatchFile.parse(file.read_bytes()))
    assert read_tree(directory) == new.files()
    assert os.listdir(tmp_path).count("model.skerry-new") == 0
