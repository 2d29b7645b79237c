"""How long does a fresh reader take to know a long log, and what do a publish and a follower cost?

`python -m skerry.benchmarks log`, or `skerry bench log`.  A real writer makes a signed log in
memory; every reader's request then really waits for a round trip, many at once if it asks so.
Bandwidth is not modelled.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from skerry.benchmarks.options import AsJson
from skerry.benchmarks.submission import Submission
from skerry.bulletin import keys
from skerry.bulletin.cost import COST_LIMIT_BYTES, CostLog
from skerry.bulletin.errors import ListUnsupported, NotFound
from skerry.bulletin.log import BulletinReader, BulletinWriter
from skerry.bulletin.manifest import Manifest
from skerry.bulletin.records import Commit, ObjectRef
from skerry.bulletin.signing import Signer
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores.memory import MemoryStore
from skerry.bulletin.stores.metered import Metered, Usage
from skerry.codec.digest import digest_bytes
from skerry.codec.layout import Layout
from skerry.island_agent import AgentConfig
from skerry.publisher import Publisher, PublisherConfig

_VERSIONS = 12
_ANCHOR = 10
_WORDS = 4_000_000
_SIGNER = Signer.from_seed(bytes(32))


class _Far:
    """A store that is a round trip away, and may lack a list, checkpoints, or the hint."""

    def __init__(
        self,
        inner: ObjectStore,
        *,
        round_trip_s: float,
        lists: bool,
        hidden: tuple[str, ...],
    ) -> None:
        self._inner = inner
        self._round_trip_s = round_trip_s
        self._lists = lists
        self._hidden = hidden

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        time.sleep(self._round_trip_s)
        if key.startswith(self._hidden):
            raise NotFound(key)
        return self._inner.get(key, limit_bytes=limit_bytes)

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        time.sleep(self._round_trip_s)
        return self._inner.get_range(key, start, stop)

    def stream(self, key: str, start: int, stop: int) -> Iterator[bytes]:
        time.sleep(self._round_trip_s)
        return self._inner.stream(key, start, stop)

    def size(self, key: str) -> int:
        time.sleep(self._round_trip_s)
        return self._inner.size(key)

    def put_if_absent(self, key: str, data: bytes) -> None:
        time.sleep(self._round_trip_s)
        self._inner.put_if_absent(key, data)

    def put(self, key: str, parts: Iterable[bytes]) -> int:
        time.sleep(self._round_trip_s)
        return self._inner.put(key, parts)

    def replace(self, key: str, data: bytes) -> None:
        time.sleep(self._round_trip_s)
        self._inner.replace(key, data)

    def list_after(self, prefix: str, after: str = "") -> Iterator[str]:
        time.sleep(self._round_trip_s)
        if not self._lists:
            raise ListUnsupported(prefix)
        found = self._inner.list_after(prefix, after)
        return (key for key in found if not key.startswith(self._hidden))

    def delete(self, key: str) -> None:
        time.sleep(self._round_trip_s)
        self._inner.delete(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshRead:
    """What one fresh reader took."""

    hint: bool
    checkpoints: bool
    lists: bool
    records: int
    requests: int
    bytes_down: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one thing took."""

    what: str
    requests: dict[str, int]
    bytes_up: int
    bytes_down: int


def make_log(records: int) -> MemoryStore:
    """Return a signed run of so many records: a fence, then versions of one small pack each."""
    store = MemoryStore()
    writer = BulletinWriter.open(store, signer=_SIGNER, writer="benchmark")
    layout = writer.put_layout(Layout(shards=()))
    base = None
    for version in range(records - 1):
        result = digest_bytes(f"weights {version}".encode())
        manifest = writer.put_manifest(Manifest(layout=layout, recipe={"version": version}))
        full = None
        packs: tuple[ObjectRef, ...] = ()
        if base is None:
            full = writer.put_full([("model.safetensors", [b"weights"])])
        else:
            packs = (writer.put_pack(f"patch {version}".encode()),)
        writer.commit(
            parent=version - 1 if version else None, step=version, layout=layout,
            manifest=manifest, base=base, result=result, packs=packs, full=full,
            elements=1_000_000_000, changed=12_345_678,
        )  # fmt: skip
        base = result
    return store


def read_afresh(
    run: MemoryStore, *, round_trip_s: float, hint: bool, checkpoints: bool, lists: bool
) -> FreshRead:
    """Read a run as an island does that has never seen it, and pins the key."""
    hidden = (() if hint else (keys.HINT,)) + (() if checkpoints else (keys.CHECKPOINT_PREFIX,))
    store = Metered(_Far(run, round_trip_s=round_trip_s, lists=lists, hidden=hidden))
    reader = BulletinReader(store, pinned_key=_SIGNER.public_key)
    begun = time.perf_counter()
    reader.refresh()
    seconds = time.perf_counter() - begun
    usage = store.usage()
    return FreshRead(
        hint=hint,
        checkpoints=checkpoints,
        lists=lists,
        records=reader.state.seq + 1,
        requests=sum(usage.requests.values()),
        bytes_down=usage.bytes_down,
        seconds=seconds,
    )


def publish_some(versions: int = _VERSIONS, words: int = _WORDS) -> MemoryStore:
    """Return a run that a real publisher made: 1 % of BF16-sized words changes in each version."""
    store = MemoryStore()
    config = PublisherConfig(anchor_versions=_ANCHOR)
    publisher = Publisher.open(store, signer=_SIGNER, config=config)
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(words).astype(np.float16)
    for step in range(versions):
        publisher.publish_arrays({"w": weights}, step=step)
        weights = weights.copy()
        chosen = rng.integers(0, words, words // 100)
        weights[chosen] = np.nextafter(weights[chosen], np.float16(np.inf))
    return store


def follow(run: MemoryStore) -> tuple[Usage, Usage]:
    """Return what a follower uses for one look that finds nothing, and for one new version."""
    newest = BulletinReader(run, history=True)
    newest.refresh()
    record = newest.history[-1]
    run.delete(keys.log(record.seq))
    store = Metered(run)
    reader = BulletinReader(store)
    reader.refresh()
    before = store.usage()
    reader.refresh()
    idle, before = store.usage() - before, store.usage()
    run.put_if_absent(keys.log(record.seq), record.to_bytes())
    reader.refresh()
    assert isinstance(record.body, Commit)
    for pack in record.body.packs:
        reader.read(pack)
    return idle, store.usage() - before


@contextmanager
def _told(what: str) -> Iterator[None]:
    typer.echo(f"{what} ...", err=True)
    begun = time.perf_counter()
    yield
    typer.echo(f"{what}: {time.perf_counter() - begun:.1f} s", err=True)


def log(
    records: Annotated[int, typer.Option(min=2, help="Of the log that is read.")] = 10_000,
    round_trip_ms: Annotated[float, typer.Option(min=0, help="Of every request.")] = 80.0,
    as_json: AsJson = False,
) -> None:
    """Read a long log afresh, and count what publishing and following cost."""
    submission = Submission("log", {"records": records, "round_trip_ms": round_trip_ms})
    with _told(f"a log of {records} records"):
        run = make_log(records)
    reads = []
    for hint, checkpoints, lists in (
        (True, True, True), (True, True, False), (False, True, True), (False, True, False),
        (True, False, True), (True, False, False),
    ):  # fmt: skip
        with _told(f"hint={hint} checkpoints={checkpoints} list={lists}"):
            reads.append(
                read_afresh(
                    run,
                    round_trip_s=round_trip_ms / 1000,
                    hint=hint,
                    checkpoints=checkpoints,
                    lists=lists,
                )
            )
    with _told("publishing"):
        published = publish_some()
        data = published.get(keys.COST, limit_bytes=COST_LIMIT_BYTES)
        figures = _figures(CostLog.parse(data), *follow(published))
    if as_json:
        fresh = [asdict(read) for read in reads]
        shown = [asdict(figure) for figure in figures]
        print(json.dumps(submission.document({"fresh": fresh, "costs": shown})))
        return
    _show(reads, figures, round_trip_ms)


def _figures(costs: CostLog, idle: Usage, version: Usage) -> list[Traffic]:
    """Name what was counted; an hour of looks is so many times one."""
    config = AgentConfig(directory=Path("island"))
    looks = round(3600 / config.idle_poll_s)
    by_version = {cost.version: cost for cost in costs.versions}
    published = [
        Traffic(what, dict(cost.requests), cost.bytes_up, cost.bytes_down)
        for what, cost in (
            ("open a run, publish a full", by_version[0]),
            ("publish a patch", by_version[2]),
            ("publish a patch and a full", by_version[_ANCHOR]),
        )
    ]
    return [
        *published,
        Traffic("follow one patch", dict(version.requests), version.bytes_up, version.bytes_down),
        Traffic(
            f"follow nothing for an hour, a look every {config.idle_poll_s:g} s",
            {verb: looks * count for verb, count in idle.requests.items()},
            looks * idle.bytes_up,
            looks * idle.bytes_down,
        ),
    ]


def _show(reads: list[FreshRead], figures: list[Traffic], round_trip_ms: float) -> None:
    print(f"A fresh reader, {reads[0].records:,} records, {round_trip_ms:g} ms a request:\n")
    print("| hint | checkpoints | list | requests | MB down | seconds |")
    print("|---|---|---|---|---|---|")
    for read in reads:
        parts = ("yes" if part else "no" for part in (read.hint, read.checkpoints, read.lists))
        print(
            f"| {' | '.join(parts)} | {read.requests:,} | {read.bytes_down / 1e6:.2f} "
            f"| {read.seconds:.1f} |"
        )
    print(f"\nRequests and bytes; weights of {2 * _WORDS:,} bytes, 1 % of the words changes:\n")
    print("| what | requests | bytes up | bytes down |")
    print("|---|---|---|---|")
    for figure in figures:
        counts = ", ".join(f"{n} {verb}" for verb, n in sorted(figure.requests.items()))
        print(f"| {figure.what} | {counts} | {figure.bytes_up:,} | {figure.bytes_down:,} |")


if __name__ == "__main__":
    typer.run(log)
