"""How patient the agents of a group are: every time here decides when, never which version."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTimes:
    """Seconds.

    Agents look at each other every `look_s`, and wait `reply_s` for an answer.  A switch may
    prepare for `prepare_s`; engines that are not all installed `pause_s` after the first was told
    to pause go back.  Who has voted and hears no decision for `hold_s` takes its engines out of
    service.  Who has not voted and hears nobody for `lost_s` gives the switch up.  A switch that
    failed is tried again after `retry_s`, doubling up to `retry_limit_s`; the record that engines
    are patched from is kept for `patience_s` without a try.
    """

    look_s: float = 0.5
    reply_s: float = 2.0
    prepare_s: float = 1800.0
    pause_s: float = 10.0
    hold_s: float = 30.0
    lost_s: float = 10.0
    retry_s: float = 0.5
    retry_limit_s: float = 10.0
    patience_s: float = 30.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not value > 0:
                raise ValueError(f"{item.name} is above 0, found {value}")
