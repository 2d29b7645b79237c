"""`skerry engine`: start vLLM so that an agent can switch its weights, or say how."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from skerry.cli.options import JsonOption
from skerry.cli.output import print_json


def engine(
    model: Annotated[str, typer.Argument(help="The island's mirror, or another directory.")],
    engine_dir: Annotated[
        Path, typer.Option("--engine-dir", help="Shared with the agent: its --engine-dir.")
    ],
    profile: Annotated[str, typer.Option("--profile", help="single, wide-ep or pd.")] = "single",
    only_print: Annotated[
        bool, typer.Option("--print", help="Start nothing; print commands and what is missing.")
    ] = False,
    served_model_name: Annotated[
        str, typer.Option("--served-model-name", help="What requests call the model.")
    ] = "policy",
    host: Annotated[str, typer.Option("--host", help="Where the engine listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="The first port.")] = 8001,
    tensor_parallel: Annotated[
        int, typer.Option("--tensor-parallel", help="GPUs of one server.")
    ] = 1,
    data_parallel: Annotated[int, typer.Option("--data-parallel", help="Servers of wide-ep.")] = 8,
    kv_offload: Annotated[
        str,
        typer.Option("--kv-offload", help="Keys and values outside GPUs: none, native, mooncake."),
    ] = "none",
    kv_offload_gib: Annotated[
        int, typer.Option("--kv-offload-gib", help="How much of it, native.")
    ] = 64,
    as_json: JsonOption = False,
) -> None:
    """Start vLLM by a launch profile, with what Skerry needs of it.

    Becomes the engine's process. With --print it starts nothing. Profiles of several processes are
    only printed, with what Skerry does not do for them yet.
    """  # fmt: skip
    from skerry.cli.failures import USAGE, CommandError
    from skerry.inference.profiles import LaunchConfig, make_profile, missing

    try:
        config = LaunchConfig(
            model=model,
            engine_dir=str(engine_dir),
            served_name=served_model_name,
            host=host,
            port=port,
            tensor_parallel=tensor_parallel,
            data_parallel=data_parallel,
            kv_offload=kv_offload,  # type: ignore[arg-type]  # checked there
            kv_offload_gib=kv_offload_gib,
        )
        made = make_profile(profile, config)  # type: ignore[arg-type]  # checked there
    except ValueError as error:
        raise CommandError(str(error), acts="you: give another value", exit_code=USAGE) from error
    lacks = missing(
        made,
        has_module=lambda name: importlib.util.find_spec(name) is not None,
        has_program=lambda name: shutil.which(name) is not None,
        gpus=len(list(Path("/dev").glob("nvidia[0-9]*"))),
    )
    if as_json:
        processes = [
            {"about": p.about, "argv": list(p.argv), "env": dict(p.env)} for p in made.processes
        ]
        print_json({"processes": processes, "missing": lacks, "limits": list(made.limits)})
    elif only_print:
        for process in made.processes:
            typer.echo(f"# {process.about}\n{process.shell()}\n")
        for lack in lacks:
            typer.echo(f"# missing here: {lack}")
        for limit in made.limits:
            typer.echo(f"# not done by Skerry: {limit}")
    if only_print or as_json:
        return
    if made.limits:
        raise CommandError(
            f"profile {made.name} is only printed: {'; '.join(made.limits)}",
            acts="you: use --print, and start the processes yourself",
        )
    # A GPU is not asked for here: vLLM runs on CPUs, too, and says itself what it lacks.
    lacks = [lack for lack in lacks if not lack.startswith("GPUs")]
    if lacks:
        raise CommandError(
            f"missing here: {'; '.join(lacks)}", acts="you: install it in this environment"
        )
    (process,) = made.processes
    _become(process.argv, process.env)


def _become(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Replace this process, so that signals and exit codes are the engine's own."""
    from skerry.cli.failures import CommandError

    program = shutil.which(argv[0])
    if program is None:
        raise CommandError(
            f"missing here: program {argv[0]}", acts="you: install it in this environment"
        )
    os.execve(program, list(argv), {**os.environ, **env})
