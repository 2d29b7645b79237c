"""What SGLang's HTTP API says, read as from a stranger.  Needs no SGLang.

Law: a token is given out once the server itself has said which weights made it; labels that are no
version, spans with gaps, and answers that take back what they said are errors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from skerry.inference.constraint import MAX_VERSION
from skerry.inference.engine import EngineError, GeneratedToken, GenerationRequest

UNKNOWN = "skerry-unknown"  # the label of weights of which nothing is known
_VERSION = re.compile(r"0|[1-9][0-9]{0,18}")
_REASONS = ("stop", "length")


def version_of(label: object) -> int | None:
    """Return the version that a label names; None for any other, such as "default"."""
    if not isinstance(label, str) or not _VERSION.fullmatch(label) or int(label) > MAX_VERSION:
        return None
    return int(label)


def generate_body(request: GenerationRequest, key: str) -> dict[str, object]:
    """Return the body of `/generate`; `extra_key` keeps prefix caches of versions apart."""
    params: dict[str, object] = {
        "max_new_tokens": request.max_tokens,
        "temperature": request.temperature,
        "ignore_eos": request.ignore_eos,
    }
    if request.seed is not None:
        params["sampling_seed"] = request.seed
    return {
        "input_ids": list(request.prompt),
        "sampling_params": params,
        "return_logprob": True,
        "stream": True,
        "extra_key": key,
    }


@dataclass(slots=True)
class Answer:
    """One streamed answer of `/generate`: each event says again all that came before."""

    said: list[tuple[int, float]] = field(default_factory=list)
    given: int = 0
    ended: bool = False

    def push(self, event: Mapping[str, object], whole: int | None) -> list[GeneratedToken]:
        """Return the tokens whose version is known by now.  Raises EngineError.

        `whole` is the version that must have made all of it, when none was installed meanwhile;
        it is used for a server that tells no spans, and compared with what it does tell.
        """
        meta = event.get("meta_info")
        if not isinstance(meta, dict):
            raise EngineError(f"the engine's answer has no meta_info: {event!r:.200}")
        said = [_pair(item) for item in _list(meta.get("output_token_logprobs"))]
        if said[: len(self.said)] != self.said:
            raise EngineError("the engine took back tokens: it must stream whole answers")
        self.said = said
        reason = meta.get("finish_reason")
        kind = reason.get("type") if isinstance(reason, dict) else None
        if reason is not None and kind not in _REASONS:
            raise EngineError(f"the engine ended the request: {reason!r:.200}")
        versions = self._versions(meta, whole, last=kind is not None)
        start, self.given = self.given, max(self.given, len(versions))
        if kind is not None:
            if self.given != len(said) or not said:
                raise EngineError("the engine did not say which weights made all of its tokens")
            self.ended = True
        return [
            GeneratedToken(
                token=said[at][0],
                logprob=said[at][1],
                version=versions[at],
                finish_reason=kind if at + 1 == len(said) else None,
            )
            for at in range(start, self.given)
            # The last one waits for the end, which it carries.
            if kind is not None or at + 1 < len(said)
        ]

    def _versions(
        self, meta: Mapping[str, object], whole: int | None, *, last: bool
    ) -> Sequence[int]:
        """Return the versions of the first tokens, as far as they are known."""
        spans = meta.get("weight_versions")
        if spans is not None:
            versions = _of_spans(_list(spans), len(self.said))
        elif last and whole is not None and version_of(meta.get("weight_version")) == whole:
            versions = [whole] * len(self.said)
        else:
            versions = []
        return versions if last else versions[: max(len(self.said) - 1, 0)]


def _of_spans(spans: Sequence[object], tokens: int) -> list[int]:
    versions: list[int] = []
    for span in spans:
        if not isinstance(span, dict):
            raise EngineError(f"weight_versions: expected spans, found {span!r:.80}")
        version, end = version_of(span.get("version")), span.get("end")
        if version is None:
            raise EngineError(f"tokens of weights without a version: {span!r:.80}")
        if span.get("start") != len(versions) or type(end) is not int or end > tokens:
            raise EngineError(f"weight_versions: expected spans without gaps, found {span!r:.80}")
        versions += [version] * (end - len(versions))
    return versions


def _pair(item: object) -> tuple[int, float]:
    """Return token and log-probability of SGLang's [log-probability, token, text]."""
    if isinstance(item, list) and len(item) >= 2:
        logprob, token = item[:2]
        number = isinstance(logprob, int | float) and not isinstance(logprob, bool)
        if number and math.isfinite(logprob) and type(token) is int and token >= 0:
            return token, float(logprob)
    raise EngineError(f"expected [log-probability, token], found {item!r:.80}")


def _list(value: object) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise EngineError(f"expected a list, found {value!r:.80}")
    return value
