"""The figures of a run: what JSON and Prometheus say is what was judged and learned."""

from __future__ import annotations

import json
import math
import urllib.request
from collections import Counter

import pytest
import torch
from prometheus_client import generate_latest

from skerry.trainer.rl.groups import Fate
from skerry.trainer.rl.learner import Update
from skerry.trainer.rl.loop import StepMetrics
from skerry.trainer.rl.metrics import RLMetrics, serving
from skerry.trainer.rl.report import to_json
from skerry.trainer.rl.tally import LagStats, Tally, merged, stats_by_lag


def step(number: int) -> StepMetrics:
    return StepMetrics(
        step=number,
        version=number + 3,
        reward=0.25,
        tally=Tally(
            fates=Counter({Fate.USED: 6, Fate.STALE: 1, Fate.UNKNOWN: 1}),
            lags=Counter({0: 3, 2: 4, None: 1}),
            versions=Counter({1: 8}),
            refused=2,
            refilled=1,
        ),
        update=Update(
            loss=-0.5,
            grad_norm=1.5,
            by_lag={
                0: LagStats(tokens=30, ratio=30.0, apart=0.3, kl=0.1, bounded=0),
                2: LagStats(tokens=10, ratio=12.0, apart=0.5, kl=0.3, bounded=5),
            },
        ),
        seconds={"learn": 1.0},
    )


def test_sums_by_lag_are_those_of_the_tokens() -> None:
    log_ratio = torch.tensor([0.0, math.log(2), math.log(0.5)])
    found = stats_by_lag([1, 0, 1], log_ratio, torch.tensor([False, True, False]))
    assert list(found) == [0, 1]
    assert (found[0].tokens, found[0].bounded, found[1].tokens) == (1, 1, 2)
    assert found[0].ratio == pytest.approx(2)
    assert found[0].kl == pytest.approx(1 - math.log(2))
    assert found[1].ratio == pytest.approx(1.5)
    assert found[1].apart == pytest.approx(math.log(2))
    both = merged([found, found])
    assert both[1].tokens == 4
    assert both[0].kl == pytest.approx(2 * found[0].kl)


def test_json_tells_the_lag_histogram_and_the_dropped_share() -> None:
    said = json.loads(json.dumps(to_json(step(4))))
    assert said["lags"] == {"0": 3, "2": 4, "null": 1}
    assert said["dropped_share"] == 0.25
    assert said["dropped_by"]["stale"] == said["dropped_by"]["unknown"] == 1
    assert said["update"]["bounded"] == 5 / 40
    assert said["update"]["mismatch"] == pytest.approx(0.8 / 40)
    assert said["update"]["kl"] == pytest.approx(0.4 / 40)
    assert said["update"]["by_lag"]["2"]["tokens"] == 10


def test_prometheus_says_the_same_of_all_steps() -> None:
    metrics = RLMetrics()
    metrics.observe(step(1))
    metrics.observe(step(2))
    lines = generate_latest(metrics.registry).decode().splitlines()
    for line in (
        'skerry_rl_rollouts_total{fate="used"} 12.0',
        'skerry_rl_rollouts_total{fate="stale"} 2.0',
        "skerry_rl_refused_total 4.0",
        "skerry_rl_refilled_total 2.0",
        'skerry_rl_lag_steps_bucket{le="0.0"} 6.0',
        'skerry_rl_lag_steps_bucket{le="2.0"} 14.0',
        "skerry_rl_lag_steps_count 14.0",
        'skerry_rl_tokens_total{lag="2"} 20.0',
        'skerry_rl_tokens_bounded_total{lag="2"} 10.0',
        "skerry_rl_step 2.0",
        "skerry_rl_dropped_share 0.25",
    ):
        assert line in lines, line


def test_a_scrape_of_the_port_shows_the_steps_so_far() -> None:
    metrics = RLMetrics()
    with serving(metrics, 0) as port:
        metrics.observe(step(7))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            assert "skerry_rl_step 7.0" in answer.read().decode().splitlines()
    with serving(metrics, port):  # the port is free again
        pass
