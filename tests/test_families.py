"""The architectures that people run: greedy answers equal transformers' own, or a refusal that says why."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from rapid_core import RapidEngine, Retrieval, Sampling, Speculation, UnsupportedModelError
from rapid_core.runner import ModelRunner, check_rewind, refuse_recurrent
from rapid_core.testing import FAMILIES, WordEncoder, tiny_model, tiny_pair

LENGTH = 48
QUESTIONS = ("Who lives in Oslo?", "What number is the judge of Peru?")


def own_greedy(model, prompt_ids, length):
    """What transformers' generate() answers."""
    out = model.generate(torch.tensor([prompt_ids]), max_new_tokens=length, do_sample=False)
    return tuple(out[0, len(prompt_ids) :].tolist())


@pytest.mark.parametrize("architecture", FAMILIES)
def test_greedy_without_transfer_equals_transformers(architecture, document):
    target, drafter = tiny_pair(architecture)
    check_rewind(target.model)
    retrieval = Retrieval(chunk_tokens=64, threshold=0.0, floor_tokens=128)
    with RapidEngine(target, drafter, retrieval=retrieval, encoder=WordEncoder()) as engine:
        for question in QUESTIONS:
            prompt_ids = engine.prompts(question, context=document).target_ids
            # The prompt is longer than the sliding windows of those that have one.
            assert len(prompt_ids) > 600
            expected = own_greedy(target.model, prompt_ids, LENGTH)
            for gamma in (1, 5, 16):
                result = engine.generate(
                    question,
                    context=document,
                    sampling=Sampling(max_new_tokens=LENGTH),
                    speculation=Speculation.lossless(gamma=gamma),
                )
                assert result.token_ids == expected, f"gamma={gamma}"
                assert result.stats.drafted > 0


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3_text"])
@pytest.mark.parametrize("gamma", [1, 2, 5, 10, 16])
def test_twenty_prompts_of_128_tokens_equal_transformers(architecture, gamma, document):
    target, drafter = tiny_pair(architecture, closeness=0.99)
    retrieval = Retrieval(chunk_tokens=64, threshold=0.0, floor_tokens=128)
    accepted = 0
    with RapidEngine(target, drafter, retrieval=retrieval, encoder=WordEncoder()) as engine:
        # Four prompts for each gamma are twenty in all, each another one.
        for number in range(4):
            question = f"Question {gamma}.{number}: who lives in Lima?"
            prompt_ids = engine.prompts(question, context=document).target_ids
            result = engine.generate(
                question,
                context=document,
                sampling=Sampling(max_new_tokens=128),
                speculation=Speculation.lossless(gamma=gamma),
            )
            assert result.token_ids == own_greedy(target.model, prompt_ids, 128)
            accepted += result.stats.accepted
    assert accepted > 0


@pytest.mark.parametrize(
    "architecture",
    "mamba mamba2 falcon_mamba rwkv xlstm recurrent_gemma jamba bamba falcon_h1 zamba2 nemotron_h qwen3_next "
    "granitemoehybrid minimax olmo_hybrid deepseek_v32".split(),
)
def test_a_model_that_cannot_be_rewound_is_refused_by_name(architecture):
    config = AutoConfig.for_model(architecture)
    with pytest.raises(UnsupportedModelError) as refusal:
        refuse_recurrent(config, MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None))
    assert repr(config.model_type) in str(refusal.value)
    assert "cannot go back" in str(refusal.value)


def test_an_encoder_decoder_is_refused_by_name():
    with pytest.raises(UnsupportedModelError, match="'t5'.*encoder-decoder"):
        refuse_recurrent(AutoConfig.for_model("t5"))


def test_a_hidden_state_outside_the_cache_is_found_by_trying():
    loaded = tiny_model("llama")

    class Leaky(type(loaded.model)):
        seen = 0.0

        def forward(self, input_ids=None, logits_to_keep=0, **options):
            output = super().forward(input_ids=input_ids, logits_to_keep=logits_to_keep, **options)
            self.seen += float(input_ids.sum())
            output.logits = output.logits + torch.arange(output.logits.shape[-1]) * self.seen * 1e-3
            return output

    loaded.model.__class__ = Leaky
    with pytest.raises(UnsupportedModelError, match="keeps a state outside its key-value cache"):
        check_rewind(loaded.model)


def test_every_layer_of_a_sliding_window_model_can_be_rewound():
    """The window of 24 is shorter than what is rewound: a cache that dropped old keys would be wrong."""
    runner = ModelRunner(tiny_model("gemma3_text").model, role="target")
    ids = torch.arange(3, 203) % 256
    straight = runner.forward(ids, 200)
    runner.sequence = ids[:50].tolist()
    runner._cache.rewind(50)
    assert torch.allclose(runner.forward(ids[50:], 150), straight[50:], atol=1e-4)
