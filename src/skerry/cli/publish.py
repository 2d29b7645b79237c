"""`skerry publish`: a checkpoint directory becomes the run's next version."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli.options import (
    BulletinArgument,
    JsonOption,
    LevelName,
    LevelOption,
    LinkOption,
    ThreadsOption,
    existing_directory,
)
from skerry.cli.output import print_fields, print_json, progress_bar, share, size

if TYPE_CHECKING:
    from skerry.publisher.report import PublishReport


def publish(
    bulletin: BulletinArgument,
    checkpoint: Annotated[
        Path,
        existing_directory(
            "CKPT_DIR", "A Hugging Face checkpoint: safetensors shards and side files."
        ),
    ],
    step: Annotated[
        int | None,
        typer.Option(min=0, help="The optimizer's step; one more than the last without it."),
    ] = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="Publish a full version, beside the patch if there is one."),
    ] = False,
    sign: Annotated[
        Path | None,
        typer.Option(metavar="KEY", help="Sign with this private key (see `skerry keygen`)."),
    ] = None,
    parent: Annotated[
        int | None,
        typer.Option(min=0, metavar="V", help="An older version to go on from: rollback or fork."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            file_okay=False,
            help="Keep the published weights here between runs, instead of fetching them again.",
        ),
    ] = None,
    base_bulletin: Annotated[
        str | None,
        typer.Option(
            metavar="BULLETIN",
            help="CKPT_DIR is an adapter (adapter_config.json): the run of the weights that it was "
            "trained on. The version's manifest names them.",
        ),
    ] = None,
    base_version: Annotated[
        int | None,
        typer.Option(min=0, metavar="V", help="That version; the newest without it."),
    ] = None,
    anchor_every: Annotated[
        int, typer.Option(min=1, metavar="N", help="Write a full version every N versions.")
    ] = 100,
    level: LevelOption = LevelName.AUTO,
    link_mbit: LinkOption = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish a checkpoint directory.

    It becomes the run's next version.  The patch is made against the last published version,
    decoded again, and compared before anything is uploaded.  The version exists once its record
    is in the log, and not before.
    """
    from skerry.bulletin import keys
    from skerry.bulletin.signing import Signer
    from skerry.bulletin.stores import open_store
    from skerry.cli.failures import CommandError
    from skerry.publisher import (
        Checkpoint,
        MemoryStorage,
        Publisher,
        PublisherConfig,
        StateDirectory,
    )
    from skerry.publisher.threads import thread_count

    if (checkpoint / keys.log(0)).exists():
        rule = f"{checkpoint}: expected a checkpoint, found a bulletin"
        raise CommandError(rule, acts="you: give BULLETIN before CKPT_DIR")
    recipe = _adapter_recipe(checkpoint, base_bulletin, base_version)
    scanned = Checkpoint.scan(checkpoint, recipe=recipe)
    publisher = Publisher.open(
        open_store(bulletin),
        signer=None if sign is None else Signer.load(sign),
        config=PublisherConfig(
            writer="skerry-publish",
            anchor_versions=anchor_every,
            threads=thread_count(threads),
            level=level.setting,
            link_mbit=link_mbit,
        ),
        storage=MemoryStorage() if state is None else StateDirectory(state),
    )
    with progress_bar() as progress:
        report = publisher.publish(
            scanned, step=step, parent=parent, force_full=full, progress=progress
        )
    _print(report, as_json=as_json)


def _adapter_recipe(
    checkpoint: Path, base_bulletin: str | None, base_version: int | None
) -> dict[str, object] | None:
    """Return the recipe that names an adapter's base; None for a checkpoint that is none."""
    from skerry.bulletin.reader import BulletinReader
    from skerry.bulletin.stores import open_store
    from skerry.publisher.adapter import CONFIG_FILE, AdapterBase
    from skerry.publisher.errors import BaseUnnamed, CheckpointError

    if base_bulletin is None:
        if base_version is not None:
            raise typer.BadParameter("goes with --base-bulletin", param_hint="--base-version")
        if (checkpoint / CONFIG_FILE).exists():
            raise BaseUnnamed(f"{checkpoint} is an adapter: expected --base-bulletin, found none")
        return None
    if not (checkpoint / CONFIG_FILE).exists():
        raise CheckpointError(f"{checkpoint}: expected an adapter, found no {CONFIG_FILE}")
    reader = BulletinReader(open_store(base_bulletin))
    reader.refresh()
    return AdapterBase.of(reader.state, base_version).recipe()


def _print(report: PublishReport, *, as_json: bool) -> None:
    from skerry.codec import kernel

    per_changed = report.bytes_per_changed
    if as_json:
        figures = {"share": report.share, "bytes_per_changed": per_changed}
        print_json({**asdict(report), **figures, "kernel": kernel.current().name})
        return
    print_fields(
        [
            ("version", report.version),
            ("parent", report.parent),
            ("step", report.step),
            ("kind", f"{report.kind} ({report.reason})"),
            ("changed", share(report.changed, report.elements)),
            ("raw", None if report.raw_bytes is None else size(report.raw_bytes)),
            ("patch", None if report.patch_bytes is None else size(report.patch_bytes)),
            ("record", size(report.record_bytes)),
            ("full", size(report.full_bytes)),
            ("per changed", None if per_changed is None else f"{per_changed:.2f} B"),
            (
                "level",
                None if report.level is None else f"{report.level} ({report.level_reason})",
            ),
            ("kernel", kernel.current().name),
            ("seconds", ", ".join(f"{k} {v:.2f}" for k, v in report.seconds.items())),
        ]
    )
