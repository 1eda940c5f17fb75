"""The tensors that a weight is stored in: itself, or the parts of a quantised one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor


def is_quantized(model: Any) -> bool:
    """Whether transformers quantised a model's weights, or read a checkpoint of such weights."""
    return bool(getattr(model, "is_quantized", False))


def stored_tensors(weight: Tensor) -> Iterator[Tensor]:
    """What a weight is made of; torchao's weights look like ones of the model's dtype, and are several tensors."""
    if not hasattr(weight, "__tensor_flatten__"):
        yield weight
        return
    names, _ = weight.__tensor_flatten__()
    for name in names:
        yield from stored_tensors(getattr(weight, name))


def stored_bytes(model: Any) -> int:
    """Bytes of a model's parameters; tied ones count once."""
    return sum(part.numel() * part.element_size() for weight in model.parameters() for part in stored_tensors(weight))
