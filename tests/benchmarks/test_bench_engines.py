"""The benchmarks of engines and gate run, and say what they lack; their figures are not judged."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from skerry.benchmarks import pause_model
from skerry.benchmarks.__main__ import app
from skerry.codec.header import build_header


def test_both_servers_are_asked_and_their_figures_kept(tmp_path: Path) -> None:
    file = tmp_path / "gate.json"
    arguments = ["gate", "--requests", "100", "--rounds", "1", "--json", str(file)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = {server["server"]: server for server in json.loads(file.read_text())["servers"]}
    assert set(found) == {"bare", "gate"}
    assert all(server["per_s"] > 0 for server in found.values())
    assert "added" in result.output


def test_payloads_come_whole_by_each_way_and_the_gate_works_for_one_only(tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    arguments = ["payload", "--megabytes", "1", "--answers", "1", "--json", str(file)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    ways = {way["way"]: way for way in json.loads(file.read_text())["ways"]}
    assert set(ways) == {"engine alone", "with plug-in", "through gate"}
    assert all(way["gb_per_s"] > 0 for way in ways.values())
    assert ways["through gate"]["gate_cpu_s_per_gb"] > 0


@pytest.mark.skipif(
    importlib.util.find_spec("vllm") is not None, reason="vLLM is installed: nothing is lacking"
)
def test_the_pause_is_not_measured_without_vllm_and_it_is_said_how_to_get_it() -> None:
    result = CliRunner().invoke(app, ["pause"])
    assert result.exit_code == 2
    assert "make test-vllm" in result.output


def test_a_step_of_the_model_changes_the_share_that_was_asked_for_and_leads_back() -> None:
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**16, 100_000, np.uint16)
    header = build_header("model.safetensors", [("w", "BF16", words.shape)])
    model = pause_model.Model({"w": header.tensors[0]}, {"w": words}, header.raw, 1)
    after, (change,) = pause_model.step(model, 0.01, 1)
    assert 800 < change.positions.size < 1200
    assert np.array_equal(np.flatnonzero(after.words["w"] != words), change.positions)
    there, back = (pause_model.update([change], 0, back=turned) for turned in (False, True))
    assert np.array_equal(there.changes[0].new, back.changes[0].old)
    assert np.array_equal(there.changes[0].old, words[change.positions])
