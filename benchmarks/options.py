"""Options that several benchmarks have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

N = TypeVar("N", int, float)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Save = Annotated[
    Path | None, typer.Option(dir_okay=False, metavar="FILE", help="Write the result there.")
]


def numbers(text: str, kind: Callable[[str], N], option: str) -> list[N]:
    """Parse a list with commas; every number is above 0.  Raises BadParameter."""
    try:
        values = [kind(part) for part in text.split(",")]
    except ValueError as error:
        rule = f"expected numbers and commas: {text}"
        raise typer.BadParameter(rule, param_hint=option) from error
    if min(values) <= 0:
        raise typer.BadParameter("every number must be above 0", param_hint=option)
    return values
