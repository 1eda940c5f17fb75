"""The loop, on models whose logits are known: acceptance counts, cuts, rewinds and the output law."""

from __future__ import annotations

import math

import pytest
import torch

from rapid_core import ModelOutputError, Sampling, Speculation
from rapid_core.datatypes import Proposal
from rapid_core.decoder import Decoder
from rapid_core.drafting import RagDrafter
from rapid_core.runner import ModelRunner
from rapid_core.sampling import Sampler
from rapid_core.testing import FixedLogits, tiny_model, tiny_pair
from rapid_core.verification import augmented_target

CPU = torch.device("cpu")


def decode(
    target, drafter=None, *, prompt=(1, 2, 3), draft_prompt=(2, 3), eos=(), limit=20, seed=0, sampling=None, **opts
):
    """Decode with two runners; returns the decoder, its events and the two runners."""
    sampling = sampling or Sampling(max_new_tokens=limit)
    speculation = Speculation(**opts) if opts else Speculation(eta=0.0, gamma=4)
    runner = ModelRunner(target, role="target")
    runner.prefill(prompt, reserve=limit)
    proposer = None
    if drafter is not None and not isinstance(drafter, torch.nn.Module):
        proposer = drafter
    elif drafter is not None:
        draft_runner = ModelRunner(drafter, role="drafter")
        draft_runner.prefill(draft_prompt, reserve=limit)
        draft_sampler = Sampler(sampling, runner.vocab_size, prompt, CPU, seed + 1)
        proposer = RagDrafter(draft_runner, draft_sampler, speculation, frozenset(eos))
    sampler = Sampler(sampling, runner.vocab_size, prompt, CPU, seed)
    decoder = Decoder(runner, proposer, sampler, speculation, max_new_tokens=limit, eos_ids=frozenset(eos))
    return decoder, list(decoder.tokens()), runner, proposer


def greedy_path(model, prompt, length):
    """The model's own greedy answer, one whole forward at a time, without any cache."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(length):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


class PartlyRight:
    """Proposes the target's own next tokens, wrong from the `right`-th on."""

    def __init__(self, path, right, size):
        self.path, self.right, self.size = path, right, size
        self.done = 0
        self.room = 1000
        self.unread = self.step_bytes = 1
        self.waiting = 0

    def propose(self, gamma, most):
        ids = [
            token if position < self.right else (token + 1) % self.size
            for position, token in enumerate(self.path[self.done : self.done + gamma])
        ]
        ids = torch.tensor(ids)
        return Proposal(ids, torch.nn.functional.one_hot(ids, self.size).float())

    def commit(self, ids, accepted):
        self.done += len(ids)


@pytest.fixture(scope="module")
def llama():
    return tiny_model("llama").model


@pytest.fixture(scope="module")
def path(llama):
    return greedy_path(llama, (1, 2, 3), 64)


@pytest.mark.parametrize("right", [0, 1, 3, 4])
def test_any_number_of_accepted_drafts_leaves_the_greedy_answer(llama, path, right):
    decoder, events, runner, _ = decode(llama, PartlyRight(path, right, runner_size(llama)), limit=40)
    assert [event.id for event in events] == path[:40]
    # A round emits what was accepted and one token more; the last one ends at the limit.
    assert decoder.counts.accepted == sum(event.drafted for event in events)
    assert max(event.round for event in events) + 1 == decoder.counts.rounds == math.ceil(40 / (right + 1))
    # The cache holds everything but the last token, however many drafts it has seen.
    assert runner.length == len(runner.sequence) - 1 == 3 + 40 - 1


def runner_size(model):
    return model.config.vocab_size


@pytest.mark.parametrize("gamma", [1, 2, 3, 5, 8, 16, 32])
def test_a_drafter_with_other_context_leaves_the_greedy_answer(gamma, path):
    target, drafter = tiny_pair()
    decoder, events, runner, proposer = decode(target.model, drafter.model, limit=64, gamma=gamma, eta=0.0)
    assert [event.id for event in events] == path
    assert proposer.runner.sequence[2:] == runner.sequence[3:] == path
    assert proposer.runner.length <= len(proposer.runner.sequence) - 1


def test_drafting_for_itself_on_the_same_prompt_is_always_accepted(llama, path):
    decoder, events, runner, proposer = decode(llama, llama, draft_prompt=(1, 2, 3), limit=60, gamma=4, eta=0.0)
    assert [event.id for event in events] == path[:60]
    assert decoder.counts.accepted == decoder.counts.drafted
    # Full acceptance leaves two ids for the drafter's next forward: its last draft and the free token.
    assert len(proposer.runner.pending) == 2
    assert len(runner.pending) == 1


@pytest.mark.parametrize("limit", [1, 2, 4, 5, 6])
@pytest.mark.parametrize("eta", [0.0, 10.0])
def test_the_limit_cuts_inside_a_block(llama, limit, eta):
    decoder, events, runner, proposer = decode(llama, llama, draft_prompt=(1, 2, 3), limit=limit, gamma=4, eta=eta)
    assert len(events) == limit
    assert decoder.finish_reason == "length"
    assert len(runner.sequence) == 3 + limit


@pytest.mark.parametrize("position", range(8))
def test_an_end_of_sequence_anywhere_in_a_block_ends_the_answer_there(llama, path, position):
    eos = path[position]
    first = path.index(eos)
    decoder, events, runner, _ = decode(llama, llama, draft_prompt=(1, 2, 3), eos=(eos, 99999), gamma=4, eta=0.0)
    assert [event.id for event in events] == path[: first + 1]
    assert decoder.finish_reason == "stop"
    assert runner.sequence[3:] == path[: first + 1]


def test_an_early_end_leaves_both_caches_at_what_was_decided(llama, path):
    target, drafter = ModelRunner(llama, role="target"), ModelRunner(llama, role="drafter")
    target.prefill((1, 2, 3), reserve=8)
    drafter.prefill((1, 2, 3), reserve=8)
    sampling = Sampling(max_new_tokens=50)
    samplers = [Sampler(sampling, target.vocab_size, (), CPU, seed) for seed in (0, 1)]
    speculation = Speculation(gamma=4, eta=0.0)
    tokens = Decoder(
        target, RagDrafter(drafter, samplers[1], speculation, frozenset()), samplers[0], speculation,
        max_new_tokens=50, eos_ids=frozenset(),
    ).tokens()  # fmt: skip
    assert [next(tokens).id for _ in range(3)] == path[:3]
    tokens.close()
    for runner in (target, drafter):
        assert runner.sequence == [1, 2, 3, *path[:5]]
        assert runner.length <= len(runner.sequence) - 1
    # The same prompt again finds all of it in the cache.
    assert target.prefill((1, 2, 3, *path[:3]), reserve=8) == 5


def test_a_full_drafter_window_stops_drafting_and_not_the_answer(path):
    target, drafter = tiny_pair()
    drafter.model.config.max_position_embeddings = 12
    decoder, events, _, proposer = decode(target.model, drafter.model, limit=64, gamma=4, eta=0.0)
    assert [event.id for event in events] == path
    assert decoder.counts.drafter_full
    assert not any(event.drafted for event in events[16:])
    assert proposer.runner.length <= 12


def test_a_full_target_window_ends_the_answer():
    target = FixedLogits(torch.eye(5), window=10)
    decoder, events, runner, _ = decode(target, FixedLogits(torch.eye(5)), gamma=4, eta=0.0, limit=50)
    assert len(runner.sequence) == 10
    assert decoder.finish_reason == "length"


def test_one_forward_a_draft_and_one_a_round():
    target, drafter = FixedLogits(torch.eye(5)), FixedLogits(torch.eye(5))
    decode(target, drafter, gamma=4, eta=0.0, limit=20)
    # One chunk of prefill; four rounds of 4 + 1 accepted tokens.
    assert target.calls == 1 + 4
    assert drafter.calls == 1 + 16


def test_a_low_confidence_ends_a_draft_behind_its_token():
    sure, unsure = torch.eye(5) * 50, torch.zeros(5, 5)
    decoder, *_ = decode(FixedLogits(sure), FixedLogits(sure), gamma=4, eta=0.0, limit=20, draft_confidence=0.5)
    assert decoder.counts.drafted == 16
    decoder, *_ = decode(FixedLogits(unsure), FixedLogits(unsure), gamma=4, eta=0.0, limit=20, draft_confidence=0.5)
    assert decoder.counts.drafted == decoder.counts.rounds - (20 % 2)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("role", ["target", "drafter"])
def test_a_model_that_returns_no_numbers_is_an_error_that_names_it(bad, role):
    broken = FixedLogits(torch.tensor([[0.0, 1.0, bad, 0.0, 0.0]]))
    good = FixedLogits(torch.zeros(1, 5))
    pair = (broken, good) if role == "target" else (good, broken)
    with pytest.raises(ModelOutputError, match=f"the {role} model returned NaN or infinity"):
        decode(*pair, limit=5, sampling=Sampling(temperature=1.0))


def test_a_model_may_rule_ids_out():
    table = torch.tensor([[0.0, 1.0, -math.inf, 0.0, 0.0]])
    _, events, *_ = decode(FixedLogits(table), FixedLogits(table), limit=50, sampling=Sampling(temperature=1.0))
    assert 2 not in {event.id for event in events}


@pytest.mark.parametrize("options", [{}, {"top_k": 4}, {"top_p": 0.7}, {"min_p": 0.3}, {"temperature": 0.5}])
@pytest.mark.parametrize("eta", [0.0, 6.0])
def test_the_whole_loop_follows_the_law_under_every_filter(options, eta):
    """3,000 tokens on 6 ids, drafted positions only; TV above .09 by chance has odds below 10^-14."""
    generator = torch.Generator().manual_seed(3)
    z, d = (torch.randn(1, 6, generator=generator) * 1.5 for _ in range(2))
    sampling = Sampling(**{"temperature": 1.0, "max_new_tokens": 3_000, **options})
    decoder, events, *_ = decode(
        FixedLogits(z, window=10**6), FixedLogits(d, window=10**6), limit=3_000, sampling=sampling, gamma=4, eta=eta
    )
    one = Sampler(sampling, 6, (), CPU, 0)
    nothing = torch.empty(0, dtype=torch.long)
    filtered, q = one.logits(z, nothing), one.logits(d, nothing).softmax(-1)
    p = filtered.softmax(-1)
    augmented = augmented_target(filtered, q, eta)
    kept = torch.minimum(q, augmented)
    rest = (p - kept).clamp_min(0)
    expected = kept + (1 - kept.sum()) * rest / rest.sum()
    free = [i for i, event in enumerate(events) if is_free(events, i)]
    drafted = torch.tensor([event.id for i, event in enumerate(events) if i not in set(free)])
    found = torch.bincount(drafted, minlength=6) / len(drafted)
    assert float((found - expected[0]).abs().sum() / 2) < 0.09
    assert decoder.counts.transferred == (len(drafted) if eta else 0)


def is_free(events, i):
    """Whether a token came for free after four accepted drafts."""
    return not events[i].drafted and i >= 4 and all(e.drafted and e.round == events[i].round for e in events[i - 4 : i])


def test_penalties_are_the_same_with_and_without_drafts():
    target, drafter = tiny_pair()
    sampling = Sampling(max_new_tokens=48, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.5)
    _, plain, *_ = decode(target.model, None, limit=48, sampling=sampling)
    for gamma in (1, 3, 7):
        _, drafted, *_ = decode(target.model, drafter.model, limit=48, sampling=sampling, gamma=gamma, eta=0.0)
        assert [event.id for event in drafted] == [event.id for event in plain]


def test_transfer_changes_a_greedy_answer_by_the_stated_rule():
    """The target finds 1 a little better than 2, the drafter is sure of 2: eta decides."""
    z = torch.tensor([[0.0, 2.0, 1.5, 0.0]])
    d = torch.tensor([[0.0, 0.0, 9.0, 0.0]])
    for eta, chosen in ((0.0, 1), (0.1, 1), (10.0, 2)):
        _, events, *_ = decode(FixedLogits(z), FixedLogits(d), limit=4, gamma=4, eta=eta)
        assert {event.id for event in events} == {chosen}
