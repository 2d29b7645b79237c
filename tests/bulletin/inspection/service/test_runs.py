"""Several runs behind one address: listed, and each of them as it is alone."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from skerry.bulletin import keys
from skerry.bulletin.inspection.follower import Follower
from skerry.bulletin.inspection.service.app import create_app_of_runs
from skerry.bulletin.inspection.service.config import ServiceConfig
from skerry.bulletin.inspection.service.runs import names_of
from skerry.bulletin.stores.memory import MemoryStore
from tests.bulletin.faults import FaultyStore
from tests.bulletin.inspection.service.browser import Window, browsing
from tests.bulletin.inspection.service.serving import QUICK, Reply, ask, listening, small_run
from tests.bulletin.log_builder import LogBuilder

TOKEN = "correct-horse-battery"


def short_run() -> MemoryStore:
    store = MemoryStore()
    for seq, data in enumerate(LogBuilder.with_versions(3).slots):
        store.put_if_absent(keys.log(seq), data)
    return store


@contextmanager
def both(token: str | None = None) -> Iterator[str]:
    """Serve a run of 60 versions and one of 3."""
    config = ServiceConfig(port=0, token=token)
    stores = {"s3://bucket/runs/long": small_run(), "/bulletins/short/": short_run()}
    followers = {address: Follower(store, pace=QUICK) for address, store in stores.items()}
    with listening(create_app_of_runs(followers, config), config, list(followers.values())) as url:
        while {run["store"] for run in get(url, "/health").json["runs"]} != {"ok"}:
            pass
        yield url


def get(url: str, path: str, **headers: str) -> Reply:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return ask(urllib.request.Request(url + path, headers=names))


def test_runs_are_listed_and_each_is_served_as_it_is_alone() -> None:
    with both() as url:
        rows = get(url, "/api/v1/runs").json["runs"]
        assert [row["name"] for row in rows] == ["long", "short"]
        for row, versions in zip(rows, (60, 3), strict=True):
            below = f"/{row['href']}"
            assert row["overview"]["versions"] == versions
            assert get(url, f"{below}api/v1/versions").json["total"] == versions
            assert get(url, f"{below}api/v1/versions/0").status == 200
            assert get(url, f"{below}health").json["store"]["state"] == "ok"
            assert b"main.js" in get(url, below).body
        long, short = (f"/runs/{row['name']}/api/v1/timeline" for row in rows)
        tag = get(url, long).headers["etag"]
        other = get(url, short, If_None_Match=tag)
        assert (other.status, other.json["total"]) == (200, 3)
        assert get(url, "/runs/none/api/v1/run").status == 404


def test_nothing_of_any_run_is_told_without_the_token() -> None:
    with both(TOKEN) as url:
        real = ["/api/v1/runs"]
        for name in ("long", "short"):
            real += [f"/runs/{name}/api/v1/{what}" for what in ("run", "versions/1", "timeline")]
        tricks = [
            "/runs/long/api/v1/events", "/runs/long/../short/api/v1/run", "/runs/long//api/v1/run",
            "//api/v1/runs", "/runs/long/runs/long/api/v1/run", "/runs%2Flong/api/v1/run",
        ]  # fmt: skip
        for path in real + tricks:
            assert get(url, path).status in (401, 404), path
        request = urllib.request.Request(
            f"{url}/session", json.dumps({"token": TOKEN}).encode(),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        cookie = ask(request).headers["set-cookie"].split(";")[0]
        for path in real:
            assert get(url, path, Cookie=cookie).status == 200, path
        assert "bucket" not in get(url, "/health").body.decode()


def test_a_run_whose_store_is_dead_takes_nothing_from_the_others() -> None:
    def before(verb: str, key: str) -> None:
        raise OSError("the cable is out")

    config = ServiceConfig(port=0)
    followers = {
        "/a/dead": Follower(FaultyStore(MemoryStore(), before=before), pace=QUICK),
        "/a/well": Follower(short_run(), pace=QUICK),
    }
    with listening(create_app_of_runs(followers, config), config, list(followers.values())) as url:
        while [run["store"] for run in get(url, "/health").json["runs"]] != ["failing", "ok"]:
            pass
        dead, well = get(url, "/api/v1/runs").json["runs"]
        assert dead["overview"]["store"]["problem"]["message"] == "the cable is out"
        assert well["overview"]["versions"] == 3
        assert get(url, "/runs/dead/api/v1/versions").status == 503


@pytest.mark.parametrize(
    ("addresses", "names"),
    [
        (["/a/run", "/b/run"], ["run", "run-2"]),
        (["s3://b/p/run-7?endpoint_url=http://x/y", "https://h/r/"], ["run-7", "r"]),
        (["/", "..", "/a/b c<d>", "s3://bucket"], ["run", "run-2", "b-c-d", "bucket"]),
        (["/x/run", "/y/run-2", "/z/run"], ["run", "run-2", "run-3"]),
    ],
)
def test_names_are_the_ends_of_addresses_and_differ(addresses: list[str], names: list[str]) -> None:
    assert names_of(addresses) == names


def test_the_page_lists_runs_and_leads_to_each_and_back() -> None:
    with browsing() as browser, both(TOKEN) as url:
        window = Window(browser, url)
        page = window.page
        page.goto(url)
        page.locator("input[type=password]").fill(TOKEN)
        page.locator("input[type=password]").press("Enter")
        page.wait_for_selector("table")
        assert window.violations() == []
        window.picture("runs", "light")
        page.get_by_role("link", name="short", exact=True).click()
        page.wait_for_selector("h1:has-text('Timeline')")
        page.wait_for_selector(".tile .figure:text-is('2')")
        page.get_by_role("link", name="All runs").click()
        page.wait_for_selector("h1:has-text('Runs')")
        assert [said for said in window.wrong if "401" not in said] == []
        window.close()
