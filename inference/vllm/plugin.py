"""The entry point of `vllm.general_plugins`: API server, engine core and every worker call it."""

from __future__ import annotations

from contextlib import suppress

BACKEND = "skerry"


def register() -> None:
    """Make vLLM know the backend, and record maps where it is chosen.  Idempotent."""
    import torch
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    from skerry.inference.vllm.loading import hook_loaders

    # vLLM's attention on CPUs uses AMX tiles, for which a process has to ask Linux first; eager
    # mode with small layers never does, and dies of SIGILL.  Without AMX this does nothing.
    with suppress(AttributeError):
        torch._C._cpu._init_amx()
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            BACKEND, "skerry.inference.vllm.backend", "SkerryBackend"
        )
    hook_loaders()
