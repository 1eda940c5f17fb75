"""Grouped attention equals transformers' eager attention to rounding, and is used where it may be."""

from __future__ import annotations

import pytest
import torch

from rapid_core import attention
from rapid_core.runner import ModelRunner
from rapid_core.testing import tiny_model

PREFIX, BLOCK = 100, 7


def logits_over_cache(architecture, queries, dtype, group):
    """Logits of `queries` tokens behind a prefilled cache, with or without grouped attention."""
    model = tiny_model(architecture).model.to(dtype)
    model.set_attn_implementation("eager")
    runner = ModelRunner(model, role="target")
    runner._can_group = False
    ids = torch.arange(3, 3 + PREFIX + queries) % 256
    runner.forward(ids[:PREFIX], 1)
    runner._can_group = group
    return runner.forward(ids[PREFIX:], queries)


@pytest.mark.parametrize("architecture", sorted(attention.ARCHITECTURES))
@pytest.mark.parametrize("queries", [1, 2, BLOCK, 40])
def test_it_equals_eager_attention_in_float32(architecture, queries):
    """Windows of 24 are shorter than the prefix, and shorter and longer than the blocks."""
    grouped, eager = (logits_over_cache(architecture, queries, torch.float32, group) for group in (True, False))
    assert torch.allclose(grouped, eager, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "mistral", "gemma3_text"])
def test_it_equals_eager_attention_in_bfloat16_to_its_rounding(architecture):
    exact = logits_over_cache(architecture, BLOCK, torch.float32, False)
    grouped, eager = (logits_over_cache(architecture, BLOCK, torch.bfloat16, group) for group in (True, False))
    # Both are off the exact logits by bfloat16's rounding, and ours by no more than theirs.
    assert (grouped - exact).abs().mean() < 1.5 * (eager - exact).abs().mean()


@pytest.mark.parametrize("sliding_window", [1, 2, 3, 5, 8, 30, 31, 32, None])
@pytest.mark.parametrize("queries", [1, 2, 5, 16])
def test_every_window_sees_exactly_its_positions(sliding_window, queries):
    generator = torch.Generator().manual_seed(0)
    keys, heads, groups, width = 31, 2, 3, 8
    query = torch.randn(1, heads * groups, queries, width, generator=generator)
    key, value = (torch.randn(1, heads, keys, width, generator=generator) for _ in range(2))
    position = torch.arange(keys - queries, keys).unsqueeze(1)
    column = torch.arange(keys)
    seen = column <= position
    if sliding_window is not None:
        seen &= column > position - sliding_window
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1), attn_mask=seen
    )
    found, _ = attention.grouped_attention(None, query, key, value, sliding_window=sliding_window)
    assert torch.allclose(found, expected.transpose(1, 2), atol=1e-5)


def test_it_is_used_for_few_tokens_and_leaves_the_model_as_it_was(monkeypatch):
    model = tiny_model("llama").model
    before = model.config._attn_implementation
    seen = []
    original = attention.grouped_attention
    interface = attention.AttentionInterface._global_mapping
    monkeypatch.setitem(interface, attention.NAME, lambda *a, **k: seen.append(a[1].shape[2]) or original(*a, **k))
    runner = ModelRunner(model, role="target")
    runner.prefill(list(range(3, 203)), reserve=10)
    assert seen == []
    runner.forward(torch.tensor([5, 6, 7]), 3)
    assert set(seen) == {3}
    assert model.config._attn_implementation == before == "sdpa"


def test_an_architecture_that_hands_over_less_keeps_its_own_attention():
    assert not ModelRunner(tiny_model("gpt_oss").model, role="target")._can_group
    assert not ModelRunner(tiny_model("cohere2").model, role="target")._can_group
