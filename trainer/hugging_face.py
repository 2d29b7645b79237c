"""Makes Transformers' trainers, and TRL's, publish every optimizer step: a callback for them.

    trainer = GRPOTrainer(…, callbacks=[PublishingCallback("s3://bucket/run-7")])

One process, DDP, and FSDP2 (DTensors).  Names, tied weights and layouts are those of
`save_pretrained`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from skerry.publisher.directory import side_files
from skerry.trainer.errors import TrainerError
from skerry.trainer.parts import Shard
from skerry.trainer.served import BF16_RULES, Form, RuleSet
from skerry.trainer.steps import OnFailure, StepPublisher, StepSettings

try:
    from transformers import PreTrainedModel, TrainerCallback
    from transformers.core_model_loading import revert_weight_conversion
    from transformers.modeling_utils import remove_tied_weights_from_state_dict
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"publishing from Transformers needs {error.name}: pip install 'skerry[transformers]'",
        name=error.name,
    ) from error


class PublishingCallback(TrainerCallback):  # type: ignore[misc]
    """Version 0 is the model as training finds it, or the checkpoint that it goes on from."""

    def __init__(
        self,
        bulletin: str,
        *,
        signing_key: Path | str | None = None,
        rules: RuleSet = BF16_RULES,
        side_files: Path | str | None = None,
        background: bool = True,
        on_failure: OnFailure | str = OnFailure.STOP,
    ) -> None:
        """`side_files` is a directory of what is served beside the weights.

        Without one it is what the model and its tokenizer save of themselves, with the dtype that
        BF16 is served by.  A model that is served quantised needs a config.json that says so.
        The other settings are those of StepSettings.
        """
        self._settings = StepSettings(
            bulletin=bulletin,
            signing_key=None if signing_key is None else Path(signing_key),
            background=background,
            on_failure=OnFailure(on_failure),
            writer="transformers",
        )
        self._rules = rules
        self._side_files = None if side_files is None else Path(side_files)
        self._steps: StepPublisher | None = None

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: Any = None, **others: Any
    ) -> None:
        check_whole(model)
        processing = others.get("processing_class") or others.get("tokenizer")
        beside = (
            saved_beside(model, processing, self._rules)
            if self._side_files is None
            else side_files(self._side_files)
        )
        self._steps = StepPublisher(self._settings, self._rules, lambda: shards_of(model), beside)
        self._steps.start(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if self._steps is not None:
            self._steps.publish(state.global_step)
            self._before_checkpoint(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._before_checkpoint(control)

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.close()

    def _before_checkpoint(self, control: Any) -> None:
        """Have versions of all steps until a checkpoint: who goes on from it finds its parent."""
        if self._steps is not None and control.should_save:
            self._steps.flush()


def check_whole(model: Any) -> None:
    """Raise TrainerError for a model whose weights are not where they seem to be."""
    if not isinstance(model, PreTrainedModel):
        found = type(model).__name__
        rule = "adapters are merged first, or published as such"
        raise TrainerError(f"expected a model of Transformers, found {found}: {rule}")
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "ds_id"):
            raise TrainerError(f"{name}: ZeRO-3 holds it in parts: use FSDP2")
        if "_fsdp_wrapped_module" in name or "_flat_param" in name:
            raise TrainerError(f"{name}: FSDP1 holds it in parts: use FSDP2 (fsdp_version: 2)")


def shards_of(model: Any) -> Iterator[Shard]:
    """Yield what this rank holds of a model, under the names that `save_pretrained` writes.

    Of whole tensors, which every rank has, rank 0 alone holds any.  Raises TrainerError for a
    sharded model whose weights are converted when they are saved.
    """
    state = dict(model.state_dict())
    for ignored in model._keys_to_ignore_on_save or ():
        state.pop(ignored, None)
    state = remove_tied_weights_from_state_dict(state, model)
    sharded = any(isinstance(tensor, DTensor) for tensor in state.values())
    saved = revert_weight_conversion(model, state)
    if sharded and saved is not state:
        rule = "its weights are converted when they are saved, which takes whole ones"
        raise TrainerError(f"{type(model).__name__}: {rule}: shards of it cannot be published")
    first = not dist.is_initialized() or dist.get_rank() == 0
    for name, tensor in saved.items():
        if first or isinstance(tensor, DTensor):
            yield Shard.of(name, tensor)


def saved_beside(model: Any, processing: Any, rules: RuleSet) -> Mapping[str, bytes]:
    """Return the files that a model and its tokenizer save beside the weights."""
    with TemporaryDirectory() as directory:
        model.config.save_pretrained(directory)
        if model.can_generate():
            model.generation_config.save_pretrained(directory)
        if processing is not None:
            processing.save_pretrained(directory)
        files = side_files(Path(directory))
    config = json.loads(files["config.json"])
    config["architectures"] = [type(model).__name__.removeprefix("FSDP")]
    served = model.dtype if all(r.form is Form.KEEP for r in rules.rules) else torch.bfloat16
    config["dtype"] = str(served).removeprefix("torch.")
    files["config.json"] = (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()
    return files
