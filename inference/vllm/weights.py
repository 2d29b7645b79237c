"""The name of weights in one server, as agent and plug-in write it.  Needs no vLLM and no torch."""

from __future__ import annotations

from dataclasses import dataclass

HEADER = "X-Skerry-Weights"


@dataclass(frozen=True, slots=True)
class Weights:
    """A version as one install left it in one process: nothing else has its name."""

    install: str
    version: int

    @property
    def name(self) -> str:
        return f"{self.install} {self.version}"
