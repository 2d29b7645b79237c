"""`skerry serve`, `skerry top` and `skerry diff` of versions, as an operator runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from skerry.benchmarks.synthetic_run import SIGNER, make_run
from skerry.bulletin import keys, stores
from skerry.bulletin.errors import StoreDenied
from skerry.bulletin.inspection.checks import check_version
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.stores import LocalStore
from skerry.bulletin.stores.memory import MemoryStore
from skerry.bulletin.writer import now_ms
from skerry.cli.app import app
from skerry.cli.output import printable
from tests.bulletin.faults import FaultyStore
from tests.bulletin.inspection.service.serving import SMALL


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bulletin")
    make_run(LocalStore(directory), SMALL, now_ms=now_ms())
    return directory


def skerry(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def answer(*arguments: object) -> dict[str, Any]:
    result = skerry(*arguments, "--json")
    assert result.exit_code == 0, result.output
    value: dict[str, Any] = json.loads(result.stdout)
    return value


@contextmanager
def service(*arguments: object, **env: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "skerry", "serve", *map(str, arguments), "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **env}
    ) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())["url"]
        finally:
            process.kill()


def test_two_versions_are_compared_without_weights(run: Path) -> None:
    one = answer("diff", run, 9, 10)
    assert (one["exact"], one["compared"]) == (True, [10])
    assert one["at_most"] == answer("show", run, 10)["changed"]
    many = answer("diff", run, 9, "latest")
    assert not many["exact"]
    assert many["new"] == SMALL.versions - 1
    assert "at most" in skerry("diff", run, 9, "latest").stdout
    assert answer("diff", run, 9, 9)["identical_weights"]


def test_a_diff_is_of_two_directories_or_of_two_versions(run: Path, tmp_path: Path) -> None:
    for arguments in (
        ["diff", run, run],
        ["diff", run, 1, 2, "--output", tmp_path / "patch"],
        ["diff", tmp_path / "nothing", tmp_path, "--output", tmp_path / "patch"],
        ["diff", run, "one", 2],
    ):
        assert skerry(*arguments).exit_code == 2, arguments
    assert skerry("diff", run, 1, 999).exit_code == 1


def test_top_shows_versions_and_islands_once(run: Path) -> None:
    seen = answer("top", run, "--versions", 3, "--islands", 4)
    assert [row["version"] for row in seen["versions"]] == [59, 58, 57]
    assert sum(seen["island_counts"].values()) == SMALL.islands
    assert len(seen["islands"]) == 4
    text = skerry("top", run, "--once", "--islands", 4).stdout
    assert "full/patch" in text
    assert f"and {SMALL.islands - 4} islands more" in text


@pytest.mark.parametrize("evil", ["\x1b]0;owned\x07", "\x1b[2J", "\x9b2J", "\u202e", "\ud800"])
def test_nothing_that_a_store_holds_steers_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evil: str
) -> None:
    def before(verb: str, key: str) -> None:
        if verb == "get" and key.startswith(keys.ISLAND_PREFIX):
            raise StoreDenied(key, f"no{evil}")

    store = MemoryStore()
    make_run(store, replace(SMALL, islands=0), now_ms=now_ms())
    store.put("islands/bad.json", [b"{}"])
    monkeypatch.setattr(stores, "open_store", lambda _: FaultyStore(store, before=before))
    shown = skerry("top", tmp_path, "--once").stdout
    assert "a status that is none: islands/bad.json" in shown
    assert evil not in shown


def test_what_is_printed_is_text() -> None:
    for fine in ("", "plain", "Übung 42 % ▁▂ 模型", "a\\b"):
        assert printable(fine) == fine
    assert printable("a\x1b[2Jb\n") == "a\\x1b[2Jb\\n"
    assert printable("\u202e\ud800") == "\\u202e\\ud800"


def test_top_of_a_place_without_a_run_is_refused(tmp_path: Path) -> None:
    assert skerry("top", tmp_path, "--once").exit_code == 1


def test_serve_says_where_it_listens_and_ends_when_it_is_told_to(run: Path) -> None:
    with service(run, "--port", 0) as (process, url):
        with urllib.request.urlopen(f"{url}health", timeout=60) as reply:
            assert json.load(reply)["status"] == "ok"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_serve_takes_several_runs_and_a_key_for_all_or_for_each(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["cp", "-r", run, other], check=True)
    key = SIGNER.public_key.hex
    for given in ((), ("--key", key), ("--key", key, "--key", key)):
        with service(run, other, "--port", 0, *given) as (_, url):
            with urllib.request.urlopen(f"{url}api/v1/runs", timeout=60) as reply:
                rows = json.load(reply)["runs"]
            assert [row["name"] for row in rows] == [run.name, "other"]
    for wrong in ((run, run), (run, other, tmp_path, "--key", key, "--key", key)):
        assert skerry("serve", *wrong, "--port", 0).exit_code == 2


def test_serve_ends_although_a_store_never_answers(tmp_path: Path) -> None:
    """A named pipe in place of a record: whoever opens it waits for ever."""
    (tmp_path / "log").mkdir()
    pipe = tmp_path / "log" / f"{0:020d}.json"
    os.mkfifo(pipe)
    with service(tmp_path, "--port", 0) as (process, url):
        with urllib.request.urlopen(f"{url}health", timeout=60) as reply:
            assert json.load(reply)["status"] == "ok"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_serve_refuses_to_listen_publicly_without_a_token(run: Path, host: str) -> None:
    result = skerry("serve", run, "--host", host)
    assert result.exit_code == 2
    assert "--token-file" in result.stderr


def test_serve_takes_its_token_from_a_file_or_the_environment(run: Path, tmp_path: Path) -> None:
    token = "correct-horse-battery"
    file = tmp_path / "token"
    file.write_text(token)
    for arguments, env in ((("--token-file", file), {}), ((), {"SKERRY_SERVE_TOKEN": token})):
        with service(run, "--port", 0, *arguments, **env) as (_, url):
            request = urllib.request.Request(f"{url}api/v1/versions")
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(request, timeout=60)
    assert skerry("serve", run, "--token-file", tmp_path / "none").exit_code == 2


@pytest.mark.parametrize("package", ["fastapi", "uvicorn", "plotly"])
def test_serve_without_its_extra_names_the_extra(run: Path, package: str) -> None:
    script = (
        "import sys\n"
        f"sys.modules[{package!r}] = None\n"
        f"sys.argv = ['skerry', 'serve', {str(run)!r}, '--port', '0']\n"
        "from skerry.cli import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 2, done.stderr
    assert "pip install 'skerry[inspect]'" in done.stderr


def test_the_audit_and_the_service_find_the_same(run: Path, tmp_path: Path) -> None:
    directory = tmp_path / "copy"
    subprocess.run(["cp", "-r", run, directory], check=True)
    reader = BulletinReader(LocalStore(directory))
    reader.refresh()
    commit = reader.state.commits[50]
    (directory / commit.packs[0].key).write_bytes(b"short")
    problems = [str(check) for check in check_version(reader, commit) if check.problem]
    found = skerry("verify", directory, "--json")
    assert found.exit_code == 1
    assert json.loads(found.stdout)["differences"] == problems
    assert len(problems) == 1
