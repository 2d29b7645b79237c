"""Memory is what the call itself needs, in this process and in the programs that it runs."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from skerry.benchmarks.measure import measure, run_program

_MB = 1_000_000


def test_a_temporary_array_is_seen_and_weights_are_not() -> None:
    weights = np.ones(100 * _MB, np.uint8)
    total, measured = measure(lambda: int(np.repeat(weights[:1], 50 * _MB).sum()))
    assert total == 50 * _MB
    if measured.peak_bytes is None:
        pytest.skip("this kernel does not tell")
    assert 40 * _MB < measured.peak_bytes < 90 * _MB


def test_every_run_is_prepared() -> None:
    calls: list[str] = []
    result, measured = measure(
        lambda: calls.append("work"), prepare=lambda: calls.append("prepare")
    )
    assert result is None
    assert measured.seconds > 0
    assert calls == ["prepare", "work"] * (len(calls) // 2)


def test_a_program_counts_as_the_work_that_it_does() -> None:
    script = "x = bytearray(60_000_000); import time; time.sleep(0.2)"
    _, measured = measure(lambda: run_program([sys.executable, "-c", script]))
    assert measured.seconds >= 0.2
    if measured.peak_bytes is None:
        pytest.skip("this kernel does not tell")
    assert measured.peak_bytes > 60 * _MB


def test_a_program_that_fails_is_no_figure() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        run_program([sys.executable, "-c", "raise SystemExit(3)"])
