"""What comes from outside a group: its configuration, its record on disk, and its messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.codec.digest import digest_bytes
from skerry.codec.errors import FormatError
from skerry.island_agent.errors import MirrorDamaged, SettingsInvalid
from skerry.island_agent.groups.ballots import (
    Ballot,
    Command,
    Record,
    Report,
    Round,
    Served,
    Stage,
    Verb,
)
from skerry.island_agent.groups.book import Book
from skerry.island_agent.groups.messages import (
    MAX_MESSAGE_BYTES,
    command_bytes,
    parse_command,
    parse_report,
    report_bytes,
)
from skerry.island_agent.groups.roster import Roster
from skerry.island_agent.settings import Settings, resolve

ROSTER = digest_bytes(b"roster")
PEERS = ("a=http://10.0.0.1:8000", "b=http://10.0.0.2:8000/")

ballots = st.builds(Ballot, st.integers(0, 2**63 - 1), st.sampled_from(("", "a", "b")))
values = st.none() | st.builds(
    Served, st.integers(0, 2**63 - 1), st.binary(max_size=3).map(digest_bytes)
)
records = st.builds(
    Record,
    promised=ballots,
    accepted=ballots,
    value=values,
    learned=ballots,
    serves=values,
    voted=ballots,
)
rounds = st.none() | st.builds(
    Round,
    ballot=ballots,
    target=values.filter(bool),
    stage=st.sampled_from(Stage),
    reason=st.text(max_size=20),
)


@given(record=records)
def test_a_record_is_read_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, record: Record
) -> None:
    book = Book(tmp_path_factory.getbasetemp(), "g", ROSTER)
    book.write(record)
    assert book.read() == record


def test_a_damaged_record_stops_the_agent_for_it_may_have_been_a_vote(tmp_path: Path) -> None:
    book = Book(tmp_path, "g", ROSTER)
    assert book.read() == Record()
    book.write(Record(voted=Ballot(7, "a")))
    path = tmp_path / "groups" / "g"
    path.write_bytes(path.read_bytes().replace(b'"voted":[7', b'"voted":[0'))
    with pytest.raises(MirrorDamaged, match="no agent of the group runs"):
        book.read()


def test_a_record_of_other_members_is_not_used(tmp_path: Path) -> None:
    Book(tmp_path, "g", ROSTER).write(Record(promised=Ballot(7, "a")))
    assert Book(tmp_path, "g", digest_bytes(b"others")).read() == Record()


@given(record=records, at=rounds, wants=values)
def test_a_report_survives_the_wire(record: Record, at: Round | None, wants: Served | None) -> None:
    report = Report(record=record, round=at, wants=wants)
    assert parse_report(report_bytes(report)) == report


@given(verb=st.sampled_from(Verb), ballot=ballots, value=values)
def test_a_command_survives_the_wire(verb: Verb, ballot: Ballot, value: Served | None) -> None:
    command = Command(verb=verb, ballot=ballot, value=value)
    assert parse_command(command_bytes(command, ROSTER, 1.5)) == (command, ROSTER, 1.5)


@pytest.mark.parametrize(
    "change",
    [
        {"verb": "obey"},
        {"ballot": {"term": -1, "agent": "a"}},
        {"ballot": {"term": 2**63, "agent": "a"}},
        {"ballot": {"term": 1, "agent": "a" * 65}},
        {"value": {"version": 1, "weights": "../etc"}},
        {"value": {"version": "1", "weights": "0" * 64}},
        {"wait_s": 1e9},
        {"wait_s": float("nan")},
        {"more": 1},
    ],
)
def test_a_command_that_breaks_a_rule_is_refused(change: dict[str, object]) -> None:
    sound = json.loads(command_bytes(Command(verb=Verb.LOOK), ROSTER, 0.0))
    with pytest.raises(FormatError):
        parse_command(json.dumps({**sound, **change}).encode())


def test_a_long_message_is_refused_unread() -> None:
    with pytest.raises(FormatError, match="at most"):
        parse_report(b"[" * (MAX_MESSAGE_BYTES + 1))


def test_a_roster_names_the_engines_of_each_agent() -> None:
    roster = Roster.parse(PEERS, ("one=a/x+b/x", "two=b/y+a/y+a/z"))
    assert roster.of("a") == {"one": ("x",), "two": ("y", "z")}
    assert roster.agents["b"] == "http://10.0.0.2:8000"
    moved = Roster.parse(("a=http://c:1", "b=http://d:1"), ("two=a/z+b/y+a/y", "one=a/x+b/x"))
    assert moved.digest == roster.digest
    assert Roster.parse(PEERS, ("one=a/x+b/x",)).digest != roster.digest


@pytest.mark.parametrize(
    ("peers", "groups", "rule"),
    [
        (PEERS, ("one=a/x+c/x",), "'c' is no peer"),
        (PEERS, ("one=a/x", "two=a/x"), "in a group already"),
        (PEERS, ("one=a/x", "one=b/x"), "there twice"),
        (PEERS, ("one=a",), "expected agent/engine"),
        (PEERS, ("../one=a/x",), "expected name=agent/engine"),
        (("a=ftp://h",), ("one=a/x",), "expected http://host:port"),
        ((*PEERS, "a=http://h:1"), ("one=a/x",), "there twice"),
    ],
)
def test_a_roster_that_cannot_be_is_refused(
    peers: tuple[str, ...], groups: tuple[str, ...], rule: str
) -> None:
    with pytest.raises(ValueError, match=rule):
        Roster.parse(peers, groups)


SOUND: dict[str, object] = {
    "bulletin": "runs/7",
    "dir": "d",
    "island": "a",
    "engine": "cpu",
    "peers": PEERS,
    "groups": ("one=a/cpu+b/cpu",),
    "control_token": "t",
}


def test_an_agent_is_in_the_groups_that_name_it() -> None:
    roster = _settings(SOUND).roster()
    assert roster is not None
    assert roster.of("a") == {"one": ("cpu",)}
    alone = {name: value for name, value in SOUND.items() if name not in ("peers", "groups")}
    assert _settings(alone).roster() is None


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"control_token": None}, "the same control_token"),
        ({"island": "c"}, "no group has an engine of this agent"),
        ({"engine": "none"}, "not cpu"),
        (
            {"engine": "sglang", "groups": ("one=a/sglang+b/sglang",), "engine_url": "http://h:1"},
            "cannot take an install back",
        ),
        ({"tensors": ("a.*",)}, "every tensor"),
        ({"groups": None}, "goes with groups"),
        (
            {
                "engine": "vllm",
                "groups": ("one=a/vllm+b/vllm",),
                "group_hold_s": 115.0,
            },
            "below engine_lease_s",
        ),
    ],
)
def test_settings_that_a_group_could_not_live_with_are_refused(
    change: dict[str, object], rule: str
) -> None:
    with pytest.raises(SettingsInvalid, match=rule):
        _settings({**SOUND, **change}).roster()


def _settings(values: dict[str, object]) -> Settings:
    environ = {
        f"SKERRY_AGENT_{name.upper()}": ",".join(value) if isinstance(value, tuple) else str(value)
        for name, value in values.items()
        if value is not None
    }
    return resolve({}, environ)
