"""`skerry gc`: retire what the rules do not keep, and delete what was retired long enough ago."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli.options import BulletinArgument, JsonOption, open_reader
from skerry.cli.output import print_fields, print_json, progress_bar, size

if TYPE_CHECKING:
    from skerry.bulletin.retention import Selection
    from skerry.publisher.survey import RetentionPolicy, Survey

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LOOK_S = 1.0


def parse_duration(text: str) -> int:
    """Return the seconds in `90s`, `15m`, `6h` or `7d`."""
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if match is None:
        raise typer.BadParameter(f"expected a number and s, m, h or d, as in 7d; found {text!r}")
    return int(match[1]) * _UNITS[match[2]]


def _duration(text: str, name: str, help_text: str) -> typer.models.OptionInfo:
    info: typer.models.OptionInfo = typer.Option(
        name, metavar=text, parser=parse_duration, help=help_text
    )
    return info


def gc(
    bulletin: BulletinArgument,
    keep_last: Annotated[
        int, typer.Option(min=1, metavar="N", help="Keep the N newest versions.")
    ] = 32,
    keep_every: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="K", show_default=False, help="Keep every version that K divides."
        ),
    ] = None,
    pin: Annotated[
        list[int] | None,
        typer.Option(metavar="V", show_default=False, help="Keep version V; may be repeated."),
    ] = None,
    older_than: Annotated[
        int | None,
        _duration("TIME", "--older-than", "Retire nothing that is younger: 90s, 15m, 6h, 7d."),
    ] = None,
    grace: Annotated[
        int, _duration("TIME", "--grace", "How long what is retired is still there.")
    ] = "1h",  # type: ignore[assignment]  # parsed like what is typed
    lease_limit: Annotated[
        int,
        _duration("TIME", "--lease-limit", "How much longer an island's lease may hold it."),
    ] = "6h",  # type: ignore[assignment]
    wait: Annotated[
        bool, typer.Option("--wait", help="Stay until the grace has passed, and delete.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; say what would go.")
    ] = False,
    sign: Annotated[
        Path | None,
        typer.Option(metavar="KEY", help="The run's private key; needed if it is signed."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Collect a run: retire versions, and delete objects whose grace has passed.

    It takes the run over, so a publisher that is running is fenced off: give that one an upkeep
    policy instead.  What is retired now is deleted by the next run after the grace, or with --wait
    by this one.
    """
    from skerry.bulletin.retention import KeepRules
    from skerry.bulletin.signing import Signer
    from skerry.bulletin.stores import open_store
    from skerry.bulletin.writer import BulletinWriter
    from skerry.publisher.collect import Collector
    from skerry.publisher.survey import RetentionPolicy

    policy = RetentionPolicy(
        rules=KeepRules(
            last=keep_last, every=keep_every, pinned=frozenset(pin or ()), newer_than_s=older_than
        ),
        grace_s=grace,
        lease_limit_s=lease_limit,
    )
    if dry_run:
        chosen, found = _look(bulletin, policy)
        _print(chosen, found, grace, dry_run=True, as_json=as_json)
        return
    open_reader(bulletin)  # a place without a run is no run to open
    writer = BulletinWriter.open(
        open_store(bulletin),
        signer=None if sign is None else Signer.load(sign),
        writer="skerry-gc",
    )
    collector = Collector(writer, policy)
    with progress_bar() as progress:
        chosen = collector.retire()
        found = collector.sweep(progress)
        end = time.monotonic() + grace + lease_limit
        while wait and found.waiting and time.monotonic() <= end + _LOOK_S:
            time.sleep(_LOOK_S)
            found = found.then(collector.sweep(progress))
    _print(chosen, found, grace, dry_run=False, as_json=as_json)


def _look(bulletin: str, policy: RetentionPolicy) -> tuple[Selection, Survey]:
    """Say what a collection would do now, without taking the run."""
    from skerry.bulletin.retention import select
    from skerry.bulletin.writer import now_ms
    from skerry.publisher.survey import CommitTimes, Grace, judge, survey

    reader = open_reader(bulletin)
    state, store = reader.state, reader.store
    times = {} if policy.rules.newer_than_s is None else CommitTimes(store, state).read()
    grace = Grace(skew_s=policy.skew_s, begin=state.seq)
    sweep = judge(state, store, policy, epoch=state.epoch + 1, grace=grace, now_ms=now_ms())
    chosen = select(state, policy.rules, now_ms=now_ms(), times=times)
    return chosen, survey(state, store, sweep)


def _print(chosen: Selection, found: Survey, grace_s: int, *, dry_run: bool, as_json: bool) -> None:
    retired = {"versions": list(chosen.versions), "objects": len(chosen.keys)}
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "kept": sorted(chosen.kept),
                "retired": {**retired, "bytes": chosen.nbytes, "grace_s": grace_s},
                "deleted": {
                    "objects": found.count,
                    "orphans": found.orphans,
                    "bytes": found.nbytes,
                },
                "waiting": found.waiting,
            }
        )
        return
    would = "would be " if dry_run else ""
    print_fields(
        [
            ("kept", f"{len(chosen.kept)} versions"),
            (
                f"{would}retired",
                (
                    f"{len(chosen.versions)} versions, {len(chosen.keys)} objects, "
                    f"{size(chosen.nbytes)}, gone in {grace_s} s at the earliest"
                ),
            ),
            (
                f"{would}deleted",
                f"{found.count} objects ({found.orphans} of no record), {size(found.nbytes)}",
            ),
            ("waiting", f"{found.waiting} objects, for their grace or a lease"),
        ]
    )
