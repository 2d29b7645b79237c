"""`skerry pull` and `skerry verify`: a version as a directory, and the proof that it is one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli.options import (
    BulletinArgument,
    JsonOption,
    KeyOption,
    ThreadsOption,
    VersionOption,
    open_reader,
)
from skerry.cli.output import print_fields, print_json, printable, progress_bar

if TYPE_CHECKING:
    from skerry.bulletin.reader import BulletinReader

_SHOWN = 20  # differences printed for people; JSON has all of them


def pull(
    bulletin: BulletinArgument,
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="A new or empty directory.", show_default=False),
    ],
    version: VersionOption = None,
    key: KeyOption = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch one version as a directory.

    It is byte-identical to the one that was published, and appears whole or not at all.  A pull
    that was interrupted goes on where it stopped.
    """
    from skerry.island_agent.pull import pull as pull_version

    reader = open_reader(bulletin, key)
    with progress_bar() as progress:
        held = pull_version(
            reader,
            directory,
            version,
            progress=lambda done, total: progress("pull", done, total),
            threads=threads,
        )
    if as_json:
        print_json({"version": held.version, "weights": held.weights, "directory": str(directory)})
    else:
        typer.echo(f"version {held.version} is in {directory}: weights {held.weights}")


def verify(
    bulletin: BulletinArgument,
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            exists=True,
            file_okay=False,
            show_default=False,
            help="A checkpoint to compare with a version; without it the bulletin is checked.",
        ),
    ] = None,
    version: VersionOption = None,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Read and hash every object, and rebuild every version."),
    ] = False,
    key: KeyOption = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a directory, or the whole bulletin.

    With DIR: the directory is compared with a version, file by file and tensor by tensor; of an
    island's mirror.partial, the part that it holds.
    Without: the log's chain and signatures, and that every object which a live version needs is
    there and has its size. A signed log is read from its newest checkpoint on, with --deep from its
    first record.
    """
    if directory is None and version is not None:
        raise typer.BadParameter("--version says which version DIR is compared with; give DIR")
    if directory is not None and deep:
        raise typer.BadParameter("--deep is for a bulletin; a directory is always read whole")
    reader = open_reader(bulletin, key, history=deep)
    if directory is None:
        _verify_bulletin(reader, deep=deep, threads=threads, as_json=as_json)
    else:
        _verify_directory(reader, directory, version, as_json=as_json)


def _verify_directory(
    reader: BulletinReader, directory: Path, version: int | None, *, as_json: bool
) -> None:
    from skerry.island_agent.pull import part_of, verify_directory

    part = part_of(directory)
    report = verify_directory(reader, directory, version, selection=part)
    _conclude(
        {
            "version": report.version,
            "expected": report.expected,
            "found": report.found,
            "directory": str(directory),
            **({} if part is None else {"part": str(part)}),
        },
        list(report.differences),
        as_json=as_json,
    )


def _verify_bulletin(
    reader: BulletinReader, *, deep: bool, threads: int | None, as_json: bool
) -> None:
    from skerry.publisher.audit import audit

    state = reader.state
    with progress_bar() as progress:
        found = audit(reader, deep=deep, progress=progress, threads=threads)
        findings = [str(finding) for finding in found]
    _conclude(
        {
            "records": state.seq + 1,
            "versions": len(state.commits),
            "retired": len(state.retired),
            "key": None if state.key is None else state.key.hex,
            "deep": deep,
        },
        findings,
        as_json=as_json,
    )


def _conclude(values: dict[str, object], differences: list[str], *, as_json: bool) -> None:
    if as_json:
        print_json({**values, "identical": not differences, "differences": differences})
    else:
        print_fields([*values.items(), ("result", "differs" if differences else "ok")])
        for line in differences[:_SHOWN]:
            typer.echo(f"  {printable(line)}")
        if len(differences) > _SHOWN:
            typer.echo(f"  and {len(differences) - _SHOWN} more")
    if differences:
        raise typer.Exit(1)
