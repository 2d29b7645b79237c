"""All subcommands by name.  Their bodies import what they need when they run."""

from __future__ import annotations

import os

import typer

from skerry.cli import (
    agent,
    collect,
    compact,
    doctor,
    engine,
    info,
    inspect,
    keys,
    patches,
    publish,
    pull,
    serve,
    top,
)
from skerry.cli.command import SkerryCommand, SkerryGroup

app = typer.Typer(
    name="skerry",
    cls=SkerryGroup,
    help="Move policy weights from one trainer to rollout engines elsewhere, as bitwise patches.",
    epilog="Exit codes: 0 done, 1 refused or different, 2 usage, 3 store, disk or network trouble.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def choose_kernel() -> None:
    """Encode and decode with the kernel that SKERRY_KERNEL names, for whoever doubts another."""
    from skerry.codec import kernel

    try:
        kernel.use_from(os.environ)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="SKERRY_KERNEL") from error


app.command("publish", cls=SkerryCommand)(publish.publish)
app.command("log", cls=SkerryCommand)(inspect.log)
app.command("show", cls=SkerryCommand)(inspect.show)
app.command("pull", cls=SkerryCommand)(pull.pull)
app.command("verify", cls=SkerryCommand)(pull.verify)
app.command("diff", cls=SkerryCommand)(patches.diff)
app.command("apply", cls=SkerryCommand)(patches.apply)
app.command("agent", cls=SkerryCommand)(agent.agent)
app.command("engine", cls=SkerryCommand)(engine.engine)
app.command("keygen", cls=SkerryCommand)(keys.keygen)
app.command("rotate", cls=SkerryCommand)(keys.rotate)
app.command("doctor", cls=SkerryCommand)(doctor.doctor)
app.command("gc", cls=SkerryCommand)(collect.gc)
app.command("compact", cls=SkerryCommand)(compact.compact)
app.command("serve", cls=SkerryCommand)(serve.serve)
app.command("top", cls=SkerryCommand)(top.top)
app.command("info", cls=SkerryCommand)(info.info)


@app.command(
    "demo",
    cls=SkerryCommand,
    add_help_option=False,  # the demo explains its own options
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def demo(context: typer.Context) -> None:
    """Train a small model and watch islands follow it, on this machine."""
    from skerry.cli.demo import app as demo_app

    demo_app(args=context.args, prog_name="skerry demo")


@app.command(
    "bench",
    cls=SkerryCommand,
    add_help_option=False,  # each benchmark explains its own options
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def bench(context: typer.Context) -> None:
    """Measure the codec beside what others use, on this machine."""
    from skerry.benchmarks.__main__ import app as bench_app

    bench_app(args=context.args, prog_name="skerry bench")
