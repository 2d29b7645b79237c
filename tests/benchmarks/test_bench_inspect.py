"""The inspection's benchmark measures what it says, on a run small enough for a test."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from skerry.benchmarks.__main__ import app
from skerry.benchmarks.bench_inspect import hour
from tests.bulletin.inspection.service.serving import SMALL, small_run


def test_an_hour_counts_looks_at_the_log_and_at_every_island() -> None:
    store = small_run()
    assert hour(store, watched=False) == {"get": 60 + 12 * SMALL.islands, "list_after": 12}
    assert hour(store, watched=True) == {"get": 1800 + 360 * SMALL.islands, "list_after": 360}


def test_it_measures_every_kind_of_request_and_view_or_says_why_not() -> None:
    arguments = ["inspect", "--versions", "100", "--islands", "3", "--count", "10", "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["calls"]) == 13
    assert all(0 < call["median_ms"] <= call["p95_ms"] for call in found["calls"])
    assert found["no_browser"] or len(found["pages"]) == 4
