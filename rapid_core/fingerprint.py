"""What the keys and values of a model depend on, in a form that two runs can compare."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rapid_core.weights import is_quantized, stored_tensors

# These say where a model comes from, how it runs and how an answer ends; no key depends on them.
UNRELATED = frozenset(
    {"_name_or_path", "architectures", "bos_token_id", "dtype", "eos_token_id", "pad_token_id", "torch_dtype"}
    | {"transformers_version", "use_cache"}
    # Compared by itself.
    | {"quantization_config"}
)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Hashes of a model's configuration and of all its weights, its dtype by name, and how it is quantised.

    quantization: the method with a hash of its options, "none" for whole weights.
    """

    config: str
    dtype: str
    weights: str
    quantization: str = "none"


def fingerprint(model: Any) -> Fingerprint:
    """Take the fingerprint of a model, at the cost of reading its weights once.

    The weights count by exact sums of their bits, which are the same on every device, and which
    a fine-tuned sibling does not share. A quantised model must have run once before: bitsandbytes
    lays its scales out in the first forward.
    """
    options = model.config.to_dict()
    config = {name: value for name, value in options.items() if name not in UNRELATED}
    weights = hashlib.sha256()
    for name, weight in _weights(model).items():
        parts = " ".join(str(_sum_of_bits(part)) for part in stored_tensors(weight))
        weights.update(f"{name} {tuple(weight.shape)} {parts}\n".encode())
    return Fingerprint(
        config=_hash(config),
        dtype=str(model.dtype).removeprefix("torch."),
        weights=weights.hexdigest(),
        quantization=_quantization(options.get("quantization_config")),
    )


def _weights(model: Any) -> dict[str, Tensor]:
    """A model's parameters by name; bitsandbytes keeps the scales of its own beside them."""
    weights = dict(model.named_parameters())
    if is_quantized(model):
        weights |= {name: part for name, part in model.state_dict().items() if isinstance(part, Tensor)} | weights
    return weights


def _quantization(options: dict[str, Any] | None) -> str:
    if not options:
        return "none"
    method = options.get("quant_method", "unknown")
    return f"{getattr(method, 'value', method)} {_hash(options)[:12]}"


def _hash(options: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(options, sort_keys=True, default=str).encode()).hexdigest()


def _sum_of_bits(weight: Tensor) -> int:
    """The sum of a tensor's bytes taken as whole numbers of 64 bits, in arithmetic that wraps around."""
    raw = weight.detach().contiguous().view(-1).view(torch.uint8)
    if raw.storage_offset() % 8:
        raw = raw.clone()
    whole = raw.numel() // 8 * 8
    return int(raw[:whole].view(torch.int64).sum()) + int(raw[whole:].sum(dtype=torch.int64))
