"""What the keys and values of a model depend on, in a form that two runs can compare."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# These say where a model comes from, how it runs and how an answer ends; no key depends on them.
UNRELATED = frozenset(
    {"_name_or_path", "architectures", "bos_token_id", "dtype", "eos_token_id", "pad_token_id", "torch_dtype"}
    | {"transformers_version", "use_cache"}
)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Hashes of a model's configuration and of all its weights, and its dtype by name."""

    config: str
    dtype: str
    weights: str


def fingerprint(model: Any) -> Fingerprint:
    """Take the fingerprint of a model, at the cost of reading its weights once.

    The weights count by exact sums of their bits, which are the same on every device, and which
    a fine-tuned sibling does not share.
    """
    config = {name: value for name, value in model.config.to_dict().items() if name not in UNRELATED}
    weights = hashlib.sha256()
    for name, weight in model.named_parameters():
        weights.update(f"{name} {tuple(weight.shape)} {_sum_of_bits(weight)}\n".encode())
    return Fingerprint(
        config=hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest(),
        dtype=str(model.dtype).removeprefix("torch."),
        weights=weights.hexdigest(),
    )


def _sum_of_bits(weight: Tensor) -> int:
    """The sum of a tensor's bytes taken as whole numbers of 64 bits, in arithmetic that wraps around."""
    raw = weight.detach().contiguous().view(-1).view(torch.uint8)
    if raw.storage_offset() % 8:
        raw = raw.clone()
    whole = raw.numel() // 8 * 8
    return int(raw[:whole].view(torch.int64).sum()) + int(raw[whole:].sum(dtype=torch.int64))
