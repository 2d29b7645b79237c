"""Is the inspection of a long run quick, small, and cheap while nobody looks?

`python -m skerry.benchmarks inspect`, or `skerry bench inspect`.  A made-up run of thousands of
versions and hundreds of islands lies in a directory; `skerry serve` serves it from a process of its
own, one client asks, one request at a time, and a real browser opens the page.  What the store is
asked for in an hour is counted with a clock that is turned by hand.
"""

from __future__ import annotations

import http.client
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from skerry.benchmarks.options import AsJson
from skerry.benchmarks.painted import NoBrowser, Painted, browse
from skerry.benchmarks.submission import Submission
from skerry.benchmarks.synthetic_run import SIGNER, Shape, make_run
from skerry.bulletin.inspection.follower import Follower
from skerry.bulletin.stores.memory import MemoryStore
from skerry.bulletin.stores.metered import Metered
from skerry.bulletin.writer import now_ms

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """How long one kind of request took, in milliseconds, and how large its answers were."""

    what: str
    count: int
    median_ms: float
    p95_ms: float
    answer_bytes: int


class Connection:
    """One connection that is kept."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def close(self) -> None:
        self._connection.close()

    def get(self, path: str) -> bytes:
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {body[:200]!r}")
        return body


def measure(connection: Connection, what: str, paths: Callable[[], str], *, count: int) -> Calls:
    """Ask `count` times, one after the other."""
    taken, nbytes = [], 0
    for _ in range(count):
        path = paths()
        begun = time.perf_counter()
        nbytes = max(nbytes, len(connection.get(path)))
        taken.append(1000 * (time.perf_counter() - begun))
    return Calls(
        what=what,
        count=count,
        median_ms=statistics.median(taken),
        p95_ms=sorted(taken)[max(0, -(-95 * count // 100) - 1)],
        answer_bytes=nbytes,
    )


def ask(to: Connection, versions: int, *, count: int) -> Iterator[Calls]:
    """Measure every kind of request; what is kept after the first time is asked for afresh."""
    rng = random.Random(1)
    newest = versions - 1

    def some() -> int:
        return rng.randrange(versions // 10, versions)

    api = "/api/v1"
    few = max(1, count // 10)
    yield measure(to, "health", lambda: "/health", count=count)
    yield measure(to, "run", lambda: f"{api}/run", count=count)
    yield measure(
        to, "versions, a page of 100", lambda: f"{api}/versions?before={some()}", count=count
    )
    yield measure(to, "one version", lambda: f"{api}/versions/{some()}", count=count)
    yield measure(
        to,
        "its layers, manifest not kept",
        lambda: f"{api}/versions/{some()}/layers",
        count=count,
    )
    yield measure(to, "islands, a page of 200", lambda: f"{api}/islands", count=few)
    yield measure(to, f"timeline of {min(versions, 5000)}", lambda: f"{api}/timeline", count=few)
    yield measure(to, "lineage of 500", lambda: f"{api}/lineage?last={some()}", count=few)
    yield measure(to, "heat map of 48", lambda: f"{api}/heat?columns=48&last={some()}", count=few)
    name = "model.layers.0.mlp.up_proj.weight"
    yield measure(
        to, "one tensor over 64", lambda: f"{api}/tensor?columns=64&name={name}&last={some()}",
        count=few,
    )  # fmt: skip

    def pair() -> str:
        new = some()
        return f"old={max(0, new - 20)}&new={new}"

    yield measure(
        to, "difference over 20, by tensor", lambda: f"{api}/difference/tensors?{pair()}", count=few
    )
    yield measure(to, "catch-up", lambda: f"{api}/catch-up?have={some()}&want={newest}", count=few)
    yield measure(
        to,
        "forecast, keep 32",
        lambda: f"{api}/forecast?keep_last={rng.randrange(30, 34)}",
        count=few,
    )


def hour(store: MemoryStore, *, watched: bool) -> dict[str, int]:
    """Count what an hour of looks asks of the store, once the log has been read."""
    metered = Metered(store)
    now = [0.0]
    follower = Follower(metered, clock=lambda: now[0], now=lambda: 0)
    end = follower.pace.attention_s + _HOUR_S
    before = None
    while now[0] < end:
        if watched:
            follower.attend()
        if before is None and now[0] >= follower.pace.attention_s:
            before = metered.usage()
        now[0] += follower.look()
    assert before is not None
    return dict((metered.usage() - before).requests)


@contextmanager
def served(directory: Path) -> Iterator[tuple[str, int, dict[str, float]]]:
    """Serve a bulletin from a process of its own, and say how it came up."""
    command = [sys.executable, "-m", "skerry", "serve", str(directory), "--port", "0", "--json"]
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            port = int(url.rstrip("/").rpartition(":")[2])
            listens_s = time.perf_counter() - begun
            with closing(Connection(port)) as to:
                while json.loads(to.get("/health"))["store"]["state"] != "ok":
                    time.sleep(0.05)
            came_up = {"listens_s": listens_s, "log_read_s": time.perf_counter() - begun}
            yield url, process.pid, came_up
        finally:
            process.terminate()


def resident(pid: int) -> int | None:
    """Return the resident bytes of a process, where /proc tells."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    line = next(line for line in text.splitlines() if line.startswith("VmRSS:"))
    return 1024 * int(line.split()[1])


def write_out(store: MemoryStore, directory: Path) -> None:
    """Lay a run down as a directory store has it, without its care for crashes."""
    for key in store.list_after(""):
        path = directory / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.get(key, limit_bytes=1 << 40))


def inspect(
    versions: Annotated[int, typer.Option(min=100, help="Versions of the run.")] = 5000,
    islands: Annotated[int, typer.Option(min=1, max=4096, help="Islands.")] = 200,
    count: Annotated[int, typer.Option(min=10, help="Requests of each quick kind.")] = 200,
    as_json: AsJson = False,
) -> None:
    """Measure the inspection service and its page on a long made-up run."""
    settings = {"versions": versions, "islands": islands, "count": count}
    submission = Submission("inspect", settings)
    store = MemoryStore()
    shape = Shape(versions=versions, islands=islands, retired=min(400, versions // 10))
    typer.echo(f"making {versions} versions and {islands} islands ...", err=True)
    make_run(store, shape, now_ms=now_ms())
    hours = {"idle": hour(store, watched=False), "watched": hour(store, watched=True)}
    pages: list[Painted] = []
    no_browser = None
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary) / "run"
        write_out(store, directory)
        with served(directory) as (url, pid, came_up):
            typer.echo("asking ...", err=True)
            port = int(url.rstrip("/").rpartition(":")[2])
            with closing(Connection(port)) as to:
                calls = list(ask(to, versions, count=count))
            try:
                pages = list(browse(url, ("timeline", "islands", "lineage", "heat")))
            except NoBrowser as error:
                no_browser = str(error)
            server_bytes = resident(pid)
    result: dict[str, Any] = {
        "versions": versions,
        "islands": islands,
        "key": SIGNER.public_key.hex,
        "came_up": came_up,
        "server_bytes": server_bytes,
        "calls": [asdict(call) for call in calls],
        "pages": [asdict(page) for page in pages],
        "no_browser": no_browser,
        "requests_an_hour": hours,
    }
    if as_json:
        print(json.dumps(submission.document(result)))
    else:
        _show(result, calls, pages)


def _show(result: dict[str, Any], calls: list[Calls], pages: list[Painted]) -> None:
    up, nbytes = result["came_up"], result["server_bytes"]
    print(f"{result['versions']:,} versions, {result['islands']:,} islands.")
    print(f"Listens after {up['listens_s']:.1f} s, the log is read after {up['log_read_s']:.1f} s.")
    print("" if nbytes is None else f"The service takes {nbytes / 1e6:.0f} MB in the end.")
    _table(
        ("request", "median, ms", "p95, ms", "kB"),
        [
            (c.what, f"{c.median_ms:.1f}", f"{c.p95_ms:.1f}", f"{c.answer_bytes / 1e3:.1f}")
            for c in calls
        ],
    )
    if result["no_browser"]:
        print(f"\nNO BROWSER, the page was not measured: {result['no_browser']}")
    else:
        _table(
            ("view, cold", "first paint, ms", "complete, ms", "JS heap, MB", "nodes"),
            [
                (
                    p.view,
                    f"{p.first_paint_ms:.0f}",
                    f"{p.complete_ms:.0f}",
                    f"{p.heap_bytes / 1e6:.1f}",
                    f"{p.nodes:,}",
                )
                for p in pages
            ],
        )
    rows = []
    for name, requests in result["requests_an_hour"].items():
        verbs = ", ".join(f"{n:,} {verb}" for verb, n in sorted(requests.items()))
        rows.append((name, f"{sum(requests.values()):,}", verbs))
    _table(("an hour, nothing new", "requests to the store", "of these"), rows)


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    typer.run(inspect)
