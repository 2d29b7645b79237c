"""What the API answers is what the log says, in pages, with tags, and within limits."""

from __future__ import annotations

import gzip
import json
import re
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skerry.benchmarks.synthetic_run import SIGNER
from skerry.bulletin import keys
from skerry.bulletin.manifest import Manifest
from skerry.bulletin.status import IslandReport
from skerry.bulletin.stores.memory import MemoryStore
from skerry.codec.digest import digest_bytes
from tests.bulletin.inspection.service.serving import SMALL, Served, serving, small_run
from tests.bulletin.inspection.views import view_at
from tests.bulletin.log_builder import LogBuilder
from tests.island_agent.runs import random_snapshot

asking = settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
PATHS = (
    "versions", "versions/7", "records", "timeline", "lineage", "versions/7/sizes",
    "versions/7/tensors", "versions/7/layers", "heat", "tensor?name=model.norm.weight",
    "difference?old=1&new=9", "difference/tensors?old=1&new=9", "islands", "islands/eu-000",
    "catch-up", "storage", "forecast",
)  # fmt: skip


@asking
@given(limit=st.integers(1, 70), order=st.sampled_from(["newest", "oldest"]))
def test_pages_of_versions_are_the_log_whole_and_in_order(
    served: Served, limit: int, order: str
) -> None:
    seen, bound = list[int](), ""
    while True:
        page = served.get(f"versions?limit={limit}&order={order}{bound}").json
        assert len(page["versions"]) <= limit
        seen += [row["version"] for row in page["versions"]]
        if page["following"] is None:
            break
        bound = f"&{'after' if order == 'oldest' else 'before'}={page['following']}"
    assert seen == sorted(range(SMALL.versions), reverse=order == "newest")


@asking
@given(
    limit=st.integers(-5, 2000),
    number=st.integers(-5, 2**70),
    path=st.sampled_from(["versions?before=", "records?after=", "timeline?last=", "lineage?last="]),
)
def test_every_number_is_answered_or_refused_by_its_limit(
    served: Served, limit: int, number: int, path: str
) -> None:
    most = {"timeline": 10_000, "lineage": 2_000}.get(path.split("?")[0], 1000)
    good = 1 <= limit <= most and 0 <= number < 2**63
    answer = served.get(f"{path}{number}&limit={limit}")
    assert answer.status == (200 if good else 422)


@asking
@given(
    st.integers(0, SMALL.versions - 1),
    st.integers(1, 30),
    st.sampled_from(["name", "share", "changed", "bytes"]),
)
def test_tensors_add_up_to_what_the_record_says(
    served: Served, version: int, limit: int, order: str
) -> None:
    row = served.get(f"versions/{version}").json["row"]
    changed = elements = offset = 0
    while True:
        page = served.get(
            f"versions/{version}/tensors?limit={limit}&offset={offset}&order={order}"
        ).json
        changed += sum(tensor["changed"] for tensor in page["tensors"])
        elements += sum(tensor["elements"] for tensor in page["tensors"])
        offset += limit
        if offset >= page["total"]:
            break
    assert (changed, elements) == (row["changed"] or 0, row["elements"])
    cells = served.get(f"versions/{version}/layers").json["cells"]
    assert sum(cell["changed"] for cell in cells) == (row["changed"] or 0)
    assert sum(cell["elements"] for cell in cells) == row["elements"]


@pytest.mark.parametrize("path", PATHS)
def test_an_answer_that_has_not_changed_is_not_sent_again(served: Served, path: str) -> None:
    first = served.get(path)
    assert first.status == 200
    tag = first.headers["etag"]
    # Islands are looked at again and again; what follows from the log stays.
    if path.split("/")[0] not in ("islands", "storage"):
        again = served.get(path, If_None_Match=tag)
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
    assert "no-cache" in first.headers["cache-control"]


def test_a_manifest_is_immutable_and_only_what_a_record_names_is_read(served: Served) -> None:
    digest = served.get("versions/7").json["manifest"]
    answer = served.get(f"manifests/{digest}")
    assert answer.status == 200
    assert "immutable" in answer.headers["cache-control"]
    assert answer.json["manifest"] == digest
    assert served.get(f"manifests/{'0' * 64}").status == 404


def test_what_two_versions_share_says_nothing_that_only_one_of_them_knows() -> None:
    layout = random_snapshot(0, 200).layout
    store, log = MemoryStore(), LogBuilder()
    data = layout.to_bytes()
    store.put(keys.layout(digest_bytes(data)), [data])
    manifest = Manifest(layout=digest_bytes(data)).to_bytes()
    same: dict[str, Any] = {
        "layout": digest_bytes(data), "manifest": digest_bytes(manifest), "elements": layout.words,
    }  # fmt: skip
    store.put(keys.manifest(same["manifest"]), [manifest])
    log.append(log.fence())
    log.append(log.full(parent=None, **same))
    log.append(log.patch(parent=0, packs=0, **{**same, "changed": 0}))
    *first, last = [*log.slots, log.append(log.full(parent=1, **same))]
    for seq, record in enumerate(first):
        store.put_if_absent(keys.log(seq), record)
    with serving(store, pinned=False) as service:
        before = service.get(f"manifests/{same['manifest']}")
        store.put_if_absent(keys.log(len(first)), last)
        while service.get("run").json["versions"] < 3:
            pass
        after = service.get(f"manifests/{same['manifest']}")
        assert (before.status, before.headers["etag"]) == (200, after.headers["etag"])
        assert before.json == after.json
        tags = [service.get(f"versions/{v}/layers").headers["etag"] for v in (1, 2)]
        assert len(set(tags)) == 2


def test_the_signature_state_names_key_and_pin(served: Served) -> None:
    signature = served.get("versions/7").json["signature"]
    key = SIGNER.public_key.hex
    assert signature == {"state": "verified", "key": key, "pinned": True}


@pytest.mark.parametrize(
    "path",
    [
        "versions?bogus=1", "versions?limit=1&limit=2", "versions?limit=0", "versions?limit=1001",
        "versions?before=-1", "versions/x", f"versions/{2**63}", "versions/-1", "heat?columns=129",
        "tensor", "tensor?name=", "difference?old=1", "forecast?keep_last=257", "events?seconds=0",
        "manifests/xyz", "islands/..%2f..", "versions/1/tensors?order=colour",
    ],
)  # fmt: skip
def test_parameters_beyond_their_limits_are_refused(served: Served, path: str) -> None:
    answer = served.get(path)
    assert answer.status in (404, 422), answer
    assert set(answer.json["error"]) == {"kind", "message", "acts"}


def test_what_is_not_there_is_a_404_that_says_so(served: Served) -> None:
    for path in ("versions/999", "versions/999/layers", "islands/nobody", "catch-up?want=999"):
        answer = served.get(path)
        assert answer.status == 404
        assert "9" in answer.json["error"]["message"] or "nobody" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    "path",
    [
        "versions/999", "catch-up?want=999", "catch-up?have=999", "difference?old=1&new=999",
        "difference/tensors?old=1&new=999", "versions/999/sizes", "islands/nobody",
    ],
)  # fmt: skip
def test_what_is_not_there_is_a_404_whatever_the_client_has(served: Served, path: str) -> None:
    tag = served.get("versions/7").headers["etag"]
    assert served.get(path, If_None_Match=tag).status == 404
    assert served.get(path, If_None_Match="*").status == 404


def test_an_answer_to_whoever_pinned_no_key_is_another(served: Served, run: MemoryStore) -> None:
    tag = served.get("versions/7").headers["etag"]
    with serving(run, pinned=False) as service:
        answer = service.get("versions/7", If_None_Match=tag)
        assert (answer.status, answer.json["signature"]["pinned"]) == (200, False)


def test_a_tensor_of_the_longest_name_can_be_asked_for(served: Served) -> None:
    name = "x" * 1024
    assert served.get(f"tensor?name={name}").status == 200
    assert served.get(f"versions/40/tensors?prefix={name}&projection={name}").status == 200
    assert served.get(f"tensor?name={name}x").status == 422


def test_a_forecast_of_too_much_is_refused_and_names_another_way(served: Served) -> None:
    assert served.get("forecast?keep_every=1").status == 200  # few versions: not too much here
    found = served.get("forecast?keep_last=2").json
    assert found["kept_versions"] == 2
    assert found["retired_versions"] > 0


def test_large_answers_are_compressed_where_nobody_waits(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, pack = list[str](), gzip.compress

    def packed(*given: Any, **named: Any) -> bytes:
        where.append(threading.current_thread().name)
        return pack(*given, **named)

    monkeypatch.setattr(gzip, "compress", packed)
    assert served.get("timeline", Accept_Encoding="gzip").status == 200
    assert [name.rpartition("-")[0] for name in where] == ["skerry-answers"]


def test_large_answers_are_compressed_for_those_who_take_it(served: Served) -> None:
    packed = served.get("timeline", Accept_Encoding="gzip")
    plain = served.get("timeline")
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body


def test_a_heat_map_ends_with_the_version_asked_for(served: Served) -> None:
    found = served.get("heat?columns=7&last=50").json
    versions = [column["version"] for column in found["columns"]]
    assert versions[-1] == 50
    assert len(versions) == 7
    layers = served.get("versions/50/layers").json["cells"]
    last = found["columns"][-1]
    here = {
        (row["layer"], row["projection"]): changed
        for row, changed in zip(found["rows"], last["changed"], strict=True)
    }
    assert here == {(cell["layer"], cell["projection"]): cell["changed"] for cell in layers}


def test_catching_up_costs_what_the_planner_says(served: Served, run: MemoryStore) -> None:
    view = view_at(run)
    newest = view.newest
    assert newest is not None
    ways = view.graph.ways(30, [newest])
    assert served.get("catch-up?have=30").json["total_bytes"] == ways.cost(newest)


def test_a_verification_checks_every_object_and_sums_up(served: Served) -> None:
    for deep in ("false", "true"):
        body = served.get(f"versions/40/verification?deep={deep}").body
        *checks, total = map(json.loads, body.splitlines())
        assert total["done"]
        assert (total["checks"], total["problems"]) == (len(checks), 0)
        named = {check["what"] for check in checks}
        packs = {pack["key"] for pack in served.get("versions/40").json["packs"]}
        assert packs <= named


def test_the_description_names_no_other_host_and_is_complete(served: Served) -> None:
    document = served.get("/openapi.json").json
    text = json.dumps(document)
    assert re.findall(r"https?://", text) == []
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert operation["description"], path
            for parameter in operation.get("parameters", []):
                if parameter["name"] not in ("version", "digest", "island"):
                    assert parameter["description"], parameter


def test_an_island_that_holds_nothing_is_shown_the_way_from_nothing(served: Served) -> None:
    island = served.get("islands/ap-011").json
    assert island["island"]["version"] is None
    assert island["catch_up"] == served.get("catch-up").json


def test_an_island_of_another_run_is_shown_no_way() -> None:
    store = small_run()
    report = IslandReport(island="far", run=digest_bytes(b"another run"), version=9)
    store.replace(keys.island("far"), report.to_bytes())
    with serving(store) as service:
        island = service.get("islands/far").json
        assert island["island"]["state"] == "stray"
        assert island["catch_up"] is None
