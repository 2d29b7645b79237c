"""`skerry diff` and `skerry apply`: patches as files, without a bulletin."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from skerry.cli.options import (
    JsonOption,
    LevelName,
    LevelOption,
    LinkOption,
    ThreadsOption,
    existing_directory,
)
from skerry.cli.output import print_fields, print_json, progress_bar, share, size


def diff(
    old: Annotated[
        Path, existing_directory("OLD_DIR", "The checkpoint that the patch starts from.")
    ],
    new: Annotated[Path, existing_directory("NEW_DIR", "The checkpoint that it leads to.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", dir_okay=False, help="The patch file to write."
        ),
    ],
    level: LevelOption = LevelName.DEFAULT,
    link_mbit: LinkOption = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a patch file between two directories.

    Both must have the same tensors in the same shards; side files may differ.
    """
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
