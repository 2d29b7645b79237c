"""Every optimizer step of a torchtitan run as a version: a few lines in the run's config.

    def llama3_8b() -> Trainer.Config:
        return publishing(stock.llama3_8b(), Publishing.Config(bulletin="s3://bucket/run-7"))

Stock torchtitan, 0.3.0: models that have a state-dict adapter which moves whole rows and computes
nothing, as those of llama3, qwen3 and deepseek_v3 do.  `skerry.trainer.titan.cpu` is for trying it
where there is no accelerator.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skerry.trainer.titan.component import Publishing
    from skerry.trainer.titan.trainer import PublishingTrainer, publishing

__all__ = ["Publishing", "PublishingTrainer", "publishing"]

_HOMES = {
    "Publishing": "skerry.trainer.titan.component",
    "PublishingTrainer": "skerry.trainer.titan.trainer",
    "publishing": "skerry.trainer.titan.trainer",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        how = "pip install 'skerry[torchtitan]'"
        if error.name == "triton":
            how = "torch for GPUs brings it; on a CPU, start with skerry.trainer.titan.cpu"
        raise ModuleNotFoundError(
            f"publishing from torchtitan needs {error.name}: {how}", name=error.name
        ) from error
