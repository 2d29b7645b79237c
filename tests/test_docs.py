"""The documents are true where a machine can tell: samples run, links and paths lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MARK = "<!-- test -->"  # on the line before a sample of the README that is to be run
FENCE = re.compile(
    r"^(?P<mark><!--[^\n]*-->\n)?```(?P<kind>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"`(\.?\w[\w.-]*/[\w./-]*)`")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
MACHINE_PATH = re.compile(r"(?<![\w.~/-])/(?:work|root|home|Users|tmp)/\w")


@pytest.mark.parametrize("name", ["README.md", "docs/operations.md", "docs/inspection.md"])
def test_shell_samples_run_from_top_to_bottom(name: str, tmp_path: Path) -> None:
    here = Path(sys.executable).parent  # not resolved: a virtual environment is where its link is
    env = {**os.environ, "PATH": f"{here}{os.pathsep}{os.environ['PATH']}"}
    text = (ROOT / name).read_text(encoding="utf-8")
    for code in shell_samples(text, marked=name == "README.md"):
        done = subprocess.run(
            ["bash", "-euc", code],
            cwd=tmp_path,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"


def test_the_operations_page_has_samples_to_run() -> None:
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    assert len(list(shell_samples(text, marked=False))) >= 4


def test_samples_are_found_by_their_kind_and_mark() -> None:
    text = (
        f"```sh\na\n```\n\n{MARK}\n```sh\nb\nc\n```\n<!-- other -->\n```sh\nd\n```\n```py\ne\n```"
    )
    assert list(shell_samples(text, marked=False)) == ["a\n", "b\nc\n", "d\n"]
    assert list(shell_samples(text, marked=True)) == ["b\nc\n"]


def test_every_link_leads_somewhere() -> None:
    dead = []
    for page in files(".md"):
        for link in LINK.findall(prose(page)):
            if re.match(r"[a-z]+:", link):
                continue  # elsewhere: not ours to promise
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                dead.append(f"{page.relative_to(ROOT)}: {link}")
    assert dead == []


def test_every_path_of_the_repository_exists() -> None:
    tops = {path.relative_to(ROOT).parts[0] for path in files() if path.parent != ROOT}
    missing = [
        f"{page.relative_to(ROOT)}: {path}"
        for page in files(".md")
        for path in PATH.findall(prose(page))
        if path.split("/")[0] in tops and not (ROOT / path).exists()
    ]
    assert missing == []


def test_pictures_are_small_and_shown_somewhere() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in files(".md"))
    for picture in files(".png"):
        assert picture.stat().st_size <= 300_000, picture
        assert str(picture.relative_to(ROOT / "docs")) in pages, picture


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    found = []
    for path in files():
        if path.suffix == ".png":
            continue
        text = path.read_text(encoding="utf-8")  # the repository has no other files
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in MACHINE_PATH.finditer(text)]
    assert found == []


def shell_samples(text: str, *, marked: bool) -> Iterator[str]:
    for fence in FENCE.finditer(text):
        mark = (fence["mark"] or "").strip()
        if fence["kind"] == "sh" and (mark == MARK or not marked):
            yield fence["code"]


def files(suffix: str = "") -> list[Path]:
    """Return the files that are tracked or would be with the next commit."""
    if not (ROOT / ".git").exists():
        pytest.skip("only a checkout knows its files")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [ROOT / name for name in listed.stdout.split("\0") if name.endswith(suffix)]
    return sorted(path for path in paths if path.is_file())


def prose(page: Path) -> str:
    """Return a page without its samples."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Return the names that the headings of a page have on GitHub."""
    return {
        re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")
        for heading in HEADING.findall(prose(page))
    }
