"""Public doubles: a scripted engine, tiny random models, fixed logits, a word-counting encoder.

None of them needs a network or a model file. The project's own tests use them too.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from rapid_core.byte_tokenizer import tiny_tokenizer as tiny_tokenizer  # noqa: PLC0414 - a public double too
from rapid_core.config import Retrieval
from rapid_core.engine import RapidEngine
from rapid_core.loading import LoadedModel
from rapid_core.retrieval.embedding import Vectors
from rapid_core.scripted import Asked as Asked  # noqa: PLC0414
from rapid_core.scripted import ScriptedEngine as ScriptedEngine  # noqa: PLC0414

# What each architecture needs beside the sizes that all of them share.
_MOE = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
_LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 24},
    "gemma2": {"sliding_window": 24, "query_pre_attn_scalar": 16, "tie_word_embeddings": False},
    "gemma3_text": {"sliding_window": 24, "query_pre_attn_scalar": 16, "tie_word_embeddings": False},
    "phi3": {},
    "olmo2": {},
    "granite": {},
    "glm4": {},
    "smollm3": {},
    "stablelm": {},
    "qwen3_moe": _MOE,
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": _LATENT,
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 24},
    "cohere2": {"sliding_window": 24},
    "olmo3": {"sliding_window": 24},
    "qwen2_moe": {**_MOE, "shared_expert_intermediate_size": 32},
    "starcoder2": {},
    "gpt_neox": {},
    "phi": {},
    "gpt2": {"n_embd": 64, "n_layer": 4, "n_head": 4},
}


def tiny_model(
    architecture: str = "llama",
    *,
    seed: int = 0,
    window: int = 1024,
    padded_to: int = 0,
    words: Sequence[str] = (),
    **options: Any,
) -> LoadedModel:
    """A random float32 model of one of transformers' architectures, with a tokenizer of one token a byte.

    window: positions. padded_to: width of the logits, that of the tokenizer unless given. words:
    texts that are tokens too, as in `tiny_tokenizer`. options go into the configuration. torch's
    global random state is left as it was.
    """
    tokenizer = tiny_tokenizer(words=words)
    sizes = {
        "vocab_size": padded_to or len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": window,
        # Wide enough that the largest logit is far from the next one, in units of rounding.
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if architecture in ("deepseek_v3", "phi3", "stablelm", "gpt_neox", "phi", "starcoder2", "gpt2"):
        del sizes["head_dim"]
    config = AutoConfig.for_model(architecture, **{**sizes, **FAMILIES.get(architecture, {}), **options})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return LoadedModel(model, tokenizer, f"tiny-{architecture}-{seed}")


def tiny_pair(
    architecture: str = "llama", *, closeness: float = 0.98, **options: Any
) -> tuple[LoadedModel, LoadedModel]:
    """A target and a drafter of one vocabulary that agree often but not always.

    closeness: the target's share in the drafter's weights, 1 for a copy.
    """
    target = tiny_model(architecture, seed=0, **options)
    drafter = tiny_model(architecture, seed=1, **options)
    with torch.no_grad():
        theirs = dict(target.model.named_parameters())
        for name, weight in drafter.model.named_parameters():
            weight.lerp_(theirs[name], closeness)
    return target, drafter


def tiny_foreign_pair(
    architecture: str = "llama", *, target_words: Sequence[str] = (), drafter_words: Sequence[str] = (), **options: Any
) -> tuple[LoadedModel, LoadedModel]:
    """A target and a drafter whose vocabularies have other words, and so other ids.

    Their layers are the same, and so is what they know of each token that both have: where
    their prompts agree, so do they.
    """
    target = tiny_model(architecture, words=target_words, **options)
    drafter = tiny_model(architecture, seed=1, words=drafter_words, **options)
    ours, theirs = target.tokenizer.get_vocab(), drafter.tokenizer.get_vocab()
    both = sorted(ours.keys() & theirs.keys())
    with torch.no_grad():
        weights = dict(target.model.named_parameters())
        for name, weight in drafter.model.named_parameters():
            if weight.shape == weights[name].shape and weight.shape[0] not in (len(ours), len(theirs)):
                weight.copy_(weights[name])
            else:
                weight[[theirs[token] for token in both]] = weights[name][[ours[token] for token in both]]
    return target, drafter


def save_tiny_model(folder: str | Path, architecture: str = "llama", **options: Any) -> Path:
    """Write a tiny model to a folder that `RapidEngine.load` reads."""
    loaded = tiny_model(architecture, **options)
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return Path(folder)


def tiny_engine(
    architecture: str = "llama", *, retrieval: Retrieval | None = None, reproducible: bool = False, **options: Any
) -> RapidEngine:
    """A `RapidEngine` on a tiny pair, whose retrieval counts words."""
    retrieval = retrieval or Retrieval(chunk_tokens=64, threshold=0.0, floor_tokens=128)
    return RapidEngine(
        *tiny_pair(architecture, **options), retrieval=retrieval, encoder=WordEncoder(), reproducible=reproducible
    )


class WordEncoder:
    """An encoder for tests: two texts are similar if they share words."""

    name = "words"
    max_tokens = 4096
    dimensions = 512

    def __init__(self) -> None:
        self.embedded = 0

    def count_tokens(self, text: str) -> int:
        """Words and signs."""
        return len(re.findall(r"\w+|\S", text))

    def embed_passages(self, texts: Sequence[str], on_batch: Callable[[int], None]) -> Vectors:
        """Unit vectors; `embedded` counts the passages so far."""
        self.embedded += len(texts)
        on_batch(len(texts))
        return np.stack([self.embed_query(text) for text in texts])

    def embed_query(self, text: str) -> Vectors:
        """A unit vector of hashed word counts."""
        vector = np.full(self.dimensions, 1e-3, dtype=np.float32)
        for word in re.findall(r"\w+", text.lower()):
            vector[zlib.crc32(word.encode()) % self.dimensions] += 1
        return np.asarray(vector / np.linalg.norm(vector), dtype=np.float32)


@dataclass(frozen=True)
class _FixedConfig:
    vocab_size: int
    max_position_embeddings: int
    model_type: str = "fixed_logits"

    def get_text_config(self, decoder: bool = True) -> _FixedConfig:  # noqa: ARG002 - transformers' signature
        return self


class FixedLogits(torch.nn.Module):
    """A model that answers each position from a table: for exact laws and exact acceptances.

    table: [n, V]. The logits after the id x are row x, or row 0 where the table has one row.
    It counts its forwards in `calls`, and keeps its place in the cache like any model.
    """

    def __init__(self, table: Tensor, *, window: int = 4096, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.register_buffer("table", table.to(dtype))
        self.config = _FixedConfig(vocab_size=table.shape[-1], max_position_embeddings=window)
        self.dtype = dtype
        self.embedding = torch.nn.Embedding(1, 1)
        self.calls = 0

    def get_input_embeddings(self) -> torch.nn.Embedding:
        """Where the ids go."""
        return self.embedding

    def forward(self, input_ids: Tensor, past_key_values: Any, logits_to_keep: int = 0, **_: Any) -> Any:
        """Logits [1, k, V] of ids [1, k]."""
        self.calls += 1
        states = input_ids[:, None, :, None].float()
        past_key_values.update(states, states, 0)
        rows = input_ids[0] if self.get_buffer("table").shape[0] > 1 else torch.zeros_like(input_ids[0])
        return SimpleNamespace(logits=self.get_buffer("table")[rows][None, -logits_to_keep:])
