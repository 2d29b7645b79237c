"""torchtitan's trainer, with publishing between its steps; nothing of it is replaced."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from torchtitan.trainer import Trainer

from skerry.trainer.titan.component import Publishing


class PublishingTrainer(Trainer):  # type: ignore[misc]
    """A Trainer whose every optimizer step becomes a version.

    A checkpoint is written once there are versions of all steps until then: a run that goes on from
    it finds its parent in the log.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):  # type: ignore[misc]
        publishing: Publishing.Config = field(default_factory=Publishing.Config)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.publishing = config.publishing.build(
            model_spec=config.model_spec,
            model_parts=self.model_parts,
            assets=config.hf_assets_path,
        )

    def train_step(self, data_iterator: Any) -> None:
        self.publishing.start(self.step - 1)  # the checkpoint is loaded by now
        super().train_step(data_iterator)
        self.publishing.publish(self.step)
        if self._checkpoint_follows():
            self.publishing.flush()

    def _checkpoint_follows(self) -> bool:
        """Say whether torchtitan writes a checkpoint of this step."""
        checkpoint = self.config.checkpoint
        first = self.step == 1 and checkpoint.enable_first_step_checkpoint
        last = self.step == self.config.training.steps
        due = first or last or self.step % checkpoint.interval == 0
        return bool(checkpoint.enable and due)

    def train(self) -> None:
        super().train()
        # After an error nobody waits here: other ranks may be gone.
        self.publishing.close()


def publishing(config: Any, settings: Publishing.Config) -> PublishingTrainer.Config:
    """Return a run's configuration with publishing.

    Raises TypeError for another trainer's: derive that one from PublishingTrainer.
    """
    if type(config) is not Trainer.Config:
        rule = "expected torchtitan's Trainer.Config, found that of another trainer"
        raise TypeError(f"{rule}, {type(config).__qualname__}: derive it from PublishingTrainer")
    stock = {f.name: getattr(config, f.name) for f in fields(config) if f.init}
    return PublishingTrainer.Config(**stock, publishing=settings)
