"""The benchmark at a size that says nothing about speed: every codec exact, every row there."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from skerry.benchmarks import simulate
from skerry.benchmarks.bench_codec import app
from skerry.benchmarks.bounds import bounds
from skerry.benchmarks.cases import NotExact, Plan, run_case
from skerry.benchmarks.rival import Rival
from skerry.benchmarks.rivals import EVERY_RIVAL
from skerry.benchmarks.trace import Recipe, record
from skerry.codec import kernel
from skerry.codec.level import Level


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, object], str]:
    directory = tmp_path_factory.mktemp("bench")
    # In this process, which has torch already; the command finds it and records nothing.
    recipe = Recipe(model="tiny", steps=1)
    asyncio.run(record(directory / "traces" / "tiny-grid", recipe))
    done = CliRunner().invoke(
        app,
        ["--gigabytes", "0.004", "--densities", "0.5", "--slice-mib", "1", "--model", "tiny",
         "--starts", "grid", "--steps", "1", "--trace-dir", str(directory / "traces"),
         "--json", str(directory / "results.json")],
    )  # fmt: skip
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return json.loads((directory / "results.json").read_text()), done.stdout


def test_every_codec_has_a_row_in_every_case(results: tuple[dict[str, object], str]) -> None:
    found, text = results
    cases = found["cases"]
    assert isinstance(cases, list)
    assert [case["name"] for case in cases] == ["grid, step 1", "BF16, 0.5 %", "F8_E4M3, 0.5 %"]
    expected = {f"Skerry, {level}" for level in Level} | {r.name for r in EVERY_RIVAL}
    for case in cases:
        rows = {row["codec"]: row for row in case["rows"]}
        assert set(rows) == expected
        assert all(name in text for name in expected)
        for rival in EVERY_RIVAL:
            assert bool(rows[rival.name]["missing"]) == bool(rival.missing())
        for row in rows.values():
            assert row["missing"] or row["encoded_bytes"] > 0
        assert {phase["threads"] for phase in case["phases"]} == {1, 2}
        assert 0 < case["bound"] < case["free_bound"]
        assert set(case["memcpy"]) == {"1", "2"}


def test_the_results_say_what_they_were_measured_on(
    results: tuple[dict[str, object], str],
) -> None:
    found, _ = results
    form, settings = found["form"], found["settings"]
    assert isinstance(form, dict)
    machine = form["machine"]
    assert isinstance(settings, dict)
    assert machine["kernel"] == kernel.current().name
    assert machine["cpu"]
    assert settings["gigabytes"] == 0.004


def test_a_codec_that_loses_a_word_has_no_figures() -> None:
    pair = simulate.simulate("BF16", 100_000, 0.05, seed=0)
    forgetful = Rival(
        name="forgetful",
        used_by="nobody",
        encode=lambda old, new: [],
        apply=lambda words, parts: None,
    )
    plan = Plan(threads=[1], rivals=[forgetful], slice_bytes=1 << 20, phases=False)
    with pytest.raises(NotExact, match="forgetful"):
        run_case("x", "simulated", "BF16", pair, plan, lambda what: None)


def test_context_lowers_the_bound() -> None:
    pair = simulate.simulate("BF16", 4_000_000, 0.005, seed=1)
    given, free = bounds(pair)
    words = sum(spec.words for spec in pair.layout.tensors)
    share = given.changed / words
    entropy = -share * np.log2(share) - (1 - share) * np.log2(1 - share)
    assert free.positions == pytest.approx(words * entropy, rel=1e-9)
    assert given.total < 0.8 * free.total


@pytest.mark.parametrize(
    "arguments",
    [["--densities", "x"], ["--densities", "0"], ["--threads", "-1"], ["--dtypes", "F4"],
     ["--starts", "middle"], ["--model", "huge"]],
)  # fmt: skip
def test_a_wrong_command_line_is_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 2
