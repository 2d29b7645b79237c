"""Golden records: what was once written is accepted for ever, and written the same way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from skerry.bulletin.records import Record
from skerry.bulletin.signing import PublicKey
from skerry.bulletin.state import LogState
from tests.bulletin.make_vectors import vectors

REPOSITORY = Path(__file__).parents[2]
VECTORS = REPOSITORY / "tests/vectors/v1/records"
ABOUT = json.loads((VECTORS / "about.json").read_bytes())
SIGNED = sorted(VECTORS.glob("[0-9]*.json"))
UNSIGNED = sorted(VECTORS.glob("unsigned-*.json"))


@pytest.mark.parametrize("path", [*SIGNED, *UNSIGNED], ids=lambda path: path.stem)
def test_a_golden_record_parses_and_is_written_the_same_way(path: Path) -> None:
    data = path.read_bytes()
    assert Record.parse(data).to_bytes() == data


def test_the_golden_logs_are_accepted_from_their_start() -> None:
    for paths, pin, head in (
        (SIGNED, PublicKey.parse(ABOUT["first_key"]), ABOUT["head_signed"]),
        (UNSIGNED, None, ABOUT["head_unsigned"]),
    ):
        state = LogState(pinned_key=pin)
        for path in paths:
            state = state.apply(path.read_bytes())
        assert state.head == head
        assert state.seq + 1 == len(paths)


def test_the_signed_golden_log_says_what_it_is_named_after() -> None:
    state = LogState()
    for path in SIGNED:
        state = state.apply(path.read_bytes())
    assert [Record.parse(path.read_bytes()).kind for path in SIGNED] == [
        path.stem[3:].split("-")[0] for path in SIGNED
    ]
    assert state.key == PublicKey.parse(ABOUT["second_key"])
    assert state.abandoned == {3}
    assert state.retired == {1}
    assert len(state.skips) == 1


def test_todays_code_writes_the_golden_bytes() -> None:
    assert {path.name: path.read_bytes() for path in VECTORS.iterdir()} == vectors()


def test_the_generator_refuses_to_overwrite(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.bulletin.make_vectors", str(tmp_path)]
    subprocess.run(command, cwd=REPOSITORY, check=True, timeout=60)
    again = subprocess.run(command, cwd=REPOSITORY, check=False, capture_output=True, timeout=60)
    assert again.returncode != 0
    assert b"FileExistsError" in again.stderr
