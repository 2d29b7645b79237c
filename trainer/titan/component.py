"""Publishing as a component of torchtitan: its configuration, and what a trainer calls."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torchtitan.config import Configurable

from skerry.bulletin import stores
from skerry.bulletin.signing import Signer
from skerry.publisher import PublisherConfig
from skerry.publisher.background import BackgroundPublisher
from skerry.publisher.directory import side_files
from skerry.publisher.errors import PublishFailed, RankFailed
from skerry.publisher.sharding import (
    Fabric,
    ShardedPublisher,
    ShardedReport,
    TensorPart,
    beside_training,
)
from skerry.publisher.sharding.publisher import Snapshot
from skerry.publisher.threads import usable_cpus
from skerry.trainer.errors import TrainerError
from skerry.trainer.fabric import TorchFabric
from skerry.trainer.parts import serve_shards
from skerry.trainer.served import Form, Rule, RuleSet, Scales
from skerry.trainer.titan.rows import row_map
from skerry.trainer.titan.shards import LocalShards

logger = logging.getLogger(__name__)

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
        """Key file of `skerry keygen`, which rank 0 reads. Empty: a key of this process's own."""

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
        """What a step does when it hears that an earlier one could not be published: end the
        training with that error, or log it; the next version holds what the lost one had."""

    def __init__(
        self, config: Config, *, model_spec: Any, model_parts: Sequence[nn.Module], assets: str
    ) -> None:
        """`assets` is the run's hf_assets_path.  Raises Unservable, TrainerError."""
        self._config = config
        self._publisher: ShardedPublisher | None = None
        self._beside: BackgroundPublisher[Snapshot, ShardedReport] | None = None
        if not config.bulletin:
            return
        if model_spec.state_dict_adapter is None:
            raise TrainerError(f"{model_spec.name}: has no state-dict adapter, so no HF names")
        with torch.device("meta"):
            skeleton = model_spec.model.build()
        tensors = row_map(skeleton, model_spec.state_dict_adapter(model_spec.model, None))
        self._shards = LocalShards(model_parts, tensors)
        self._rules = rule_set(config.rules, Scales(config.scales))
        self._side_files = side_files(Path(config.side_files or assets))
        self._fabric = TorchFabric.of_all()

    def start(self, step: int) -> None:
        """Go on from the weights after a step, 0 or a checkpoint's; later calls do nothing.

        If these are not the version that the run has of this step, or of the last one before it,
        they become a version at once.
        """
        if not self._config.bulletin or self._publisher is not None:
            return
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        key = self._config.signing_key if self._fabric.rank == 0 else ""
        parts = self._parts(self._fabric)
        publisher = ShardedPublisher.open(
            self._fabric,
            stores.open_store(self._config.bulletin),
            parts,
            signer=Signer.load(Path(key)) if key else None,
            config=PublisherConfig(writer="torchtitan", threads=max(1, usable_cpus() // local)),
            side_files=self._side_files,
            recipe=self._rules.recipe(),
        )
        if not publisher.resume(step, parts):
            publisher.publish(parts, step=step)
        if self._config.background:
            front = TorchFabric.of_all()
            self._beside = beside_training(publisher, front, lambda: self._parts(front))
        self._publisher = publisher

    def publish(self, step: int) -> None:
        """Make a version of the weights after a step, which may change once this returns.

        Raises PublishFailed or RankFailed, on all ranks alike, where a failure is to stop training;
        PeerLost when a rank is gone.
        """
        beside, publisher = self._beside, self._publisher
        if beside is not None:
            self._tolerated(lambda: beside.publish(step), again=True)
        elif publisher is not None:
            self._tolerated(lambda: publisher.publish(self._parts(self._fabric), step=step))

    def flush(self) -> None:
        """Wait until every step is a version.  Raises as `publish` does."""
        if self._beside is not None:
            self._tolerated(self._beside.flush, again=True)

    def close(self) -> None:
        """Wait as `flush` does; nothing is published any more.  Raises as `publish` does."""
        if self._beside is not None:
            self._tolerated(self._beside.close, again=True)

    def _parts(self, fabric: Fabric) -> list[TensorPart]:
        return serve_shards(self._rules, self._shards.now(), fabric)

    def _tolerated(self, work: Callable[[], object], *, again: bool = False) -> None:
        """Do something; `again` when what it raised was an older step's failure, now logged."""
        while True:
            try:
                work()
            except (PublishFailed, RankFailed) as error:
                if self._config.on_failure == "stop":
                    raise
                logger.error("%s", error)
                if again and isinstance(error, PublishFailed):
                    continue
            return


def rule_set(lines: Sequence[str], scales: Scales) -> RuleSet:
    """Return the rules written as PATTERN=FORM.  Raises ValueError."""
    rules = []
    for line in lines:
        pattern, found, form = line.rpartition("=")
        if not found or form not in set(Form):
            raise ValueError(f"rules: expected PATTERN={'|'.join(Form)}, found {line!r}")
        rules.append(Rule(pattern=pattern, form=Form(form)))
    return RuleSet(rules=tuple(rules), scales=scales)
