"""Simulated steps of AdamW on the weights of a Llama, as served in BF16 or in FP8.

The FP32 master weights are normal, so that the bits below the served ones are uniform, as after
long training; a step adds a normal update to all of them and they are served again: rounded to BF16
to the nearest even, and for FP8 cast from the BF16 weights, never from the master, with one power
of two as the scale of each matrix.  Which words change follows from that, by the law that real runs
show: P(change | exponent e) = c * lr / ulp(e).  The size of the updates is fitted to the density.

Every tensor has random numbers of its own, so that nothing is held but what is served.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

from skerry.benchmarks.weights import Pair, layout_of
from skerry.codec.dtypes import Words

DTYPES = ("BF16", "F8_E4M3")

_STD = 0.02
_NORM_STD = 0.05  # of norm weights around 1
_WIDTHS = (2048, 1024, 512, 256, 128, 64)
_MIN_LAYERS = 2
_BLOCK = 1 << 18  # words that are made at a time: they stay in the cache
_FITTED = 1 << 22  # words that the updates are fitted on
_ROUNDS = 12
_FP8_MAX = 448.0
_FP8_SIGMAS = 6  # that the largest FP8 number has room for


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    """One tensor to simulate; norms stay BF16 and lie around 1."""

    number: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    std: float

    @property
    def words(self) -> int:
        return math.prod(self.shape)

    @property
    def spread(self) -> tuple[float, float]:
        """The mean and the standard deviation of its weights."""
        return (0.0, self.std) if len(self.shape) == 2 else (1.0, _NORM_STD)


def simulate(dtype: str, nbytes: int, density: float, *, seed: int, threads: int = 1) -> Pair:
    """Return weights of at least `nbytes` of which a step changed about the share `density`."""
    tensors = llama(dtype, nbytes)
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # in each of ours
    size = fit_updates(tensors, density, seed)
    with ThreadPoolExecutor(threads) as pool:
        made = list(pool.map(lambda tensor: _make(tensor, size, seed, tensor.words), tensors))
    torch.set_num_threads(torch_threads)
    names = [tensor.name for tensor in tensors]
    return Pair(
        layout=layout_of([(tensor.name, tensor.dtype, tensor.shape) for tensor in tensors]),
        old={name: old.view(np.uint8) for name, (old, _) in zip(names, made, strict=True)},
        new={name: new.view(np.uint8) for name, (_, new) in zip(names, made, strict=True)},
    )


def llama(dtype: str, nbytes: int) -> list[_Tensor]:
    """Return the tensors of a Llama that is as wide as `nbytes` of matrices in `dtype` allow."""
    words = nbytes // (2 if dtype == "BF16" else 1)
    for width in _WIDTHS:
        inner, vocabulary = width * 11 // 4, 16 * width
        layer = 2 * width * width + 2 * width * (width // 4) + 3 * width * inner
        layers = max(-(-(words - vocabulary * width) // layer), 1)
        if layers >= _MIN_LAYERS:
            break
    shapes: list[tuple[str, tuple[int, ...]]] = [("model.embed_tokens", (vocabulary, width))]
    for n in range(layers):
        shapes += [
            (f"model.layers.{n}.input_layernorm", (width,)),
            (f"model.layers.{n}.self_attn.q_proj", (width, width)),
            (f"model.layers.{n}.self_attn.k_proj", (width // 4, width)),
            (f"model.layers.{n}.self_attn.v_proj", (width // 4, width)),
            (f"model.layers.{n}.self_attn.o_proj", (width, width)),
            (f"model.layers.{n}.post_attention_layernorm", (width,)),
            (f"model.layers.{n}.mlp.gate_proj", (inner, width)),
            (f"model.layers.{n}.mlp.up_proj", (inner, width)),
            (f"model.layers.{n}.mlp.down_proj", (width, inner)),
        ]
    shapes.append(("model.norm", (width,)))
    narrower = _STD / math.sqrt(2 * layers)  # what GPT-2 and its heirs begin with
    return [
        _Tensor(
            number=number,
            name=f"{name}.weight",
            dtype=dtype if len(shape) == 2 else "BF16",
            shape=shape,
            std=narrower if name.endswith(("o_proj", "down_proj")) else _STD,
        )
        for number, (name, shape) in enumerate(shapes)
    ]


def fit_updates(tensors: list[_Tensor], density: float, seed: int) -> float:
    """Return the standard deviation of updates that change the share `density` of all words.

    It is fitted on the first words of each matrix, which are those of the weights themselves.
    """
    matrices = [tensor for tensor in tensors if len(tensor.shape) == 2]
    share = min(_FITTED / sum(tensor.words for tensor in matrices), 1.0)
    size = density * _STD / 128
    for _ in range(_ROUNDS):
        changed = words = 0
        for tensor in matrices:
            count = max(int(tensor.words * share), 1)
            old, new = _make(tensor, size, seed, count)
            changed += int(np.count_nonzero(old != new))
            words += count
        found = changed / words
        if abs(found / density - 1) < 0.01:
            break
        size *= min(max(density / max(found, 1 / words), 1 / 16), 16)
    return size


def _make(tensor: _Tensor, size: float, seed: int, count: int) -> tuple[Words, Words]:
    """Return the first `count` words of a tensor as served, before and after the step."""
    weights, updates = (
        torch.Generator().manual_seed(seed << 32 | tensor.number << 1 | which) for which in (0, 1)
    )
    kind = np.uint8 if tensor.dtype == "F8_E4M3" else np.uint16
    old: Words = np.empty(count, kind)
    new: Words = np.empty(count, kind)
    mean, std = tensor.spread
    for start in range(0, count, _BLOCK):
        stop = min(start + _BLOCK, count)
        master = torch.empty(stop - start).normal_(mean, std, generator=weights)
        old[start:stop] = served(master, tensor.dtype, std)
        master += torch.empty(stop - start).normal_(0.0, size, generator=updates)
        new[start:stop] = served(master, tensor.dtype, std)
    return old, new


def served(master: torch.Tensor, dtype: str, std: float) -> Words:
    """Return the words that are served of finite master weights; `std` sets the scale of FP8."""
    bf16: Words = master.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    if dtype == "BF16":
        return bf16
    return _fp8_of_bf16(math.floor(math.log2(_FP8_MAX / (_FP8_SIGMAS * std)))).take(bf16)


@lru_cache
def _fp8_of_bf16(exponent: int) -> npt.NDArray[np.uint8]:
    """Return the e4m3 code of each BF16 number times 2^exponent, shape [65536]."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    scaled = (every.float() * 2.0**exponent).clamp(-_FP8_MAX, _FP8_MAX)
    codes: npt.NDArray[np.uint8] = scaled.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    return codes
