"""`rotate`, `doctor` and `log --cost`: looking after a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skerry.bulletin import keys
from skerry.bulletin.checkpoint import CHECKPOINT_INTERVAL
from skerry.bulletin.signing import Signer
from skerry.bulletin.stores import open_store
from tests.bulletin.runs import open_writer
from tests.cli.test_cli import answer, refusal, skerry
from tests.publisher.samples import edit_weights, make


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    """A signed run of one version; the next one's checkpoint and two keys are beside it."""
    first = make(1, sharded=False)
    first.write(tmp_path / "v0")
    edit_weights(first, 1).write(tmp_path / "v1")
    for name in ("old", "new"):
        answer("keygen", tmp_path / name)
    answer("publish", tmp_path / "run", tmp_path / "v0", "--sign", tmp_path / "old")
    return tmp_path / "run"


def test_a_rotated_run_is_published_with_the_new_key_and_pinned_with_the_first(
    signed: Path,
) -> None:
    here = signed.parent
    made = answer("rotate", signed, "--key", here / "old", "--new", here / "new")
    assert made["key"] == (here / "new.pub").read_text().strip()
    assert made["old"] == (here / "old.pub").read_text().strip()
    assert "KeyMismatch" in refusal(1, "publish", signed, here / "v1", "--sign", here / "old")
    answer("publish", signed, here / "v1", "--sign", here / "new")
    pulled = answer("pull", signed, here / "island", "--key", here / "old.pub")
    assert pulled["version"] == 1
    assert "UntrustedKey" in refusal(1, "log", signed, "--key", here / "new.pub")
    records = answer("log", signed)["records"]
    assert [record["kind"] for record in records][-3:] == ["rotate", "fence", "commit"]


def test_a_rotation_that_makes_no_sense_changes_nothing(signed: Path, tmp_path: Path) -> None:
    before = sorted(signed.rglob("*"))
    old, new = tmp_path / "old", tmp_path / "new"
    assert "another key" in refusal(1, "rotate", signed, "--key", old, "--new", old)
    assert "KeyMismatch" in refusal(1, "rotate", signed, "--key", new, "--new", old)
    none = refusal(2, "rotate", signed, "--key", old, "--new", tmp_path / "none")
    assert "KeyFileInvalid" in none
    assert "found no log" in refusal(1, "rotate", tmp_path / "typo", "--key", old, "--new", new)
    assert sorted(signed.rglob("*")) == before
    assert not (tmp_path / "typo").exists()


def test_costs_are_listed_by_version_and_verb(signed: Path) -> None:
    answer("publish", signed, signed.parent / "v1", "--sign", signed.parent / "old")
    versions = answer("log", signed, "--cost")["versions"]
    assert [cost["version"] for cost in versions] == [0, 1]
    assert versions[1]["opened"]
    assert versions[1]["requests"]["put_if_absent"] > 1
    assert versions[1]["bytes_up"] > 0
    text = skerry("log", signed, "--cost").stdout
    assert "put_if_absent" in text
    (signed / keys.COST).write_text("junk")
    assert "RecordInvalid" in refusal(1, "log", signed, "--cost")


def test_a_sound_run_is_well(signed: Path) -> None:
    found = answer("doctor", signed, "--key", signed.parent / "old.pub")
    assert found["ok"]
    assert {check["verdict"] for check in found["checks"]} == {"ok"}
    text = skerry("doctor", signed).stdout
    assert "exactly one of 4 at once succeeds" in text
    assert "not pinned" in text


def test_a_damaged_run_fails_with_exit_code_1(signed: Path) -> None:
    (signed / keys.log(1)).write_text("junk")
    result = skerry("doctor", signed, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert not found["ok"]
    verdicts = {check["check"]: check["verdict"] for check in found["checks"]}
    assert verdicts["log"] == "failed"
    assert verdicts["conditional writes"] == "ok"


def test_a_doctor_that_may_only_read_writes_nothing(tmp_path: Path) -> None:
    found = answer("doctor", tmp_path / "nothing", "--read-only")
    assert found["ok"]
    assert not (tmp_path / "nothing").exists()


def test_the_log_is_listed_whole_although_agents_start_from_a_checkpoint(signed: Path) -> None:
    writer = open_writer(open_store(str(signed)), signer=Signer.load(signed.parent / "old"))
    for _ in range(CHECKPOINT_INTERVAL):
        writer.retire(names=["full/00000001-" + "0" * 32], grace_s=0)
    assert len(list((signed / "checkpoints").iterdir())) == 1
    assert len(answer("log", signed)["records"]) == CHECKPOINT_INTERVAL + 3
    assert answer("show", signed)["version"] == 0
    pin = ("--key", signed.parent / "old.pub")
    assert answer("pull", signed, signed.parent / "island", *pin)["version"] == 0
    assert answer("verify", signed, signed.parent / "island", *pin)["identical"]
    assert answer("verify", signed, "--deep")["records"] == CHECKPOINT_INTERVAL + 3
