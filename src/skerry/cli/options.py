"""Arguments and options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from skerry.bulletin.reader import BulletinReader
    from skerry.bulletin.signing import PublicKey
    from skerry.publisher.levels import LevelSetting


class LevelName(StrEnum):
    """What `--level` can be."""

    AUTO = "auto"
    FAST = "fast"
    DEFAULT = "default"
    MAX = "max"

    @property
    def setting(self) -> LevelSetting:
        from skerry.codec.level import Level

        return "auto" if self is LevelName.AUTO else Level(self.value)


BulletinArgument = Annotated[
    str,
    typer.Argument(
        metavar="BULLETIN",
        show_default=False,
        help="The run's address: a directory, s3://bucket/prefix, https://host/path (read-only), "
        "or several with commas between them: mirrors.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output.")
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key", metavar="PUB", help="Trust this public key only: 64 hex digits, or a .pub file."
    ),
]
LevelOption = Annotated[
    LevelName,
    typer.Option(
        "--level",
        help="How much work to do for a smaller patch; auto: as little time as possible from here "
        "to a follower.",
    ),
]
LinkOption = Annotated[
    float | None,
    typer.Option(
        "--link-mbit",
        min=1e-3,
        metavar="MBIT",
        show_default=False,
        help="For --level auto: megabits a second of the slowest island's link.",
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        metavar="N",
        show_default=False,
        help="Threads that encode and decode; default: all usable CPUs.",
    ),
]
VersionOption = Annotated[
    int | None,
    typer.Option("--version", min=0, metavar="N", help="The version; the newest without it."),
]


def existing_directory(metavar: str, help_text: str) -> typer.models.ArgumentInfo:
    """Return an argument that is a directory."""
    info: typer.models.ArgumentInfo = typer.Argument(
        metavar=metavar, exists=True, file_okay=False, show_default=False, help=help_text
    )
    return info


def parse_key(text: str | None) -> PublicKey | None:
    """Return the public key that `--key` gives, as digits or as a file."""
    from skerry.bulletin.signing import PublicKey
    from skerry.codec.errors import FormatError

    if text is None:
        return None
    path = Path(text)
    try:
        return PublicKey.parse(path.read_text().strip() if path.is_file() else text)
    except (FormatError, UnicodeDecodeError) as error:
        if not path.exists():
            rule = (
                f"expected 64 lower-case hex digits or a .pub file, and no such file: {text!r:.80}"
            )
            raise typer.BadParameter(rule, param_hint="--key") from error
        raise typer.BadParameter(str(error), param_hint="--key") from error


def open_reader(address: str, key: str | None = None, *, history: bool = False) -> BulletinReader:
    """Return a reader that has read the log to its end; a place without a log is refused.

    With `history` every record is read, from the first on; that may take a while and is shown.
    """
    from skerry.bulletin.reader import BulletinReader
    from skerry.bulletin.stores import open_store
    from skerry.cli.failures import CommandError
    from skerry.cli.output import progress_bar

    reader = BulletinReader(open_store(address), pinned_key=parse_key(key), history=history)
    with progress_bar() as progress:

        def show(records: int, nbytes: int, known: int) -> None:
            progress("log", nbytes, nbytes * max(records, known + 1) // records)

        reader.refresh(show)
    if reader.state.seq < 0:
        raise CommandError(
            f"{address}: expected a run, found no log", acts="you: check the address"
        )
    return reader
