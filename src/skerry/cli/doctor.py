"""`skerry doctor`: is this place fit for a run, and is the run there well?"""

from __future__ import annotations

from typing import Annotated

import typer

from skerry.cli.options import BulletinArgument, JsonOption, KeyOption, parse_key
from skerry.cli.output import print_json, print_table


def doctor(
    bulletin: BulletinArgument,
    key: KeyOption = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Write nothing; ask only what reading answers.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Try out a store, and look at the run in it.

    Writes scratch objects below hint/ and deletes them; nothing of the run is changed. Exit code 1
    when a check has failed.
    """
    from skerry.bulletin.doctor import Doctor, Verdict
    from skerry.bulletin.stores import open_store
    from skerry.bulletin.writer import DEFAULT_PATIENCE, new_nonce, now_ms

    examined = Doctor(
        store=open_store(bulletin),
        pinned_key=parse_key(key),
        read_only=read_only,
        nonce=new_nonce,
        now=now_ms,
        patience=DEFAULT_PATIENCE,
    ).examine()
    checks = list(examined)
    well = all(check.verdict is not Verdict.FAILED for check in checks)
    if as_json:
        shown = [
            {"check": check.name, "verdict": check.verdict, "detail": check.detail}
            for check in checks
        ]
        print_json({"ok": well, "checks": shown})
    else:
        print_table(
            ["check", "verdict", "detail"],
            [(check.name, check.verdict, check.detail) for check in checks],
        )
    if not well:
        raise typer.Exit(1)
