"""The parts of `rapid bench`: medians and ratios of made-up figures, prompts, sizes, peak memory."""

from __future__ import annotations

import time

import pytest
import torch
from transformers import DynamicCache

from rapid_core import InputError
from rapid_core.bench import machine
from rapid_core.bench.prompts import cut, questions
from rapid_core.bench.records import Answer, Run
from rapid_core.bench.sizes import cache_bytes, read_bytes, weight_bytes
from rapid_core.bench.summary import Limit, Spread, ratios, summarise
from rapid_core.testing import tiny_model, tiny_tokenizer


def run_of(method, speed, *, prompt=0, repeat=0, kind="free", ids=(1, 2, 3, 4, 5), prompt_tokens=100, **answer):
    """A made-up run: one token first, the rest at `speed` tokens a second."""
    counts = {"first_burst": 1, "first_token_s": 2.0, "rounds": len(ids), **answer}
    later = len(ids) - counts["first_burst"]
    made = Answer(ids=tuple(ids), total_s=counts["first_token_s"] + later / speed, **counts)
    return Run(
        length=100, kind=kind, prompt=prompt, repeat=repeat, method=method, prompt_tokens=prompt_tokens, answer=made
    )


def test_speed_is_that_of_the_tokens_behind_the_first_burst():
    answer = Answer(ids=tuple(range(13)), first_burst=3, first_token_s=4.0, total_s=9.0, rounds=5)
    assert answer.tokens_per_s == 2.0
    assert Answer(ids=(1, 2), first_burst=2, first_token_s=4.0, total_s=4.5, rounds=1).tokens_per_s is None


def test_ratios_are_of_runs_of_one_prompt_and_repeat():
    runs = [
        run_of("generate", 10),
        run_of("generate", 2, repeat=1),
        run_of("generate", 4, prompt=1),
        run_of("lossless", 20),
        run_of("lossless", 2, repeat=1),
        run_of("lossless", 12, prompt=1),
        # Nothing to compare it with.
        run_of("lossless", 99, prompt=2),
    ]
    assert ratios(runs, "lossless", "generate") == {
        (100, "free", 0): pytest.approx([2, 1]),
        (100, "free", 1): pytest.approx([3]),
    }
    found = summarise(runs, "lossless", Limit(1, 0, 1))
    assert found.runs == 4 and found.tokens_per_s == Spread(pytest.approx(16), pytest.approx(2), pytest.approx(99))
    assert found.over == {"generate": Spread(pytest.approx(2), pytest.approx(1), pytest.approx(3))}
    assert found.worst_prompt == {"generate": pytest.approx(1.5)}
    assert summarise(runs, "plain", Limit(1, 0, 1)) is None


def test_the_share_of_the_limit_counts_weights_and_the_cache_half_way_through_the_answer():
    # 1,000 bytes of weights and 10 for each of 100 + 2 tokens: 2,020 bytes at 20,200 a second.
    found = summarise([run_of("plain", 5, ids=(1, 2, 3, 4))], "plain", Limit(1000, 10, 20_200))
    assert found.of_limit == pytest.approx(0.5)


def test_drafts_and_rounds_are_added_up_and_not_averaged():
    runs = [
        run_of("transfer", 1, rounds=1, drafted=4, accepted=4, transferred=4, ids=range(5)),
        run_of("transfer", 1, repeat=1, rounds=4, drafted=16, accepted=1, transferred=0, ids=range(5)),
    ]
    found = summarise(runs, "transfer", Limit(1, 0, 1))
    assert (found.acceptance, found.tokens_per_round, found.transferred) == (5 / 20, 2.0, 0.4)


def test_tokens_that_differ_are_counted_against_generate_or_else_against_plain():
    runs = [
        run_of("generate", 1, ids=(1, 2, 3, 4)),
        run_of("plain", 1, ids=(1, 2, 9, 9)),
        run_of("plain", 1, repeat=1, ids=(7, 7, 7, 7)),
        run_of("lossless", 1, ids=(1, 2, 9, 4)),
    ]
    found = summarise(runs, "plain", Limit(1, 0, 1))
    assert (found.compared_with, found.compared, found.differing, found.first_difference) == ("generate", 4, 2, 2)
    found = summarise(runs[1:], "lossless", Limit(1, 0, 1))
    assert (found.compared_with, found.compared, found.differing, found.first_difference) == ("plain", 4, 1, 3)


def test_a_document_is_cut_to_its_length_and_two_lengths_share_no_beginning(document):
    tokenizer = tiny_tokenizer()
    short, long = (tokenizer(cut(document, n, tokenizer))["input_ids"] for n in (200, 400))
    assert (len(short), len(long)) == (200, 400)
    assert short[:24] != long[:24]
    with pytest.raises(InputError, match=r"the longest context, 5,000, and it has 8\d\d"):
        cut(document, 5000, tokenizer)


def test_questions_name_passages_that_lie_evenly_in_the_document():
    pages = [f"Page{page} " + "word " * 30 for page in range(8)]
    asked = questions("\n\n".join(["Short.", *pages]), ("quoting", "free"), 3)
    assert [(question.kind, question.number) for question in asked[:3]] == [
        ("quoting", 0),
        ("free", 0),
        ("quoting", 1),
    ]
    assert [page for page in range(8) if any(f'"Page{page} word' in q.text for q in asked)] == [1, 3, 5, 7]


def test_a_document_without_paragraphs_has_as_many_different_questions():
    lines = "\n".join(f"line {n} says that {n * n} is a square" for n in range(100))
    asked = questions(lines, ("free",), 9)
    assert len({question.text for question in asked}) == 10
    with pytest.raises(InputError, match="a passage for each of 2 prompts and one more"):
        questions("the same " * 500, ("free",), 2)


def test_sizes_are_those_of_the_tensors():
    target, tied = tiny_model().model, tiny_model(tie_word_embeddings=True).model
    assert cache_bytes(target) == 4 * 2 * 2 * 16 * 4
    cache = DynamicCache()
    target(input_ids=torch.ones(1, 5, dtype=torch.long), past_key_values=cache)
    assert sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers) == 5 * cache_bytes(target)
    embedding = target.get_input_embeddings().weight.nbytes
    assert weight_bytes(target) == 4 * sum(weight.numel() for weight in target.parameters())
    assert read_bytes(target) == weight_bytes(target) - embedding
    assert read_bytes(tied) == weight_bytes(tied) == weight_bytes(target) - embedding


def test_peak_memory_sees_what_is_taken_and_given_back():
    with machine.peak_memory(torch.device("cpu")) as peak:
        block = torch.ones(2**24)
        time.sleep(0.05)
        del block
    assert peak.bytes > 48 * 2**20
    assert machine.bandwidth(torch.device("cpu")) > 0
