"""How long does vLLM make no tokens while its weights change: our scatter beside vLLM's own ways?

`python -m skerry.benchmarks pause`, or `skerry bench pause`, in an environment with vLLM.  One
engine, idle, with its worker in a process of its own, goes from one version to the next and back,
by each way in turn; after each the parameters are compared with the version's directory, bit by
bit.  *Whole* is from the call to pause until the engine runs again, *inside* what the worker took.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from skerry.benchmarks import pause_model
from skerry.benchmarks.submission import Submission, write
from skerry.inference.exchange import Exchange

WAYS = ("scatter", "vLLM reload", "vLLM NaN patches")


@dataclass(slots=True)
class Way:
    """Seconds of one way at one density."""

    name: str
    percent: float
    changed: int
    whole_s: list[float] = field(default_factory=list)
    inside_s: list[float] = field(default_factory=list)
    staged_s: list[float] = field(default_factory=list)  # before the pause, while tokens are made


def pause(
    layers: Annotated[int, typer.Option(min=1, help="Of 15.7 M parameters each; 28: 0.6 B.")] = 28,
    densities: Annotated[
        str, typer.Option(metavar="LIST", help="Changed words, in percent.")
    ] = "0.1,0.5,1.5",
    repeat: Annotated[int, typer.Option(min=1, help="Times that each way is taken.")] = 5,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", dir_okay=False, metavar="FILE", help="Write the results there."),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seeds weights and updates.")] = 0,
) -> None:
    """Measure vLLM's pause at an install, by scatter, by reload and by its own sparse patches.

    Needs vLLM (CONTRIBUTING.md), 6 GB of memory and 4 GB of disk.
    """
    try:
        import vllm
    except ModuleNotFoundError as error:
        raise typer.BadParameter(
            "vLLM is not installed here; `make test-vllm` makes an environment that has it"
        ) from error
    shares = [float(text) for text in densities.split(",")]
    os.environ.setdefault("VLLM_PLUGINS", "skerry")
    settings = {"layers": layers, "densities": shares, "repeat": repeat, "seed": seed}
    submission = Submission("pause", settings)
    with tempfile.TemporaryDirectory(prefix="skerry-bench-") as scratch:
        bench = _Bench(Path(scratch), layers, repeat, seed)
        ways = asyncio.run(bench.run(shares))
    show(ways)
    if json_file is not None:
        found = {"parameters": bench.model.parameters, "ways": [asdict(way) for way in ways]}
        write(json_file, submission.document({"vllm": vllm.__version__, **found}))


def show(ways: list[Way]) -> None:
    """Print a table, and how many times shorter the scatter is than each other way."""
    print(f"{'changed':>8} {'way':18} {'whole p50':>10} {'p95':>8} {'inside p50':>11} {'p95':>8}")
    for way in ways:
        figures = [np.percentile(s, p) for s in (way.whole_s, way.inside_s) for p in (50, 95)]
        print(
            f"{way.percent:7.2f}% {way.name:18} {figures[0]:9.4f}s {figures[1]:7.4f}s "
            f"{figures[2]:10.4f}s {figures[3]:7.4f}s"
        )
    for percent in sorted({way.percent for way in ways}):
        ours, *others = (way for way in ways if way.percent == percent)
        for other in others:
            whole = np.median(other.whole_s) / np.median(ours.whole_s)
            inside = np.median(other.inside_s) / np.median(ours.inside_s)
            print(f"{percent:7.2f}% {other.name}: whole {whole:.1f} x, inside {inside:.1f} x")


class _Bench:
    def __init__(self, root: Path, layers: int, repeat: int, seed: int) -> None:
        self._repeat, self._seed, self._root = repeat, seed, root
        self._began = time.monotonic()
        self._tell(f"making {layers} layers")
        self.model = pause_model.make(layers, seed)
        self._base = self.model.write(root / "base")
        self._exchange = Exchange.open(root / "exchange")
        self._version = 0

    async def run(self, shares: list[float]) -> list[Way]:
        from skerry.inference.vllm.core import AsyncCore

        client = _engine(self._base)
        self._core = AsyncCore(client)
        try:
            await self._core.ranks("skerry_load", str(self._base), 0)
            return [way for share in shares for way in await self._density(share)]
        finally:
            client.shutdown()

    async def _density(self, percent: float) -> list[Way]:
        self._tell(f"{percent} %")
        after, changes = pause_model.step(self.model, percent / 100, self._seed + 1)
        new = after.write(self._root / "new")
        changed = sum(change.positions.size for change in changes)
        ours, reload, patches = (Way(name, percent, changed) for name in WAYS)
        for _ in range(self._repeat):
            await self._scatter(ours, changes, back=False, expected=new)
            await self._timed(reload, self._base, "bench_reload", str(self._base))
            name = self._exchange.put(pause_model.update(changes, self._version, back=False))
            began = time.perf_counter()
            await self._ask("bench_stage_patches", str(self._exchange.root), name)
            patches.staged_s.append(time.perf_counter() - began)
            await self._timed(patches, new, "bench_apply_patches")
            await self._scatter(ours, changes, back=True, expected=self._base)
            self._exchange.drop()
        return [ours, reload, patches]

    async def _scatter(self, way: Way, changes: Any, *, back: bool, expected: Path) -> None:
        name = self._exchange.put(pause_model.update(changes, self._version, back=back))
        began = time.perf_counter()
        answers = await self._core.beside("stage", str(self._exchange.root), name)
        assert answers[0]["ok"], answers
        way.staged_s.append(time.perf_counter() - began)
        await self._timed(way, expected, "skerry_install")

    async def _timed(self, way: Way, expected: Path, method: str, *args: object) -> None:
        """Pause, call the worker, label, resume; then compare what it has with a directory."""
        version = self._version + 1
        began = time.perf_counter()
        await self._core.pause("keep", clear_cache=False)
        answer = await self._ask(method, *args, version)
        await self._core.label(str(version))
        await self._core.resume()
        way.whole_s.append(time.perf_counter() - began)
        way.inside_s.append(answer.get("scatter_s", answer.get("inside_s")))
        self._version = version
        different = (await self._ask("skerry_compare", str(expected)))["different"]
        if different:
            raise RuntimeError(f"{way.name} left other bits in {len(different)} parameters")

    async def _ask(self, method: str, *args: object) -> Any:
        (answer,) = await self._core.ranks(method, *args)
        if not answer["ok"]:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer

    def _tell(self, what: str) -> None:
        print(f"[{time.monotonic() - self._began:5.0f} s] {what}", file=sys.stderr, flush=True)


def _engine(directory: Path) -> Any:
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=str(directory),
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=512,
            enforce_eager=True,
            block_size=32,
            max_num_seqs=8,
            kv_cache_memory_bytes=256 << 20,
            worker_extension_cls="skerry.benchmarks.pause_worker.PauseWorker",
            weight_transfer_config={"backend": "skerry"},
        )
    )
