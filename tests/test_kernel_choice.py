"""SKERRY_KERNEL means the same to everything that encodes or decodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAINER = ("skerry.trainer.run", "--bulletin", "x", "--gate", "http://127.0.0.1:1", "--events", "e")


@pytest.mark.parametrize(
    "command",
    [
        ("skerry", "info"),
        ("skerry.benchmarks", "codec"),
        ("skerry.benchmarks.bench_codec",),
        TRAINER,
    ],
    ids=lambda command: command[0],
)
def test_a_kernel_that_is_not_there_is_a_wrong_command_line(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "SKERRY_KERNEL": "abacus"},
    )
    assert done.returncode == 2, done.stderr
    assert "SKERRY_KERNEL: kernel 'abacus' is not there; this machine has" in done.stderr
    assert list(tmp_path.iterdir()) == []
