"""Everything a rollout request can meet, on either side of the wire, and who acts on it.

RolloutError
├── ConstraintInvalid     400  accepted versions are malformed or empty  the caller: mend them
├── RequestInvalid        4xx  another field breaks its rule             the caller: mend it
├── WeightVersionError
│   ├── WeightVersionNotReady  409  an accepted version may come yet     the caller: ask later
│   ├── WeightVersionGone      410  none will be served again            the caller: ask newer ones
│   └── EngineUnavailable      503  no engine serves any version         the agent: bring one up
├── RequestRevoked             a swap could not wait any longer          the server: end as "abort"
├── Unreachable                no whole answer came back                 the operator: see the way
└── AnswerInvalid              an answer breaks its own promises         the operator: distrust it

EngineError (the rest of the tree is in skerry.inference.engine)
└── StillPaused                `resume` failed, over and over            the agent: reload it
"""

from __future__ import annotations

from collections.abc import Sequence

from skerry.inference.engine import EngineError


class StillPaused(EngineError):
    """The engine cannot be resumed: it serves nothing until it is loaded anew."""


class RolloutError(Exception):
    """Base of every error about a rollout request.  `status` is its HTTP status."""

    status: int = 500


class ConstraintInvalid(RolloutError):
    """The request's accepted versions break a rule: an error, never "no constraint"."""

    status = 400

    def __init__(self, rule: str, *, expected: str, found: object) -> None:
        super().__init__(f"{rule}: expected {expected}, found {found!r:.120}")
        self.rule = rule
        self.expected = expected
        self.found = found


class RequestInvalid(RolloutError):
    """The request breaks a rule that has nothing to do with versions."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class WeightVersionError(RolloutError):
    """What is served now does not meet the request.  `served` and `newest` are of that moment."""

    def __init__(
        self, message: str, *, served: Sequence[int] = (), newest: int | None = None
    ) -> None:
        super().__init__(message)
        self.served = tuple(served)
        self.newest = newest


class WeightVersionNotReady(WeightVersionError):
    """An accepted version may be served yet; `retry_after_s` says when to ask again."""

    status = 409
    retry_after_s: float | None = None


class WeightVersionGone(WeightVersionError):
    """Every accepted version is behind what is served, abandoned or collected."""

    status = 410


class EngineUnavailable(WeightVersionError):
    """No engine serves any version."""

    status = 503
    retry_after_s: float | None = None


class RequestRevoked(RolloutError):
    """The gate took the ticket back; tokens that were made keep their versions."""

    def __init__(self, *, engine: str, reason: str) -> None:
        super().__init__(f"engine {engine} takes the request back: {reason}")
        self.engine = engine
        self.reason = reason


class Unreachable(RolloutError):
    """No whole answer came back within the limits."""


class AnswerInvalid(RolloutError):
    """An answer is malformed, over a limit, or outside the versions that were asked for."""
