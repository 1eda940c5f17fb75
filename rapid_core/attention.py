"""Attention over the cache for a few query tokens: drafting and verification.

Stock attention repeats the keys for every query head of a group when several tokens attend
under a mask. Here the heads that share a key head are folded into the rows of one product, and
only the columns that causality or a sliding window touches are masked. Steps of a fixed shape, which can be
compiled and recorded, attend to the whole preallocated cache instead, under a mask made of positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_utils import AttentionInterface

NAME = "rapid_grouped"
STATIC_NAME = "rapid_static"
# Keys that are attended to as one piece by `static_attention`; capacities are multiples of it.
PIECE = 256
# More query tokens are a prefill, which the stock kernels do best.
MOST_QUERIES = 64
# Architectures whose layers hand over all that shapes their attention: scaling, sliding window,
# soft cap. Each is compared with eager attention in the tests; no other gets this path.
ARCHITECTURES = frozenset(
    {"gemma2", "gemma3_text", "granite", "llama", "mistral", "mixtral", "olmo2", "olmo3", "phi3", "qwen2"}
    | {"qwen2_moe", "qwen3", "qwen3_moe", "smollm3"}
)


def grouped_attention(
    module: Any,  # noqa: ARG001 - transformers' signature
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,  # noqa: ARG001 - causality is known, and no mask is made
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **__: Any,
) -> tuple[Tensor, None]:
    """Attention of the last k positions to all n.

    query: [1, Hq, k, D]. key, value: [1, Hkv, n, D], the queries' own at the end. Position i
    sees positions (i - sliding_window, i]. Returns [1, k, Hq, D] and no weights.
    """
    _, query_heads, queries, width = query.shape
    heads = key.shape[1]
    if sliding_window is not None:
        # The first query sees sliding_window - 1 positions before it; nothing sees further back.
        first = max(0, key.shape[2] - (sliding_window - 1 + queries))
        key, value = key[:, :, first:], value[:, :, first:]
    keys = key.shape[2]
    # rows: [Hkv, g k, D], the g query heads of a key head one behind the other
    rows = query.reshape(heads, query_heads // heads * queries, width)
    scores = torch.bmm(rows * (width**-0.5 if scaling is None else scaling), key[0].transpose(1, 2))
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if queries > 1:
        by_query = scores.view(-1, queries, keys)
        ones = torch.ones(queries, queries, dtype=torch.bool, device=scores.device)
        by_query[:, :, keys - queries :].masked_fill_(ones.triu(1), -torch.inf)
        if sliding_window is not None:
            # Each query leaves one more of the oldest positions behind, once the window is full.
            spare = sliding_window - 1 + queries - keys
            by_query[:, :, :queries].masked_fill_(ones.tril(-1 - spare), -torch.inf)
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(value.dtype)
    out = torch.bmm(weights, value[0])
    return out.view(1, query_heads, queries, value.shape[-1]).transpose(1, 2).contiguous(), None


def static_attention(
    module: Any,  # noqa: ARG001 - transformers' signature
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **__: Any,
) -> tuple[Tensor, None]:
    """Attention of k positions to a whole preallocated cache, by shapes and tensors alone.

    query: [1, Hq, k, D]. key, value: [1, Hkv, n, D], n a multiple of PIECE; what stands behind
    the queries' own is not seen, but must be finite. attention_mask: [1, 1, k, 1], the queries'
    positions, one behind the other: transformers hands a mask of four dimensions on as it is.
    Returns [1, k, Hq, D] and no weights.
    """
    assert attention_mask is not None
    _, query_heads, queries, width = query.shape
    heads, keys = key.shape[1:3]
    positions = attention_mask.view(queries, 1)
    columns = torch.arange(keys, device=query.device)
    if sliding_window is not None:
        seen = -(-(sliding_window - 1 + queries) // PIECE) * PIECE
        # Picking keys copies them: they are read, written and read again.
        if 3 * seen <= keys:
            columns = columns[:seen] + (positions[0] - (sliding_window - 1)).clamp(0, keys - seen)
            key, value, keys = key.index_select(2, columns), value.index_select(2, columns), seen
    hidden = columns > positions
    if sliding_window is not None:
        hidden = hidden | (columns <= positions - sliding_window)
    rows = query.reshape(heads, query_heads // heads * queries, width)
    scores = torch.bmm(rows * (width**-0.5 if scaling is None else scaling), key[0].transpose(1, 2)).float()
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    # The smallest number and not -inf: a piece that is hidden as a whole must not become NaN.
    scores = scores.view(heads, -1, queries, keys).masked_fill(hidden, torch.finfo(torch.float32).min)
    # The second product has few rows and a long inner side. A batched product gives that to one block of
    # a GPU for each head, so the keys are cut in pieces, and a batch entry is a piece (flash-decoding).
    # `scaled_dot_product_attention` under a mask neither cuts keys in pieces nor leaves them ungrouped.
    pieces = keys // PIECE
    scores = scores.view(heads, -1, pieces, PIECE)
    largest = scores.amax(dim=-1, keepdim=True)
    weights = (scores - largest).exp()
    by_piece = weights.to(value.dtype).transpose(1, 2).reshape(heads * pieces, -1, PIECE)
    parts = torch.bmm(by_piece, value[0].reshape(heads * pieces, PIECE, -1))
    # Each piece's sums count by its own largest score: [Hkv, g k, pieces, 1]
    share = (largest - largest.amax(dim=2, keepdim=True)).exp()
    total = (weights.sum(dim=-1, keepdim=True) * share).sum(dim=2)
    out = (parts.view(heads, pieces, -1, value.shape[-1]).transpose(1, 2) * share).sum(dim=2) / total
    out = out.to(value.dtype).view(1, query_heads, queries, value.shape[-1])
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, grouped_attention)
AttentionInterface.register(STATIC_NAME, static_attention)


def can_group(text_config: Any) -> bool:
    """Whether a model's attention can be computed by the functions of this module."""
    return text_config.model_type in ARCHITECTURES


@contextmanager
def grouped(model: Any, name: str = NAME) -> Iterator[None]:
    """Let a model attend by one of our functions inside the block; outside it is as it was."""
    configs = (model.config, model.config.get_text_config(decoder=True))
    before = [config._attn_implementation_internal for config in configs]
    try:
        for config in configs:
            config._attn_implementation_internal = name
        yield
    finally:
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation_internal = implementation
