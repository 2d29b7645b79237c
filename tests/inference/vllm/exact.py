"""One live engine and many fresh ones in one process: what `test_exact` compares.

`python -m tests.inference.vllm.exact KIND VERSIONS DIRECTORY`: installs each version live, and for
each starts an engine on that version's directory, in the same kernel mode.  Prints one line of JSON
with what was found.  A process of its own, because vLLM is no good guest in another.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skerry.inference.exchange import Exchange
from tests.inference.checkpoints import digest_of, read_checkpoint, update_between
from tests.inference.vllm.checkpoints import make_tensors, nudged, write_model

Outputs = list[tuple[tuple[int, ...], list[list[tuple[int, float]]]]]

_PROMPTS = [list(range(10 + i, 45 + 2 * i)) for i in range(6)]  # some longer than a block of cache


@dataclass(slots=True)
class Found:
    kinds: dict[str, int] = field(default_factory=dict)
    equal: list[int] = field(default_factory=list)  # requests, by version
    requests: int = 0
    changed: list[int] = field(default_factory=list)  # requests that differ from the version before
    digests: list[bool] = field(default_factory=list)
    from_mirror: int = 0
    undone: bool = False
    four_phases: bool = False


def main(kind: str, versions: int, root: Path) -> Found:
    tensors = make_tensors(kind)
    paths = [write_model(root / "0", kind, tensors)]
    for version in range(1, versions + 1):
        tensors = nudged(tensors, version)
        paths.append(write_model(root / str(version), kind, tensors))
    mirror = root / "mirror"  # as an agent has it: it moves before the engine does
    write_model(mirror, kind, make_tensors(kind))
    fresh: list[Any] = []  # kept: the end of one takes vLLM's process groups from all of them
    live, exchange, found = start_engine(paths[0]), Exchange.open(root / "exchange"), Found()
    _call(live, "skerry_load", str(mirror), 0)
    found.kinds = _call(live, "skerry_state")["kinds"]
    said = _generate(live, 0)
    for version in range(1, versions + 1):
        old, new = (read_checkpoint(paths[v]) for v in (version - 1, version))
        (mirror / "model.safetensors").write_bytes(
            (paths[version] / "model.safetensors").read_bytes()
        )
        name = exchange.put(update_between(version - 1, old, version, new))
        for attempt in range(2 if version == 1 else 1):
            _call(live, "skerry_stage", str(exchange.root), name)
            _call(live, "skerry_install", version)
            if version == 1 and attempt == 0:
                _call(live, "skerry_undo", version)
                found.undone = _generate(live, -1) == said
        before, said = said, _generate(live, version)
        back = _call(live, "skerry_read_back")
        fresh.append(start_engine(paths[version]))
        expected = _generate(fresh[-1], version)
        found.requests = len(said)
        found.equal.append(sum(a == b for a, b in zip(said, expected, strict=True)))
        found.changed.append(sum(a != b for a, b in zip(said, before, strict=True)))
        found.digests.append(back["digest"] == digest_of(new))
        found.from_mirror = len(back["from_mirror"])
    found.four_phases = _four_phases(live, exchange, paths[-1], paths[0], versions)
    return found


def _four_phases(live: Any, exchange: Exchange, newest: Path, oldest: Path, version: int) -> bool:
    """Say whether vLLM's own weight-transfer protocol leads back to version 0's weights, too."""
    old, new = read_checkpoint(newest), read_checkpoint(oldest)
    change = update_between(version, old, version + 1, new)
    init = {"exchange": str(exchange.root), "directory": str(newest), "version": version}
    live.init_weight_transfer_engine({"init_info": init})
    live.start_weight_update()
    live.update_weights({"update_info": {"record": exchange.put(change)}})
    live.finish_weight_update(str(version + 1))
    if _call(live, "skerry_state")["version"] != version + 1:
        return False
    back = _call(live, "skerry_read_back")
    return bool(live.get_weight_version() == str(version + 1) and back["digest"] == change.digest)


def start_engine(directory: Path, **more: object) -> Any:
    from vllm import LLM

    return LLM(
        str(directory),
        dtype="bfloat16",
        max_model_len=512,
        enforce_eager=True,
        block_size=32,
        max_num_seqs=8,
        kv_cache_memory_bytes=64 << 20,
        disable_log_stats=True,
        worker_extension_cls="skerry.inference.vllm.worker.SkerryWorker",
        weight_transfer_config={"backend": "skerry"},
        **more,
    )


def _call(engine: Any, method: str, *args: object) -> dict[str, Any]:
    (answer,) = engine.collective_rpc(method, args=args)
    if not answer["ok"]:
        raise RuntimeError(f"{method}{args}: {answer['error']}")
    return dict(answer)


def _generate(engine: Any, version: int) -> Outputs:
    """Return tokens and log-probabilities of greedy requests and of seeded ones."""
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": p, "cache_salt": f"skerry/{version}"} for p in _PROMPTS]
    made: Outputs = []
    for temperature in (0.0, 1.0):
        params = SamplingParams(
            max_tokens=24, temperature=temperature, seed=5, logprobs=3, ignore_eos=True
        )
        for output in engine.generate(prompts, params, use_tqdm=False):
            (one,) = output.outputs
            logprobs = [sorted((t, p.logprob) for t, p in step.items()) for step in one.logprobs]
            made.append((tuple(one.token_ids), logprobs))
    return made


if __name__ == "__main__":
    found = main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
    print(json.dumps({name: getattr(found, name) for name in Found.__slots__}))
