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
    mirror_in_memory: Annotated[
        bool,
        typer.Option(
            "--mirror-in-memory",
            help="Keep everything in RAM, below /dev/shm; DIR only names it. It is gone, and built "
            "anew, after a reboot.",
        ),
    ] = False,
    scrub_mb: Annotated[
        int,
        typer.Option(
            "--scrub-mb", min=0, metavar="MB", help="MB of the mirror to hash each second; 0: none."
        ),
    ] = 32,
    memory_mb: Annotated[
        int | None,
        typer.Option(
            "--memory-mb",
            metavar="MB",
            help="What staging may take, beside the changes of one tensor.",
        ),
    ] = None,
    spool_mb: Annotated[
        int | None,
        typer.Option("--spool-mb", min=1, metavar="MB", help="What downloads may take on disk."),
    ] = None,
) -> None:
    """Follow a run and serve its newest version.

    Keeps a byte-exact copy of the newest version in DIR, switches the engine to it, and answers
    /v1/completions, /health, /ready, /status and /metrics until SIGTERM.
    """
    import asyncio
    import logging

    from skerry.bulletin.reader import BulletinReader
    from skerry.bulletin.stores import open_store
    from skerry.inference.engine import Engine
    from skerry.island_agent.agent import Agent
    from skerry.island_agent.config import AgentConfig
    from skerry.island_agent.fetch import FetchConfig
    from skerry.island_agent.service import ServiceConfig, serve

    try:
        config = AgentConfig(
            directory=directory,
            island=island,
            poll_s=poll,
            idle_poll_s=max(poll, 8.0),
            audit_engines=audit_engine,
            threads=threads,
            in_memory=mirror_in_memory,
            scrub_bytes_per_s=scrub_mb * 1_000_000,
            memory_bytes=None if memory_mb is None else memory_mb * 1_000_000,
            fetch=FetchConfig()
            if spool_mb is None
            else FetchConfig(spool_bytes=spool_mb * 1_000_000),
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    engines: dict[str, Engine] = {}
    if engine is EngineKind.CPU:
        from skerry.inference.engines import CpuEngine

        engines["cpu"] = CpuEngine()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    reader = BulletinReader(open_store(bulletin), pinned_key=parse_key(key))
    service = ServiceConfig(host=host, port=port)
    asyncio.run(serve(Agent(config, reader, engines=engines), service))
