"""Answers of the engine's own routes as a client holds them: one version, and bytes unread."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from skerry.inference.accepted import Constraint
from skerry.inference.attribution import Span
from skerry.inference.errors import AnswerInvalid
from skerry.inference.untrusted import read_spans, version_from

_MAX_CHOICES = 4096


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

    def spans(self) -> tuple[tuple[Span, ...], ...]:
        """Read the spans of each choice.  Raises AnswerInvalid, also for another version."""
        said = self.json()
        if not isinstance(said, dict):
            raise AnswerInvalid(f"answer: expected an object, found {said!r:.40}")
        choices = said.get("choice_weight_versions")
        if choices is None:
            choices = [said.get("weight_versions")]
        if not isinstance(choices, list) or len(choices) > _MAX_CHOICES:
            raise AnswerInvalid(f"choice_weight_versions: expected lists, found {choices!r:.40}")
        found = tuple(read_spans(value) for value in choices)
        for span in (span for spans in found for span in spans):
            if span.version != self.version:
                raise AnswerInvalid(f"span: expected version {self.version}, found {span.version}")
        return found


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
