"""The benchmarks of RL run at toy size, and their arithmetic is that of the books."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from skerry.benchmarks.__main__ import app
from skerry.benchmarks.rl.replay import measure
from skerry.benchmarks.rl.statistics import interval, quarters
from skerry.trainer.tiny import tiny_moe


def test_an_interval_is_students_for_few_seeds() -> None:
    found = interval([1.0, 2.0, 3.0])
    half = 4.303 / 3**0.5  # of a standard deviation of 1
    assert (found.mean, found.low, found.high) == pytest.approx((2, 2 - half, 2 + half))
    assert interval([5.0, 5.0]).low == 5.0
    assert math.isnan(interval([1.0]).low)
    assert quarters([1.0, 1.0, 5.0, 5.0, 5.0, 5.0, 2.0, 4.0]) == (1.0, 3.0)
    assert quarters([1.0, 2.0]) == (1.0, 2.0)


def test_two_islands_a_version_apart_give_rollouts_of_two_lags(tmp_path: Path) -> None:
    file = tmp_path / "reward.json"
    words = ["rl", "reward", "--model", "tiny", "--seeds", "2", "--steps", "4", "--samples", "2"]
    result = CliRunner().invoke(app, [*words, "--max-tokens", "4", "--save", str(file)])
    assert result.exit_code == 0, result.output
    found = json.loads(file.read_text())
    for run in found["runs"]:
        # Asked for at versions 0 and 0; from then on of the newest, and of the one before it.
        assert [sum(step["lags"].values()) for step in run["steps"]] == [8] * 4
        assert run["steps"][0]["lags"] == {"0": 8}
        for step in run["steps"][2:]:
            assert set(step["lags"]) == {"1", "2"}
            assert step["dropped"] == step["refused"] == 0
    assert found["all"]["lags"].keys() == {"0", "1", "2"}
    assert found["gain"]["low"] <= found["gain"]["mean"] <= found["gain"]["high"]
    assert "gain of the last quarter over the first" in result.output


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small models wait for their threads: minutes of it beside other work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("lag", [0, 1])
def test_with_replay_a_sparse_models_trainer_is_nearer_to_its_engine(lag: int) -> None:
    source = tiny_moe(0, layers=2, dim=32, experts=16, std=32**-0.5)
    found = asyncio.run(measure(source, seed=0, lag=lag, steps=2, lr=1e-4))
    assert found.rerouted > 0
    assert found.replay.kl < found.own.kl / 2
    assert found.replay.apart < found.own.apart


def test_adapters_and_merged_weights_are_followed_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "adapters.json"
    words = ["rl", "adapters", "--model", "tiny", "--steps", "2", "--samples", "2"]
    result = CliRunner().invoke(app, [*words, "--rank", "2", "--save", str(file)])
    assert result.exit_code == 0, result.output
    versions = json.loads(file.read_text())["versions"]
    assert [version["step"] for version in versions] == [0, 1, 2]
    assert [version["adapter"]["kind"] for version in versions] == ["full", "patch", "patch"]
    assert [version["merged"]["kind"] for version in versions] == ["full", "patch", "patch"]
    for version in versions:
        assert version["adapter"]["full_bytes"] < version["merged"]["full_bytes"] / 4
    for version in versions[1:]:
        for way in ("adapter", "merged"):
            assert 0 < version[way]["changed"] <= version[way]["elements"]
            assert version[way]["nbytes"] < version[way]["full_bytes"]
    assert "every file is what was published" in result.output
