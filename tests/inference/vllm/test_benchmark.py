"""The benchmark of the pause runs in vLLM's environment, which lacks most extras."""

from __future__ import annotations

import subprocess
import sys

from tests.inference.vllm.installed import environment, require_vllm

require_vllm()


def test_the_benchmark_of_the_pause_starts_beside_vllm() -> None:
    command = [sys.executable, "-m", "skerry.benchmarks", "pause", "--help"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=environment()
    )
    assert done.returncode == 0, done.stderr
