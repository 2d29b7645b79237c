"""The model of large deployments: its laws, and a calibration at toy size on real processes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from skerry.benchmarks.__main__ import app
from skerry.benchmarks.scale.calibrate import Checked
from skerry.benchmarks.scale.model import S3_GETS_PER_S, Deployment, forecast
from skerry.benchmarks.scale.rates import INTERNET, R2, Linear, Rates, fitted
from skerry.benchmarks.scale.run import Size
from tests.benchmarks.test_bench_road import bench

RATES = Rates(
    publish_s=Linear(fixed=0.01, of_weights=1e-9, of_changes=1e-7),
    publish_cpu_s=Linear(fixed=0.01, of_weights=2e-9, of_changes=2e-7),
    follow_cpu_s=Linear(fixed=0.02, of_weights=1e-9, of_changes=2e-7),
    follow_s=Linear(fixed=0.02, of_weights=5e-10, of_changes=1e-7),
    publisher_bytes=Linear(fixed=1e8, of_weights=1.0, of_changes=10.0),
    agent_bytes=Linear(fixed=1e8, of_weights=1.0, of_changes=10.0),
    bytes_per_changed=((0.001, 1.0), (0.1, 0.5)),
    puts=3.0,
    gets=3.0,
    threads=2,
)
LARGE = Deployment(parameters=1e12, trainer_hosts=64, islands=1000, regions=10)

costs = st.floats(1e-3, 10)


@given(costs, costs, costs)
def test_a_cost_that_is_linear_is_found_again(fixed: float, weights: float, changes: float) -> None:
    law = Linear(fixed=fixed, of_weights=weights, of_changes=changes)
    points = [(w, c, law.at(w, c)) for w in (1.0, 5.0) for c in (0.1, 2.0)]
    found = fitted(points)
    assert all(found.at(w, c) == pytest.approx(cost, rel=1e-6) for w, c, cost in points)
    assert found.at(3.0, 1.0) == pytest.approx(law.at(3.0, 1.0), rel=1e-6)


@given(costs, costs)
def test_what_streams_has_no_part_of_the_weights(fixed: float, changes: float) -> None:
    points = [(w, c, fixed + changes * c) for w in (1.0, 5.0) for c in (0.1, 2.0)]
    found = fitted(points, grows=False)
    assert found.of_weights == 0
    assert all(found.at(9.0, c) == pytest.approx(cost, rel=1e-6) for _, c, cost in points)


@given(st.lists(st.tuples(costs, costs, costs), min_size=3, max_size=6))
def test_no_part_of_a_fit_is_negative(points: list[tuple[float, float, float]]) -> None:
    found = fitted(points)
    assert min(found.fixed, found.of_weights, found.of_changes) >= 0


def test_egress_is_paid_by_tiers_of_a_month() -> None:
    assert INTERNET.egress_a_day(100) == pytest.approx(100 * 0.09)
    month = 10_000 * 0.09 + 40_000 * 0.085 + 100_000 * 0.07 + 150_000 * 0.05
    assert INTERNET.egress_a_day(10_000) == pytest.approx(month / 30)
    assert R2.egress_a_day(1e9) == 0


def test_patches_between_measured_densities_lie_between_their_sizes() -> None:
    sizes = [RATES.patch_bytes(1.0, d) / d for d in (0.001, 0.003, 0.01, 0.03, 0.1)]
    assert (sizes[0], sizes[-1]) == (1.0, 0.5)
    assert all(after < before for before, after in pairwise(sizes))


def test_more_of_anything_never_takes_less() -> None:
    least = forecast(LARGE, RATES)
    for more in (
        {"parameters": 2e12}, {"density": 0.02}, {"islands": 2000}, {"regions": 20},
        {"round_trip_s": 0.2}, {"downlink_bits": 1e9}, {"trainer_hosts": 32}, {"relays": False},
    ):  # fmt: skip
        found = forecast(replace(LARGE, **more), RATES)
        assert (
            found.seconds > least.seconds
            or found.egress_bytes > least.egress_bytes
            or more == {"islands": 2000}
        )
        assert found.full_egress_dollars["internet"] >= least.full_egress_dollars["internet"]


def test_relays_let_a_version_out_once_a_region_and_cost_a_second_hop() -> None:
    relayed, direct = forecast(LARGE, RATES), forecast(replace(LARGE, relays=False), RATES)
    assert direct.egress_bytes == pytest.approx(100 * relayed.egress_bytes)
    assert direct.gets == pytest.approx(100 * relayed.gets)
    assert relayed.seconds - direct.seconds == pytest.approx(relayed.wan_s)
    assert direct.egress_dollars["regions"] < direct.xor_egress_dollars["regions"]


def test_what_saturates_first_is_what_is_used_most() -> None:
    slow = forecast(replace(LARGE, downlink_bits=1e8), RATES)
    assert slow.saturates == "islands' links"
    assert slow.shortest_step_s == slow.wan_s
    crowd = forecast(
        replace(LARGE, parameters=1e9, islands=10_000, relays=False, poll_s=0.2), RATES
    )
    assert crowd.saturates == "requests to one prefix"
    assert crowd.busy[crowd.saturates] > 1
    assert crowd.gets > 86_400 * S3_GETS_PER_S


def test_a_prediction_is_off_by_its_relative_error() -> None:
    size = Size(megabytes=1, density=0.01)
    near = Checked(size=size, what="s", predicted=1.19, measured=1.0)
    far = Checked(size=size, what="s", predicted=0.79, measured=1.0)
    assert (near.within, far.within) == (True, False)


def test_the_model_is_calibrated_here_and_checked_at_other_sizes() -> None:
    found = bench(
        "scale", "--calibrate", "1,4", "--at", "1", "--checked", "2", "--rounds", "1",
        "--versions", "1", "--ladder-megabytes", "0.5", "--parameters", "7e10", "--hosts", "8",
    )  # fmt: skip
    checks = {one["what"]: one for one in found["checks"]}
    # Bytes and requests do not depend on how busy the machine is.
    for what in ("bytes of a patch", "requests to publish", "requests to follow"):
        assert checks[what]["within"], checks[what]
    assert len(found["runs"]) == 3
    (own,) = found["forecasts"]
    assert own["deployment"]["parameters"] == 7e10
    assert own["seconds"] > 0
    assert own["saturates"] in own["busy"]


def test_a_size_is_not_checked_against_itself() -> None:
    done = CliRunner().invoke(app, ["scale", "--calibrate", "1,2", "--checked", "2"])
    assert done.exit_code == 2
    assert "not those to calibrate with" in done.output
