"""`skerry agent`: keep one island at the newest version, and serve requests from it."""

from __future__ import annotations

import math
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli.options import JsonOption, KeyOption, ThreadsOption, parse_key

if TYPE_CHECKING:
    from skerry.bulletin.signing import PublicKey
    from skerry.island_agent.settings import Settings


class EnginePolicy(StrEnum):
    """What becomes of requests that run in an engine while it is switched."""

    KEEP = "keep"
    RECOMPUTE = "recompute"
    DRAIN = "drain"
    ABORT = "abort"


class EngineKind(StrEnum):
    """What the agent serves with."""

    CPU = "cpu"
    VLLM = "vllm"
    SGLANG = "sglang"
    NONE = "none"


TensorsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tensors",
        metavar="PATTERN",
        show_default=False,
        help="Mirror the tensors that fit only: 'model.layers.0-31.*'; '!…' excludes. Repeatable.",
    ),
]
ShardOption = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="LAYOUT",
        show_default=False,
        help="Mirror what one rank serves only: tp=4,rank=1 or pp=2,pp_rank=0,ep=8,ep_rank=3.",
    ),
]


def agent(
    bulletin: Annotated[
        str | None,
        typer.Argument(
            metavar="[BULLETIN]",
            show_default=False,
            help="The run's address: a directory, s3://bucket/prefix, https://host/path, or "
            "several with commas between them: mirrors.",
        ),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            metavar="DIR",
            file_okay=False,
            show_default=False,
            help="The agent's own directory.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            show_default=False,
            help="A TOML file with settings; flags and SKERRY_AGENT_… variables come before it.",
        ),
    ] = None,
    engine: Annotated[
        EngineKind | None,
        typer.Option(show_default="none", help="The engine to switch; none keeps the mirror only."),
    ] = None,
    engine_url: Annotated[
        str | None,
        typer.Option(
            "--engine-url",
            metavar="URL",
            show_default=False,
            help="With --engine vllm or sglang: the server, on this host.",
        ),
    ] = None,
    engine_dir: Annotated[
        Path | None,
        typer.Option(
            "--engine-dir",
            metavar="DIR",
            show_default=False,
            help="With --engine vllm: the directory that the server has as SKERRY_ENGINE_DIR.",
        ),
    ] = None,
    engine_policy: Annotated[
        EnginePolicy | None,
        typer.Option(
            "--engine-policy",
            show_default="keep",
            help="With vLLM or SGLang: what becomes of running requests at an install. They go on "
            "over the context they have, or over one computed anew, are waited for, or are ended.",
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(show_default="127.0.0.1", help="The address to listen on.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, show_default="8000", help="The port to listen on."),
    ] = None,
    island: Annotated[
        str | None,
        typer.Option(metavar="ID", show_default="island", help="The island's name."),
    ] = None,
    key: KeyOption = None,
    version: Annotated[
        int | None,
        typer.Option("--version", min=0, metavar="N", help="Hold this version, not the newest."),
    ] = None,
    max_lag: Annotated[
        int | None,
        typer.Option(
            "--max-lag",
            min=0,
            metavar="N",
            show_default="0",
            help="Stay up to N versions behind, to install several at once.",
        ),
    ] = None,
    ready_lag: Annotated[
        int | None,
        typer.Option(
            "--ready-lag",
            min=0,
            metavar="N",
            show_default=False,
            help="Be ready only up to N versions behind; default: with any version.",
        ),
    ] = None,
    poll: Annotated[
        float | None,
        typer.Option(metavar="S", show_default="0.5", help="Seconds between looks at the log."),
    ] = None,
    idle_poll: Annotated[
        float | None,
        typer.Option(metavar="S", show_default="8", help="The same, at most, while nothing comes."),
    ] = None,
    drain: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            show_default=False,
            help="How long a switch waits for requests that do not accept the new version; "
            "default: for ever.",
        ),
    ] = None,
    engine_limit: Annotated[
        float | None,
        typer.Option(
            "--engine-limit",
            metavar="S",
            show_default="1800",
            help="An install or load of an engine that takes longer has failed.",
        ),
    ] = None,
    shutdown: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            show_default="30",
            help="How long a stop waits for installs and requests.",
        ),
    ] = None,
    audit_engine: Annotated[
        bool | None,
        typer.Option(
            "--audit-engine/--no-audit-engine",
            show_default="no",
            help="After each install, hash the weights that the engine serves, and take it out of "
            "service if they are not the version's.",
        ),
    ] = None,
    tensors: TensorsOption = None,
    shard: ShardOption = None,
    control_token_file: Annotated[
        Path | None,
        typer.Option(
            "--control-token-file",
            metavar="FILE",
            show_default=False,
            help="The token that /control asks for; without one /control is off.",
        ),
    ] = None,
    threads: ThreadsOption = None,
    mirror_in_memory: Annotated[
        bool | None,
        typer.Option(
            "--mirror-in-memory/--mirror-on-disk",
            show_default="on disk",
            help="Keep everything in RAM, below /dev/shm; DIR only names it. It is gone, and built "
            "anew, after a reboot.",
        ),
    ] = None,
    scrub_mb: Annotated[
        int | None,
        typer.Option(
            "--scrub-mb",
            min=0,
            metavar="MB",
            show_default="32",
            help="MB of the mirror to hash each second; 0: none.",
        ),
    ] = None,
    memory_mb: Annotated[
        int | None,
        typer.Option(
            "--memory-mb",
            metavar="MB",
            show_default=False,
            help="What staging may take, beside the changes of one tensor.",
        ),
    ] = None,
    spool_mb: Annotated[
        int | None,
        typer.Option(
            "--spool-mb",
            min=1,
            metavar="MB",
            show_default="256 GiB",
            help="What downloads may take on disk.",
        ),
    ] = None,
    relay: Annotated[
        bool | None,
        typer.Option(
            "--relay/--no-relay",
            show_default="no",
            help="Serve the bulletin to neighbours, below /bulletin/.",
        ),
    ] = None,
    relay_gib: Annotated[
        float | None,
        typer.Option(
            "--relay-gib",
            min=0.001,
            metavar="GIB",
            show_default="64",
            help="Disk for what neighbours ask for.",
        ),
    ] = None,
    upstream: Annotated[
        str | None,
        typer.Option(
            metavar="URL[,URL…]",
            show_default=False,
            help="Read through these relays, http://host:port/bulletin, and past them where they "
            "do not help.",
        ),
    ] = None,
    print_config: Annotated[
        bool,
        typer.Option(
            "--print-config",
            help="Print every setting and where it came from, secrets excepted, and end.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Follow a run and serve its newest version.

    Keeps a byte-exact copy of the newest version in DIR, switches the engine to it, and answers
    /v1/completions, /health, /ready, /status and /metrics until SIGTERM. Settings come from flags,
    else from SKERRY_AGENT_ variables, else from a file.
    """
    from skerry.island_agent.settings import resolve

    flags = {
        "bulletin": bulletin,
        "dir": directory,
        "engine": None if engine is None else engine.value,
        "engine_url": engine_url,
        "engine_dir": engine_dir,
        "engine_policy": None if engine_policy is None else engine_policy.value,
        "host": host,
        "port": port,
        "island": island,
        "key": key,
        "version": version,
        "max_lag": max_lag,
        "ready_lag": ready_lag,
        "poll_s": poll,
        "idle_poll_s": idle_poll,
        "drain_s": drain,
        "engine_limit_s": engine_limit,
        "shutdown_s": shutdown,
        "audit_engine": audit_engine,
        "tensors": tuple(tensors or ()),
        "shard": shard,
        "control_token_file": control_token_file,
        "threads": threads,
        "in_memory": mirror_in_memory,
        "scrub_bytes_per_s": _megabytes(scrub_mb),
        "memory_bytes": _megabytes(memory_mb),
        "spool_bytes": _megabytes(spool_mb),
        "relay": relay,
        "relay_bytes": _bytes_of_gib(relay_gib),
        "upstream": upstream,
    }
    settings = resolve(flags, os.environ, config)
    if as_json and not print_config:
        raise typer.BadParameter("--json goes with --print-config; the agent itself logs")
    pinned = _check(settings)
    if print_config:
        _print(settings, as_json=as_json)
    else:
        _serve(settings, pinned)


def _megabytes(count: int | None) -> int | None:
    return None if count is None else count * 1_000_000


def _bytes_of_gib(count: float | None) -> float | None:
    """Return whole bytes; what is none, as infinity, is left to the setting to refuse."""
    if count is None or not math.isfinite(count * 1024**3):
        return count
    return int(count * 1024**3)


def _check(settings: Settings) -> PublicKey | None:
    """Check what the table cannot, with nothing read or made; return the key that is pinned."""
    from skerry.bulletin.errors import UnsupportedStore
    from skerry.bulletin.stores import open_relayed, open_store

    key = settings["key"]
    try:
        pinned = parse_key(None if key is None else str(key))
    except typer.BadParameter as error:
        raise settings.invalid("key", error.message) from error
    bulletin = str(settings["bulletin"])
    try:
        open_store(bulletin)
    except UnsupportedStore as error:
        raise settings.invalid("bulletin", str(error)) from error
    upstream, _ = settings.neighbours()
    try:
        open_relayed(bulletin, upstream)
    except UnsupportedStore as error:
        raise settings.invalid("upstream", str(error)) from error
    settings.agent_config()
    settings.control_token()
    settings.roster()
    settings.vllm_config()
    settings.sglang_config()
    if settings["engine"] != "none" and settings.selection is not None:
        name = "shard" if settings["shard"] is not None else "tensors"
        engine = f"engine is from {settings.source('engine')}"
        raise settings.invalid(name, f"this engine needs every tensor; {engine}")
    return pinned


def _print(settings: Settings, *, as_json: bool) -> None:
    from skerry.cli.output import print_json, print_table

    rows = settings.rows()
    if as_json:
        print_json({name: {"value": value, "source": source} for name, value, source in rows})
        return
    shown = [(name, "-" if value in (None, []) else _text(value), s) for name, value, s in rows]
    print_table(("setting", "value", "from"), shown)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _serve(settings: Settings, pinned: PublicKey | None) -> None:
    import asyncio
    import logging

    from skerry.cli.failures import TROUBLE, CommandError
    from skerry.inference.engine import Engine
    from skerry.island_agent.groups.groups import Membership
    from skerry.island_agent.groups.http import HttpPeers
    from skerry.island_agent.neighbours import Neighbours, join
    from skerry.island_agent.service import ServiceConfig, serve

    port, shutdown_s = settings["port"], settings["shutdown_s"]
    assert isinstance(port, int)
    assert isinstance(shutdown_s, float)
    service = ServiceConfig(
        host=str(settings["host"]),
        port=port,
        shutdown_s=shutdown_s,
        control_token=settings.control_token(),
    )
    engines: dict[str, Engine] = {}
    if settings["engine"] == "cpu":
        from skerry.inference.engines import CpuEngine

        engines["cpu"] = CpuEngine()
    vllm = settings.vllm_config()
    if vllm is not None:
        from skerry.inference.engines import VllmEngine

        engines["vllm"] = VllmEngine(vllm)
    sglang = settings.sglang_config()
    if sglang is not None:
        from skerry.inference.engines import SglangEngine

        engines["sglang"] = SglangEngine(sglang)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    upstream, relay = settings.neighbours()
    roster, token = settings.roster(), settings.control_token()

    async def run() -> CommandError | None:
        peers = membership = None
        if roster is not None and token is not None:
            peers = HttpPeers(roster, token)
            membership = Membership(roster=roster, peers=peers, times=settings.group_times())
        joined = join(
            settings.agent_config(),
            str(settings["bulletin"]),
            Neighbours(upstream=upstream, relay=relay),
            pinned_key=pinned,
            engines=engines,
            membership=membership,
        )
        ending = await serve(joined.agent, service, relay=joined.relay, watchers=joined.watchers)
        if peers is not None:
            await peers.close()
        for served in {"vllm", "sglang"} & set(engines):
            await engines[served].close()
        problem = None
        if ending.paused:
            problem = CommandError(
                f"stopped, but could not resume: {', '.join(ending.paused)}",
                acts="the operator: resume or restart these engines",
                exit_code=TROUBLE,
            )
        if ending.late:
            # A read that no store answers holds its thread, and the interpreter would wait for it.
            if problem is not None:
                typer.echo(f"skerry agent: {problem}; who acts: {problem.acts}", err=True)
            logging.shutdown()
            os._exit(0 if problem is None else problem.exit_code)
        return problem

    problem = asyncio.run(run())
    if problem is not None:
        raise problem
