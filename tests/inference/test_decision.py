"""The gate's rules as a pure function, against the rules written out over plain sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skerry.inference.accepted import AcceptedVersions
from skerry.inference.constraint import parse_header
from skerry.inference.decision import (
    Decision,
    EngineView,
    Forward,
    Gone,
    KnownVersions,
    Unavailable,
    Wait,
    decide,
)

WORLD = range(15)  # every version that a closed range below can hold


@st.composite
def accepted_sets(draw: st.DrawFn) -> AcceptedVersions:
    items = draw(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 4)), min_size=1, max_size=3))
    text = ",".join(f"{start}..{start + more}" for start, more in items)
    if draw(st.booleans()):
        text += f",{draw(st.integers(0, 11))}.."
    prefer = draw(st.sampled_from(["newest", "oldest", "3", "7"]))
    return parse_header(f"{text};prefer={prefer}").resolve(None)


engines = st.dictionaries(
    st.sampled_from("abc"),
    st.builds(
        EngineView,
        version=st.none() | st.integers(0, 10),
        target=st.none() | st.integers(0, 11),
        running=st.integers(0, 2),
    ),
)
knowledge = st.builds(
    KnownVersions,
    newest=st.none() | st.integers(0, 11),
    oldest=st.integers(0, 11),
    abandoned=st.frozensets(st.integers(0, 11)),
)


def accepts(text: str) -> AcceptedVersions:
    return parse_header(text).resolve(None)


def serving(*versions: int | None) -> dict[str, EngineView]:
    return {f"e{i}": EngineView(version=version) for i, version in enumerate(versions)}


@given(accepted_sets(), engines, knowledge)
def test_follows_the_rules_in_their_order(
    accepted: AcceptedVersions, views: dict[str, EngineView], known: KnownVersions
) -> None:
    decision = decide(accepted, views, known)
    a = {v for v in WORLD if accepted.contains(v)}
    served = {v.version for v in views.values() if v.version is not None}
    open_to = {
        name: v
        for name, v in views.items()
        if v.version in a and (v.target is None or v.target in a or accepted.contains(v.target))
    }
    if open_to:
        best = accepted.choose([v.version for v in open_to.values() if v.version is not None])
        assert isinstance(decision, Forward)
        assert decision.version == best == views[decision.engine].version
        least = min(v.running for v in open_to.values() if v.version == best)
        assert views[decision.engine].running == least
        assert decision.engine in open_to
    elif not served:
        assert decision == Unavailable()
    elif a & served:
        assert decision == Wait()  # kept out by a swap that may yet fail
    else:
        hopeful = {v for v in a if v > max(served) and v >= known.oldest} - known.abandoned
        endless = accepted.ranges[-1].end is None
        assert decision == (Wait() if hopeful or endless else Gone())


def test_while_serving_45_the_set_43_or_47_waits_for_47() -> None:
    assert decide(accepts("43,47"), serving(45), KnownVersions(newest=45)) == Wait()


def test_what_is_behind_every_served_version_is_gone() -> None:
    known = KnownVersions(newest=46)
    cases: dict[str, Decision] = {
        "44": Gone(),
        "..44": Gone(),
        "44..46": Forward("e0", 45),
        "46": Wait(),
        "46..": Wait(),
    }
    for text, decision in cases.items():
        assert decide(accepts(text), serving(45), known) == decision


def test_nobody_waits_for_an_abandoned_or_a_collected_version() -> None:
    rolled_back = KnownVersions(newest=48, oldest=40, abandoned=frozenset({46, 47}))
    assert decide(accepts("46..47"), serving(45), rolled_back) == Gone()
    assert decide(accepts("46..48"), serving(45), rolled_back) == Wait()
    collected = KnownVersions(newest=60, oldest=50)
    assert decide(accepts("46..49"), serving(45), collected) == Gone()
    assert decide(accepts("46..50"), serving(45), collected) == Wait()


def test_an_abandoned_version_that_is_still_served_is_served() -> None:
    known = KnownVersions(newest=48, abandoned=frozenset({45}))
    assert decide(accepts("45"), serving(45), known) == Forward("e0", 45)


def test_the_preference_chooses_among_engines() -> None:
    views = serving(43, 44, 45)
    known = KnownVersions(newest=45)
    for prefer, engine, version in (
        ("newest", "e2", 45),
        ("oldest", "e0", 43),
        ("44", "e1", 44),
        ("99", "e2", 45),
    ):
        found = decide(accepts(f"40..50;prefer={prefer}"), views, known)
        assert found == Forward(engine, version)


def test_without_a_serving_engine_there_is_no_answer() -> None:
    assert decide(accepts("1"), serving(None), KnownVersions(newest=5, oldest=3)) == Unavailable()
    assert decide(accepts("1"), {}, KnownVersions()) == Unavailable()
