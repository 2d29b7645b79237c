"""The level follows from measured rates, settles, and obeys whoever states it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.codec.level import Level
from skerry.publisher.config import PublisherConfig
from skerry.publisher.levels import PRIORS, Choice, Coded, LevelModel

GIB = 1 << 30
WEIGHTS = 16 * GIB
CHANGED = WEIGHTS // 200  # 1 % of BF16 words
Machine = Callable[[Level, int], Coded]


def machine(
    *,
    encode: float = 1.0,
    decode: float = 1.0,
    size: float = 1.0,
    odd: Level | None = None,
    odd_encode: float = 1.0,
    noise: Iterable[float] = (),
) -> Machine:
    """Return what patches take on a machine that is so many times slower than the priors.

    Encoding at the level `odd` takes `odd_encode` times as long again.
    """
    factors = iter(noise)

    def take(level: Level, changed: int = CHANGED) -> Coded:
        prior, wobble = PRIORS[level], next(factors, 1.0)
        own = odd_encode if level is odd else 1.0
        return Coded(
            level=level,
            weights_bytes=WEIGHTS,
            changed=changed,
            pack_bytes=round(size * prior.bytes_per_change * changed),
            encode_s=wobble * encode * own * prior.encode.seconds(WEIGHTS, changed),
            decode_s=wobble * decode * prior.decode.seconds(WEIGHTS, changed),
        )

    return take


def follow(model: LevelModel, take: Machine, versions: int) -> tuple[LevelModel, list[Level]]:
    """Publish so many versions at the levels that the model chooses."""
    levels = []
    for _ in range(versions):
        level = model.choose(WEIGHTS).level
        levels.append(level)
        model = model.after_patch(take(level, CHANGED))
    return model, levels


def changes_of(levels: list[Level]) -> int:
    return sum(before is not after for before, after in pairwise(levels))


def test_a_very_fast_link_takes_the_fast_level() -> None:
    assert LevelModel.of("auto", link_mbit=100_000).choose(WEIGHTS).level is Level.FAST


def test_a_slow_link_takes_a_level_of_small_patches() -> None:
    for mbit in (0.001, 0.1, 1.0, 5.0):
        chosen = LevelModel.of("auto", link_mbit=mbit).choose(WEIGHTS).level
        assert chosen in (Level.DEFAULT, Level.MAX)


def test_more_threads_make_smaller_patches_worth_their_time() -> None:
    link = 100.0
    assert LevelModel.of("auto", threads=1, link_mbit=link).choose(WEIGHTS).level is Level.FAST
    assert LevelModel.of("auto", threads=32, link_mbit=link).choose(WEIGHTS).level is Level.DEFAULT


def test_nothing_is_changed_before_the_link_is_known() -> None:
    choice = LevelModel.of("auto").choose(WEIGHTS)
    assert choice == Choice(level=Level.DEFAULT, reason="the link's rate is not known yet")
    model, levels = follow(LevelModel.of("auto"), machine(encode=9.0), 3)
    assert set(levels) == {Level.DEFAULT}
    assert model.link is None


def test_a_level_given_as_text_is_that_level_and_no_other_text_is_one() -> None:
    assert LevelModel.of("fast").choose(WEIGHTS).level is Level.FAST  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="best"):
        PublisherConfig(level="best")  # type: ignore[arg-type]


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize("mbit", [0.01, 1e6])
def test_a_stated_level_wins_over_every_measurement(level: Level, mbit: float) -> None:
    model = LevelModel.of(level, link_mbit=mbit)
    model, levels = follow(model, machine(encode=100.0, odd=level, odd_encode=50.0), 5)
    assert set(levels) == {level}
    assert model.choose(WEIGHTS) == Choice(level=level, reason="stated")


def test_a_stated_link_wins_over_uploads() -> None:
    model = LevelModel.of("auto", link_mbit=1.0).after_upload(10 * GIB, 1.0)
    assert model.link == 125_000
    assert "at 1 Mbit/s, stated" in model.choose(WEIGHTS).reason


def test_the_link_is_a_mean_of_uploads_that_a_single_quick_one_does_not_hide() -> None:
    model = LevelModel.of("auto").after_upload(GIB, 100.0)
    assert model.link == pytest.approx(GIB / 100)
    for _ in range(40):
        model = model.after_upload(GIB, 10.0)
    assert model.link == pytest.approx(GIB / 10, rel=0.01)
    quick = model.after_upload(GIB, 0.001)
    assert quick.link == pytest.approx(GIB / 7, rel=0.01)


def test_an_upload_that_only_tells_the_latency_is_no_rate() -> None:
    model = LevelModel.of("auto").after_upload(10_000, 0.3).after_upload(0, 5.0)
    assert model.link is None
    assert model.after_upload(10_000, 2.0).link == 5_000


def test_what_was_measured_beats_the_priors() -> None:
    """By the priors FAST is best here; on this machine it takes eight times as long to encode."""
    for odd_encode, onwards in ((1.0, Level.FAST), (8.0, Level.DEFAULT)):
        take = machine(odd=Level.FAST, odd_encode=odd_encode)
        model = LevelModel.of("auto").after_patch(take(Level.DEFAULT, CHANGED))
        model = model.after_upload(GIB, 4.0)  # now the link is known
        _, levels = follow(model, take, 6)
        assert levels == [Level.FAST, *[onwards] * 5]


def test_a_machine_that_is_slow_at_every_level_is_learned_from_one_of_them() -> None:
    model = LevelModel.of("auto", threads=16, link_mbit=100)  # sixteen threads on one real CPU
    _, levels = follow(model, machine(), 4)
    assert levels == [Level.DEFAULT, *[Level.FAST] * 3]
    model = model.after_patch(machine()(Level.DEFAULT, CHANGED))
    for level in Level:
        expected = machine()(level, CHANGED)
        predicted = model.predict(level, WEIGHTS)
        assert predicted.encode == pytest.approx(expected.encode_s)
        assert predicted.decode == pytest.approx(expected.decode_s)


def test_weights_that_change_more_are_expected_to_go_on_so() -> None:
    model = LevelModel.of("auto", link_mbit=100.0)
    few = model.after_patch(machine()(Level.DEFAULT, CHANGED // 10))
    many = model.after_patch(machine()(Level.DEFAULT, CHANGED * 4))
    transfer = [m.predict(Level.DEFAULT, WEIGHTS).transfer for m in (few, model, many)]
    assert transfer == pytest.approx([transfer[1] / 10, transfer[1], transfer[1] * 4], rel=1e-6)


def test_a_gain_of_less_than_five_percent_changes_nothing() -> None:
    """Look for the link at which FAST and DEFAULT are alike: on either side of it both stay."""
    low, high = 1.0, 100_000.0
    while high / low > 1.0001:
        middle = (low * high) ** 0.5
        model = LevelModel.of("auto", link_mbit=middle)
        fast, default = (model.predict(x, WEIGHTS).total for x in (Level.FAST, Level.DEFAULT))
        low, high = (low, middle) if fast < default else (middle, high)
    for link in (0.97 * low, low, 1.03 * low):
        model = LevelModel.of("auto", link_mbit=link)
        for present in (Level.FAST, Level.DEFAULT):
            known = model.after_patch(machine()(present, CHANGED))
            assert known.choose(WEIGHTS).level is present


def test_max_is_no_bargain_when_default_turns_out_dearer_than_the_priors_say() -> None:
    model = LevelModel.of("auto", link_mbit=1.0).after_patch(machine()(Level.FAST, CHANGED))
    took = machine(size=1.3, encode=1.3, decode=1.3)(Level.DEFAULT, CHANGED)
    model = model.after_patch(took)
    default, most = (model.predict(x, WEIGHTS).total for x in (Level.DEFAULT, Level.MAX))
    assert default < most
    assert model.choose(WEIGHTS).level is not Level.MAX


@given(st.lists(st.floats(0.9, 1.1), min_size=40, max_size=40), st.floats(1.0, 10_000.0))
def test_noise_of_ten_percent_does_not_make_the_level_flap(
    noise: list[float], link_mbit: float
) -> None:
    _, levels = follow(LevelModel.of("auto", link_mbit=link_mbit), machine(noise=noise), 40)
    assert changes_of(levels) <= 3


@given(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0.5, 2), st.floats(0.1, 100_000))
def test_on_a_steady_machine_the_level_settles_on_the_best_within_the_gain(
    encode: float, decode: float, size: float, link_mbit: float
) -> None:
    take = machine(encode=encode, decode=decode, size=size)
    model, levels = follow(LevelModel.of("auto", link_mbit=link_mbit), take, 12)
    assert changes_of(levels[4:]) == 0

    def true_seconds(level: Level) -> float:
        took = take(level, CHANGED)
        assert took.decode_s is not None
        return took.encode_s + took.decode_s + took.pack_bytes / (link_mbit * 125_000)

    assert 0.94 * true_seconds(levels[-1]) <= min(map(true_seconds, Level))
    assert model.choose(WEIGHTS) == model.choose(WEIGHTS)


def test_a_patch_that_was_not_decoded_and_one_without_changes_teach_what_they_can() -> None:
    model = LevelModel.of("auto", link_mbit=100.0)
    coded = machine(encode=3.0)(Level.DEFAULT, 0)
    unproven = Coded(
        level=coded.level,
        weights_bytes=coded.weights_bytes,
        changed=0,
        pack_bytes=0,
        encode_s=coded.encode_s,
        decode_s=None,
    )
    after = model.after_patch(unproven)
    before, now = (m.predict(Level.DEFAULT, WEIGHTS) for m in (model, after))
    work = PRIORS[Level.DEFAULT].encode
    assert now.encode == pytest.approx(3 * work.seconds(WEIGHTS, 0))
    assert now.transfer == 0
    assert 0 < now.decode < before.decode
