"""Keys and values of running sequences: one row of a growing cache per sequence.

Rows `[0, rows)` are in use and stay dense: dropping a row moves the last one into its place, so the
rows of one decode step are a view and never a gather.  A row belongs to one request for its
whole life; nothing is shared between requests.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)

from skerry.inference.models.config import LlamaConfig

_GROW_TOKENS = 64


def causal(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attend over the sequence itself, every token to itself and the ones before."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class KvCache:
    """The keys and values of up to `max_rows` sequences."""

    def __init__(self, config: LlamaConfig, *, max_rows: int, dtype: torch.dtype) -> None:
        self._shape = (config.layers, max_rows, config.kv_heads)
        self._head_dim = config.head_dim
        self._dtype = dtype
        # [layers, rows, kv heads, tokens, head dim]
        self._keys = self._values = torch.empty((*self._shape, 0, self._head_dim), dtype=dtype)
        self.lengths: list[int] = []
        self._mask = torch.empty(0)

    @property
    def rows(self) -> int:
        """How many sequences are in the cache."""
        return len(self.lengths)

    def add(self) -> int:
        """Take the next row, empty; its number is `rows - 1` from now on."""
        if self.rows == self._shape[1]:
            raise ValueError(f"all {self._shape[1]} rows are in use")
        self.lengths.append(0)
        return self.rows - 1

    def drop(self, row: int) -> None:
        """Free `row`; the last row, if it is another one, is `row` from now on."""
        last = self.rows - 1
        if row != last:
            length = self.lengths[last]
            self._keys[:, row, :, :length] = self._keys[:, last, :, :length]
            self._values[:, row, :, :length] = self._values[:, last, :, :length]
            self.lengths[row] = length
        self.lengths.pop()

    def prefill(
        self, row: int, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """Attend within a prompt, shape [1, heads, tokens, head dim], and keep it in `row`."""
        tokens = k.shape[2]
        if layer == 0:
            self._reserve(tokens)
            self.lengths[row] = tokens
        self._keys[layer, row, :, :tokens] = k[0]
        self._values[layer, row, :, :tokens] = v[0]
        return causal(layer, q, k, v)

    def positions(self) -> torch.Tensor:
        """Return the position of the next token of every row, and make room for it."""
        lengths = torch.tensor(self.lengths)
        longest = max(self.lengths) + 1
        self._reserve(longest)
        # Of two rows, one longer than the other, the shorter must not see the other's tail.
        self._mask = (torch.arange(longest) <= lengths[:, None])[:, None, None, :]
        self._step = (torch.arange(self.rows), lengths)
        self.lengths = [length + 1 for length in self.lengths]
        return lengths

    def decode(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attend from one token per row, shape [rows, heads, 1, head dim], after `positions`."""
        rows, at = self._step
        keys = self._keys[layer, : self.rows]
        values = self._values[layer, : self.rows]
        keys[rows, :, at] = k[:, :, 0]
        values[rows, :, at] = v[:, :, 0]
        longest = self._mask.shape[-1]
        return F.scaled_dot_product_attention(
            q,
            keys[:, :, :longest],
            values[:, :, :longest],
            attn_mask=self._mask,
            enable_gqa=True,
        )

    def _reserve(self, tokens: int) -> None:
        room = self._keys.shape[3]
        if tokens <= room:
            return
        grown = -(-max(tokens, room + room // 2) // _GROW_TOKENS) * _GROW_TOKENS
        self._keys = self._regrown(self._keys, grown)
        self._values = self._regrown(self._values, grown)

    def _regrown(self, old: torch.Tensor, tokens: int) -> torch.Tensor:
        # Zeros, not empty: a masked NaN would still poison the product with the values.
        new = torch.zeros((*self._shape, tokens, self._head_dim), dtype=self._dtype)
        new[:, : self.rows, :, : old.shape[3]] = old[:, : self.rows]
        return new
