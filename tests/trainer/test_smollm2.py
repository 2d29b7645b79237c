"""The real model: the conversion is right when it speaks, and cheap to get wrong otherwise."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path

import pytest
import torch

from skerry.inference.engines import CpuEngine
from skerry.inference.models.llama import tensor_shapes
from skerry.trainer.prompts import chat_prompt
from skerry.trainer.smollm2 import smollm2
from skerry.trainer.source import SourceModel
from tests.inference.engines.checkpoints import complete, digest_of, write_checkpoint

pytestmark = pytest.mark.weights

SENTENCE = (
    "The history of science shows that new ideas are often rejected at first, and that it takes "
    "many years until most people accept them."
)


@pytest.fixture(scope="module")
def source() -> SourceModel:
    return smollm2()


def test_names_and_shapes_are_the_models(source: SourceModel) -> None:
    shapes = {name: tuple(values.shape) for name, values in source.weights.items()}
    assert shapes == tensor_shapes(source.config)
    assert len(shapes) == 272
    assert sum(math.prod(shape) for shape in shapes.values()) == 134_515_008
    config = json.loads(source.side_files["config.json"])
    assert config["rope_theta"] == 100_000.0
    assert config["rms_norm_eps"] == 1e-05
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (9, 3)
    assert source.config.eos == {2}


def test_both_starts_have_the_same_served_weights_and_only_one_has_residual_bits(
    source: SourceModel,
) -> None:
    uniform = smollm2("uniform")
    on_grid = off_grid = 0
    for name, values in uniform.weights.items():
        assert torch.equal(values.bfloat16().float(), source.weights[name])
        on_grid += int((values == source.weights[name]).sum())
        off_grid += int((values != source.weights[name]).sum())
    assert off_grid > 3 * on_grid


def test_chat_markers_are_tokens_digits_stand_alone_and_text_survives(source: SourceModel) -> None:
    tokenizer = source.tokenizer()
    assert tokenizer.get_vocab_size() == 49152
    ids = tokenizer.encode("<|im_start|>user\nIt's 2024!<|im_end|>").ids
    assert (ids[0], ids[-1]) == (1, 2)
    assert [tokenizer.decode([token]) for token in ids[-6:-1]] == ["2", "0", "2", "4", "!"]
    text = "Zwölf Boxkämpfer jagen 3.14 ☃\n\n\tdef f(x): return x"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_an_english_sentence_is_not_surprising(source: SourceModel) -> None:
    tokens = torch.tensor([source.tokenizer().encode(SENTENCE).ids])
    model = source.model().requires_grad_(False)
    hidden = model.hidden(tokens, torch.arange(tokens.shape[1]))
    logprobs = model.logits(hidden[0, :-1]).log_softmax(-1)
    nats = -logprobs.gather(1, tokens[0, 1:, None]).mean()
    assert math.exp(nats) < 30


def test_it_answers_a_question(source: SourceModel, tmp_path: Path) -> None:
    served = source.served()
    directory = write_checkpoint(tmp_path / "model", served, source.side_files)

    async def scenario() -> str:
        engine = CpuEngine()
        try:
            await engine.load(directory, 0)
            assert await engine.weights_digest() == digest_of(served)
            prompt = engine.encode(chat_prompt("What is the capital of France?"))
            answer = await complete(engine, prompt, max_tokens=12)
            return engine.decode([token.token for token in answer])
        finally:
            await engine.close()

    assert "Paris" in asyncio.run(scenario())
