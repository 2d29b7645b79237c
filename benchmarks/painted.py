"""What a view of the page takes in a browser that has never seen it: time, memory, nodes."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass

_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


class NoBrowser(Exception):
    """There is none on this machine, or nothing that drives it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Painted:
    """What the page took: to its first paint, to its table, to its chart, and in memory."""

    view: str
    first_paint_ms: float
    complete_ms: float
    heap_bytes: int
    nodes: int


def browse(url: str, views: tuple[str, ...]) -> Iterator[Painted]:
    """Open each view in a browser that has never seen the page.  Raises NoBrowser."""
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _CHROMIUM)), None)
    if path is None:
        raise NoBrowser("no Chromium on this machine")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError as error:
        raise NoBrowser(f"needs {error.name}") from error
    with sync_playwright() as playwright:
        for view in views:
            browser = playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            begun = time.perf_counter()
            page.goto(f"{url}#/{view}")
            page.wait_for_function(
                "() => document.querySelector('#main').dataset.shown === location.hash",
                timeout=120_000,
            )
            complete_ms = 1000 * (time.perf_counter() - begun)
            paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            first = page.evaluate(paint)
            session = page.context.new_cdp_session(page)
            session.send("Performance.enable")
            session.send("HeapProfiler.collectGarbage")
            found = {
                metric["name"]: metric["value"]
                for metric in session.send("Performance.getMetrics")["metrics"]
            }
            browser.close()
            yield Painted(
                view=view,
                first_paint_ms=first,
                complete_ms=complete_ms,
                heap_bytes=int(found["JSHeapUsedSize"]),
                nodes=int(found["Nodes"]),
            )
