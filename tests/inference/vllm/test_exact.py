"""Real vLLM: a version that was installed live is the version, token by token and bit by bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.inference.vllm.installed import environment, require_vllm

require_vllm()

pytestmark = pytest.mark.timeout(1800)


def run(kind: str, versions: int, root: Path, **more: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.inference.vllm.exact", kind, str(versions), str(root)],
        env=environment(VLLM_ENABLE_V1_MULTIPROCESSING="0", **more),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("versions", [3, pytest.param(10, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    ("kind", "kinds"),
    [
        ("dense", {"direct": 27, "permuted": 0, "derived": 0}),
        ("tied", {"direct": 26, "permuted": 0, "derived": 0}),
        ("moe", {"direct": 24, "permuted": 6, "derived": 0}),
        ("fp8", {"direct": 39, "permuted": 0, "derived": 0}),
    ],
)
def test_live_versions_say_what_fresh_engines_say(
    tmp_path: Path, kind: str, kinds: dict[str, int], versions: int
) -> None:
    found = run(kind, versions, tmp_path)
    assert found["kinds"] == kinds
    assert found["equal"] == [found["requests"]] * versions
    assert found["digests"] == [True] * versions
    assert found["four_phases"]
    assert found["from_mirror"] == 0  # every bit was read out of the engine
    assert found["undone"]
    assert min(found["changed"]) > 0  # or the versions could not be told apart


@pytest.mark.parametrize(
    ("kind", "more", "derived"),
    [("dense", {"SKERRY_VLLM_PACKED": "1"}, 14), ("moe-fp8", {}, 6)],
)
def test_modules_that_are_made_anew_say_what_fresh_engines_say(
    tmp_path: Path, kind: str, more: dict[str, str], derived: int
) -> None:
    found = run(kind, 3, tmp_path, **more)
    assert found["kinds"]["derived"] == derived
    assert found["equal"] == [found["requests"]] * 3
    assert found["digests"] == [True] * 3
    assert found["undone"]
    assert min(found["changed"]) > 0
