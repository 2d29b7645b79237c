"""`skerry diff --exact`: the words that differ between versions, counted here or by an agent."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from skerry.cli.output import print_fields, print_json, print_table, progress_bar, share, size

if TYPE_CHECKING:
    from skerry.bulletin.inspection.view import View
    from skerry.bulletin.reader import BulletinReader
    from skerry.island_agent.exact import ExactDifference
    from skerry.publisher.progress import Progress

_SILENT_S = 60.0  # an agent says something every second
_SHOWN = 20  # tensors printed for people; JSON has all of them

AgentOption = Annotated[
    str | None,
    typer.Option(
        "--agent",
        metavar="URL",
        show_default=False,
        help="With --exact: have this agent of the run do it; http://host:port.",
    ),
]
ControlTokenOption = Annotated[
    Path | None,
    typer.Option(
        "--control-token-file",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        show_default=False,
        help="The agent's control token; else SKERRY_AGENT_CONTROL_TOKEN.",
    ),
]


def compare_exactly(
    bulletin: str,
    old: str,
    new: str,
    key: str | None,
    agent: str | None,
    token_file: Path | None,
    threads: int | None,
    *,
    as_json: bool,
) -> None:
    from dataclasses import asdict

    from skerry.bulletin.inspection.difference import difference
    from skerry.cli.inspect import open_view, parse_version

    reader, view = open_view(bulletin, key)
    start, end = parse_version(view, old), parse_version(view, new)
    with progress_bar() as progress:
        if agent is None:
            found = _here(reader, start, end, threads, progress)
        else:
            found = _by_agent(view, agent, _token(token_file), start, end, progress)
    bound = difference(view, start, end)
    if as_json:
        whole = {**asdict(found), "share": found.share}
        print_json({**whole, "agent": agent, "at_most": bound.at_most})
        return
    print_fields(
        [
            ("old", start),
            ("new", end),
            ("changed", f"exactly {share(found.changed, found.elements)}"),
            ("by the statistics", f"at most {share(bound.at_most, bound.elements)}"),
            ("tensors changed", len(found.tensors)),
            ("only in the old one", ", ".join(found.only_old) or None),
            ("only in the new one", ", ".join(found.only_new) or None),
            ("worked out", "here" if agent is None else f"by {agent}"),
            ("fetched", size(found.fetched_bytes)),
        ]
    )
    rows = [(t.name, share(t.changed, t.elements)) for t in found.tensors[:_SHOWN]]
    if rows:
        typer.echo()
        print_table(["tensor", "changed"], rows)
    if len(found.tensors) > _SHOWN:
        typer.echo(f"and {len(found.tensors) - _SHOWN} tensors more")


def _here(
    reader: BulletinReader, old: int, new: int, threads: int | None, progress: Progress
) -> ExactDifference:
    from skerry.island_agent.exact import exact_difference
    from skerry.publisher.threads import thread_count

    with TemporaryDirectory(prefix="skerry-diff-") as scratch:
        return exact_difference(
            reader, old, new, Path(scratch), threads=thread_count(threads), progress=progress
        )


def _by_agent(
    view: View, agent: str, token: str, old: int, new: int, progress: Progress
) -> ExactDifference:
    """Ask an agent, and check that it speaks of this run.  Raises CommandError."""
    from skerry.cli.failures import CommandError

    last: Mapping[str, Any] = {}
    with _asked(agent, f"/control/difference?old={old}&new={new}", token) as lines:
        for last in lines:
            if "phase" in last:
                progress(str(last["phase"]), int(last["done_bytes"]), int(last["total_bytes"]))
        found = _parsed(last["difference"]) if last.get("done") else None
    if found is None:
        stopped = last.get("stopped_by", {"type": "cut off", "message": "it left in between"})
        message = f"{agent}: {stopped['type']}: {stopped['message']}"
        raise CommandError(message, acts=str(stopped.get("acts", "whoever runs that agent")))
    state = view.state
    ends = tuple(state.commits[version].result for version in (old, new))
    if last.get("run") != state.run or (found.old_weights, found.new_weights) != ends:
        message = f"{agent}: expected versions of run {state.run}, found those of another"
        raise CommandError(message, acts="you: name an agent of this run")
    return found


def _parsed(value: Mapping[str, Any]) -> ExactDifference:
    """Raises ValueError, TypeError or KeyError for what is none."""
    from skerry.codec.digest import parse_digest
    from skerry.island_agent.exact import ExactDifference, ExactTensor

    tensors = [
        ExactTensor(
            name=str(one["name"]), elements=int(one["elements"]), changed=int(one["changed"])
        )
        for one in value["tensors"]
    ]
    return ExactDifference(
        old=int(value["old"]),
        new=int(value["new"]),
        old_weights=parse_digest(value["old_weights"]),
        new_weights=parse_digest(value["new_weights"]),
        changed=int(value["changed"]),
        elements=int(value["elements"]),
        tensors=tuple(tensors),
        only_old=tuple(map(str, value["only_old"])),
        only_new=tuple(map(str, value["only_new"])),
        fetched_bytes=int(value["fetched_bytes"]),
        from_mirror=bool(value["from_mirror"]),
    )


@contextmanager
def _asked(agent: str, path: str, token: str) -> Iterator[Iterator[Mapping[str, Any]]]:
    """Ask an agent and give the lines of its answer.  Raises CommandError."""
    from skerry.cli.failures import TROUBLE, CommandError
    from skerry.codec.errors import FormatError

    parts = urlsplit(agent)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
        raise typer.BadParameter(f"expected http://host:port, found {agent!r:.80}")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=_SILENT_S)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise CommandError(
                f"{agent}: {answer.status} {_said(answer.read(4096))}",
                acts="you: the token, the versions, or later",
            )
        yield (json.loads(line) for line in answer if line.strip())
    except (ValueError, TypeError, KeyError, AttributeError, FormatError) as problem:
        message = f"{agent}: not the answer of an agent: {problem!r:.200}"
        raise CommandError(message, acts="you: check the address") from problem
    except (OSError, http.client.HTTPException) as problem:
        message = f"{agent}: {problem}"
        raise CommandError(message, acts="whoever runs that agent", exit_code=TROUBLE) from problem
    finally:
        connection.close()


def _said(body: bytes) -> str:
    try:
        problem = json.loads(body)["error"]
        return f"{problem['type']}: {problem['message']}"
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")


def _token(file: Path | None) -> str:
    """Return the control token.  Raises typer.BadParameter."""
    text = os.environ.get("SKERRY_AGENT_CONTROL_TOKEN", "") if file is None else file.read_text()
    words = text.split()
    if len(words) != 1 or not words[0].isascii():
        raise typer.BadParameter(
            "expected one word of ASCII in --control-token-file or SKERRY_AGENT_CONTROL_TOKEN"
        )
    return words[0]
