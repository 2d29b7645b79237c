"""`skerry diff` and `skerry apply`: patches as files, without a bulletin.

`skerry diff` with a bulletin and two versions needs no weights: it tells what statistics tell.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from skerry.cli.exact import AgentOption, ControlTokenOption, compare_exactly
from skerry.cli.options import (
    JsonOption,
    KeyOption,
    LevelName,
    LevelOption,
    LinkOption,
    ThreadsOption,
)
from skerry.cli.output import print_fields, print_json, progress_bar, share, size


def diff(
    old: Annotated[
        str,
        typer.Argument(
            metavar="OLD_DIR|BULLETIN",
            show_default=False,
            help="The checkpoint that the patch starts from; or a run.",
        ),
    ],
    new: Annotated[
        str,
        typer.Argument(
            metavar="NEW_DIR|VERSION",
            show_default=False,
            help="The checkpoint that it leads to; or the version to start from.",
        ),
    ],
    version: Annotated[
        str | None,
        typer.Argument(
            metavar="[VERSION]",
            show_default=False,
            help="With a run: the version to end at, or latest.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            dir_okay=False,
            show_default=False,
            help="The patch file to write.",
        ),
    ] = None,
    level: LevelOption = LevelName.DEFAULT,
    link_mbit: LinkOption = None,
    threads: ThreadsOption = None,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact", help="Of two versions: count the words that differ, from the weights."
        ),
    ] = False,
    agent: AgentOption = None,
    control_token_file: ControlTokenOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a patch file between two directories, or compare two versions of a run.

    Both directories must have the same tensors in the same shards; side files may differ.  Versions
    are compared by the statistics in the run, without any weights: a bound, or exact between a
    version and its parent.  With --exact both are rebuilt and compared word by word, here, or by an
    agent of the run.
    """
    if not exact and (agent is not None or control_token_file is not None):
        raise typer.BadParameter("--agent and --control-token-file go with --exact")
    if version is not None:
        if output is not None:
            raise typer.BadParameter("two versions of a run make no file: leave --output out")
        if exact:
            compare_exactly(
                old, new, version, key, agent, control_token_file, threads, as_json=as_json
            )
        else:
            _compare(old, new, version, key, as_json=as_json)
        return
    if exact:
        raise typer.BadParameter("--exact goes with a run and two versions")
    if output is None:
        raise typer.BadParameter("give --output FILE, or a run and two versions")
    _write(_directory(old), _directory(new), output, level, link_mbit, threads, as_json=as_json)


def _directory(text: str) -> Path:
    if not Path(text).is_dir():
        raise typer.BadParameter(f"expected a directory, found {text!r:.200}")
    return Path(text)


def _compare(bulletin: str, old: str, new: str, key: str | None, *, as_json: bool) -> None:
    from dataclasses import asdict

    from skerry.bulletin.inspection.difference import difference
    from skerry.bulletin.inspection.ways import catch_up
    from skerry.cli.inspect import open_view, parse_version

    _, view = open_view(bulletin, key)
    start, end = parse_version(view, old), parse_version(view, new)
    found = difference(view, start, end)
    way = catch_up(view, have=start, want=end)
    if as_json:
        print_json({**asdict(found), "catch_up": asdict(way)})
        return
    sure = "" if found.exact else "at most "
    names = None if found.compared is None else f"{len(found.compared)} versions"
    cost = f"{size(way.total_bytes)}, {way.objects} objects" if way.reachable else way.why
    print_fields(
        [
            ("old", str(start)),
            ("new", str(end)),
            ("weights", "identical" if found.identical_weights else "differ"),
            ("changed", f"{sure}{share(found.at_most, found.elements)}"),
            ("by the statistics of", names or "nobody: they have no common ancestor"),
            ("not compared", ", ".join(map(str, found.uncompared)) or None),
            ("files or side files", "differ" if found.layout_changed else "are the same"),
            ("to get there", cost),
        ]
    )


def _write(
    old: Path,
    new: Path,
    output: Path,
    level: LevelName,
    link_mbit: float | None,
    threads: int | None,
    *,
    as_json: bool,
) -> None:
    from skerry.codec import kernel
    from skerry.publisher import Checkpoint
    from skerry.publisher.levels import LevelModel
    from skerry.publisher.patch_file import make_patch
    from skerry.publisher.threads import thread_count

    before, after = Checkpoint.scan(old), Checkpoint.scan(new)
    threads = thread_count(threads)
    model = LevelModel.of(level.setting, threads=threads, link_mbit=link_mbit)
    choice = model.choose(after.layout.nbytes)
    with progress_bar() as progress:
        data, summary = make_patch(before, after, progress, level=choice.level, threads=threads)
    temporary = output.with_name(f".{output.name}.new")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, output)
    finally:
        temporary.unlink(missing_ok=True)  # of a write that failed
    if as_json:
        names = {"level_reason": choice.reason, "kernel": kernel.current().name}
        print_json({**asdict(summary), **names})
        return
    print_fields(
        [
            ("changed", share(summary.changed, summary.elements)),
            ("side files", summary.side_files),
            ("patch", size(summary.patch_bytes)),
            ("full", size(summary.full_bytes)),
            ("level", f"{choice.level} ({choice.reason})"),
            ("kernel", kernel.current().name),
        ]
    )


def apply(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The checkpoint to patch.", show_default=False)
    ],
    patch: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", exists=True, dir_okay=False, help="A patch file.", show_default=False
        ),
    ],
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Patch a checkpoint directory in place.

    The result is built beside the directory, verified, and put in its place in one step: a crash
    leaves the old directory or the new one.  A directory that is not the patch's base is refused.
    """
    from skerry.publisher.apply_file import apply_patch_file
    from skerry.publisher.patch_file import PatchFile

    parsed = PatchFile.parse(patch.read_bytes())
    with progress_bar() as progress:
        changed = apply_patch_file(directory, parsed, progress, threads=threads)
    if as_json:
        print_json({"applied": changed, "weights": parsed.result})
    else:
        typer.echo(f"{'patched' if changed else 'was there already'}: weights {parsed.result}")
