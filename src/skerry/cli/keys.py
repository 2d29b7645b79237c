"""`skerry keygen`: the key that signs a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skerry.cli.options import JsonOption
from skerry.cli.output import print_json


def keygen(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", dir_okay=False, help="The private key's file, new.", show_default=False
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Make a key pair for signing a run.

    PATH is the private Ed25519 key, mode 0600; PATH.pub holds the public one, 64 hex digits.
    """
    from skerry.bulletin.errors import KeyFileInvalid
    from skerry.bulletin.signing import Signer

    public = path.with_name(path.name + ".pub")
    if public.exists():
        raise KeyFileInvalid(f"{public}: File exists")
    signer = Signer.generate()
    signer.save(path)
    with public.open("x") as file:
        file.write(f"{signer.public_key}\n")
    if as_json:
        print_json({"private": str(path), "public": str(public), "key": signer.public_key.hex})
    else:
        typer.echo(signer.public_key.hex)
