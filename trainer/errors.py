"""Everything the trainer's side can refuse, and who acts on it.

TrainerError
└── PrecisionError     a tensor cannot be served as asked        the operator: see below
    ├── NoRule         no rule names the tensor                  add a rule for it
    ├── NotFinite      an inf or NaN where FP8 has no place      look at the training
    └── Unservable     a dtype, shape or name the form excludes  another form for it
"""

from __future__ import annotations


class TrainerError(Exception):
    """Base of every error raised by skerry.trainer."""


class PrecisionError(TrainerError):
    """A tensor cannot be brought to the precision that its rule asks for; `tensor` names it."""

    def __init__(self, tensor: str, rule: str) -> None:
        super().__init__(f"{tensor}: {rule}")
        self.tensor = tensor


class NoRule(PrecisionError):
    """No rule matches the tensor's name."""


class NotFinite(PrecisionError):
    """A tensor that is to be quantised holds inf or NaN, as BF16."""


class Unservable(PrecisionError):
    """The form does not fit the tensor's dtype, shape or name."""
