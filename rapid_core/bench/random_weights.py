"""A model of a given shape with random weights: what it says means nothing, what it costs is real."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from rapid_core.byte_tokenizer import tiny_tokenizer
from rapid_core.errors import LoadError, RapidError
from rapid_core.loading import LoadedModel
from rapid_core.placement import resolve_device, resolve_dtype
from rapid_core.runner import refuse_recurrent


def random_model(name: str, *, device: str, dtype: str) -> LoadedModel:
    """Build the model that a configuration describes, on its device, with a tokenizer of one token a byte.

    name: a hub name, a folder, or the path of a config.json; weights are not looked for.
    Raises `LoadError` with the reason where there is no such configuration.
    """
    where = resolve_device(device)
    kind = resolve_dtype(dtype, where)
    tokenizer = tiny_tokenizer()
    try:
        config = AutoConfig.from_pretrained(name)
        refuse_recurrent(config, MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None))
        # On its own device from the start: copying it there would hold it twice.
        with torch.random.fork_rng(devices=[]), torch.device(where):
            torch.manual_seed(0)
            model: Any = AutoModelForCausalLM.from_config(config, dtype=kind or _own_dtype(config)).eval()
    except RapidError:
        raise
    except Exception as error:  # a hub, a file or an odd configuration raise almost anything
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise LoadError(
            f"no model could be built from the configuration {name!r}: {reason}. Give a hub name, a model folder, or "
            "the path of a config.json"
        ) from error
    if model.config.get_text_config(decoder=True).vocab_size < len(tokenizer):
        raise LoadError(
            f"a vocabulary must hold the {len(tokenizer)} tokens of a byte tokenizer, and {name!r} has "
            f"{model.config.get_text_config(decoder=True).vocab_size}; give another configuration"
        )
    model.generation_config = GenerationConfig(pad_token_id=tokenizer.pad_token_id)
    return LoadedModel(model, tokenizer, f"random weights of {name}")


def _own_dtype(config: Any) -> torch.dtype:
    own = config.get_text_config(decoder=True).dtype or config.dtype
    return own if isinstance(own, torch.dtype) else torch.bfloat16
