"""The level that a patch is encoded at: the one that brings it to a follower in the least time.

That time is predicted as encoding here, the pack over the link, decoding there.  Predictions begin
with what each level took on one machine; what is measured for each published version corrects them.
Pure: figures come in as arguments, so the same figures always give the same level.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from skerry.codec.level import Level

LevelSetting = Level | Literal["auto"]

_NEWEST = 0.3  # the weight of the newest measurement in a mean
_LEAST_GAIN = 0.05  # of the predicted time, for which the level is changed

# Smaller and quicker uploads tell the latency of the link, not its rate.
_TELLING_BYTES = 1 << 20
_TELLING_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Seconds of one thread."""

    per_byte: float  # of weights
    per_change: float

    def seconds(self, weights_bytes: int, changes: float) -> float:
        return self.per_byte * weights_bytes + self.per_change * changes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prior:
    bytes_per_change: float
    encode: _Work
    decode: _Work  # leaf digests included, as followers check them


# Measured on one thread of an AVX-512 machine: 146 MB of BF16 weights of `benchmarks/simulate.py`,
# of which a step changed 0.1, 1 and 4 %; CPU seconds, the shortest of a few runs, as a line through
# the first and the last density; bytes at 1 %.  FAST takes 1.43 times DEFAULT's bytes, 0.4 to 0.7
# of its time to encode and 0.5 to 0.7 to decode and check.  MAX gave DEFAULT's packs, in the same
# time up to 4 % and in 13 times that at 10 %: taken as twice, it is for those who state it.
PRIORS: Mapping[Level, _Prior] = {
    Level.FAST: _Prior(
        bytes_per_change=1.216,
        encode=_Work(per_byte=0.36e-9, per_change=76e-9),
        decode=_Work(per_byte=0.37e-9, per_change=68e-9),
    ),
    Level.DEFAULT: _Prior(
        bytes_per_change=0.848,
        encode=_Work(per_byte=0.96e-9, per_change=85e-9),
        decode=_Work(per_byte=0.71e-9, per_change=92e-9),
    ),
    Level.MAX: _Prior(
        bytes_per_change=0.848,
        encode=_Work(per_byte=1.92e-9, per_change=170e-9),
        decode=_Work(per_byte=0.71e-9, per_change=92e-9),
    ),
}
_DENSITY = 0.005  # changes for each byte: 1 % of BF16 words


@dataclass(frozen=True, slots=True, kw_only=True)
class Coded:
    """What one patch took; `decode_s` is None if it was not decoded again."""

    level: Level
    weights_bytes: int
    changed: int
    pack_bytes: int
    encode_s: float
    decode_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Seconds from the trainer's weights to a follower's."""

    encode: float
    transfer: float
    decode: float

    @property
    def total(self) -> float:
        return self.encode + self.transfer + self.decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A level, and why it is this one."""

    level: Level
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    """How a measured quantity compares with the priors.

    Versions of one level after another tell how machine and run drift, which concerns all levels
    alike: `common`.  The first version after a change of level tells how that level compares with
    the one before: `own`.
    """

    common: float = 1.0
    own: Mapping[Level, float] = field(default_factory=dict)
    last: Level | None = None

    def factor(self, level: Level) -> float:
        like = self.own.get(Level.DEFAULT, 1.0)  # what MAX is, as long as nobody has seen it
        return self.common * self.own.get(level, like)

    def after(self, level: Level, measured: float, prior: float) -> _Figure:
        if measured <= 0 or prior <= 0:
            return self
        ratio = measured / prior
        if self.last is None:
            return _Figure(common=ratio, own={level: 1.0}, last=level)
        if self.last is level:
            common = _mean(self.common, ratio / self.own[level])
            return replace(self, common=common)
        own = {**self.own, level: _mean(self.own.get(level), ratio / self.common)}
        return _Figure(common=self.common, own=own, last=level)


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelModel:
    """What is known about levels, and which of them follows from it.

    `link` is the rate of the slowest follower's link in bytes a second: stated, when uploads do not
    count, or else that of uploads, None before the first that tells.
    """

    setting: LevelSetting = "auto"
    threads: int = 1
    link: float | None = None
    link_stated: bool = False
    present: Level = Level.DEFAULT
    _density: float | None = None  # changes for each byte of weights
    _size: _Figure = field(default_factory=_Figure)
    _encode: _Figure = field(default_factory=_Figure)
    _decode: _Figure = field(default_factory=_Figure)

    @classmethod
    def of(
        cls, setting: LevelSetting, *, threads: int = 1, link_mbit: float | None = None
    ) -> LevelModel:
        """Return the model before anything was measured; `link_mbit` states the link's rate."""
        link = None if link_mbit is None else link_mbit * 1e6 / 8
        return cls(
            setting=setting if setting == "auto" else Level(setting),  # also given as text
            threads=threads,
            link=link,
            link_stated=link is not None,
        )

    def choose(self, weights_bytes: int) -> Choice:
        """Return the level for the next patch of so many bytes of weights."""
        if self.setting != "auto":
            return Choice(level=self.setting, reason="stated")
        if self.link is None:
            return Choice(level=self.present, reason="the link's rate is not known yet")
        seconds = {level: self.predict(level, weights_bytes).total for level in Level}
        best = min(seconds, key=lambda level: (seconds[level], level is not self.present))
        if seconds[best] >= (1 - _LEAST_GAIN) * seconds[self.present]:
            best = self.present
        others = ", ".join(
            f"{level} {s:.3g} s" for level, s in seconds.items() if level is not best
        )
        told = "stated" if self.link_stated else "measured"
        reason = (
            f"predicted {seconds[best]:.3g} s ({others}) at {self.link * 8e-6:.3g} Mbit/s, {told}"
        )
        return Choice(level=best, reason=reason)

    def predict(self, level: Level, weights_bytes: int) -> Prediction:
        """Return how long a patch would take; without a rate of the link its transfer is free."""
        prior = PRIORS[level]
        density = _DENSITY if self._density is None else self._density
        changes = density * weights_bytes
        size = prior.bytes_per_change * changes * self._size.factor(level)
        return Prediction(
            encode=self._seconds(prior.encode, weights_bytes, changes) * self._encode.factor(level),
            transfer=0.0 if self.link is None else size / self.link,
            decode=self._seconds(prior.decode, weights_bytes, changes) * self._decode.factor(level),
        )

    def after_patch(self, coded: Coded) -> LevelModel:
        """Return the model that has seen what a patch took."""
        level, prior = coded.level, PRIORS[coded.level]
        encode, decode = (
            self._seconds(work, coded.weights_bytes, coded.changed)
            for work in (prior.encode, prior.decode)
        )
        density = self._density
        if coded.weights_bytes:
            density = _mean(density, coded.changed / coded.weights_bytes)
        return replace(
            self,
            present=level,
            _density=density,
            _size=self._size.after(level, coded.pack_bytes, prior.bytes_per_change * coded.changed),
            _encode=self._encode.after(level, coded.encode_s, encode),
            _decode=self._decode.after(level, coded.decode_s or 0.0, decode),
        )

    def after_upload(self, nbytes: int, seconds: float) -> LevelModel:
        """Return the model that has seen how long an upload took."""
        telling = nbytes >= _TELLING_BYTES or seconds >= _TELLING_S
        if self.link_stated or not telling or not nbytes or seconds <= 0:
            return self
        # A mean of times, not of rates: one quick upload must not hide many slow ones.
        pace = seconds / nbytes
        return replace(self, link=1 / _mean(None if self.link is None else 1 / self.link, pace))

    def _seconds(self, work: _Work, weights_bytes: int, changes: float) -> float:
        return work.seconds(weights_bytes, changes) / self.threads


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + _NEWEST * (new - old)
