"""The content of a checkpoint: all that a `LogState` knows, as rows of canonical JSON.

Law: `restore(start, summarize(state))` equals `state`, and a state has one spelling.  A version
keeps its row after it was retired: an island that holds it must be recognised, its patch may still
be a way to another version, and collection names its objects.  What can be derived is left out:
a patch's base (its parent's result), download sizes, the digests of skips, what is abandoned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from skerry.bulletin.bodies import download_bytes
from skerry.bulletin.errors import InvalidKey, RecordInvalid
from skerry.bulletin.keys import MAX_EPOCH
from skerry.bulletin.records import Commit, Record, Retire, Skip, parse_writer
from skerry.bulletin.refs import MAX_INT, packs_to_json, parse_full, parse_packs
from skerry.bulletin.state import LogState, Retirement
from skerry.codec.digest import Digest, parse_digest
from skerry.codec.errors import FormatError
from skerry.codec.strict_json import (
    as_int,
    as_list,
    as_object,
    canonical,
    check_fields,
    parse_json,
)

_FIELDS = (
    "seq", "nbytes", "head", "epoch", "writer", "layouts", "commits", "skips", "retirements",
)  # fmt: skip


def summarize(state: LogState) -> bytes:
    """Return what `restore` reads.  Raises ValueError for a log without a record."""
    if state.head is None or state.writer is None:
        raise ValueError("a log without a record has no summary")
    layouts: dict[Digest, int] = {}
    commits = [
        _commit_row(commit, layouts.setdefault(commit.layout, len(layouts)))
        for commit in state.commits.values()
    ]
    return canonical(
        {
            "seq": state.seq,
            "nbytes": state.nbytes,
            "head": state.head,
            "epoch": state.epoch,
            "writer": state.writer,
            "layouts": list(layouts),
            "commits": commits,
            "skips": [
                [skip.base_version, skip.version, packs_to_json(skip.packs)] for skip in state.skips
            ],
            "retirements": [
                [
                    gone.seq,
                    gone.time,
                    gone.body.grace_s,
                    _ranges(gone.body.versions),
                    list(gone.body.keys),
                ]
                for gone in state.retirements
            ],
        }
    )


def restore(start: LogState, data: bytes, *, rotations: Sequence[Record], what: str) -> LogState:
    """Return the state that `data` describes, of the run that `start` has begun to read.

    Raises RecordInvalid, which names `what`.
    """
    try:
        state = _restore(start, data, rotations)
        if summarize(state) != data:
            raise FormatError("not in canonical form")
    except FormatError as error:
        raise RecordInvalid(what, error.rule) from error
    except InvalidKey as error:
        raise RecordInvalid(what, str(error)) from error
    except UnicodeEncodeError as error:
        raise RecordInvalid(what, "holds a lone surrogate") from error
    return state


def _restore(start: LogState, data: bytes, rotations: Sequence[Record]) -> LogState:
    fields = as_object(parse_json(data, "checkpoint"), "checkpoint")
    check_fields(fields, "checkpoint", *_FIELDS)
    seq = as_int(fields["seq"], "seq", 0, MAX_INT)
    epoch = as_int(fields["epoch"], "epoch", 1, MAX_EPOCH)
    layouts = [parse_digest(item) for item in as_list(fields["layouts"], "layouts")]
    commits: list[Commit] = []
    for row in as_list(fields["commits"], "commits"):
        commits.append(_commit(row, commits, layouts))
    skips = [_skip(row, commits) for row in as_list(fields["skips"], "skips")]
    retirements = [
        _retirement(row, len(commits)) for row in as_list(fields["retirements"], "retirements")
    ]
    counted = epoch + len(commits) + len(skips) + len(retirements) + len(rotations)
    if counted != seq + 1:  # every record is a fence or one of these
        raise FormatError(f"checkpoint: sums up {counted} records, slot {seq} is its last")
    if any(b.seq <= a.seq for a, b in pairwise(retirements)):
        raise FormatError("retirements: expected them in the order of their slots")
    return start.restored(
        seq=seq,
        nbytes=as_int(fields["nbytes"], "nbytes", 0, MAX_INT),
        head=parse_digest(fields["head"]),
        epoch=epoch,
        writer=parse_writer(fields["writer"]),
        rotations=rotations,
        commits=commits,
        skips=skips,
        retirements=retirements,
    )


def _commit_row(commit: Commit, layout: int) -> list[object]:
    return [
        commit.parent,
        commit.step,
        layout,
        commit.manifest,
        commit.result,
        None if commit.base is None else packs_to_json(commit.packs),  # None: no patch
        None if commit.full is None else commit.full.to_json(),
        commit.elements,
        commit.changed,
    ]


def _commit(value: object, earlier: Sequence[Commit], layouts: Sequence[Digest]) -> Commit:
    parent, step, layout, manifest, result, packs, full, elements, changed = _items(
        value, "commits", 9
    )
    version = len(earlier)
    if packs is not None and parent is None:
        raise FormatError("commits: a patch needs a parent")
    parent = None if parent is None else as_int(parent, "parent", 0, version - 1)
    refs = () if packs is None else parse_packs(packs, "packs")
    files = None if full is None else parse_full(full, "full")
    base = None if packs is None or parent is None else earlier[parent].result
    elements = as_int(elements, "elements", 0, MAX_INT)
    commit = Commit(
        version=version,
        parent=parent,
        step=as_int(step, "step", 0, MAX_INT),
        layout=layouts[as_int(layout, "layout", 0, len(layouts) - 1)],
        manifest=parse_digest(manifest),
        base=base,
        result=parse_digest(result),
        packs=refs,
        full=files,
        elements=elements,
        changed=None if changed is None else as_int(changed, "changed", 0, elements),
        nbytes=download_bytes(base, refs, files),
    )
    commit.check()
    return commit


def _skip(value: object, commits: Sequence[Commit]) -> Skip:
    base_version, version, packs = _items(value, "skips", 3)
    start = as_int(base_version, "skips", 0, len(commits) - 1)
    end = as_int(version, "skips", 0, len(commits) - 1)
    skip = Skip(
        base_version=start,
        version=end,
        base=commits[start].result,
        result=commits[end].result,
        packs=parse_packs(packs, "skips"),
    )
    skip.check()
    return skip


def _retirement(value: object, versions: int) -> Retirement:
    seq, time, grace_s, ranges, names = _items(value, "retirements", 5)
    body = {"versions": list(_numbers(ranges, versions)), "keys": names, "grace_s": grace_s}
    return Retirement(
        seq=as_int(seq, "seq", 0, MAX_INT),
        time=as_int(time, "time", 0, MAX_INT),
        body=Retire.from_json(body),
    )


def _ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Return ascending numbers as [first, last] of each unbroken run."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges


def _numbers(value: object, limit: int) -> Iterable[int]:
    """Return the numbers that ranges name, all below `limit`, which bounds them before they are."""
    at = 0
    for item in as_list(value, "versions"):
        low, high = _items(item, "versions", 2)
        first = as_int(low, "versions", at, limit - 1)
        at = as_int(high, "versions", first, limit - 1) + 1
        yield from range(first, at)


def _items(value: object, where: str, count: int) -> Sequence[object]:
    items = as_list(value, where)
    if len(items) != count:
        raise FormatError(f"{where}: expected {count} items, found {len(items)}")
    return items
