"""`skerry log` and `skerry show`: what the bulletin says, without any weights.

What there is to say is found out by `skerry.bulletin.inspection`; here it is put into words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli.options import BulletinArgument, JsonOption, KeyOption, open_reader
from skerry.cli.output import moment, print_fields, print_json, print_table, share, size

if TYPE_CHECKING:
    from skerry.bulletin.inspection.described import TensorRow
    from skerry.bulletin.inspection.details import Sizes, VersionDetail
    from skerry.bulletin.inspection.view import View
    from skerry.bulletin.reader import BulletinReader
    from skerry.bulletin.records import Record


_DIGITS = 20  # of a version: no number of a record has as many


def log(
    bulletin: BulletinArgument,
    cost: Annotated[
        bool,
        typer.Option("--cost", help="List what each of the newest versions cost its publisher."),
    ] = False,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the run's records, oldest first.

    Chain and signatures are checked on the way. The costs are the publisher's own word.
    """
    if cost:
        _print_costs(open_reader(bulletin, key), as_json=as_json)
        return
    from skerry.bulletin.inspection.rows import RecordRow, record_row, version_row

    view = open_view(bulletin, key)[1]
    if as_json:
        print_json(
            {
                "key": None if view.state.key is None else view.state.key.hex,
                "records": [_record_json(seen.record, seen.nbytes) for seen in view.records],
            }
        )
        return

    def cells(row: RecordRow) -> tuple[str, ...]:
        if row.kind != "commit" or row.version is None:
            return ("",) * 7
        commit = version_row(view, row.version)
        parent = "" if commit.parent is None else str(commit.parent)
        return (
            str(commit.version),
            parent,
            str(commit.step),
            commit.form,
            share(commit.changed, commit.elements),
            f"{view.commit(commit.version).nbytes:,}",
            commit.state,
        )

    rows = [
        (str(row.seq), moment(row.time_ms), str(row.epoch), row.writer, row.kind, *cells(row))
        for row in (record_row(view, seq) for seq in range(len(view.records)))
    ]
    columns = "seq time epoch writer kind version parent step form changed bytes state"
    print_table(columns.split(), rows)


def _print_costs(reader: BulletinReader, *, as_json: bool) -> None:
    from skerry.bulletin import keys
    from skerry.bulletin.cost import COST_LIMIT_BYTES, CostLog

    costs = CostLog.parse(reader.store.get(keys.COST, limit_bytes=COST_LIMIT_BYTES))
    if as_json:
        print_json({"versions": [cost.to_json() for cost in costs.versions]})
        return
    verbs = sorted({verb for cost in costs.versions for verb in cost.requests})
    print_table(
        ["version", "opened", *verbs, "bytes up", "bytes down"],
        [
            (
                str(cost.version),
                "yes" if cost.opened else "",
                *(str(cost.requests.get(verb, 0)) for verb in verbs),
                f"{cost.bytes_up:,}",
                f"{cost.bytes_down:,}",
            )
            for cost in costs.versions
        ],
    )


def show(
    bulletin: BulletinArgument,
    version: Annotated[
        str, typer.Argument(metavar="VERSION", help="A version's number, or latest.")
    ] = "latest",
    tensors: Annotated[
        bool, typer.Option("--tensors", help="List the tensors that changed, too.")
    ] = False,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one version: parent, changes, sizes.

    The share of changed elements is over all elements of all tensors.
    """
    from skerry.bulletin.inspection.descriptions import Descriptions
    from skerry.bulletin.inspection.details import sizes, version_detail

    reader, view = open_view(bulletin, key)
    number = parse_version(view, version)
    detail = version_detail(view, number)
    commit = view.commit(number)
    described = Descriptions(reader.store).of(commit)
    values = _values(detail, sizes(commit, described))
    changed = [row for row in described.rows if row.changed]
    if as_json:
        table = {"tensors": [_tensor_json(row) for row in changed]} if tensors else {}
        print_json({**values, **table})
        return
    print_fields((name, _text(name, value)) for name, value in values.items() if name != "files")
    if tensors:
        typer.echo()
        print_table(
            ["tensor", "dtype", "shape", "changed", "bytes"],
            [
                (
                    row.name,
                    row.dtype,
                    str(row.shape),
                    share(row.changed, row.elements),
                    f"{row.patch_bytes:,}",
                )
                for row in changed
            ],
        )


def open_view(bulletin: str, key: str | None) -> tuple[BulletinReader, View]:
    """Read a run from its first record on."""
    from skerry.bulletin.inspection.view import View

    reader = open_reader(bulletin, key, history=True)
    return reader, View().after(reader.history, reader.state)


def parse_version(view: View, text: str) -> int:
    """Return the version that a number, or `latest`, names.  Raises VersionUnknown."""
    from skerry.cli.failures import CommandError

    if view.newest is None:
        raise CommandError("the run has no version yet", acts="the publisher")
    if text == "latest":
        return view.newest
    if not text.isdecimal() or len(text) >= _DIGITS:
        raise typer.BadParameter(f"expected a number or latest, found {text!r:.40}")
    return view.commit(int(text)).version


def _values(detail: VersionDetail, found: Sizes) -> dict[str, object]:
    row = detail.row
    return {
        "version": row.version,
        "parent": row.parent,
        "step": row.step,
        "state": row.state,
        "form": row.form,
        "time": moment(row.time_ms),
        "seq": row.seq,
        "epoch": row.epoch,
        "writer": row.writer,
        "signed": row.signed,
        "changed": row.changed,
        "elements": row.elements,
        "share": row.share,
        "raw_bytes": found.raw_bytes,
        "patch_bytes": row.patch_bytes,
        "record_bytes": row.record_bytes,
        "full_bytes": found.full_bytes,
        "bytes_per_changed": row.bytes_per_changed,
        "result": detail.result,
        "base": detail.base,
        "layout": detail.layout,
        "manifest": detail.manifest,
        "packs": [pack.key for pack in detail.packs],
        "full": detail.full,
        "files": [[file.name, file.size] for file in found.files],
        "side_files_changed": found.side_files_changed,
    }


def _text(name: str, value: object) -> object:
    if isinstance(value, list):
        return ", ".join(map(str, value)) if value else None
    if isinstance(value, int) and name.endswith("_bytes"):
        return size(value)
    if isinstance(value, float):
        return f"{value:.3e}" if name == "share" else f"{value:.2f}"
    return f"{value:,}" if name in ("changed", "elements") and isinstance(value, int) else value


def _tensor_json(row: TensorRow) -> dict[str, object]:
    return {
        "name": row.name,
        "dtype": row.dtype,
        "shape": row.shape,
        "changed": row.changed,
        "words": row.elements,
        "bytes": row.patch_bytes,
    }


def _record_json(record: Record, nbytes: int) -> dict[str, object]:
    return {
        "seq": record.seq,
        "epoch": record.epoch,
        "writer": record.writer,
        "kind": record.kind,
        "time_ms": record.time,
        "signed": record.signature is not None,
        "record_bytes": nbytes,
        "body": record.body.to_json(),
    }
