"""Weights of fewer bits: the names of bitsandbytes and torchao, and transformers' own configurations."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import BitsAndBytesConfig, TorchAoConfig
from transformers.utils.quantization_config import QuantizationConfigMixin

from rapid_core.errors import OptionError
from rapid_core.estimate import FEWEST_BITS
from rapid_core.extras import require

EXTRA = "quantization"
# Bits of a weight of a linear layer, without the scales beside it.
BITS = {"bnb-8bit": 8, "bnb-4bit": 4, "torchao-int8": 8, "torchao-int4": 4}
# Hidden sizes of small models are no multiples of torchao's own choice of 128, and would stay as they are.
INT4_GROUP = 64


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the linear layers of a model are quantised; the same text is the same quantisation.

    config: for transformers, None for weights as they are. bits: of a weight, a lower bound.
    """

    text: str = "none"
    config: Any = field(default=None, compare=False)
    bits: int | None = field(default=None, compare=False)


NONE = Quantization()


def resolve_quantization(
    value: str | Any | None, device_type: str, dtype: torch.dtype | None, *, option: str = "quantization"
) -> Quantization:
    """Check a name of a quantisation, or a configuration object; None and "none" are weights as they are.

    device_type, dtype: of what is computed with the weights; a dtype of None is the checkpoint's own.
    Raises `OptionError`, and `MissingDependencyError` for a package that is not installed.
    """
    if value is None or value == "none":
        return NONE
    if isinstance(value, QuantizationConfigMixin):
        return Quantization(_text(value), value, FEWEST_BITS)
    if value not in tuple(BITS):
        raise OptionError(
            f"{option} must be 'none', {', '.join(map(repr, BITS))} or a quantization config of transformers, "
            f"got {value!r}"
        )
    require("accelerate", extra=EXTRA)
    config = _bitsandbytes(value, dtype) if value.startswith("bnb") else _torchao(value, device_type, dtype, option)
    return Quantization(_text(config), config, BITS[value])


def _text(config: Any) -> str:
    return json.dumps(config.to_dict(), sort_keys=True, default=str)


def hush_eight_bit_products() -> None:
    """Keep bitsandbytes from a warning in every product of an 8-bit model that is not float16."""
    logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)


def _bitsandbytes(name: str, dtype: torch.dtype | None) -> Any:
    require("bitsandbytes", extra=EXTRA)
    if name == "bnb-4bit":
        compute = dtype or torch.bfloat16
        return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=compute)
    return BitsAndBytesConfig(load_in_8bit=True)


def _torchao(name: str, device_type: str, dtype: torch.dtype | None, option: str) -> Any:
    api = require("torchao.quantization", extra=EXTRA)
    if name == "torchao-int8":
        return TorchAoConfig(api.Int8WeightOnlyConfig())
    if device_type != "cuda":
        raise OptionError(
            f"{option}='torchao-int4' must run on a CUDA device, got {device_type!r}; choose 'bnb-4bit' or "
            "'torchao-int8' there"
        )
    if dtype != torch.bfloat16:
        raise OptionError(f"{option}='torchao-int4' must have dtype='bfloat16' beside it, got {dtype or 'auto'}")
    config = api.Int4WeightOnlyConfig(group_size=INT4_GROUP, int4_packing_format="tile_packed_to_4d")
    return TorchAoConfig(config)
