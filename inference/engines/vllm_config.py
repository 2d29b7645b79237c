"""Where an engine's server is, and how its pauses go; needs nothing that the adapters need."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from skerry.inference.vllm.wire import POLICIES

PausePolicy = Literal["keep", "recompute", "drain", "abort"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmConfig:
    """The address of a server, and the exchange directory that it was started with.

    `policy` is what becomes of running requests at an install: `keep` goes on over the keys and
    values that they have, `recompute` computes these anew with the new weights, `drain` waits until
    they have ended, `abort` ends them.  A pause that nobody ends is over after `lease_s`.
    `namespace` is put before the version in the salt of every prefix cache: give the runs that
    share one (offloaded keys and values) different ones.  `state_s` is the time between two looks
    at what the server serves.
    """

    url: str
    directory: Path
    policy: PausePolicy = "keep"
    lease_s: float = 120.0
    namespace: str = ""
    state_s: float = 1.0

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url: expected the address of a server, found {self.url!r}")
        if self.policy not in POLICIES:
            raise ValueError(f"policy: expected {' or '.join(POLICIES)}, found {self.policy!r}")
        if self.lease_s <= 0 or self.state_s <= 0:
            raise ValueError("lease_s and state_s: expected seconds, above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangConfig:
    """The address of an SGLang server; the rest is as in `VllmConfig`."""

    url: str
    policy: PausePolicy = "keep"
    namespace: str = ""
    state_s: float = 1.0

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url: expected the address of a server, found {self.url!r}")
        if self.policy not in POLICIES:
            raise ValueError(f"policy: expected {' or '.join(POLICIES)}, found {self.policy!r}")
        if self.state_s <= 0:
            raise ValueError("state_s: expected seconds, above 0")
