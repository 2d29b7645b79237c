"""docs/requests.md is run: its tables of forms, its refusals and its curl commands."""

from __future__ import annotations

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from skerry.inference import errors
from skerry.inference.accepted import AcceptedVersions
from skerry.inference.config import ServerConfig
from skerry.inference.constraint import parse_body, parse_header, parse_request, parse_wait
from skerry.inference.errors import ConstraintInvalid
from skerry.inference.messages import parse_completion

TEXT = (Path(__file__).parents[2] / "docs" / "requests.md").read_text()
NEWEST = 45


def table(after: str) -> list[list[str]]:
    """Return the cells of the first table after a text, without its head."""
    lines = TEXT[TEXT.index(after) :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    return rows


def described(words: str) -> AcceptedVersions:
    """Return what the column "accepts" says in words."""
    text = words.replace(" and later", "..").replace(" to ", "..")
    return parse_header(text).resolve(None)


FORMS = table("<!-- forms")


def test_the_table_of_forms_is_found() -> None:
    assert len(FORMS) == 9


@pytest.mark.parametrize(("form", "header", "body", "accepts"), FORMS)
def test_header_and_body_of_each_form_accept_what_is_said(
    form: str, header: str, body: str, accepts: str
) -> None:
    of_header, of_body = parse_header(header), parse_body(json.loads(body)).constraint
    assert of_header == of_body, form
    assert of_header.resolve(NEWEST).ranges == described(accepts).ranges


@pytest.mark.parametrize(("what", "header", "body"), table("| wait | header"))
def test_waits_of_header_and_body_are_the_same(what: str, header: str, body: str) -> None:
    assert parse_wait(header) == parse_body(json.loads(body)).wait_s, what


@pytest.mark.parametrize(("header", "why"), table("<!-- refused"))
def test_what_is_said_to_be_refused_is_refused(header: str, why: str) -> None:
    assert why
    with pytest.raises(ConstraintInvalid):
        parse_header(header)


def commands() -> list[list[str]]:
    block = TEXT[TEXT.index("<!-- curl") :].split("```")[1]
    return [shlex.split(line) for line in block.splitlines() if line.startswith("curl")]


@pytest.mark.parametrize("command", commands())
def test_each_command_is_a_request_that_the_server_takes(command: list[str]) -> None:
    headers = dict(value.split(": ", 1) for flag, value in pairwise(command) if flag == "-H")
    body = parse_completion(command[command.index("-d") + 1].encode(), ServerConfig())
    asked = parse_request(
        versions=[v for k, v in headers.items() if k == "X-Accept-Weight-Versions"],
        wait=[v for k, v in headers.items() if k == "X-Weight-Version-Wait"],
        body=body.constraints,
        max_wait_s=ServerConfig().max_wait_s,
    )
    assert asked.constraint.resolve(NEWEST).contains(NEWEST - 2)


def test_every_status_of_the_table_has_its_error_in_the_code() -> None:
    named = set(re.findall(r"`(\w+)`", " ".join(row[1] for row in raw_rows("| status |"))))
    assert named
    assert all(hasattr(errors, name) for name in named)


def raw_rows(head: str) -> list[list[str]]:
    lines = TEXT[TEXT.index(head) :].split("\n\n")[0].splitlines()[2:]
    return [line.strip("|").split("|") for line in lines]
