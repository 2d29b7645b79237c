"""A trace is a sequence of whole checkpoints, recorded once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from skerry.benchmarks import trace
from skerry.benchmarks.trace import Recipe, holds, load_step, record

RECIPE = Recipe(model="tiny", steps=2)


def test_a_trace_holds_every_step_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    asyncio.run(record(path, RECIPE))
    first, second = load_step(path, 1), load_step(path, 2)
    assert all(np.array_equal(first.new[name], second.old[name]) for name in first.new)
    assert any((old != new).any() for _, old, new in second.words())
    assert len(json.loads((path / "trace.json").read_text())["steps"]) == 2
    assert holds(path, RECIPE)
    assert not holds(path, Recipe(model="tiny", steps=3))
    assert not holds(tmp_path, RECIPE)


def test_a_trace_that_would_fill_the_disk_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "MAX_BYTES", 100_000)
    with pytest.raises(OSError, match="does not fit"):
        asyncio.run(record(tmp_path / "trace", RECIPE))
    assert not holds(tmp_path / "trace", RECIPE)


@pytest.mark.parametrize("wrong", [{"model": "huge"}, {"start": "middle"}, {"steps": 0}])
def test_a_run_that_does_not_exist_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="no such run"):
        Recipe(**wrong)  # type: ignore[arg-type]
