"""What an agent takes, alone and behind a relay: the benchmarks at toy size, on real processes."""

from __future__ import annotations

from tests.benchmarks.test_bench_road import bench


def test_an_agent_goes_from_version_to_version_and_its_phases_are_told() -> None:
    found = bench("agent", "--gb", "0.07", "--versions", "1")
    full, patch = found["versions"]
    assert (full["version"], full["full"]) == (0, True)
    assert (patch["version"], patch["full"]) == (1, False)
    assert patch["cpu_s"] > 0
    assert patch["decode_s"] > 0
    assert patch["resident_mib"] >= patch["anonymous_mib"] > 0


def test_agents_behind_a_relay_cost_the_wan_one_fetch() -> None:
    found = bench("relay", "--agents", "3", "--megabytes", "2", "--versions", "2")
    assert found["agents"] == 3
    # Beside the objects there is only what is polled.
    assert found["wan_bytes"] < 1.01 * found["alone_bytes"]
    assert found["private_bytes"] > 0
