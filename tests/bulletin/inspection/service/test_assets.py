"""The page's files: names that change with their content, and nothing that reads markup."""

from __future__ import annotations

import gzip
import re
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


@pytest.mark.parametrize("name", OWN)
def test_nothing_in_the_page_reads_markup_or_asks_another_host(name: str) -> None:
    text = PAGE.joinpath(name).read_text(encoding="utf-8")
    markup = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|eval\("
    )
    assert re.findall(markup, text) == []
    hosts = set(re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", text))
    assert hosts <= {"http://www.w3.org"}  # the name of SVG, which nobody asks
