"""Constraints: what they mean against a model of plain sets, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.inference.accepted import ANY, AcceptedVersions, Constraint, Preference, VersionRange
from skerry.inference.constraint import (
    MAX_RANGES,
    MAX_VERSION,
    RequestedVersions,
    parse_body,
    parse_header,
    parse_request,
    parse_wait,
)
from skerry.inference.errors import ConstraintInvalid, EngineUnavailable

WORLD = range(24)  # every version of the model; open ends reach beyond it
numbers = st.integers(0, 20)
preferences: st.SearchStrategy[Preference] = st.one_of(
    st.sampled_from(["newest", "oldest"]), numbers
)


@st.composite
def ranges(draw: st.DrawFn) -> VersionRange:
    start = draw(numbers)
    return VersionRange(start, draw(st.none() | st.integers(start, 22)))


def written(r: VersionRange, lag: bool) -> str:
    return f"latest-{r.start}.." if lag else str(r)


members = st.lists(st.tuples(ranges(), st.booleans()), min_size=1, max_size=6)
huge = st.integers(0, MAX_VERSION)


def model(items: list[tuple[VersionRange, bool]], newest: int) -> set[int]:
    """Return the meaning as a set: no merging, no sorting, no ranges."""
    accepted: set[int] = set()
    for r, lag in items:
        start = max(newest - r.start, 0) if lag else r.start
        end = WORLD.stop if lag or r.end is None else r.end + 1
        accepted |= set(range(start, end))
    return accepted


@given(members, preferences)
def test_round_trips_through_the_header(
    items: list[tuple[VersionRange, bool]], prefer: Preference
) -> None:
    c = parse_header(",".join(written(*i) for i in items) + f";prefer={prefer}")
    assert parse_header(str(c)) == c
    assert c.prefer == prefer


@given(st.lists(st.tuples(huge, huge), min_size=1, max_size=MAX_RANGES))
def test_the_longest_constraints_round_trip_too(ends: list[tuple[int, int]]) -> None:
    c = parse_header(",".join(f"{min(e)}..{max(e)}" for e in ends))
    assert parse_header(str(c)) == c


@given(members, preferences, numbers)
def test_a_resolved_constraint_round_trips(
    items: list[tuple[VersionRange, bool]], prefer: Preference, newest: int
) -> None:
    text = ",".join(written(*i) for i in items) + f";prefer={prefer}"
    accepted = parse_header(text).resolve(newest)
    assert parse_header(str(accepted)).resolve(None) == accepted


@given(members, numbers)
def test_means_the_set_that_the_model_means(
    items: list[tuple[VersionRange, bool]], newest: int
) -> None:
    accepted = parse_header(", ".join(written(*i) for i in items)).resolve(newest)
    assert {v for v in WORLD if accepted.contains(v)} == model(items, newest)
    assert all(
        a.end is not None and a.end + 1 < b.start
        for a, b in zip(accepted.ranges, accepted.ranges[1:], strict=False)
    )


@given(members, preferences, numbers, st.sets(st.sampled_from(WORLD)))
def test_chooses_as_the_model_chooses(
    items: list[tuple[VersionRange, bool]], prefer: Preference, newest: int, served: set[int]
) -> None:
    text = ",".join(written(*i) for i in items) + f";prefer={prefer}"
    fitting = sorted(model(items, newest) & served)
    expected: int | None = None
    if fitting:
        expected = fitting[0] if prefer == "oldest" else fitting[-1]
        expected = int(prefer) if prefer in fitting else expected
    assert parse_header(text).resolve(newest).choose(served) == expected


@given(members, numbers, st.integers(-1, 23), st.frozensets(st.sampled_from(WORLD)))
def test_has_any_as_the_model_has(
    items: list[tuple[VersionRange, bool]], newest: int, above: int, excluded: frozenset[int]
) -> None:
    accepted = parse_header(",".join(written(*i) for i in items)).resolve(newest)
    beyond = accepted.contains(MAX_VERSION)  # an open end has members above any finite world
    expected = beyond or any(v > above and v not in excluded for v in model(items, newest))
    assert accepted.has_any(above=above, excluded=excluded) == expected


@given(st.lists(ranges().filter(lambda r: r.end is not None), min_size=1, max_size=6), preferences)
def test_header_and_body_that_mean_the_same_are_equal(
    items: list[VersionRange], prefer: Preference
) -> None:
    header = ",".join(map(str, items)) + f";prefer={prefer}"
    body: dict[str, object] = {
        "any_of": [r.start if r.start == r.end else [r.start, r.end] for r in items],
        "prefer": prefer,
    }
    assert parse_header(header) == parse_body(body).constraint
    both = parse_request(versions=[header], body=[body], max_wait_s=1)
    assert both.constraint == parse_header(header)


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ("41..45", {"min_version": 41, "max_version": 45}),
        ("41..", {"min_version": 41}),
        ("..45", {"max_version": 45}),
        ("43", {"exact_version": 43}),
        ("41,43..45", {"any_of": [41, [43, 45]]}),
        ("latest-2..", {"max_lag": 2}),
        ("41..;prefer=oldest", {"min_version": 41, "prefer": "oldest"}),
        ("0..;prefer=44", {"prefer": 44}),
        (" 41 , 43..45 ; prefer=newest", {"any_of": [[43, 45], 41]}),
    ],
)
def test_each_form_is_written_in_both_places(header: str, body: object) -> None:
    assert parse_header(header) == parse_body(body).constraint


def test_no_constraint_is_any_version() -> None:
    assert parse_request(max_wait_s=1) == RequestedVersions(constraint=ANY, wait_s=None)
    waiting = parse_request(wait=["0.5s"], max_wait_s=1)
    assert waiting == RequestedVersions(constraint=ANY, wait_s=0.5)
    assert parse_body({"wait_s": 3}) == RequestedVersions(constraint=ANY, wait_s=3.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ",",
        "41,",
        ",41",
        "..",
        "7..6",
        "41,7..6",
        "-1",
        "-1..4",
        "1..x",
        "x",
        "041",
        "4 1",
        "41...45",
        "41..45..47",
        "41-45",
        "0x29",
        "٤١",
        "4_1",
        "4.0",
        "+41",
        "1e3",
        str(MAX_VERSION + 1),
        "9" * 400,
        "latest",
        "latest-2",
        "..latest-2",
        "latest-..",
        "latest--2..",
        "latest-2..45",
        "Latest-2..",
        "any",
        "*",
        "41;",
        "41;prefer",
        "41;prefer=",
        "41;prefer=best",
        "41;prefer=-1",
        "41;Prefer=newest",
        "41;prefer=newest;prefer=oldest",
        f"41;prefer={MAX_VERSION + 1}",
        ";prefer=oldest",
        "41;q=1",
        "41\n",
        "41..\u00a045",
        ",".join(["1"] * (MAX_RANGES + 1)),
        "1," * 5000,
    ],
)
def test_a_malformed_header_is_refused(text: str) -> None:
    with pytest.raises(ConstraintInvalid, match=r"expected .* found"):
        parse_header(text)


@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        [],
        "41..45",
        41,
        {"min": 41},
        {"min_version": None},
        {"min_version": True},
        {"min_version": "41"},
        {"min_version": 41.0},
        {"min_version": -1},
        {"min_version": MAX_VERSION + 1},
        {"min_version": 7, "max_version": 6},
        {"min_version": 41, "exact_version": 43},
        {"exact_version": 43, "any_of": [43]},
        {"max_lag": 2, "min_version": 1},
        {"max_lag": -1},
        {"any_of": []},
        {"any_of": 41},
        {"any_of": {"41": 45}},
        {"any_of": [[41]]},
        {"any_of": [[41, 42, 43]]},
        {"any_of": [[45, 41]]},
        {"any_of": [[41, None]]},
        {"any_of": [[[41, 42], 43]]},
        {"any_of": [1] * (MAX_RANGES + 1)},
        {"prefer": "best"},
        {"prefer": None},
        {"prefer": "44"},
        {"exact_version": 43, "wait_s": -1},
        {"exact_version": 43, "wait_s": "5s"},
        {"exact_version": 43, "wait_s": True},
        {"exact_version": 43, "wait_s": float("nan")},
        {"exact_version": 43, "wait_s": float("inf")},
        {"exact_version": 43, "wait_s": 10**400},
    ],
)
def test_a_malformed_body_is_refused(body: object) -> None:
    with pytest.raises(ConstraintInvalid, match=r"expected .* found"):
        parse_body(body)


@pytest.mark.parametrize("text", ["", "5", "s", "5 s", "-1s", "5m", "5.s", ".5s", "05s", "5.0001s"])
def test_a_malformed_wait_is_refused(text: str) -> None:
    with pytest.raises(ConstraintInvalid):
        parse_wait(text)


def test_a_wait_beyond_the_cap_is_refused_not_cut() -> None:
    assert parse_request(wait=["5s"], max_wait_s=5).wait_s == 5
    for arguments in ({"wait": ["5.001s"]}, {"body": [{"wait_s": 5.001}]}):
        with pytest.raises(ConstraintInvalid, match="at most 5 s"):
            parse_request(**arguments, max_wait_s=5)


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ("41..45", {"min_version": 41, "max_version": 46}),
        ("41..", {"min_version": 41, "prefer": "oldest"}),
        ("latest-2..", {"min_version": 43}),
        ("41..", {"prefer": "oldest"}),
    ],
)
def test_header_and_body_that_differ_are_refused(header: str, body: object) -> None:
    with pytest.raises(ConstraintInvalid, match="header and body"):
        parse_request(versions=[header], body=[body], max_wait_s=1)


def test_waits_that_differ_are_refused_and_versions_may_be_in_one_place_only() -> None:
    with pytest.raises(ConstraintInvalid, match="wait in header and body"):
        parse_request(wait=["5s"], body=[{"wait_s": 4}], max_wait_s=10)
    asked = parse_request(versions=["41.."], wait=["5s"], body=[{"wait_s": 5}], max_wait_s=10)
    assert asked == RequestedVersions(constraint=parse_header("41.."), wait_s=5.0)


def test_a_header_that_comes_twice_is_refused() -> None:
    with pytest.raises(ConstraintInvalid, match="one header line"):
        parse_request(versions=["41", "42"], max_wait_s=1)


def test_a_relative_constraint_needs_something_to_be_relative_to() -> None:
    with pytest.raises(EngineUnavailable):
        parse_header("latest-2..").resolve(None)
    accepted = parse_header("latest-2..").resolve(1)
    assert accepted == AcceptedVersions(ranges=(VersionRange(0, None),))
    assert Constraint(ranges=(), lag=2).may_contain(0)
