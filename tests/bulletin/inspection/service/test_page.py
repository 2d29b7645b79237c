"""The page, in a real browser, before a run that is going on: every view, both themes, no mouse.

With SKERRY_SCREENSHOTS=DIR the pictures for the documents are written there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser

from skerry.benchmarks import synthetic_run
from skerry.bulletin import keys
from skerry.bulletin.inspection import store_state
from skerry.bulletin.inspection.described import Described
from skerry.bulletin.inspection.descriptions import Descriptions, Stored
from skerry.bulletin.inspection.service import tensors
from skerry.bulletin.inspection.service.config import ServiceConfig
from skerry.bulletin.records import Commit
from skerry.bulletin.status import IslandReport
from skerry.bulletin.writer import now_ms
from tests.bulletin.faults import FaultyStore
from tests.bulletin.inspection.service.browser import Window, browsing
from tests.bulletin.inspection.service.serving import serving, small_run
from tests.bulletin.inspection.service.test_troubles import closed, switched

STEPS = 6
pytestmark = pytest.mark.timeout(600)  # of the first test most is the demo
VIEWS = (
    "timeline", "lineage", "heat", "heat?mode=layers", "islands", "compare?old=2&new=6", "storage",
    "version?v=5", "tensor?name=model.layers.1.mlp.up_proj.weight", "islands?island=island-a",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as found:
        yield found


@contextmanager
def process(*arguments: object, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-P", "-m", "skerry", *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=cwd
    ) as running:
        try:
            yield running
        finally:
            running.terminate()


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[str]:
    """A small demo, served from before its first version on; a browser has watched it arrive."""
    here = tmp_path_factory.mktemp("demo")
    small = ("--model", "tiny", "--steps", STEPS)
    with process("serve", "demo/bulletin", "--port", 0, "--json", cwd=here) as service:
        assert service.stdout is not None
        url = json.loads(service.stdout.readline())["url"].rstrip("/")
        window = Window(browser, url)
        window.page.goto(url)
        window.page.wait_for_function(
            "() => document.querySelector('#live').textContent === 'live'"
        )
        with process("demo", *small, "--out", "demo", "--json", cwd=here) as demo:
            window.page.wait_for_function(
                "last => document.querySelector('.tile .figure')?.textContent === last",
                arg=str(STEPS),
                timeout=240_000,
            )
            assert demo.wait(240) == 0
        assert window.page.locator("#told").text_content() == f"Version {STEPS} is there."
        window.close()
        yield url


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_of_a_live_run_is_whole_and_accessible(
    live: str, browser: Browser, scheme: str
) -> None:
    window = Window(browser, live, scheme=scheme)
    for view in VIEWS:
        window.show(view)
        assert window.page.locator("main h1").count() == 1, view
        assert window.page.locator("main .problem").count() == 0, view
        for chart in window.page.locator("main .chart").all():
            assert chart.locator("svg.main-svg").count() > 0, view
            assert chart.get_attribute("aria-label"), view
        assert window.violations() == [], view
        window.picture(view, scheme)
    assert window.wrong == []
    assert window.hosts == {live.removeprefix("http://")}
    window.close()


def test_a_version_is_reached_and_drilled_into_by_keyboard_alone(
    live: str, browser: Browser
) -> None:
    window = Window(browser, live)
    window.show("timeline")
    page = window.page
    focus_on(window, lambda: page.evaluate("document.activeElement.textContent") == str(STEPS))
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.title.startsWith('Version')")
    assert page.evaluate("document.activeElement.id") == "main"
    name = "document.activeElement.closest('table')?.caption.textContent ?? ''"
    focus_on(window, lambda: page.evaluate(name).startswith("Tensors"))
    focus_on(window, lambda: page.evaluate("document.activeElement.tagName") == "A")
    tensor = page.evaluate("document.activeElement.textContent")
    page.keyboard.press("Enter")
    page.wait_for_function("name => document.querySelector('h1')?.textContent === name", arg=tensor)
    assert window.wrong == []
    window.close()


def test_the_theme_can_be_chosen_and_is_kept(live: str, browser: Browser) -> None:
    window = Window(browser, live)
    window.show("storage")
    button = window.page.locator("#theme")
    for expected in ("Theme: light", "Theme: dark"):
        button.click()
        assert button.text_content() == expected
    window.page.reload()
    window.page.wait_for_selector(":root[data-theme=dark]")
    window.close()


def test_what_a_store_says_is_text_and_never_markup(browser: Browser) -> None:
    store = small_run()
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    report = IslandReport(
        island="mallory", error=evil, phase="idle", engines={"a/b": 1}, time_ms=now_ms()
    )
    store.replace(keys.island("mallory"), report.to_bytes())
    store.put("islands/<img src=x onerror=alert(3)>.json", [evil.encode()])
    with serving(store) as service:
        window = Window(browser, service.url)
        window.show("islands")
        assert evil in (window.page.locator("main").text_content() or "")
        assert "onerror=alert(3)" in (window.page.locator("main").text_content() or "")
        window.show(f"tensor?name={evil}")
        assert window.page.locator("main img, main script").count() == 0
        assert window.wrong == []
        window.close()


def test_what_a_model_calls_its_tensors_is_text_in_every_view(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = "<img src=x onerror=alert(1)>"
    names = {
        f"{evil}%{{x}}<b>": (4, 4, 1.0),
        "'-alert(2)-'": (4, 1, 1.6),
        "${alert(3)}": (1, 4, 1.0),
    }
    monkeypatch.setattr(synthetic_run, "_PROJECTIONS", names)
    with serving(small_run()) as service:
        window = Window(browser, service.url)
        name = f"model.layers.1.{evil}%{{x}}<b>.weight"
        for view in (
            "heat", "heat?mode=projections", "version?v=40", "compare?old=38&new=40",
            f"tensor?name={quote(name)}", f"version?v=40&projection={quote(evil)}&layer=1",
        ):  # fmt: skip
            window.show(view)
            assert evil in (window.page.locator("main").text_content() or ""), view
            assert window.page.locator("main img, main script, main b").count() == 0, view
        window.show("heat")
        window.page.locator("main .chart").hover()
        window.page.wait_for_selector(".hoverlayer .hovertext")
        assert window.page.locator("main img, main b").count() == 0
        assert window.wrong == []
        window.close()


def test_a_tab_that_nobody_sees_costs_the_store_nothing_and_catches_up_later(
    browser: Browser,
) -> None:
    with serving(small_run()) as service:
        window = Window(browser, service.url)
        window.show("timeline")
        window.page.wait_for_selector("#live:text-is('live')")
        seen(window, False)
        window.page.wait_for_selector("#live:has-text('nobody looks')")
        closed(service)
        seen(window, True)
        window.page.wait_for_selector("#live:text-is('live')")
        assert service.follower.listeners == 1
        assert window.wrong == []
        window.close()


def test_a_session_that_has_ended_is_said_and_not_shown_old(browser: Browser) -> None:
    token = "correct-horse-battery"
    store = small_run()
    with serving(store, config=ServiceConfig(port=0, token=token), wait_for=None) as service:
        window = Window(browser, service.url)
        window.show("timeline")
        window.page.locator("input[type=password]").fill(token)
        window.page.locator("input[type=password]").press("Enter")
        window.page.wait_for_selector("#live:text-is('live')")
        window.page.context.clear_cookies()
        store.replace(keys.island("new"), IslandReport(island="new", version=1).to_bytes())
        window.page.wait_for_selector("input[type=password]")
        window.close()


def test_how_long_the_store_has_been_silent_is_told_as_it_grows(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_state, "SLOW_S", 0.1)
    with switched() as (switch, service):
        window = Window(browser, service.url)
        window.show("timeline")
        switch.hang()
        banner = window.page.locator("#banner:has-text('has not answered')")
        first = banner.text_content(timeout=60_000)
        window.page.wait_for_function(
            "first => document.querySelector('#banner').textContent !== first", arg=first
        )
        assert "has not answered" in (banner.text_content() or "")
        switch.open.set()
        window.page.wait_for_selector("#banner", state="hidden")
        window.close()


def test_a_map_that_is_not_read_whole_fills_up_by_itself(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, parse = threading.Event(), Descriptions.parse

    def slow(read: Descriptions, commit: Commit, stored: Stored) -> Described:
        gate.wait(60)
        return parse(read, commit, stored)

    monkeypatch.setattr(Descriptions, "parse", slow)
    monkeypatch.setattr(tensors, "EACH_LIMIT_S", 1.0)
    with serving(small_run()) as service:
        window = Window(browser, service.url)
        window.page.goto(f"{service.url}/#/heat")
        window.page.wait_for_selector("text=being read")
        gate.set()
        window.page.wait_for_selector("text=being read", state="detached", timeout=60_000)
        assert window.page.locator("main .chart svg.main-svg").count() > 0
        assert window.wrong == []
        window.close()


def test_the_page_says_that_the_store_is_dead_and_goes_on_when_it_is_back(browser: Browser) -> None:
    failing: list[Exception] = []

    def before(verb: str, key: str) -> None:
        if failing:
            raise failing[0]

    with serving(FaultyStore(small_run(), before=before)) as service:
        window = Window(browser, service.url)
        window.show("timeline")
        assert window.page.locator("#banner").is_hidden()
        failing.append(OSError("the cable is out"))
        window.page.wait_for_selector("#banner:has-text('the cable is out')")
        assert window.violations() == []
        window.picture("dead", "light")
        failing.clear()
        window.page.wait_for_selector("#banner", state="hidden")
        assert window.wrong == []
        window.close()


def test_a_token_is_asked_for_once(browser: Browser) -> None:
    token = "correct-horse-battery"
    with serving(small_run(), config=ServiceConfig(port=0, token=token), wait_for=None) as service:
        window = Window(browser, service.url)
        window.show("timeline")
        field = window.page.locator("input[type=password]")
        field.fill("wrong-horse-battery")
        field.press("Enter")
        window.page.wait_for_selector("text=That is not the token.")
        field.fill(token)
        field.press("Enter")
        window.page.wait_for_selector("h1:has-text('Timeline')")
        window.page.wait_for_selector("#live:has-text('live')")
        window.page.reload()
        window.page.wait_for_selector("h1:has-text('Timeline')")
        window.close()
        with urllib.request.urlopen(f"{service.url}/", timeout=60) as page:
            assert token.encode() not in page.read()


def seen(window: Window, visible: bool) -> None:
    """Have the page believe that its tab is in front, or is not."""
    window.page.evaluate(
        """hidden => {
          Object.defineProperty(document, "hidden", { get: () => hidden, configurable: true });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        not visible,
    )


def focus_on(window: Window, found: object) -> None:
    """Press Tab until the focus is where it is looked for."""
    assert callable(found)
    for _ in range(200):
        window.page.keyboard.press("Tab")
        if found():
            return
    raise AssertionError("the keyboard does not get there")
