"""Limits and times of the gate, the server and the client, checked once, on the way in."""

from __future__ import annotations

from dataclasses import dataclass


def _require(holds: bool, rule: str, found: object) -> None:
    if not holds:
        raise ValueError(f"expected {rule}, found {found!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig:
    """How the gate drives engines.

    `resume_tries` bounds how often `resume` is repeated, `resume_backoff_s` is the first pause
    between tries (it doubles), `max_waiting` bounds the requests that wait at the same time.  An
    engine that takes longer than `pause_limit_s` to pause, or to resume, has failed to.  A request
    that accepts both versions of a swap and must not run across it waits at least `held_s` for it.
    """

    resume_tries: int = 5
    resume_backoff_s: float = 0.2
    max_waiting: int = 4096
    pause_limit_s: float = 60.0
    held_s: float = 60.0

    def __post_init__(self) -> None:
        _require(self.resume_tries >= 1, "resume_tries of at least 1", self.resume_tries)
        _require(self.resume_backoff_s >= 0, "resume_backoff_s >= 0", self.resume_backoff_s)
        _require(self.max_waiting >= 0, "max_waiting of at least 0", self.max_waiting)
        _require(self.pause_limit_s > 0, "pause_limit_s above 0", self.pause_limit_s)
        _require(self.held_s >= 0, "held_s of at least 0", self.held_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What the server accepts.  Every limit is an error beyond it, never a silent cut.

    `max_passed_body_bytes` bounds requests to routes of the engine's own API, `max_held_bytes` what
    is held of an answer for a client that reads slowly; it then delays the engine, and a swap: an
    answer of which nothing is read for `stall_s` is broken off.
    """

    model: str = "policy"
    max_body_bytes: int = 1 << 20
    max_prompt_tokens: int = 1 << 17
    max_new_tokens: int = 1 << 16
    max_choices: int = 64
    default_wait_s: float = 0.0
    max_wait_s: float = 300.0
    retry_after_s: int = 1
    max_passed_body_bytes: int = 32 << 20
    max_held_bytes: int = 16 << 20
    stall_s: float = 60.0

    def __post_init__(self) -> None:
        _require(bool(self.model), "a model name", self.model)
        for name in (
            "max_body_bytes",
            "max_prompt_tokens",
            "max_new_tokens",
            "max_choices",
            "max_passed_body_bytes",
            "max_held_bytes",
        ):
            _require(getattr(self, name) >= 1, f"{name} of at least 1", getattr(self, name))
        _require(
            0 <= self.default_wait_s <= self.max_wait_s,
            f"default_wait_s in 0..{self.max_wait_s:g}",
            self.default_wait_s,
        )
        _require(self.retry_after_s >= 0, "retry_after_s of at least 0", self.retry_after_s)
        _require(self.stall_s > 0, "stall_s above 0", self.stall_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """What a client endures.

    `retry_budget_s` is all the time that one call may spend waiting between tries; `answer_s`
    bounds one try, from connecting to the last byte; `max_answer_bytes` bounds what is read of it.
    """

    retry_budget_s: float = 60.0
    backoff_s: float = 0.1
    max_backoff_s: float = 5.0
    connect_s: float = 10.0
    answer_s: float = 3600.0
    max_answer_bytes: int = 64 << 20
    max_event_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        _require(self.retry_budget_s >= 0, "retry_budget_s of at least 0", self.retry_budget_s)
        for name in (
            "backoff_s",
            "max_backoff_s",
            "connect_s",
            "answer_s",
            "max_answer_bytes",
            "max_event_bytes",
        ):
            _require(getattr(self, name) > 0, f"{name} above 0", getattr(self, name))
