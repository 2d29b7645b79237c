"""The demo: it ends with every version exact, or says what is not, and leaves no process behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from typer.testing import CliRunner

from skerry.bulletin import BulletinReader, open_store
from skerry.cli.app import app
from skerry.cli.demo.audit import audit
from skerry.cli.demo.children import Child, children
from skerry.cli.demo.watch import Seen
from skerry.island_agent.pull import pull
from skerry.publisher import Publisher
from skerry.publisher.progress import silent

ISLANDS = ("island-a", "island-b")
SHARD = "model.safetensors"


@contextmanager
def demo_process(
    out: Path, *arguments: str, stderr: int | IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a demo that ends with the block, also when a claim in it fails."""
    process = subprocess.Popen(
        [sys.executable, "-m", "skerry", "demo", "--model", "tiny", "--out", out, *arguments],
        stdout=subprocess.PIPE,
        stderr=stderr,
    )
    with process:
        try:
            yield process
        finally:
            process.terminate()


def ports(stderr: str) -> list[int]:
    """Return where the islands said that they listen."""
    found = re.findall(r"^(island-\w) listens at http://127\.0\.0\.1:(\d+)$", stderr, re.MULTILINE)
    assert tuple(name for name, _ in found) == ISLANDS, stderr
    return [int(port) for _, port in found]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def processes(out: Path) -> list[str]:
    """Return the command lines that name `out`: each of the demo's processes does."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        if str(out) in line:
            lines.append(line)
    return lines


def test_every_version_is_exact_on_both_islands_and_no_process_is_left(tmp_path: Path) -> None:
    out = tmp_path / "out"
    log = tmp_path / "stderr"
    with (
        log.open("wb") as stderr,
        demo_process(out, "--steps", "3", "--json", stderr=stderr) as demo,
    ):
        printed, _ = demo.communicate()
    said = log.read_text()
    assert demo.returncode == 0, said
    summary = json.loads(printed)
    assert summary["exact"] is True
    assert summary["problems"] == []
    assert [row["version"] for row in summary["versions"]] == [0, 1, 2, 3]
    for row in summary["versions"]:
        assert row["exact"] == dict.fromkeys(ISLANDS, True)
    for row in summary["versions"][1:]:
        assert row["kind"] == "patch"
        assert 0 < row["wire_bytes"] < row["full_bytes"]
        assert row["sizes"]["bound"] > 0
    assert json.loads((out / "summary.json").read_text()) == summary
    page = (out / "report.html").read_text()
    assert page.count("<svg") == 4
    assert "<script" not in page
    assert not any(map(listens, ports(said)))
    assert processes(out) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_stopped_takes_its_processes_with_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "out"
    with demo_process(out, "--steps", "1000", stderr=subprocess.PIPE) as demo:
        assert demo.stderr is not None
        where = ports("".join(demo.stderr.readline().decode() for _ in ISLANDS))
        while not all(map(listens, where)):
            assert demo.poll() is None, demo.stderr.read()
            time.sleep(0.01)  # leaves the processor to the islands
        assert len(processes(out)) == 4  # with the trainer and the demo itself
        demo.send_signal(number)
        _, said = demo.communicate()
    assert demo.returncode not in (0, None)
    assert b"Traceback" not in said
    assert not any(map(listens, where))
    assert processes(out) == []


def test_a_signal_that_interrupts_a_finalizer_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)

    class Interrupted:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    def run() -> None:
        with children() as started:
            started.append(Child(name="sleeper", log=tmp_path / "log", process=process))
            Interrupted()  # what the handler raises there goes nowhere
            assert len(lost) == 1
            started[0].check()

    with pytest.raises(SystemExit) as stopped:
        run()
    assert stopped.value.code == 128 + signal.SIGINT
    assert process.poll() is not None


def test_a_directory_that_no_demo_wrote_is_refused_and_kept(tmp_path: Path) -> None:
    mine = tmp_path / "notes.txt"
    mine.write_text("mine")
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "--out" in result.stderr
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


class TestJudge:
    """A run of three versions, and an island's mirror of the last one."""

    @pytest.fixture
    def reader(self, tmp_path: Path) -> BulletinReader:
        store = open_store(str(tmp_path / "bulletin"))
        publisher = Publisher.open(store)
        side_files = {"config.json": b"{}", "gone.txt": b"soon"}
        words = np.random.default_rng(0).standard_normal(4096).astype(np.float16)
        for step in range(3):
            words[step::97] *= np.float16(1.25)
            publisher.publish_arrays({"w": words.copy()}, step=step, side_files=side_files)
            side_files = {"config.json": b'{"step": %d}' % step}
        return BulletinReader(store)

    @pytest.fixture
    def mirror(self, tmp_path: Path, reader: BulletinReader) -> Path:
        pull(reader, tmp_path / "mirror")
        return tmp_path / "mirror"

    def problems(
        self, reader: BulletinReader, mirror: Path, said: Mapping[int, str] | None = None
    ) -> list[str]:
        reports = {version: {"digest": digest} for version, digest in (said or {}).items()}
        return audit(reader, {"a": reports}, {"a": mirror}, silent).problems

    def test_a_sound_run_has_no_problem_and_a_size_for_every_patch(
        self, reader: BulletinReader, mirror: Path
    ) -> None:
        verdict = audit(reader, {"a": {}}, {"a": mirror}, silent)
        assert verdict.problems == []
        assert sorted(verdict.sizes) == [1, 2]
        assert all(sizes["changed"] > 0 for sizes in verdict.sizes.values())

    @pytest.mark.parametrize("name", [SHARD, "config.json"])
    @pytest.mark.parametrize("where", [0, -1])
    def test_one_flipped_bit_names_its_file(
        self, reader: BulletinReader, mirror: Path, name: str, where: int
    ) -> None:
        data = bytearray((mirror / name).read_bytes())
        data[where] ^= 1
        (mirror / name).write_bytes(data)
        assert self.problems(reader, mirror) == [f"island a: {name} differs"]

    def test_files_that_are_missing_or_too_many_are_named(
        self, reader: BulletinReader, mirror: Path
    ) -> None:
        (mirror / "config.json").rename(mirror / "other.json")
        assert self.problems(reader, mirror) == [
            "island a: config.json is missing",
            "island a: other.json is not part of the version",
        ]

    def test_an_island_that_installed_something_else_is_named(
        self, reader: BulletinReader, mirror: Path
    ) -> None:
        reader.refresh()
        right = {version: commit.result for version, commit in reader.state.commits.items()}
        assert self.problems(reader, mirror, right) == []
        (problem,) = self.problems(reader, mirror, {**right, 1: right[0]})
        assert problem == f"island a, version 1: expected {right[1]}, found {right[0]}"

    def test_a_damaged_patch_is_named_and_ends_the_replay(
        self, tmp_path: Path, reader: BulletinReader, mirror: Path
    ) -> None:
        reader.refresh()
        (pack,) = reader.state.commits[1].packs
        path = tmp_path / "bulletin" / pack.key
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.chmod(0o644)
        path.write_bytes(data)
        (problem,) = self.problems(reader, mirror)
        assert problem.startswith(f"version 1: {pack.key}: expected ")


def test_an_island_is_exact_when_its_weights_are_those_that_the_trainer_published() -> None:
    seen = Seen(["a"])
    seen.event({"event": "published", "version": 0, "digest": "f0"})
    assert seen.exact("a", 0) is None
    for digest, exact in (("f0", True), ("0f", False)):
        report = {"version": 0, "digest": digest}
        seen.status("a", {"agent": {"history": [report], "failures": {}}})
        assert seen.exact("a", 0) is exact
