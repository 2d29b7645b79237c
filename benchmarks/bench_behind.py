"""An agent that is many versions behind: what does it fetch, and is that one install?

`python -m skerry.benchmarks behind`, or `skerry bench behind`.  A run of simulated steps is
published; a real agent that holds the first version catches up to the last, once over the patches
alone and once after `compact` has added skip patches.  Beside its bytes stand the patches together,
the full version, and the bound: what positions and steps of the net change must cost at least,
given the old exponents (`codec/bound.py`).
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from skerry.benchmarks.options import AsJson
from skerry.benchmarks.submission import Submission
from skerry.benchmarks.walk import Walk
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.stores.memory import MemoryStore
from skerry.bulletin.stores.metered import Metered
from skerry.bulletin.writer import BulletinWriter
from skerry.codec.bound import conditioned_bits
from skerry.codec.dtypes import DTYPES
from skerry.island_agent import Agent, AgentConfig, Target
from skerry.publisher import MemoryStorage, Publisher, PublisherConfig
from skerry.publisher.compact import Compactor
from skerry.publisher.threads import thread_count


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp:
    """How an agent went from the first version to the last."""

    way: str
    installs: int
    legs: int
    fetched_bytes: int  # packs and records
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """One run, and the ways through it."""

    versions: int
    weights_bytes: int
    changed_by_step: float  # the mean share of words
    changed_in_all: float
    full_bytes: int
    patches_bytes: int
    bound_bytes: float
    ways: tuple[CatchUp, ...]


def measure(megabytes: float, versions: int, density: float, work: Path) -> Behind:
    """Publish a run and have an agent catch up with it, before and after compaction."""
    store = MemoryStore()
    config = PublisherConfig(anchor_versions=None, anchor_ratio=None)
    walk = Walk("BF16", int(megabytes * 1e6), density, seed=1)
    publisher = Publisher.open(store, config=config)
    first = walk.serve()
    changed = 0
    for version in range(versions + 1):
        if version:
            walk.step()
        report = publisher.publish_arrays(walk.serve(), step=version)
        changed += (report.changed or 0) if version else 0
        _tell(f"version {version} of {versions}")
    publisher.close()
    last = walk.serve()
    bound = conditioned_bits(
        (DTYPES[was.dtype], was.data, last[name].data) for name, was in first.items()
    )
    words = sum(tensor.data.size for tensor in first.values())
    reader = BulletinReader(store)
    reader.refresh()
    commits = reader.state.commits
    full = commits[0].full
    assert full is not None
    ways = [_catch_up(store, work / "patches", versions, "patches alone")]
    compactor = Compactor(
        BulletinWriter.open(store, signer=None, writer="benchmark"),
        MemoryStorage(),
        threads=thread_count(None),
    )
    missing = compactor.missing()
    for number, (base, version) in enumerate(missing, 1):
        compactor.make(base, version)
        _tell(f"skip patch {number} of {len(missing)}")
    ways.append(_catch_up(store, work / "skips", versions, "after compaction"))
    return Behind(
        versions=versions,
        weights_bytes=sum(tensor.data.nbytes for tensor in first.values()),
        changed_by_step=changed / versions / words,
        changed_in_all=bound.changed / words,
        full_bytes=full.nbytes,
        patches_bytes=sum(ref.size for n in range(1, versions + 1) for ref in commits[n].packs),
        bound_bytes=bound.total / 8,
        ways=tuple(ways),
    )


def _catch_up(run: MemoryStore, directory: Path, last: int, way: str) -> CatchUp:
    """Take version 0, then the newest; prove what it then is."""

    async def main() -> CatchUp:
        store = Metered(run)
        config = AgentConfig(directory=directory, target=Target(version=0), announce=False)
        agent = Agent(config, BulletinReader(store))
        await agent.open()
        while await agent.step():
            pass
        agent.aim(Target())
        before, installs, began = store.usage(), agent.state.installs, time.perf_counter()
        while await agent.step():
            pass
        seconds = time.perf_counter() - began
        assert agent.mirror.version == last
        assert not agent.mirror.check()
        report = agent.state.history[-1]
        installed = agent.state.installs - installs
        await agent.close()
        return CatchUp(
            way=way,
            installs=installed,
            legs=report.steps,
            fetched_bytes=(store.usage() - before).bytes_down,
            seconds=seconds,
        )

    return asyncio.run(main())


def _tell(what: str) -> None:
    typer.echo(what, err=True)


def behind(
    megabytes: Annotated[float, typer.Option(min=0.1, help="Of BF16 weights.")] = 100.0,
    versions: Annotated[int, typer.Option(min=1, help="That the agent is behind.")] = 64,
    density: Annotated[float, typer.Option(min=1e-6, max=0.5, help="Changed by a step.")] = 0.005,
    as_json: AsJson = False,
) -> None:
    """Have an agent catch up with many versions at once, and count what it fetches."""
    submission = Submission(
        "behind", {"megabytes": megabytes, "versions": versions, "density": density}
    )
    with tempfile.TemporaryDirectory(prefix="skerry-behind-") as name:
        found = measure(megabytes, versions, density, Path(name))
    if as_json:
        print(json.dumps(submission.document(asdict(found))))
        return
    print(
        f"{found.weights_bytes / 1e6:.0f} MB of BF16, {found.versions} versions; a step changes "
        f"{found.changed_by_step:.2%} of the words, all together {found.changed_in_all:.2%}\n"
    )
    print(
        "| way | installs | legs | MB fetched | of the bound | of the patches | of the full | s |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for way in found.ways:
        size = way.fetched_bytes
        print(
            f"| {way.way} | {way.installs} | {way.legs} | {size / 1e6:.2f} "
            f"| {size / found.bound_bytes:.3f} | {size / found.patches_bytes:.3f} "
            f"| {size / found.full_bytes:.3f} | {way.seconds:.1f} |"
        )


if __name__ == "__main__":
    typer.run(behind)
