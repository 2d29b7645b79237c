"""`skerry log` and `skerry show`: what the bulletin says, without any weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli.options import BulletinArgument, JsonOption, KeyOption, open_reader
from skerry.cli.output import moment, print_fields, print_json, print_table, share, size

if TYPE_CHECKING:
    from skerry.bulletin.manifest import Manifest
    from skerry.bulletin.reader import BulletinReader
    from skerry.bulletin.records import Commit, Record
    from skerry.codec.layout import Layout


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
    from skerry.bulletin.records import Commit

    if cost:
        _print_costs(open_reader(bulletin, key), as_json=as_json)
        return
    reader = open_reader(bulletin, key, history=True)
    if as_json:
        print_json(
            {
                "key": None if reader.state.key is None else reader.state.key.hex,
                "records": [_record_json(record) for record in reader.history],
            }
        )
        return
    rows = []
    for record in reader.history:
        body = record.body
        commit = body if isinstance(body, Commit) else None
        rows.append(
            (
                str(record.seq),
                moment(record.time),
                str(record.epoch),
                record.writer,
                record.kind,
                "" if commit is None else str(commit.version),
                "" if commit is None or commit.parent is None else str(commit.parent),
                "" if commit is None else str(commit.step),
                "" if commit is None else _form(commit),
                "" if commit is None else share(commit.changed, commit.elements),
                "" if commit is None else f"{commit.nbytes:,}",
                "" if commit is None else _standing(reader, commit),
            )
        )
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
    reader = open_reader(bulletin, key, history=True)
    record, commit = _find(reader, version)
    layout, manifest = _described(reader, commit)
    values = _values(reader, record, commit, layout, manifest)
    if as_json:
        table = {"tensors": _tensor_rows(layout, manifest)} if tensors else {}
        print_json({**values, **table})
        return
    print_fields((name, _text(name, value)) for name, value in values.items() if name != "files")
    if tensors:
        typer.echo()
        print_table(
            ["tensor", "dtype", "shape", "changed", "bytes"],
            [
                (
                    str(row["name"]),
                    str(row["dtype"]),
                    str(row["shape"]),
                    share(int(str(row["changed"])), int(str(row["words"]))),
                    f"{row['bytes']:,}",
                )
                for row in _tensor_rows(layout, manifest)
            ],
        )


def _find(reader: BulletinReader, text: str) -> tuple[Record, Commit]:
    from skerry.bulletin.errors import VersionUnknown
    from skerry.bulletin.records import Commit
    from skerry.cli.failures import CommandError

    newest = reader.state.newest
    if newest is None:
        raise CommandError("the run has no version yet", acts="the publisher")
    if text == "latest":
        number = newest.version
    elif text.isdecimal() and len(text) < _DIGITS:
        number = int(text)
    else:
        raise typer.BadParameter(f"expected a number or latest, found {text!r:.40}")
    for record in reader.history:
        if isinstance(record.body, Commit) and record.body.version == number:
            return record, record.body
    raise VersionUnknown(number, newest=newest.version)


def _described(reader: BulletinReader, commit: Commit) -> tuple[Layout, Manifest]:
    """Return a version's layout and a manifest that fits it.  Raises RecordInvalid."""
    from skerry.bulletin import keys
    from skerry.bulletin.errors import RecordInvalid

    layout, manifest = reader.layout(commit.layout), reader.manifest(commit.manifest)
    unknown = {stat.name for stat in manifest.tensors} - {spec.name for spec in layout.tensors}
    if unknown:
        rule = f"names tensor {min(unknown)!r:.120}, which the layout lacks"
        raise RecordInvalid(keys.manifest(commit.manifest), rule)
    return layout, manifest


def _values(
    reader: BulletinReader, record: Record, commit: Commit, layout: Layout, manifest: Manifest
) -> dict[str, object]:
    raw = None
    if commit.changed is not None:
        words = {spec.name: spec.type.word for spec in layout.tensors}
        raw = sum(stat.changed * words[stat.name] for stat in manifest.tensors)
    patch = None if commit.base is None else sum(ref.size for ref in commit.packs)
    per_changed = None
    if patch is not None and commit.changed:
        per_changed = (patch + record.size) / commit.changed
    return {
        "version": commit.version,
        "parent": commit.parent,
        "step": commit.step,
        "state": _standing(reader, commit),
        "form": _form(commit),
        "time": moment(record.time),
        "seq": record.seq,
        "epoch": record.epoch,
        "writer": record.writer,
        "signed": record.signature is not None,
        "changed": commit.changed,
        "elements": commit.elements,
        "share": None
        if commit.changed is None
        else commit.changed / commit.elements
        if commit.elements
        else 0.0,
        "raw_bytes": raw,
        "patch_bytes": patch,
        "record_bytes": record.size,
        "full_bytes": layout.nbytes,
        "bytes_per_changed": per_changed,
        "result": commit.result,
        "base": commit.base,
        "layout": commit.layout,
        "manifest": commit.manifest,
        "packs": [ref.key for ref in commit.packs],
        "full": None if commit.full is None else commit.full.prefix,
        "files": [[name, nbytes] for name, nbytes in layout.files()],
        "side_files_changed": list(manifest.side_files),
    }


def _text(name: str, value: object) -> object:
    if isinstance(value, list):
        return ", ".join(map(str, value)) if value else None
    if isinstance(value, int) and name.endswith("_bytes"):
        return size(value)
    if isinstance(value, float):
        return f"{value:.3e}" if name == "share" else f"{value:.2f}"
    return f"{value:,}" if name in ("changed", "elements") and isinstance(value, int) else value


def _tensor_rows(layout: Layout, manifest: Manifest) -> list[dict[str, object]]:
    specs = {spec.name: spec for spec in layout.tensors}
    return [
        {
            "name": stat.name,
            "dtype": specs[stat.name].dtype,
            "shape": list(specs[stat.name].shape),
            "changed": stat.changed,
            "words": stat.words,
            "bytes": stat.nbytes,
        }
        for stat in manifest.tensors
        if stat.changed
    ]


def _form(commit: Commit) -> str:
    if commit.full is None:
        return "patch"
    return "full" if commit.base is None else "full+patch"


def _standing(reader: BulletinReader, commit: Commit) -> str:
    if commit.version in reader.state.retired:
        return "retired"
    return "abandoned" if commit.version in reader.state.abandoned else "live"


def _record_json(record: Record) -> dict[str, object]:
    return {
        "seq": record.seq,
        "epoch": record.epoch,
        "writer": record.writer,
        "kind": record.kind,
        "time_ms": record.time,
        "signed": record.signature is not None,
        "record_bytes": record.size,
        "body": record.body.to_json(),
    }
