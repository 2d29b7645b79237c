"""`skerry compact`: skip patches, so that late joiners read less."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from skerry.cli.options import BulletinArgument, JsonOption, ThreadsOption, open_reader
from skerry.cli.output import print_fields, print_json, progress_bar, size


def compact(
    bulletin: BulletinArgument,
    most: Annotated[
        int | None,
        typer.Option(
            "--max", min=1, metavar="N", show_default=False, help="Make at most N skip patches."
        ),
    ] = None,
    max_level: Annotated[
        int,
        typer.Option(min=1, max=20, metavar="K", help="No skip is over more than 2^K versions."),
    ] = 20,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", file_okay=False, help="Keep the weights at hand here, not in memory."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; list the skips that are missing.")
    ] = False,
    sign: Annotated[
        Path | None,
        typer.Option(metavar="KEY", help="The run's private key; needed if it is signed."),
    ] = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compact a run: fold patches into skip patches over 2, 4, 8, … versions.

    Each is decoded again and compared before its record is written, and made only where it saves
    bytes.  It takes the run over, so a publisher that is running is fenced off: give that one an
    upkeep policy instead.
    """
    from skerry.bulletin import ladder
    from skerry.bulletin.signing import Signer
    from skerry.bulletin.stores import open_store
    from skerry.bulletin.writer import BulletinWriter
    from skerry.publisher import MemoryStorage, StateDirectory
    from skerry.publisher.compact import Compactor
    from skerry.publisher.threads import thread_count

    reader = open_reader(bulletin)
    if dry_run:
        missing = ladder.pairs(reader.state, max_level=max_level)
        if as_json:
            print_json({"missing": missing})
        else:
            print_fields([("missing", f"{len(missing)} skip patches")])
        return
    compactor = Compactor(
        BulletinWriter.open(
            open_store(bulletin),
            signer=None if sign is None else Signer.load(sign),
            writer="skerry-compact",
        ),
        MemoryStorage() if state is None else StateDirectory(state),
        threads=thread_count(threads),
        max_level=max_level,
    )
    made = []
    missing = compactor.missing()
    with progress_bar() as progress:
        for number, (base, version) in enumerate(missing):
            progress("skips", number, len(missing))
            skipped = compactor.make(base, version)
            if skipped is not None:
                made.append(skipped)
            if len(made) == most:
                break
    if as_json:
        print_json({"made": [asdict(skipped) for skipped in made], "tried": len(missing)})
        return
    print_fields(
        [
            ("made", f"{len(made)} of {len(missing)} skip patches that were missing"),
            ("size", size(sum(skipped.nbytes for skipped in made))),
            ("instead of", size(sum(skipped.before_bytes for skipped in made))),
        ]
    )
