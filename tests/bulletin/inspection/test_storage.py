"""Storage by the records: every object is counted once, and a forecast is what gc would do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skerry.bulletin.inspection.storage import forecast, usage
from skerry.bulletin.records import Retire
from skerry.bulletin.retention import KeepRules, object_sizes, select
from skerry.bulletin.status import IslandReport, Lease
from tests.bulletin.inspection.views import view_of
from tests.bulletin.log_builder import START_MS, LogBuilder
from tests.bulletin.random_logs import logs


@given(logs(), st.integers(0, 10**6))
def test_every_object_is_in_use_or_waits_or_is_due(log: LogBuilder, later_ms: int) -> None:
    view = view_of(log)
    found = usage(view, (), now_ms=START_MS + later_ms, lease_limit_s=0, shown=100)
    sizes = object_sizes(log.state)
    parts = (found.patches, found.skips, found.fulls)
    assert sum(part.total_bytes for part in parts) == found.in_use.total_bytes
    everything = (found.in_use, found.waiting, found.due)
    assert sum(part.objects for part in everything) == len(sizes.keys() | log.state.retired_keys)
    assert sum(part.total_bytes for part in everything) == sum(sizes.values())
    assert found.log_bytes == sum(map(len, log.slots))


@given(logs(), st.integers(1, 5), st.none() | st.integers(1, 4))
def test_a_forecast_is_what_a_collection_chooses(
    log: LogBuilder, last: int, every: int | None
) -> None:
    rules = KeepRules(last=last, every=every)
    found, chosen = forecast(view_of(log), rules), select(log.state, rules)
    assert found.retired_versions == len(chosen.versions)
    assert found.freed.total_bytes == chosen.nbytes
    live = {k: s for k, s in object_sizes(log.state).items() if k not in log.state.retired_keys}
    assert found.left.total_bytes == sum(live.values()) - chosen.nbytes


def test_what_was_retired_waits_for_its_grace_and_for_a_lease() -> None:
    log = LogBuilder.with_versions(4)
    pack = log.state.commits[1].packs[0]
    log.append(Retire(versions=(1,), keys=(pack.key,), grace_s=60))
    view, at = view_of(log), log.records[-1].time
    lease = Lease(legs=((0, 1),), until_ms=at + 10**9)
    reading = IslandReport(island="eu-1", reading=lease)

    def looked(later_s: int, *reports: IslandReport) -> tuple[int, int]:
        found = usage(view, reports, now_ms=at + 1000 * later_s, lease_limit_s=100, shown=9)
        return found.waiting.total_bytes, found.due.total_bytes

    assert looked(59) == (pack.size, 0)
    assert looked(60) == (0, pack.size)
    assert looked(60, reading) == (pack.size, 0)
    assert looked(160, reading) == (0, pack.size)
