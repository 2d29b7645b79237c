"""`skerry keygen` and `skerry rotate`: the key that signs a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli.options import BulletinArgument, JsonOption
from skerry.cli.output import print_fields, print_json

if TYPE_CHECKING:
    from skerry.bulletin.store import ObjectStore


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


def rotate(
    bulletin: BulletinArgument,
    key: Annotated[
        Path,
        typer.Option(
            "--key", metavar="OLD", dir_okay=False, help="The private key that signs the run now."
        ),
    ],
    new: Annotated[
        Path,
        typer.Option(
            "--new", metavar="NEW", dir_okay=False, help="The private key that signs from now on."
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Hand a run over to another key.

    Readers go on pinning the key of the first record: a signed record leads from there. A publisher
    that is running is fenced; start it again with the new key.
    """
    from skerry.bulletin.signing import Signer
    from skerry.bulletin.stores import open_store
    from skerry.bulletin.writer import BulletinWriter
    from skerry.cli.failures import CommandError

    old_signer, new_signer = Signer.load(key), Signer.load(new)
    if old_signer.public_key == new_signer.public_key:
        raise CommandError(f"{new}: expected another key than {key}", acts="you: make a new one")
    store = open_store(bulletin)
    _check_run(bulletin, store)
    writer = BulletinWriter.open(store, signer=old_signer, writer="skerry-rotate")
    record = writer.rotate(new_signer)
    values = {"seq": record.seq, "old": old_signer.public_key.hex, "key": new_signer.public_key.hex}
    if as_json:
        print_json(values)
    else:
        print_fields(values.items())


def _check_run(address: str, store: ObjectStore) -> None:
    """A typing error in the address must not begin a run there."""
    from skerry.bulletin.reader import BulletinReader
    from skerry.cli.failures import CommandError

    if BulletinReader(store).slot(0) is None:
        raise CommandError(
            f"{address}: expected a run, found no log", acts="you: check the address"
        )
