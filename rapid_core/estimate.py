"""What a model's weights will take, reckoned from its configuration before any of them is read."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import AutoModelForCausalLM

# Of a configuration whose bits nobody tells it is known that there are no fewer than these.
FEWEST_BITS = 4


def without_weights(config: Any, dtype: torch.dtype | None, trust: bool) -> Any:
    """The model of a configuration, on the device that holds no data; dtype: of its parameters."""
    kind = dtype or getattr(config.get_text_config(decoder=True), "dtype", None) or torch.bfloat16
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=kind, trust_remote_code=trust)


def weight_sizes(model: Any, bits: int | None) -> dict[str, int]:
    """Bytes of each parameter as it will be stored, tied ones once.

    bits: of the weights of linear layers, which quantisers take but for the output layer; None where nothing is
    quantised. For a checkpoint that already is, sizes are a lower bound.
    """
    if bits is None and getattr(model.config, "quantization_config", None) is not None:
        bits = FEWEST_BITS
    output = model.get_output_embeddings()
    reduced = {
        f"{path}.weight"
        for path, part in model.named_modules()
        if bits is not None and isinstance(part, torch.nn.Linear) and part is not output
    }
    return {
        path: weight.numel() * (bits or 0) // 8 if path in reduced else weight.nbytes
        for path, weight in model.named_parameters()
    }
