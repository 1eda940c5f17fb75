"""Bytes of weights and caches, from their tensors."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache

from rapid_core.weights import stored_bytes


def weight_bytes(model: Any) -> int:
    """Bytes of a model's parameters; tied ones count once."""
    return stored_bytes(model)


def read_bytes(model: Any) -> int:
    """Bytes of weights that one step reads.

    Of an embedding that is no output layer too, a step reads one row. A mixture of experts
    reads less than this: its share of the limit comes out too high.
    """
    embedding, output = model.get_input_embeddings().weight, model.get_output_embeddings()
    tied = output is not None and output.weight is embedding
    return weight_bytes(model) - (0 if tied else embedding.nbytes)


@torch.no_grad()
def cache_bytes(model: Any) -> int:
    """Bytes of keys and values for one token."""
    cache = DynamicCache()
    device = model.get_input_embeddings().weight.device
    model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=device), past_key_values=cache, use_cache=True)
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
