"""What steps change, at toy size: every source counts, and every codec has its figures."""

from __future__ import annotations

import asyncio
import csv
import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from skerry.benchmarks.__main__ import app
from skerry.benchmarks.deltas.adam import AdamRecipe, simulated
from skerry.benchmarks.deltas.directories import run_of
from skerry.benchmarks.deltas.live import falling, tuned
from skerry.benchmarks.deltas.observe import count
from skerry.benchmarks.deltas.report import COLUMNS
from skerry.benchmarks.deltas.results import Place
from skerry.benchmarks.deltas.states import (
    Precision,
    State,
    in_precision,
    is_linear,
    pair_of,
    steps,
)
from skerry.benchmarks.rivals import EVERY_RIVAL
from skerry.benchmarks.submission import problems
from skerry.benchmarks.trace import Recipe, record
from skerry.codec.level import Level
from skerry.publisher import Checkpoint
from skerry.publisher.arrays import ServedTensor
from skerry.trainer.run import source_model

CODECS = {f"Skerry, {level}" for level in Level} | {
    rival.name for rival in EVERY_RIVAL if not rival.missing()
}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("deltas")
    asyncio.run(record(out / "trace", Recipe(model="tiny", steps=1, lr=3e-5)))
    done = CliRunner().invoke(
        app,
        ["deltas", "--model", "tiny", "--lrs", "1e-4", "--lr-steps", "1", "--curve-steps", "2",
         "--densities", "3", "--megabytes", "1", "--adam-megabytes", "0.3", "--adam-steps", "1",
         "--slice-mib", "1", "--betas", "0.9:0.999", "--profiles", "heavy",
         "--checkpoints", str(out / "trace"), "--out", str(out), "--save", str(out / "saved.json")],
    )  # fmt: skip
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return out


@pytest.fixture(scope="module")
def found(output: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((output / "saved.json").read_text())
    return document


def test_every_source_counts_its_steps_in_both_precisions(found: dict[str, Any]) -> None:
    places = [change["place"] for change in found["changes"]]
    assert {(place["source"], place["precision"]) for place in places} == {
        (source, precision)
        for source in ("trace", "simulated", "simulated AdamW", "live")
        for precision in ("BF16", "FP8")
    }
    assert [place["step"] for place in (c["place"] for c in found["curve"])] == [1, 1, 2, 2]
    assert all(0 < change["changed"] < change["words"] for change in found["changes"])
    (traced,) = {place["lr"] for place in places if place["source"] == "trace"}
    assert traced == 3e-5


def test_every_codec_has_a_size_for_the_whole_for_every_kind_and_for_every_layer(
    found: dict[str, Any],
) -> None:
    for one in found["measured"]:
        rows = {row["codec"]: row for row in one["case"]["rows"]}
        assert {name for name, row in rows.items() if not row["missing"]} == CODECS
        assert 0 < one["case"]["bound"] < one["case"]["free_bound"]
        if one["place"]["source"] == "simulated":
            continue
        assert {group["by"] for group in one["groups"]} == {"projection", "layer"}
        for by in ("projection", "layer"):
            some = [group for group in one["groups"] if group["by"] == by]
            assert sum(group["changed"] for group in some) == one["case"]["changed"]
            assert sum(group["words"] for group in some) == one["case"]["words"]
        big = max(one["groups"], key=lambda group: group["changed"])
        sizes = dict(zip(one["codecs"], big["sizes"], strict=True))
        assert {name for name, size in sizes.items() if size} >= CODECS


def test_the_table_of_all_figures_the_plots_and_the_page_are_written(output: Path) -> None:
    with (output / "deltas.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert tuple(lines[0]) == COLUMNS
    assert {line["scope"] for line in lines} == {"all", "dtype", "projection", "layer"}
    assert {line["codec"] for line in lines} > CODECS
    names = {path.stem for path in output.glob("*.svg")}
    assert names == {path.stem for path in output.glob("*.png")}
    assert {"curve", "by-lr", "sizes-by-density-fp8", "sizes-by-lr-bf16", "kinds-fp8"} <= names
    page = (output / "report.html").read_text()
    assert page.count("<svg") == len(names)
    assert "<script" not in page


def test_the_result_file_is_a_sound_submission(output: Path) -> None:
    assert list(problems(output / "saved.json")) == []


def test_fp8_is_cast_from_bf16_and_only_where_layers_are_linear() -> None:
    weights = source_model("tiny", "grid", 0).served()
    served = in_precision(weights, Precision.FP8)
    for name, tensor in weights.items():
        linear = name.endswith("_proj.weight")
        assert is_linear(name, tensor) == linear
        assert served[name].dtype == ("F8_E4M3" if linear else "BF16")
        assert (f"{name}_scale_inv" in served) == linear
    assert in_precision(weights, Precision.BF16) is weights


def test_a_run_whose_structure_changes_is_refused() -> None:
    one = ServedTensor(dtype="BF16", shape=(2,), data=np.zeros(2, np.uint16))
    with pytest.raises(ValueError, match=r"structure changes: b"):
        pair_of({"a": one}, {"a": one, "b": one})


def test_checkpoints_follow_one_another_by_number_and_fp32_is_rounded(tmp_path: Path) -> None:
    for number in (10, 9, 100):
        data = np.full((2, 2), 1 + number * 2**-7, np.float32)
        Checkpoint.from_arrays({"a.weight": data}).write_to(tmp_path / f"checkpoint-{number}")
    run = run_of(tmp_path)
    pairs = [step.pair for step in steps(run) if step.precision is Precision.BF16]
    first = pairs[0].old["a.weight"].view(np.uint16)[0]
    assert [int(pair.new["a.weight"].view(np.uint16)[0]) - first for pair in pairs] == [1, 91]
    assert run.measured == {100}
    with pytest.raises(ValueError, match="expected two checkpoint directories"):
        run_of(tmp_path / "checkpoint-9")


def test_the_rate_falls_from_warm_to_settled_and_stays() -> None:
    rates = [falling(1e-5, 1e-6, 4)(step) for step in range(1, 8)]
    assert rates[0] == pytest.approx(1e-5)
    assert all(math.isclose(rate, 1e-6) for rate in rates[4:])
    assert all(after < before for before, after in pairwise(rates[:5]))


def test_a_live_run_moves_the_weights_more_at_a_higher_rate() -> None:
    source = source_model("tiny", "grid", 0)

    def changed(lr: float) -> int:
        before, after = tuned(source, lambda step: lr, 1)
        return _changed(before, after)

    assert 0 < changed(1e-6) < changed(1e-4)


def test_simulated_adamw_changes_in_proportion_to_the_rate_on_weights_of_a_profile() -> None:
    shares = []
    for lr in (1e-6, 1e-5):
        before, after = simulated(AdamRecipe(megabytes=0.3, lr=lr, steps=1))
        shares.append(_changed(before, after))
    assert 5 * shares[0] < shares[1] < 15 * shares[0]
    heavy, same = (
        next(simulated(AdamRecipe(megabytes=0.3, profile=profile)))
        for profile in ("heavy", "normal")
    )
    assert _kurtosis(heavy) > 2 * _kurtosis(same)


def _changed(before: State, after: State) -> int:
    place = Place(source="", subject="", precision="BF16")
    return count(place, pair_of(before.weights, after.weights)).changed


def _kurtosis(state: State) -> float:
    words = max((t.data for t in state.weights.values()), key=lambda data: data.size)
    values = (words.reshape(-1).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return float((values**4).mean() / (values**2).mean() ** 2)
