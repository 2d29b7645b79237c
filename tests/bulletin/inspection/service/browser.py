"""Debian's Chromium, driven by Playwright; tests that need one are skipped where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


def chromium() -> str | None:
    """Return the path of a Chromium of this machine: CHROMIUM, or one that can be found."""
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, _NAMES)), None)


@contextmanager
def browsing() -> Iterator[Browser]:
    """Start a browser, or skip the test."""
    path = chromium()
    if path is None:
        pytest.skip("NO CHROMIUM: the page is not tested; install one, or name it in CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


class Window:
    """A page of the browser, and everything in it that went wrong."""

    def __init__(self, browser: Browser, url: str, *, scheme: str = "light") -> None:
        dark = scheme == "dark"
        self._context = browser.new_context(
            viewport={"width": 1280, "height": 900}, color_scheme="dark" if dark else "light"
        )
        self.page: Page = self._context.new_page()
        self.url = url
        self.wrong: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", lambda said: self._said(said.type, said.text))
        self.page.on("dialog", lambda dialog: self._dialog(dialog.message))
        self.page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))

    def show(self, view: str) -> None:
        """Go to a view, and wait until it is complete."""
        self.page.goto(f"{self.url}/#/{view}")
        self.page.wait_for_function(
            "() => document.querySelector('#main').dataset.shown === location.hash", timeout=120_000
        )

    def violations(self) -> list[str]:
        """Return what axe-core finds wrong with the page as it is."""
        found = Axe().run(self.page).response["violations"]
        return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found]

    def picture(self, view: str, scheme: str) -> None:
        """Write a screenshot to SKERRY_SCREENSHOTS, if somebody wants one."""
        where = os.environ.get("SKERRY_SCREENSHOTS")
        if where is not None:
            name = view.replace("?", "-").replace("=", "-").replace("&", "-").replace(".", "-")
            self.page.screenshot(path=Path(where) / f"{name}-{scheme}.png", full_page=True)

    def close(self) -> None:
        self._context.close()

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.wrong.append(f"{kind}: {text}")

    def _dialog(self, message: str) -> None:
        self.wrong.append(f"dialog: {message}")
