"""The rule set that says, tensor by tensor, in which precision a model is served, and its cast.

Explicit: the first rule whose pattern matches the whole name decides, and a tensor that no rule
matches is refused.  The recipe that a version records gives the same rule set back, so what a
tensor was made by can be read from the bulletin alone.  Quantised is once, here, from weights
rounded to BF16.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

import torch

from skerry.publisher.arrays import Served, ServedTensor, as_served
from skerry.trainer import fp8
from skerry.trainer.errors import NoRule, NotFinite, Unservable
from skerry.trainer.precision import to_bf16

_ARITHMETIC = "x * (1 / scale), scale = max(amax, 1e-4) / 448, FP32, to nearest even, saturating"
_WEIGHT = ".weight"


class Form(StrEnum):
    """What a tensor is served as; KEEP: as the trainer has it, bit for bit."""

    BF16 = "BF16"
    FP8_BLOCK = "FP8_BLOCK"
    KEEP = "KEEP"


class Scales(StrEnum):
    """How block scales are made and stored, and what they are called beside `X.weight`.

    F32: `X.weight_scale_inv`.  UE8M0_F32: the same, powers of two.  UE8M0: `X.scale`, exponent
    bytes of dtype F8_E8M0.
    """

    F32 = "F32"
    UE8M0_F32 = "UE8M0_F32"
    UE8M0 = "UE8M0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Tensors whose whole name matches `pattern` (`*`, `?`, `[…]`) are served as `form`."""

    pattern: str
    form: Form


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSet:
    """Rules in order.  `RuleSet.from_recipe(r.recipe()) == r` for every rule set."""

    rules: tuple[Rule, ...]
    scales: Scales = Scales.F32

    def form(self, name: str) -> Form:
        """Return what a tensor is served as.  Raises NoRule."""
        for rule in self.rules:
            if fnmatchcase(name, rule.pattern):
                return rule.form
        raise NoRule(name, f"matched by none of {[rule.pattern for rule in self.rules]}")

    def scale_name(self, name: str) -> str:
        """Return the name of a quantised weight's scales.  Raises Unservable."""
        if not name.endswith(_WEIGHT):
            raise Unservable(name, f"block-scaled weights are called …{_WEIGHT}")
        if self.scales is Scales.UE8M0:
            return name.removesuffix(_WEIGHT) + ".scale"
        return name + "_scale_inv"

    def recipe(self) -> dict[str, object]:
        """Return what a version records of how its weights were made."""
        return {
            "rules": [[rule.pattern, rule.form.value] for rule in self.rules],
            "bf16": "from FP32, to nearest even",
            "fp8": {
                "arithmetic": _ARITHMETIC,
                "block": [fp8.BLOCK, fp8.BLOCK],
                "scales": self.scales.value,
                "source": "weights rounded to BF16",
            },
        }

    @classmethod
    def of(cls, lines: Iterable[str], scales: Scales = Scales.F32) -> RuleSet:
        """Return the rules written as PATTERN=FORM, one a line.  Raises ValueError."""
        rules = []
        for line in lines:
            pattern, found, form = line.rpartition("=")
            if not found or form not in set(Form):
                raise ValueError(f"expected PATTERN={'|'.join(Form)}, found {line!r}")
            rules.append(Rule(pattern=pattern, form=Form(form)))
        return cls(rules=tuple(rules), scales=scales)

    @classmethod
    def from_recipe(cls, recipe: Mapping[str, object]) -> RuleSet:
        """Return the rule set of a recorded recipe.  Raises ValueError for any other recipe."""
        try:
            described = recipe["fp8"]
            listed = recipe["rules"]
            if not isinstance(described, Mapping) or not isinstance(listed, list | tuple):
                raise TypeError("fp8 and rules")
            found = cls(
                rules=tuple(Rule(pattern=str(p), form=Form(f)) for p, f in listed),
                scales=Scales(described["scales"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a recipe of served precision: {error}") from error
        if found.recipe() != {**recipe, "rules": [list(rule) for rule in listed]}:
            raise ValueError("not a recipe of served precision that this version makes")
        return found


BF16_RULES = RuleSet(rules=(Rule(pattern="*", form=Form.BF16),))


def serve(rules: RuleSet, tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, Served]:
    """Cast every tensor by its rule, into copies in host memory.

    The optimizer may go on while they are published.  Raises PrecisionError, which names the
    tensor, and then nothing is returned.
    """
    served: dict[str, Served] = {}
    for name, values in tensors:
        for made, tensor in served_as(rules, name, values).items():
            if made in served:
                raise Unservable(name, f"{made} is there already")
            served[made] = tensor
    return served


def served_as(rules: RuleSet, name: str, values: torch.Tensor) -> dict[str, ServedTensor]:
    """Return what one whole tensor becomes: itself, and scales if it is quantised."""
    form = rules.form(name)
    values = values.detach()
    if form is Form.KEEP:
        return {name: _served(values.clone())}
    rounded = round_to_bf16(name, values)
    if form is Form.BF16:
        return {name: _served(rounded.clone() if rounded is values else rounded)}
    shape = matrix_shape(name, rounded)
    amax = fp8.block_amax(finite(name, rounded), 0, shape)
    scale = fp8.scales(amax, power_of_two=rules.scales is not Scales.F32)
    codes = fp8.quantise(rounded, 0, scale).view(torch.float8_e4m3fn)
    return {name: _served(codes), rules.scale_name(name): _served(stored_scales(rules, scale))}


def stored_scales(rules: RuleSet, scale: torch.Tensor) -> torch.Tensor:
    """Return FP32 scales as they are stored."""
    if rules.scales is Scales.UE8M0:
        return fp8.e8m0(scale).view(torch.float8_e8m0fnu)
    return scale


def round_to_bf16(name: str, values: torch.Tensor) -> torch.Tensor:
    """Return FP32 or BF16 values as BF16.  Raises Unservable for others."""
    check_castable(name, values.dtype)
    return values if values.dtype == torch.bfloat16 else to_bf16(values)


def check_castable(name: str, dtype: torch.dtype) -> None:
    """Raise Unservable for a dtype that BF16 and FP8 are not made of."""
    if dtype not in (torch.bfloat16, torch.float32):
        raise Unservable(name, f"served from float32 or bfloat16, found {dtype}")


def matrix_shape(name: str, values: torch.Tensor) -> tuple[int, int]:
    """Return the shape of what can be block-scaled.  Raises Unservable."""
    if values.dim() != 2:
        raise Unservable(name, f"block-scaled are matrices, found shape {list(values.shape)}")
    return values.shape[0], values.shape[1]


def finite(name: str, values: torch.Tensor) -> torch.Tensor:
    """Return the BF16 values.  Raises NotFinite, which says where the first one lies."""
    bad = ~values.isfinite()
    if bad.any():
        place = tuple(int(i) for i in bad.nonzero()[0])
        raise NotFinite(name, f"{float(values[place])} at {list(place)} as BF16, cannot be FP8")
    return values


def _served(values: torch.Tensor) -> ServedTensor:
    return as_served("", values)
