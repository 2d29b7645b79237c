"""The forward pass: one token at a time equals all at once, and the cache keeps rows apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from skerry.inference.engines.sampling import Sampler
from skerry.inference.models.checkpoint import read_checkpoint, shard_names
from skerry.inference.models.config import LlamaConfig, UnsupportedModel
from skerry.inference.models.kv import KvCache
from skerry.inference.models.llama import Llama, tensor_shapes
from skerry.inference.models.moe import Recorder
from skerry.trainer.tiny import tiny_llama, tiny_moe
from tests.inference.engines.checkpoints import tiny_weights, write_checkpoint

SOURCE = tiny_llama(3)
PROMPTS = [[7, 8, 9, 10], [300], [20, 21, 22, 23, 24, 25, 26, 27, 28]]


def prefill(model: Llama, cache: KvCache, prompt: list[int]) -> torch.Tensor:
    row = cache.add()
    hidden = model.hidden(
        torch.tensor([prompt]),
        torch.arange(len(prompt)),
        lambda layer, q, k, v: cache.prefill(row, layer, q, k, v),
    )
    return model.logits(hidden[0, -1:])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.03)])
def test_token_by_token_equals_the_whole_sequence(dtype: torch.dtype, tolerance: float) -> None:
    model = Llama(SOURCE.config, {n: w.to(dtype) for n, w in SOURCE.weights.items()})
    model.requires_grad_(False)
    cache = KvCache(model.config, max_rows=3, dtype=dtype)
    texts = [list(prompt) for prompt in PROMPTS]
    logits = torch.cat([prefill(model, cache, prompt) for prompt in PROMPTS])
    for step in range(70):  # past the first growth of the cache
        for row, text in enumerate(texts):
            whole = model.hidden(torch.tensor([text]), torch.arange(len(text)))
            torch.testing.assert_close(
                logits[row : row + 1], model.logits(whole[0, -1:]), atol=tolerance, rtol=0
            )
        new = [(13 * step + 5 * row) % 400 for row in range(len(texts))]
        for text, token in zip(texts, new, strict=True):
            text.append(token)
        positions = cache.positions()[:, None]
        hidden = model.hidden(torch.tensor(new)[:, None], positions, cache.decode)
        logits = model.logits(hidden[:, 0])
        if step == 40:  # the last row moves into the place of the first
            cache.drop(0)
            texts = [texts[2], texts[1]]
            logits = logits[[2, 1]]


def test_logits_of_bf16_weights_are_those_of_the_widened_weights() -> None:
    narrow = Llama(SOURCE.config, {n: w.bfloat16() for n, w in SOURCE.weights.items()})
    wide = SOURCE.model()
    hidden = torch.randn(5, SOURCE.config.hidden_size, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(narrow.logits(hidden), wide.logits(hidden), atol=1e-5, rtol=0)


def test_parameters_are_the_tensors_of_the_checkpoint(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", tiny_weights())
    config, tensors = LlamaConfig.from_directory(directory), read_checkpoint(directory)
    model = Llama(config, tensors)
    assert {n: tuple(p.shape) for n, p in model.named_parameters()} == tensor_shapes(config)
    for name, parameter in model.named_parameters():
        assert parameter.data_ptr() == tensors[name].data_ptr()


@pytest.mark.parametrize("change", ["missing", "unknown", "shape", "dtype"])
def test_other_tensors_are_refused(change: str) -> None:
    tensors = dict(SOURCE.weights)
    name = "model.layers.0.mlp.up_proj.weight"
    if change == "missing":
        del tensors[name]
    elif change == "unknown":
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    elif change == "shape":
        tensors[name] = tensors[name].T
    else:
        tensors[name] = tensors[name].half()
    with pytest.raises(UnsupportedModel):
        Llama(SOURCE.config, tensors)


def test_an_index_that_names_a_missing_shard_is_refused(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", tiny_weights())
    index = directory / "model.safetensors.index.json"
    names = json.loads(index.read_text())
    names["weight_map"]["model.norm.weight"] = "model-00003-of-00003.safetensors"
    index.write_text(json.dumps(names))
    with pytest.raises(UnsupportedModel, match="model-00003"):
        shard_names(directory)


@pytest.mark.parametrize(
    "change",
    [
        {"architectures": ["Qwen2ForCausalLM"]},
        {"hidden_act": "gelu"},
        {"attention_bias": True},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"num_hidden_layers": "4"},
        {"num_attention_heads": 3},
        {"vocab_size": 0},
        {"eos_token_id": ["2"]},
        {"sliding_window": 4096},
        {"architectures": ["MixtralForCausalLM"], "num_experts_per_tok": 9},
        {"architectures": ["MixtralForCausalLM"], "num_experts_per_tok": 0},
    ],
)
def test_a_model_of_another_kind_is_refused(change: dict[str, object]) -> None:
    config = json.loads(SOURCE.side_files["config.json"]) | change
    with pytest.raises(UnsupportedModel):
        LlamaConfig.from_dict(config)


def test_samples_follow_the_distribution() -> None:
    logits = torch.tensor([0.0, 1.0, float("-inf"), 2.0])
    sampler = Sampler(1.0, seed=0)
    drawn = [sampler.choose(logits) for _ in range(4000)]
    counts = torch.bincount(torch.tensor([token for token, _ in drawn]), minlength=4) / 4000
    probabilities = logits.softmax(-1)
    torch.testing.assert_close(counts, probabilities, atol=0.03, rtol=0)
    assert counts[2] == 0
    for token, logprob in drawn[:50]:
        assert logprob == pytest.approx(float(probabilities[token].log()), abs=1e-6)


def test_temperature_sharpens_and_zero_takes_the_best() -> None:
    logits = torch.tensor([0.0, 1.0, 0.5])
    assert {Sampler(0.0, seed=n).choose(logits)[0] for n in range(5)} == {1}
    token, logprob = Sampler(0.1, seed=0).choose(logits)
    assert logprob == pytest.approx(float((logits / 0.1).log_softmax(-1)[token]), abs=1e-6)


def test_a_sparse_model_is_the_sum_over_its_chosen_experts_by_their_softmaxed_scores() -> None:
    """Against a loop over tokens, which shares no code with the model's."""
    source = tiny_moe(5, layers=1)
    model = source.model().requires_grad_(False)
    weights = {name.removeprefix("model.layers.0."): w for name, w in source.weights.items()}
    x = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(1))
    recorder = Recorder(2)
    found = model.get_submodule("model.layers.0.block_sparse_moe")(x, recorder)
    chosen = recorder.chosen()[:, :, 0]
    for row in range(2):
        for at in range(3):
            token = x[row, at]
            scores = weights["block_sparse_moe.gate.weight"] @ token
            best = scores.argsort(descending=True)[:2]
            assert chosen[row, at].tolist() == best.tolist()
            share = scores[best].exp() / scores[best].exp().sum()
            expected = torch.zeros(64)
            for part, expert in zip(share, best.tolist(), strict=True):
                w1, w2, w3 = (
                    weights[f"block_sparse_moe.experts.{expert}.{name}.weight"]
                    for name in ("w1", "w2", "w3")
                )
                gated = w1 @ token
                expected += part * (w2 @ (gated * gated.sigmoid() * (w3 @ token)))
            torch.testing.assert_close(found[row, at], expected, atol=1e-6, rtol=1e-4)


def test_the_chosen_experts_decide_and_their_scores_get_the_gradient() -> None:
    model = tiny_moe(5, layers=2).model()
    tokens, at = torch.tensor([[5, 6, 7]]), torch.arange(3)
    recorder = Recorder(2)
    free = model.hidden(tokens, at, choose=recorder)
    chosen = recorder.chosen()
    torch.testing.assert_close(
        model.hidden(tokens, at, choose=lambda layer, _: chosen[:, :, layer]), free
    )
    other = (chosen + 1) % 8
    forced = model.hidden(tokens, at, choose=lambda layer, _: other[:, :, layer])
    assert not torch.allclose(forced, free)
    forced.square().sum().backward()  # type: ignore[no-untyped-call]
    gate = model.get_parameter("model.layers.0.block_sparse_moe.gate.weight").grad
    assert gate is not None
    assert set(gate.abs().sum(dim=1).nonzero().flatten().tolist()) <= set(
        other[:, :, 0].flatten().tolist()
    )
