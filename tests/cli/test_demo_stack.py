"""The demo of the real stack: torchtitan, an S3 server and vLLM, or what is missing for it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skerry.cli.app import app

STEPS = 2
_ALL = ("torchtitan", "vllm", "boto3", "matplotlib")
_REAL = ["demo", "--trainer", "torchtitan", "--engine", "vllm"]


def test_one_without_the_other_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["demo", "--trainer", "torchtitan", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "torchtitan and vllm go together" in result.output


@pytest.mark.skipif(
    importlib.util.find_spec("torchtitan") is not None, reason="torchtitan is installed"
)
def test_what_is_missing_is_told_with_what_brings_it(tmp_path: Path) -> None:
    nowhere = ["--engine-python", str(tmp_path / "python"), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, [*_REAL, *nowhere])
    assert result.exit_code == 2
    assert "torchtitan: pip install 'skerry[torchtitan]'" in result.output
    assert "skerry[vllm]" in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.timeout(1800)
def test_vllm_serves_every_version_that_torchtitan_makes(tmp_path: Path) -> None:
    for module in _ALL:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed here: `make test-titan` has all of it")
    run = [sys.executable, "-m", "skerry", *_REAL, "--steps", str(STEPS), "--out", str(tmp_path)]
    done = subprocess.run([*run, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    summary = json.loads(done.stdout)
    assert summary["problems"] == []
    assert [row["version"] for row in summary["versions"]] == list(range(STEPS + 1))
    for row in summary["versions"]:
        assert row["exact"] == {"island-a": True, "island-b": True}
        assert row["kind"] == ("patch" if row["version"] else "full")
    # Of the last version nobody has asked for anything yet.
    assert all(row["rollouts"] > 0 for row in summary["versions"][:STEPS])
