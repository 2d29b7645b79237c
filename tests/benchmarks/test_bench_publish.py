"""The trainer's benchmark at toy size: both loops run, and every step was published."""

from __future__ import annotations

from tests.benchmarks.test_bench_road import bench


def test_the_same_loop_runs_with_and_without_publishing() -> None:
    found = bench("publish", "--megabytes", "8", "--steps", "2", "--rounds", "2", "--tokens", "8")
    assert found["weights_gb"] == 2 * 2048 * 2048 / 1e9
    assert found["steps"] == 4
    assert len(found["blocked_s"]) == 4
    assert found["without_s"] > 0
    assert found["ratio"] == found["with_s"] / found["without_s"]
    assert found["overlap"] == found["beside_s"] / found["without_s"]
    assert 0 < found["changed"] < 1
    assert found["blocked_s_per_gb"] > 0
    assert found["copied_s_per_gb"] > 0
