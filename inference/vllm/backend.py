"""The weight-transfer backend "skerry": vLLM's own four-phase protocol over our records.

`/init_weight_transfer_engine {"init_info": {"exchange": DIR, "directory": DIR, "version": N}}`,
then `/update_weights {"update_info": {"record": ID}}`: located, checked, written, all or none.
The agent does not use it, because it hides which rank failed; it is for trainers that speak it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from skerry.inference.exchange import Exchange
from skerry.inference.placement.rank import Rank
from skerry.inference.vllm.worker import rank_of


@dataclass
class SkerryInit(WeightTransferInitInfo):  # type: ignore[misc]
    """Where records are, and which checkpoint the engine is to start from, as which version."""

    exchange: str
    directory: str
    version: int


@dataclass
class SkerryUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """The name of a record in the exchange directory."""

    record: str


class SkerryBackend(WeightTransferEngine[SkerryInit, SkerryUpdate]):  # type: ignore[misc]
    """One per rank, made by vLLM's worker.  Whatever it raises ends the update with an error."""

    init_info_cls = SkerryInit
    update_info_cls = SkerryUpdate
    supports_draft_weight_update = False

    _rank: Rank | None = None
    _exchange: Exchange | None = None

    def init_transfer_engine(self, init_info: SkerryInit) -> None:
        self._rank = rank_of(self.model, self.vllm_config)
        self._exchange = Exchange(Path(init_info.exchange))
        self._rank.load(Path(init_info.directory), init_info.version)

    def start_weight_update(self) -> None:
        if self._rank is None:
            raise RuntimeError("init_weight_transfer_engine comes first")

    def receive_weights(self, update_info: SkerryUpdate) -> None:
        assert self._rank is not None
        assert self._exchange is not None
        update = self._exchange.get(update_info.record)
        self._rank.stage(update)
        self._rank.install(update.version)

    def finish_weight_update(self) -> None:
        if self._rank is not None:
            self._rank.settle()

    def shutdown(self) -> None:
        self._rank = None
