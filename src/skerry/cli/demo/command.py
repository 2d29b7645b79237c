"""The command itself: start everything, watch it, judge it, write it down."""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skerry.cli.demo.judge import judge, say
from skerry.cli.output import print_json

if TYPE_CHECKING:
    from skerry.cli.demo.children import Child, Island
    from skerry.cli.demo.watch import Seen

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

_LOOK_S = 0.5  # between two looks at the islands
_SETTLE_S = 120.0  # how long the islands may take for the last version


class Model(StrEnum):
    """What is trained."""

    SMOLLM2 = "smollm2"
    TINY = "tiny"


class Start(StrEnum):
    """Where the master weights start: on the BF16 grid, or with full FP32 residuals."""

    GRID = "grid"
    UNIFORM = "uniform"


class TrainerKind(StrEnum):
    """Who trains."""

    BUILTIN = "builtin"
    TORCHTITAN = "torchtitan"


class DemoEngine(StrEnum):
    """Who serves."""

    CPU = "cpu"
    VLLM = "vllm"


@app.command()
def demo(
    steps: Annotated[
        int, typer.Option(min=1, metavar="N", help="Optimizer steps, each of them a version.")
    ] = 6,
    model: Annotated[
        Model,
        typer.Option(
            help="smollm2: a language model with 135 M parameters; tiny: a random one with 0.2 M, "
            "for a quick look."
        ),
    ] = Model.SMOLLM2,
    start: Annotated[
        Start,
        typer.Option(
            help="How smollm2's FP32 master weights start: as BF16, widened, or uniform in the "
            "bits below it, as after long training."
        ),
    ] = Start.GRID,
    lr: Annotated[float, typer.Option(min=0, metavar="RATE", help="AdamW's learning rate.")] = 1e-6,
    islands: Annotated[int, typer.Option(min=1, max=8, metavar="N", help="How many islands.")] = 2,
    trainer: Annotated[
        TrainerKind,
        typer.Option(
            help="builtin: reinforcement learning in one process; torchtitan, which goes with "
            "vllm: a tiny Qwen3, a rank for each island, trained on what that island says."
        ),
    ] = TrainerKind.BUILTIN,
    engine: Annotated[
        DemoEngine,
        typer.Option(
            help="cpu: the built-in engine; vllm: real vLLM servers, and a real S3 server."
        ),
    ] = DemoEngine.CPU,
    engine_python: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            show_default="this one",
            help="With --engine vllm: the Python of vLLM's environment, with skerry[vllm] in it.",
        ),
    ] = sys.executable,
    out: Annotated[
        Path,
        typer.Option(
            file_okay=False,
            metavar="DIR",
            help="Where everything goes. What an earlier demo left there is replaced; a directory "
            "with anything else is refused.",
        ),
    ] = Path("demo-output"),
    seed: Annotated[
        int, typer.Option(metavar="N", help="Seeds the start of the weights and the sampling.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Train a small model by reinforcement learning while islands serve every version of it.

    A trainer, a bulletin directory and islands (an agent with an engine and a gate each) run as
    processes of their own on this machine.  Every optimizer step becomes a version; rollouts come
    through the islands' gates, where anybody else may ask, too.

    With --trainer torchtitan --engine vllm nothing of it is ours but what is between: torchtitan
    publishes to an S3 server, vLLM serves, and every batch is what a stated version has said.
    --model, --start, --lr and --seed are the builtin trainer's.

    At the end the whole run is rebuilt from the bulletin and compared with what the islands hold:
    any byte that differs is exit code 1.  Writes report.html and summary.json into DIR.
    """
    from skerry.cli.demo.children import ChildFailed

    began = time.monotonic()
    real = _real_stack(trainer, engine, engine_python)
    _prepare(out)
    try:
        with ExitStack() as stack:
            if real:
                bulletin, seen, running, key = _run_stack(stack, out, steps, islands, engine_python)
            else:
                bulletin = str(out / "bulletin")
                seen, running, key = _run(stack, out, steps, model, start, lr, islands, seed)
            summary = judge(bulletin, seen, running, key)
    except ChildFailed as error:
        typer.echo(f"skerry demo: {error}", err=True)
        raise typer.Exit(1) from error
    summary["settings"] = {"steps": steps, "islands": islands} | (
        {"trainer": trainer.value, "engine": engine.value, "store": "SeaweedFS"}
        if real
        else {"model": model.value, "start": start.value, "lr": lr, "seed": seed}
    )
    summary["wall_s"] = time.monotonic() - began
    from skerry.cli.demo.report import write_report

    write_report(out, summary)
    if as_json:
        print_json(summary)
    else:
        say(out, summary)
    if not summary["exact"]:
        raise typer.Exit(1)


def _real_stack(trainer: TrainerKind, engine: DemoEngine, engine_python: str) -> bool:
    """Say whether others train and serve; tell what is missing for that, and what brings it."""
    if (trainer is TrainerKind.TORCHTITAN) != (engine is DemoEngine.VLLM):
        raise typer.BadParameter(
            "torchtitan and vllm go together", param_hint="--trainer, --engine"
        )
    if trainer is TrainerKind.BUILTIN:
        return False
    from skerry.cli.demo.stack import missing

    lacks = missing(engine_python)
    for lack in lacks:
        typer.echo(f"skerry demo: missing: {lack}", err=True)
    if lacks:
        raise typer.Exit(2)
    return True


def _run_stack(
    stack: ExitStack, out: Path, steps: int, islands: int, engine_python: str
) -> tuple[str, Seen, list[Island], str]:
    """Start the real stack and return when the last version is served everywhere."""
    from skerry.bulletin import Signer
    from skerry.cli.demo.stack import Stack, StackEvents
    from skerry.cli.demo.watch import Seen

    signer = Signer.generate()
    signer.save(out / "trainer.key")
    key = signer.public_key.hex
    real = Stack(stack, out, key, steps=steps, islands=islands, engine_python=engine_python)
    seen = Seen([island.name for island in real.islands])
    _watch(StackEvents(real), seen, real.islands, real.trainer)
    return real.bulletin, seen, real.islands, key


def _prepare(out: Path) -> None:
    """Make `out` empty; a directory that no demo wrote is refused."""
    mark = out / "skerry-demo"
    if out.exists() and any(out.iterdir()) and not mark.exists():
        raise typer.BadParameter(f"{out} holds something that no demo wrote", param_hint="--out")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    mark.touch()


def _run(
    stack: ExitStack,
    out: Path,
    steps: int,
    model: Model,
    start: Start,
    lr: float,
    islands: int,
    seed: int,
) -> tuple[Seen, list[Island], str]:
    """Start everything and return when the last version is served everywhere."""
    from skerry.bulletin import Signer
    from skerry.cli.demo.children import Island, children, free_port
    from skerry.cli.demo.children import start as start_child
    from skerry.cli.demo.watch import EventFile, Seen

    signer = Signer.generate()
    signer.save(out / "trainer.key")
    key = signer.public_key.hex
    threads = max(1, (os.cpu_count() or 1) // (islands + 1))
    started = stack.enter_context(children())
    running: list[Island] = []
    for name in [f"island-{chr(ord('a') + i)}" for i in range(islands)]:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        directory = out / name
        arguments = [str(out / "bulletin"), "--dir", str(directory), "--engine", "cpu"]
        arguments += ["--island", name, "--port", str(port), "--key", key]
        arguments += ["--poll", "0.2", "--audit-engine"]
        child = start_child(name, out, "skerry", ["agent", *arguments], threads=threads)
        started.append(child)
        running.append(Island(name=name, url=url, directory=directory, child=child))
        typer.echo(f"{name} listens at {url}", err=True)
    options = ["--bulletin", str(out / "bulletin"), "--events", str(out / "events.jsonl")]
    options += ["--model", model.value, "--start", start.value, "--steps", str(steps)]
    options += ["--lr", str(lr), "--seed", str(seed), "--sign", str(out / "trainer.key")]
    for island in running:
        options += ["--gate", island.url]
    options.append("--every-version")
    trainer = start_child("trainer", out, "skerry.trainer.run", options, threads=threads)
    started.append(trainer)
    seen = Seen([island.name for island in running])
    _watch(EventFile(out / "events.jsonl"), seen, running, trainer)
    return seen, running, key


def _watch(events: Any, seen: Seen, islands: list[Island], trainer: Child) -> None:
    """Look until the trainer is done and the islands hold its last version."""
    from rich.console import Console
    from rich.live import Live

    from skerry.cli.demo.children import ChildFailed

    console = Console(stderr=True)
    settle: float | None = None
    with Live(console=console, auto_refresh=False) as live:
        while True:
            for event in events.new():
                seen.event(event)
            for island in islands:
                island.child.check()
                status = island.status()
                if status is not None:
                    seen.status(island.name, status)
            trainer.check()
            if console.is_terminal:
                live.update(seen.table(), refresh=True)
            if seen.done:
                if seen.arrived():
                    break
                settle = settle or time.monotonic() + _SETTLE_S
                if time.monotonic() > settle:
                    raise ChildFailed(f"an island did not reach the last version in {_SETTLE_S} s")
            elif not trainer.running:
                raise ChildFailed(f"the trainer ended early; see {trainer.log}")
            time.sleep(_LOOK_S)
