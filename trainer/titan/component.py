"""Publishing as a component of torchtitan: its configuration, and what a trainer calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torchtitan.config import Configurable

from skerry.publisher.directory import side_files
from skerry.trainer.errors import TrainerError
from skerry.trainer.served import Form, RuleSet, Scales
from skerry.trainer.steps import OnFailure, StepPublisher, StepSettings
from skerry.trainer.titan.rows import row_map
from skerry.trainer.titan.shards import LocalShards

ROUTER_BIAS = "*.e_score_correction_bias"  # a buffer, in FP32 wherever it is served


class Publishing(Configurable):  # type: ignore[misc]
    """Makes a version of every step: `start` once, before the first, then `publish` after each.

    Every rank makes the same calls.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):  # type: ignore[misc]
        bulletin: str = ""
        """Where versions go: s3://bucket/prefix, or a directory. Empty: nothing is published."""

        signing_key: str = ""
        """Key file of `skerry keygen`, which rank 0 reads. Empty: the run has no key."""

        rules: list[str] = field(
            default_factory=lambda: [f"{ROUTER_BIAS}={Form.KEEP}", f"*={Form.BF16}"]
        )
        """Served precision by HF name, the first that matches: PATTERN=BF16, FP8_BLOCK or KEEP."""

        scales: Literal["F32", "UE8M0_F32", "UE8M0"] = "F32"
        """How the scales of FP8 blocks are made and stored."""

        side_files: str = ""
        """Directory of what is served beside the weights: config.json, the tokenizer. Empty: the
        run's hf_assets_path. Weights that lie there, and their index, are left out."""

        background: bool = True
        """Whether training goes on while a version is encoded and uploaded."""

        on_failure: Literal["stop", "log"] = "stop"
        """What a step does when it hears that a version could not be published: end the training
        with that error, or log it; the next version holds what the lost one had."""

        def rule_set(self) -> RuleSet:
            """Return the rules as an object.  Raises ValueError."""
            return RuleSet.of(self.rules, Scales(self.scales))

    def __init__(
        self, config: Config, *, model_spec: Any, model_parts: Sequence[nn.Module], assets: str
    ) -> None:
        """`assets` is the run's hf_assets_path.  Raises Unservable, TrainerError."""
        self._steps: StepPublisher | None = None
        if not config.bulletin:
            return
        if model_spec.state_dict_adapter is None:
            raise TrainerError(f"{model_spec.name}: has no state-dict adapter, so no HF names")
        with torch.device("meta"):
            skeleton = model_spec.model.build()
        tensors = row_map(skeleton, model_spec.state_dict_adapter(model_spec.model, None))
        self._steps = StepPublisher(
            StepSettings(
                bulletin=config.bulletin,
                signing_key=Path(config.signing_key) if config.signing_key else None,
                background=config.background,
                on_failure=OnFailure(config.on_failure),
                writer="torchtitan",
            ),
            config.rule_set(),
            LocalShards(model_parts, tensors).now,
            side_files(Path(config.side_files or assets)),
        )

    def start(self, step: int) -> None:
        """Go on from the weights after a step, 0 or a checkpoint's; later calls do nothing.

        Raises as `StepPublisher.start` does.
        """
        if self._steps is not None and not self._steps.started:
            self._steps.start(step)

    def publish(self, step: int) -> None:
        """Make a version of the weights after a step.  Raises as `StepPublisher.publish` does."""
        if self._steps is not None:
            self._steps.publish(step)

    def flush(self) -> None:
        """Wait until every step is a version.  Raises as `publish` does."""
        if self._steps is not None:
            self._steps.flush()

    def close(self) -> None:
        """Wait as `flush` does; nothing is published any more.  Raises as `publish` does."""
        if self._steps is not None:
            self._steps.close()
