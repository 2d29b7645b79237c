"""The tables of README and docs are those of the result files, and say where ours loses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from skerry.benchmarks.__main__ import app
from skerry.benchmarks.bench_readme import PAGES, TABLES, filled, tables
from skerry.benchmarks.readme.markdown import NoSuchBlock, fill, table
from skerry.benchmarks.readme.rivals import NoReason, compare, rivals
from skerry.benchmarks.submission import MAX_BYTES, problems

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_agrees_with_the_result_files(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert filled(page, text, tables(RESULTS)) == text, "run `skerry bench readme`"


def test_every_table_has_one_page() -> None:
    assert sorted(name for page in PAGES.values() for name in page) == sorted(TABLES)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_every_result_file_has_a_form_and_is_small(path: Path) -> None:
    assert list(problems(path)) == []


def test_the_command_writes_the_pages_and_says_when_one_is_out_of_date(tmp_path: Path) -> None:
    for page in PAGES:
        (tmp_path / page).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / page, tmp_path / page)
    shutil.copytree(RESULTS, tmp_path / "benchmarks/results")
    readme = tmp_path / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(text.replace("| int32 index + value |", "| another |"))
    words = ["readme", "--root", str(tmp_path)]
    stale = CliRunner().invoke(app, [*words, "--check"])
    assert stale.exit_code == 1
    assert "README.md does not agree" in stale.output
    assert CliRunner().invoke(app, words).exit_code == 0
    assert CliRunner().invoke(app, [*words, "--check"]).exit_code == 0
    assert readme.read_text(encoding="utf-8") == text


def test_a_table_goes_between_its_comments_and_nowhere_else() -> None:
    text = "a\n<!-- skerry bench readme: x -->\nold\n<!-- end of x -->\nb\n"
    made = fill(text, {"x": table(["h"], [["1"]])})
    assert made == text.replace("old\n", "| h |\n|---|\n| 1 |\n")
    assert fill(made, {"x": "old\n"}) == text
    with pytest.raises(NoSuchBlock, match="nothing makes the table x"):
        fill(text, {})
    with pytest.raises(NoSuchBlock, match="a place for the table y"):
        fill(text, {"x": "", "y": ""})


def case(ours: float, theirs: float, codec: str, density: float) -> dict[str, Any]:
    def row(name: str, size: float, speed: float) -> Mapping[str, Any]:
        speeds = [{"encode": speed, "decode": speed}]
        return {
            "codec": name, "used_by": "somebody", "encoded_bytes": size, "changed": 1,
            "missing": None, "speeds": speeds,
        }  # fmt: skip

    rows = [row("Skerry, default", ours, 1.0), row(codec, theirs, 2.0)]
    place = {"precision": "BF16", "density": density, "lr": None, "source": "simulated"}
    return {"place": place, "case": {"rows": rows}}


def test_a_ratio_above_one_is_ours_and_every_loss_has_a_reason() -> None:
    (one,) = compare({"measured": [case(100, 300, "int32 index + value", 0.005)]})
    assert one.bytes_by_case == {"BF16 0.5 %": 3.0}
    assert one.speeds == {"encode": 0.5, "decode": 0.5}
    (lost,) = one.lost()
    assert lost.startswith("encode and decode: ")


def test_a_loss_without_a_reason_makes_no_table() -> None:
    with pytest.raises(NoReason, match="unheard of is faster at encode"):
        rivals({"measured": [case(100, 300, "unheard of", 0.005)]})
    with pytest.raises(NoReason, match=r"needs fewer bytes at BF16 0\.5 %"):
        rivals({"measured": [case(300, 100, "int32 index + value", 0.005)]})


def test_what_a_submission_lacks_is_said(tmp_path: Path) -> None:
    good = tmp_path / "good.json"
    shutil.copy(RESULTS / "scale.json", good)
    document = json.loads(good.read_text())
    del document["form"]["commit"], document["form"]["machine"]["cpu"], document["settings"]
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(document) + " " * MAX_BYTES)
    none = tmp_path / "none.json"
    none.write_text("[]")
    done = CliRunner().invoke(app, ["check", str(good), str(bad), str(none)])
    assert done.exit_code == 1
    for line in (
        "good.json: ready to be submitted", "bad.json: at most 1,000,000 bytes",
        "bad.json: form.commit: missing", "bad.json: form.machine.cpu: missing",
        "bad.json: settings: missing", "none.json: expected an object with a form",
    ):  # fmt: skip
        assert line in done.output
    assert CliRunner().invoke(app, ["check", str(good)]).exit_code == 0
