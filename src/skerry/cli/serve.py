"""`skerry serve`: one run as JSON and as a page, read-only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from skerry.cli.options import JsonOption, parse_key
from skerry.cli.output import print_json


def serve(
    bulletins: Annotated[
        list[str],
        typer.Argument(
            metavar="BULLETIN...",
            show_default=False,
            help="A run's address, as other commands take it; several: a page that lists them.",
        ),
    ],
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: any free one.")] = 8010,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            metavar="PUB",
            show_default=False,
            help="Trust this public key only, 64 hex digits or a .pub file: once for all runs, or "
            "once for each.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            show_default=False,
            help="Answer only whoever knows the one word in it; else SKERRY_SERVE_TOKEN.",
        ),
    ] = None,
    proxy_authenticates: Annotated[
        bool,
        typer.Option(
            "--proxy-authenticates",
            help="Whatever reaches this port has been asked who it is: listen anywhere.",
        ),
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="NAME",
            show_default=False,
            help="Answer requests for this host name, too. Repeatable.",
        ),
    ] = None,
    store_limit: Annotated[
        float,
        typer.Option(
            "--store-limit",
            min=0.1,
            max=600,
            metavar="S",
            help="How long a request waits for the store.",
        ),
    ] = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Serve a page and an API about a run, or about several.

    It reads the bulletin alone and writes nothing; give it credentials that may only read.  Without
    a token it answers programs of this host alone.  With --json the
    object says where it listens.  Ends at SIGTERM or Ctrl-C.
    """
    import logging

    from skerry.bulletin.inspection.follower import Follower
    from skerry.bulletin.inspection.service.config import ServiceConfig, read_token
    from skerry.bulletin.inspection.service.serve import serve as serve_run
    from skerry.bulletin.listener import listen
    from skerry.bulletin.stores import open_store

    token = os.environ.get("SKERRY_SERVE_TOKEN") if token_file is None else read_token(token_file)
    config = ServiceConfig(
        host=host,
        port=port,
        token=token,
        proxy_authenticates=proxy_authenticates,
        hosts=tuple(name.lower() for name in allow_host or ()),
        store_limit_s=store_limit,
    )
    keys = list(key or [])
    if len(set(bulletins)) != len(bulletins):
        raise typer.BadParameter("a run is given twice")
    if len(keys) not in (0, 1, len(bulletins)):
        raise typer.BadParameter(f"--key: expected none, 1 or {len(bulletins)}, found {len(keys)}")
    pinned = [parse_key(text) for text in (keys * len(bulletins) if len(keys) == 1 else keys)]
    pinned = pinned or [None] * len(bulletins)
    followers = {
        address: Follower(open_store(address), pinned_key=one)
        for address, one in zip(bulletins, pinned, strict=True)
    }
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    listener = listen(config.host, config.port)
    found = listener.getsockname()
    at = f"http://{f'[{found[0]}]' if ':' in found[0] else found[0]}:{found[1]}/"

    def ready() -> None:
        if as_json:
            print_json({"bulletins": bulletins, "url": at})
        else:
            typer.echo(f"{', '.join(bulletins)}: served at {at}")

    serve_run(followers, config, listener, ready=ready)
    if any(follower.asking for follower in followers.values()):
        # A read that no store answers holds its threads, and the interpreter would wait for them.
        logging.shutdown()
        os._exit(0)
