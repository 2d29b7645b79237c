"""Checkpoints: what they carry is all there is to know, and nobody without the key can make one."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.bulletin import checkpoint, summary
from skerry.bulletin.errors import BulletinError, RecordInvalid, Tampered, UntrustedKey
from skerry.bulletin.lineage import plan
from skerry.bulletin.records import Record, Retire, Rotate
from skerry.bulletin.signing import PublicKey, Signer
from skerry.bulletin.state import LogState
from skerry.codec.compress import compress, decompress
from skerry.codec.digest import digest_bytes
from skerry.codec.errors import LimitExceeded
from skerry.codec.strict_json import canonical
from tests.bulletin import make_checkpoint_vectors
from tests.bulletin.log_builder import OTHER_SIGNER, SIGNER, LogBuilder, digest
from tests.bulletin.make_vectors import signed_log
from tests.bulletin.random_logs import logs

VECTORS = Path(__file__).parents[2] / "tests/vectors/v1/checkpoints"
VECTOR = json.loads((VECTORS / make_checkpoint_vectors.NAME).read_bytes())

SIGNERS = {signer.public_key: signer for signer in (SIGNER, OTHER_SIGNER)}


def signer_of(state: LogState) -> Signer:
    assert state.key is not None
    return SIGNERS[state.key]


def stored(state: LogState) -> bytes:
    return checkpoint.make(state, signer_of(state))


def known(state: LogState) -> dict[str, object]:
    """Return everything that anybody can ask a state."""
    values = {field.name: getattr(state, field.name) for field in fields(state)}
    shown = {name: list(v) if hasattr(v, "append") else v for name, v in values.items()}
    return {**shown, "commits": dict(state.commits)}


def answers(state: LogState) -> list[object]:
    """Return what the planner says for every way that there may be."""
    found: list[object] = []
    for have in (None, *state.commits):
        for want in state.commits:
            for abandoned_too in (False, True):
                try:
                    found.append(plan(state, have=have, want=want, abandoned_too=abandoned_too))
                except BulletinError as error:
                    found.append(str(error))
    return found


@given(logs(signed=True), st.data())
def test_a_state_from_a_checkpoint_is_the_one_read_from_slot_0(
    log: LogBuilder, data: st.DataObject
) -> None:
    at = data.draw(st.integers(1, len(log.slots)))
    state = checkpoint.read(stored(log.states[at]), log.states[1], seq=at - 1)
    assert known(state) == known(log.states[at])
    for slot, later in zip(log.slots[at:], log.states[at + 1 :], strict=True):
        state = state.apply(slot)
        assert known(state) == known(later)
    assert answers(state) == answers(log.state)


@given(logs(), st.data())
def test_a_summary_has_one_spelling_and_loses_nothing(log: LogBuilder, data: st.DataObject) -> None:
    at = data.draw(st.integers(1, len(log.slots)))
    state = log.states[at]
    text = summary.summarize(state)
    restored = summary.restore(
        log.states[1], text, rotations=tuple(state.rotations), what="checkpoint"
    )
    assert known(restored) == known(state)
    assert summary.summarize(restored) == text == canonical(json.loads(text))


@given(logs(signed=True))
def test_a_restored_state_refuses_what_the_whole_log_refuses(log: LogBuilder) -> None:
    state = checkpoint.read(stored(log.state), log.states[1], seq=log.state.seq)
    gone = [commit for v, commit in log.state.commits.items() if v in log.state.retired]
    bodies: list[Any] = [log.patch(parent=commit.version) for commit in gone]
    if log.state.newest is not None:
        bodies.append(log.patch(parent=log.state.newest.version, base=digest("other")))
        bodies.append(Retire(versions=(log.state.newest.version,), keys=(), grace_s=0))
    for body in bodies:
        record = log.next(body, writer=log.state.writer)
        with pytest.raises(BulletinError) as expected:
            log.state.apply(record)
        with pytest.raises(type(expected.value)) as found:
            state.apply(record)
        assert str(found.value) == str(expected.value)


def rotated() -> LogBuilder:
    log = LogBuilder.with_versions(3)
    log.append(Rotate(key=OTHER_SIGNER.public_key))
    log.signer = OTHER_SIGNER
    log.append(log.patch(parent=1))
    return log


def test_every_flipped_byte_of_a_checkpoint_is_refused() -> None:
    log = rotated()
    data = stored(log.state)
    checkpoint.read(data, log.states[1], seq=5)
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        with pytest.raises((RecordInvalid, Tampered)):
            checkpoint.read(bytes(flipped), log.states[1], seq=5)


def test_every_cut_of_a_checkpoint_and_anything_after_it_is_refused() -> None:
    log = rotated()
    data = stored(log.state)
    for cut in (*range(0, len(data), 7), len(data) - 1):
        with pytest.raises((RecordInvalid, Tampered)):
            checkpoint.read(data[:cut], log.states[1], seq=5)
    for more in (b"\0", compress(b"{}")):
        with pytest.raises(Tampered, match="summary"):
            checkpoint.read(data + more, log.states[1], seq=5)


def forged(
    state: LogState, signer: Signer, change: Callable[[dict[str, Any]], None] = lambda _: None
) -> bytes:
    """Return a checkpoint whose header somebody has changed and signed."""
    header, _, frame = stored(state).partition(b"\n")
    values = json.loads(header)
    change(values)
    del values["sig"]
    return canonical({**values, "sig": signer.sign(canonical(values))}) + b"\n" + frame


def test_a_checkpoint_by_any_other_key_is_refused() -> None:
    log = rotated()
    stranger = Signer.from_seed(b"\x03" * 32)

    def without_rotations(values: dict[str, Any]) -> None:
        values["rotations"] = []

    def by_stranger(values: dict[str, Any]) -> None:
        record = Record.from_json(values["rotations"][0])
        changed = log.record(Rotate(key=stranger.public_key), seq=record.seq)
        values["rotations"].append(changed.signed(stranger).to_json() | {"seq": record.seq + 1})

    for attempt in (
        forged(log.state, stranger),
        forged(log.state, SIGNER),  # the old key vouches for nothing after its rotation
        forged(log.state, OTHER_SIGNER, without_rotations),
        forged(log.state, stranger, by_stranger),
    ):
        with pytest.raises(Tampered):
            checkpoint.read(attempt, log.states[1], seq=5)
    pinned = LogState(pinned_key=SIGNER.public_key).apply(log.slots[0])
    assert checkpoint.read(stored(log.state), pinned, seq=5).key == OTHER_SIGNER.public_key


def test_a_checkpoint_of_another_run_or_slot_is_refused() -> None:
    log, other = LogBuilder.with_versions(3), LogBuilder(signer=SIGNER)
    other.append(other.fence(), nonce="f" * 32)
    with pytest.raises(Tampered, match="run"):
        checkpoint.read(stored(log.state), other.state, seq=3)
    with pytest.raises(RecordInvalid, match="is one of slot 3"):
        checkpoint.read(stored(log.state), log.states[1], seq=2)

    def moved(values: dict[str, Any]) -> None:
        values["seq"] = 9

    with pytest.raises(RecordInvalid, match="sums up the log to slot 3"):
        checkpoint.read(forged(log.state, SIGNER, moved), log.states[1], seq=9)


def test_rotations_must_be_signed_rotations_in_order() -> None:
    log = rotated()

    def doubled(values: dict[str, Any]) -> None:
        values["rotations"] *= 2

    def another_record(values: dict[str, Any]) -> None:
        values["rotations"] = [log.records[2].to_json()]

    def unsigned(values: dict[str, Any]) -> None:
        values["rotations"][0]["sig"] = None

    for change in (doubled, another_record, unsigned):
        with pytest.raises((Tampered, RecordInvalid), match="rotations"):
            checkpoint.read(forged(log.state, OTHER_SIGNER, change), log.states[1], seq=5)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("format", lambda values: values.update(format=2)),
        ("extra", lambda values: values.update(extra=1)),
        ("digest", lambda values: values.update(summary="0" * 63)),
        ("seq", lambda values: values.update(seq=-1)),
    ],
)
def test_a_header_is_parsed_strictly(name: str, change: Callable[[dict[str, Any]], None]) -> None:
    log = LogBuilder.with_versions(1)
    with pytest.raises(RecordInvalid, match=name):
        checkpoint.read(forged(log.state, SIGNER, change), log.states[1], seq=1)
    header, _, frame = stored(log.state).partition(b"\n")
    spaced = header.replace(b",", b", ", 1) + b"\n" + frame
    with pytest.raises(RecordInvalid, match="canonical"):
        checkpoint.read(spaced, log.states[1], seq=1)


def resigned(log: LogBuilder, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return a checkpoint whose summary was changed by the key's owner."""
    _, _, frame = stored(log.state).partition(b"\n")
    values = json.loads(decompress(frame, 1 << 20))
    change(values)
    content = compress(canonical(values))
    header, _, _ = forged(
        log.state, SIGNER, lambda header: header.update(summary=digest_bytes(content))
    ).partition(b"\n")
    return header + b"\n" + content


def edits(values: dict[str, Any]) -> dict[str, Callable[[], object]]:
    rows, gone = values["commits"], values["retirements"]
    return {
        "parent": lambda: rows[1].__setitem__(0, 1),
        "a patch needs a parent": lambda: rows[1].__setitem__(0, None),
        "layout": lambda: rows[1].__setitem__(2, 1),
        "expected a patch": lambda: rows[0].__setitem__(6, None),
        "expected 9 items": lambda: rows[0].append(1),
        "sums up 6 records": lambda: values.update(epoch=1),
        "sums up 8 records": lambda: values["skips"].append(values["skips"][0]),
        "versions": lambda: gone[0].__setitem__(3, [[1, 9]]),
        "canonical": lambda: gone[0].__setitem__(3, [[0, 0], [1, 1]]),
        "skips": lambda: values["skips"][0].__setitem__(1, 9),
        "two different versions": lambda: values["skips"][0].__setitem__(1, 0),
        "writer": lambda: values.update(writer="a b"),
        "order of their slots": lambda: values.update(retirements=gone * 2, epoch=1),
        "fields": lambda: values.update(abandoned=[]),
    }


@pytest.mark.parametrize("rule", edits({"commits": [], "retirements": []}))
def test_a_summary_is_parsed_strictly_even_when_it_is_signed(rule: str) -> None:
    log = LogBuilder.with_versions(3)
    log.append(log.skip(0, 2))
    log.append(Retire(versions=(0, 1), keys=(), grace_s=5))
    log.append(log.fence())

    def change(values: dict[str, Any]) -> None:
        edits(values)[rule]()

    with pytest.raises(RecordInvalid, match=rule):
        checkpoint.read(resigned(log, change), log.states[1], seq=log.state.seq)


def test_two_zstd_frames_a_bomb_and_a_long_header_are_refused_before_they_cost() -> None:
    log = LogBuilder.with_versions(1)

    def with_frame(frame: bytes) -> bytes:
        header, _, _ = forged(
            log.state, SIGNER, lambda header: header.update(summary=digest_bytes(frame))
        ).partition(b"\n")
        return header + b"\n" + frame

    _, _, frame = stored(log.state).partition(b"\n")
    content = decompress(frame, 1 << 20)
    two = compress(content[:1000]) + compress(content[1000:])
    with pytest.raises(RecordInvalid, match="follow the zstd frame"):
        checkpoint.read(with_frame(two), log.states[1], seq=1)
    huge = compress(bytes(checkpoint.SUMMARY_LIMIT_BYTES + 1))
    with pytest.raises(RecordInvalid, match="the limit is"):
        checkpoint.read(with_frame(huge), log.states[1], seq=1)
    with pytest.raises(RecordInvalid, match="header"):
        checkpoint.read(b"{" * (2 << 20) + b"\n", log.states[1], seq=1)
    for junk in (b"", b"\n", b"[]\n", b"{}\n", b'{"a":"\\ud800"}\n', b"[" * 100_000 + b"\n"):
        with pytest.raises(RecordInvalid):
            checkpoint.read(junk, log.states[1], seq=1)


def test_an_unsigned_run_has_no_checkpoint() -> None:
    log = LogBuilder.with_versions(1, signer=None)
    with pytest.raises(ValueError, match="signed with None"):
        checkpoint.make(log.state, SIGNER)
    signed = stored(LogBuilder.with_versions(1).state)
    with pytest.raises(Tampered):
        checkpoint.read(signed, log.states[1], seq=1)
    unsigned = json.loads(signed.partition(b"\n")[0]) | {"run": log.state.run}
    with pytest.raises(UntrustedKey, match="signed run"):
        checkpoint.read(canonical(unsigned) + b"\n", log.states[1], seq=1)


def test_a_checkpoint_is_made_with_the_runs_own_key_and_within_its_limit() -> None:
    log = LogBuilder.with_versions(1)
    with pytest.raises(ValueError, match="not with"):
        checkpoint.make(log.state, OTHER_SIGNER)
    with pytest.raises(ValueError, match="without a record"):
        summary.summarize(LogState())
    size = len(stored(log.state))
    assert len(checkpoint.make(log.state, SIGNER, limit_bytes=size)) == size
    with pytest.raises(LimitExceeded, match="too long a log"):
        checkpoint.make(log.state, SIGNER, limit_bytes=size - 1)


def test_the_golden_checkpoint_gives_the_state_of_the_golden_log() -> None:
    log = signed_log()
    pinned = LogState(pinned_key=PublicKey.parse(VECTOR["first_key"])).apply(log.slots[0])
    stored_form = base64.b64decode(VECTOR["stored_base64"])
    state = checkpoint.read(stored_form, pinned, seq=VECTOR["seq"])
    assert known(state) == {**known(log.state), "pinned_key": pinned.pinned_key}
    header, _, frame = stored_form.partition(b"\n")
    assert header.decode() == VECTOR["header"]
    assert decompress(frame, 1 << 20).decode() == VECTOR["summary"]


def test_todays_code_writes_the_golden_summary() -> None:
    today = make_checkpoint_vectors.vector()
    assert today["summary"] == VECTOR["summary"]
    # Another zstd may pack the same summary into other bytes; the rest of the header is the same.
    for header in (str(today["header"]), VECTOR["header"]):
        values = json.loads(header)
        assert values.pop("sig") != values.pop("summary")
        assert values == {
            "format": 1,
            "run": signed_log().state.run,
            "seq": 9,
            "rotations": [record.to_json() for record in signed_log().state.rotations],
        }


def test_the_generator_refuses_to_overwrite(tmp_path: Path) -> None:
    module = "tests.bulletin.make_checkpoint_vectors"
    command = [sys.executable, "-m", module, str(tmp_path)]
    root = VECTORS.parents[3]
    subprocess.run(command, cwd=root, check=True, timeout=60)
    again = subprocess.run(command, cwd=root, check=False, capture_output=True, timeout=60)
    assert again.returncode != 0
    assert b"FileExistsError" in again.stderr
