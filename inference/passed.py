"""Answers of the engine's own routes as a client holds them: one version, and bytes unread."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from skerry.inference.accepted import Constraint
from skerry.inference.completion import version_from
from skerry.inference.errors import AnswerInvalid


@dataclass(frozen=True, slots=True)
class PassedCompletion:
    """An answer, all of whose tokens were made by `version`."""

    version: int
    data: bytes

    def json(self) -> object:
        """Read the answer.  Raises AnswerInvalid."""
        try:
            return json.loads(self.data)
        except (ValueError, RecursionError) as error:
            raise AnswerInvalid(f"answer: expected JSON: {error}") from None


def read_passed_completion(
    data: bytes, starts: Sequence[str], ends: Sequence[str], constraint: Constraint
) -> PassedCompletion:
    """Check what the headers say of an answer.  Raises AnswerInvalid."""
    if len(starts) != 1 or list(starts) != list(ends):
        raise AnswerInvalid(f"expected one version, found {starts!r:.80} to {ends!r:.80}")
    version = version_from(starts[0])
    if not constraint.may_contain(version):
        raise AnswerInvalid(f"weight version: expected {constraint}, found {version}")
    return PassedCompletion(version, data)
