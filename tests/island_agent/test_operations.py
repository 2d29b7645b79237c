"""Islands as processes: what probes see, and how they end, whatever hangs or is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from skerry.bulletin.stores import LocalStore
from tests.island_agent.runs import Run, make_run

PROBES = 20
PROBE_LIMIT_S = 1.0  # case L-2
END_LIMIT_S = 20.0


class Child:
    """An island in a process of its own; lines that it told are taken in their order."""

    def __init__(self, arguments: list[str], *, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self.port = 0
        self.told: list[str] = []

    def hears(self, event: str) -> str:
        """Wait for a line that starts so."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.told.append(line.strip())
            if line.startswith(event):
                return line.strip()
        raise AssertionError(f"{event!r} was not told: {self.told} {self.errors()}")

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def get(self, path: str) -> tuple[int, Any]:
        url = f"http://127.0.0.1:{self.port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=PROBE_LIMIT_S) as answer:
                status, body = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                status, body = error.code, error.read()
        return status, body.decode() if path == "/metrics" else json.loads(body)

    def agent(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("/status")[1]["agent"]
        return found

    def until(self, version: int) -> None:
        """Wait until the engine serves a version, by asking."""
        while self.agent()["engines"]["a"]["version"] != version:
            assert self.process.poll() is None, self.errors()

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(END_LIMIT_S)


@contextmanager
def island(
    tmp_path: Path, address: str | Path, trouble: str = "none", *, shutdown_s: float = 5.0
) -> Iterator[Child]:
    places = [str(address), str(tmp_path / "island"), str(tmp_path / "engine")]
    child = Child(["-m", "tests.island_agent.process", *places, trouble, str(shutdown_s)])
    with closing(child):
        child.port = int(child.hears("port").split()[1])
        yield child


@contextmanager
def closing(child: Child) -> Iterator[None]:
    try:
        yield
    finally:
        if child.process.poll() is None:
            child.process.kill()
        child.process.communicate()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(1, store=LocalStore(tmp_path / "bulletin"), words=400)


@pytest.fixture
def hung() -> Iterator[str]:
    """The address of a store that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/run"


def engine_state(tmp_path: Path) -> str:
    return (tmp_path / "engine").read_text()


def serve_once(tmp_path: Path) -> None:
    """Have the mirror hold version 1."""
    with island(tmp_path, tmp_path / "bulletin") as child:
        child.until(1)
        assert child.end() == 0


# Case L-2: liveness, readiness, status.


def test_a_store_that_never_answers_blocks_neither_probes_nor_the_end(
    tmp_path: Path, run: Run, hung: str
) -> None:
    with island(tmp_path, hung) as child:
        child.hears("resumed")
        for _ in range(PROBES):
            assert child.get("/health")[0] == 200
            status, body = child.get("/ready")
            assert (status, body["ready"]) == (503, False)
        assert child.agent()["phase"] == "observing"
        assert child.agent()["not_ready"] == "no engine serves any version"
        assert 'skerry_island_phase{phase="observing"} 1.0' in child.get("/metrics")[1]
        assert child.end() == 0
    assert engine_state(tmp_path) == "running"


def test_an_island_serves_what_it_holds_while_the_store_never_answers(
    tmp_path: Path, run: Run, hung: str
) -> None:
    serve_once(tmp_path)
    with island(tmp_path, hung) as child:
        child.until(1)
        assert child.get("/ready") == (200, {"ready": True, "served": ["1"]})
        assert child.end() == 0


def test_an_engine_that_hangs_in_an_install_blocks_no_probe(tmp_path: Path, run: Run) -> None:
    with island(tmp_path, tmp_path / "bulletin", "install-hangs", shutdown_s=0.2) as child:
        child.until(1)
        run.extend(1)
        child.hears("installing 2")
        for _ in range(PROBES):
            assert child.get("/health")[0] == 200
            assert child.get("/ready")[1] == {"ready": True, "served": ["1"]}
        while (found := child.agent())["version"] != 2:  # the mirror does not wait for ever
            assert found["phase"] == "installing"
        assert found["bytes_done"] == found["bytes_total"] > 0
        engine = found["engines"]["a"]
        assert (engine["version"], engine["last_install"]["kind"]) == (1, "load")
        assert child.end() == 0


# Case I-2: an engine is never left paused.


@pytest.mark.parametrize("trouble", ["install-hangs", "load-hangs"])
def test_a_stop_in_the_middle_of_a_switch_leaves_the_engine_running(
    tmp_path: Path, run: Run, trouble: str
) -> None:
    with island(tmp_path, tmp_path / "bulletin", trouble, shutdown_s=0.2) as child:
        if trouble == "install-hangs":
            child.until(1)
            run.extend(1)
            child.hears("installing 2")
            assert engine_state(tmp_path) == "paused"
        else:
            child.hears("loading 1")
        assert child.end() == 0
    assert engine_state(tmp_path) == "running"


def test_an_engine_whose_agent_was_killed_in_the_pause_is_resumed_at_the_start(
    tmp_path: Path, run: Run, hung: str
) -> None:
    with island(tmp_path, tmp_path / "bulletin", "install-hangs") as child:
        child.until(1)
        run.extend(1)
        child.hears("installing 2")
        assert child.end(signal.SIGKILL) == -signal.SIGKILL
    assert engine_state(tmp_path) == "paused"
    with island(tmp_path, hung) as child:  # nothing but the start can have resumed it
        child.hears("resumed")
        assert engine_state(tmp_path) == "running"
        child.until(2)  # the record was durable: the mirror is version 2
        assert child.end() == 0


def test_a_resume_that_fails_once_is_tried_again(tmp_path: Path, run: Run) -> None:
    (tmp_path / "engine").write_text("paused")
    with island(tmp_path, tmp_path / "bulletin", "resume-fails-once") as child:
        child.hears("resume fails")
        child.until(1)
        assert child.agent()["engines"]["a"]["error"] is None
        assert child.end() == 0
    assert engine_state(tmp_path) == "running"


def test_an_engine_that_stays_paused_is_not_ready_and_shows_in_the_exit_code(
    tmp_path: Path, run: Run
) -> None:
    (tmp_path / "engine").write_text("paused")
    with island(tmp_path, tmp_path / "bulletin", "resume-fails", shutdown_s=1.0) as child:
        while "resume" not in str((found := child.agent()["engines"]["a"])["error"]):
            assert child.process.poll() is None
        assert found["version"] is None
        assert found["failures"] >= 1
        assert child.get("/ready")[0] == 503
        assert 'skerry_island_engine_healthy{engine="a"} 0.0' in child.get("/metrics")[1]
        assert child.end() == 3
    assert engine_state(tmp_path) == "paused"


# The end of a process.


def test_requests_that_run_end_whole_and_no_island_is_ready_that_stops(
    tmp_path: Path, run: Run
) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 4}).encode()
    answers: list[Any] = []

    with island(tmp_path, tmp_path / "bulletin", "tokens-wait", shutdown_s=15.0) as child:
        child.until(1)

        def ask() -> None:
            url = f"http://127.0.0.1:{child.port}/v1/completions"
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=END_LIMIT_S) as answer:
                answers.append(json.loads(answer.read()))

        asking = threading.Thread(target=ask)
        asking.start()
        child.hears("generating")
        child.process.send_signal(signal.SIGTERM)
        while answers_at_all(child):  # nobody is let in any more, but who is in stays
            assert child.process.poll() is None
        (tmp_path / "go-on").touch()
        asking.join(END_LIMIT_S)
        assert child.process.wait(END_LIMIT_S) == 0
    (answer,) = answers
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["weight_versions"] == [{"version": "1", "start": 0, "end": 4}]


def test_a_request_that_does_not_end_is_cut_when_the_time_is_over(tmp_path: Path, run: Run) -> None:
    with island(tmp_path, tmp_path / "bulletin", "tokens-wait", shutdown_s=0.2) as child:
        child.until(1)
        with socket.create_connection(("127.0.0.1", child.port)) as connection:
            body = b'{"prompt": "x", "max_tokens": 4}'
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
            connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
            child.hears("generating")
            assert child.end() == 0


# The command itself.


def answers_at_all(child: Child) -> bool:
    try:
        child.get("/health")
    except OSError:
        return False
    return True


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def command(tmp_path: Path, *arguments: object, env: dict[str, str] | None = None) -> Child:
    port = free_port()
    child = Child(
        ["-m", "skerry", "agent", *map(str, arguments), "--dir", str(tmp_path / "island")],
        env={"SKERRY_AGENT_PORT": str(port), "SKERRY_AGENT_POLL_S": "0.01", **(env or {})},
    )
    child.port = port
    return child


def listens(child: Child) -> None:
    while not answers_at_all(child):
        assert child.process.poll() is None, child.errors()


def test_the_command_ends_with_code_0_at_sigterm_whatever_the_store_does(
    tmp_path: Path, run: Run, hung: str
) -> None:
    child = command(tmp_path, hung, env={"SKERRY_AGENT_SHUTDOWN_S": "5"})
    with closing(child):
        listens(child)
        assert child.end() == 0
    child = command(tmp_path, tmp_path / "bulletin")
    with closing(child):
        listens(child)
        while child.get("/ready")[0] != 200:
            assert child.process.poll() is None
        assert child.agent()["target"] == {
            "mode": "newest", "version": None, "max_lag": 0, "ready_lag": None
        }  # fmt: skip
        assert child.end() == 0


def test_metrics_have_their_units_in_their_names(tmp_path: Path, run: Run) -> None:
    with island(tmp_path, tmp_path / "bulletin") as child:
        child.until(1)
        text = child.get("/metrics")[1]
        assert child.end() == 0
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    ours = {name: kind for name, kind in kinds.items() if name.startswith("skerry_island_")}
    assert len(ours) >= 18
    flags = {"ready", "phase", "partial", "watched", "engine_healthy"}
    numbers = {"version", "newest_version", "newest_step", "target_version", "engine_version"}
    for name, kind in ours.items():
        rest = name.removeprefix("skerry_island_")
        if kind == "counter":
            assert rest.endswith("_total"), name
        elif rest not in flags | numbers:
            assert rest.endswith(("_seconds", "_bytes", "_versions")), name


def test_the_command_mirrors_the_part_that_the_operator_names(tmp_path: Path, run: Run) -> None:
    env = {"SKERRY_AGENT_TENSORS": "block.*,!*scale*"}
    child = command(tmp_path, tmp_path / "bulletin", env=env)
    with closing(child):
        listens(child)
        while child.get("/ready")[0] != 200:
            assert child.process.poll() is None
        found = child.agent()
        assert (found["partial"], found["part_bytes"]) == (True, 64 * 64)
        assert "skerry_island_partial 1.0" in child.get("/metrics")[1]
        assert child.end() == 0
    assert not (tmp_path / "island" / "mirror").exists()
    assert (tmp_path / "island" / "mirror.partial").is_dir()
