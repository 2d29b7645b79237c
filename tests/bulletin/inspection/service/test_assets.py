"""The page's files: names that change with their content, and nothing that reads markup."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from importlib.resources import files

import pytest

from tests.bulletin.inspection.service.serving import Served

PAGE = files("skerry.bulletin.inspection").joinpath("page")
OWN = sorted(
    entry.name for entry in PAGE.iterdir() if entry.name.endswith((".js", ".css", ".html"))
)


def test_the_page_loads_what_it_names_and_may_keep_it_for_ever(served: Served) -> None:
    page = served.get("/")
    assert page.headers["cache-control"] == "no-cache"
    named = re.findall(r'(?:href|src|content)="(assets/[^"]+)"', page.body.decode())
    assert len(named) == 4
    for path in named:
        answer = served.get(f"/{path}")
        assert answer.status == 200, path
        assert "immutable" in answer.headers["cache-control"]
        again = served.get(f"/{path}", If_None_Match=answer.headers["etag"])
        assert (again.status, again.body) == (304, b"")
        packed = served.get(f"/{path}", Accept_Encoding="gzip")
        assert gzip.decompress(packed.body) == answer.body


@pytest.mark.parametrize("path", ["x", "../guard.py", "%2e%2e/view.py", "0/main.js", ""])
def test_no_other_file_is_served(served: Served, path: str) -> None:
    assert served.get(f"/assets/{path}").status == 404


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_data_that_is_drawn_has_no_markup() -> None:
    script = PAGE.joinpath("format.js").read_text(encoding="utf-8")
    script += 'console.log(JSON.stringify(plain(["<b>&lt;", 1, null, [["a<a"]], undefined])));'
    done = subprocess.run(
        ["node", "--input-type=module", "-"],
        input=script, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert json.loads(done.stdout) == ["&lt;b>&amp;lt;", 1, None, [["a&lt;a"]], None]


def test_charts_are_drawn_in_one_place_and_their_data_is_plain_there() -> None:
    drawing = [name for name in OWN if "Plotly.react(" in PAGE.joinpath(name).read_text("utf-8")]
    assert drawing == ["charts.js"]
    text = PAGE.joinpath("charts.js").read_text("utf-8")
    for field in ("x", "y", "text"):
        assert f"{field}: plain(trace.{field})" in text


@pytest.mark.parametrize("name", OWN)
def test_nothing_in_the_page_reads_markup_or_asks_another_host(name: str) -> None:
    text = PAGE.joinpath(name).read_text(encoding="utf-8")
    markup = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|eval\("
    )
    assert re.findall(markup, text) == []
    hosts = set(re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", text))
    assert hosts <= {"http://www.w3.org"}  # the name of SVG, which nobody asks
