"""`skerry agent`: keep one island at the newest version, and serve requests from it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from skerry.cli.options import BulletinArgument, KeyOption, ThreadsOption, parse_key


class EngineKind(StrEnum):
    """What the agent serves with."""

    CPU = "cpu"
    NONE = "none"


def agent(
    bulletin: BulletinArgument,
    directory: Annotated[
        Path,
        typer.Option("--dir", metavar="DIR", file_okay=False, help="The agent's own directory."),
    ],
    engine: Annotated[
        EngineKind, typer.Option(help="The engine to switch; none keeps the mirror only.")
    ] = EngineKind.NONE,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on.")] = 8000,
    island: Annotated[
        str, typer.Option(metavar="ID", help="The island's name in the bulletin.")
    ] = "island",
    key: KeyOption = None,
    poll: Annotated[
        float, typer.Option(metavar="S", help="Seconds between two looks at the log.")
    ] = 0.5,
    audit_engine: Annotated[
        bool,
        typer.Option(
            "--audit-engine",
            help="After each install, hash the weights that the engine serves, and take it out of "
            "service if they are not the version's.",
        ),
    ] = False,
    threads: ThreadsOption = None,
    relay: Annotated[
        bool,
        typer.Option("--relay", help="Serve the bulletin to neighbours, below /bulletin/."),
    ] = False,
    relay_gib: Annotated[
        float,
        typer.Option(
            "--relay-gib", min=0.001, metavar="GIB", help="Disk for what neighbours ask for."
        ),
    ] = 64.0,
    upstream: Annotated[
        str | None,
        typer.Option(
            metavar="URL[,URL…]",
            show_default=False,
            help="Read through these relays, http://host:port/bulletin, and past them where they "
            "do not help.",
        ),
    ] = None,
) -> None:
    """Follow a run and serve its newest version.

    Keeps a byte-exact copy of the newest version in DIR, switches the engine to it, and answers
    /v1/completions, /health, /ready, /status and /metrics until SIGTERM.
    """
    import asyncio
    import logging

    from skerry.inference.engine import Engine
    from skerry.island_agent.config import AgentConfig
    from skerry.island_agent.neighbours import Neighbours, join
    from skerry.island_agent.relay_config import RelayConfig
    from skerry.island_agent.service import ServiceConfig, serve

    try:
        config = AgentConfig(
            directory=directory,
            island=island,
            poll_s=poll,
            idle_poll_s=max(poll, 8.0),
            watched_poll_s=max(poll, 60.0),
            nudge_s=min(poll, 0.5),
            audit_engines=audit_engine,
            threads=threads,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    engines: dict[str, Engine] = {}
    if engine is EngineKind.CPU:
        from skerry.inference.engines import CpuEngine

        engines["cpu"] = CpuEngine()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    neighbours = Neighbours(
        upstream=upstream.split(",") if upstream else (),
        relay=RelayConfig(cache_bytes=int(relay_gib * 1024**3)) if relay else None,
    )
    joined = join(config, bulletin, neighbours, pinned_key=parse_key(key), engines=engines)
    service = ServiceConfig(host=host, port=port)
    asyncio.run(serve(joined.agent, service, relay=joined.relay, watchers=joined.watchers))
