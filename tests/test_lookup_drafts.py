"""Looked-up drafts in the loop: straight to the target, and through the drafter; exact answers and laws."""

from __future__ import annotations

import pytest
import torch

from rapid_core import Sampling, Speculation
from rapid_core.decoder import Decoder
from rapid_core.drafting import RagDrafter
from rapid_core.lookup import NgramIndex
from rapid_core.pacing import Choice, CostTable, Pacer
from rapid_core.runner import ModelRunner
from rapid_core.sampling import Sampler
from rapid_core.testing import FixedLogits, tiny_model, tiny_pair
from rapid_core.verification import augmented_target

CPU = torch.device("cpu")
PROMPT, SHORT = (1, 2, 3, 5, 4, 0, 1, 2), (3, 4, 1, 2)


class Forced(Pacer):
    """Always chooses `source` where it can, with `gamma` drafts; the drafter checks all that is found."""

    def __init__(self, source, gamma, *, checks=True, transfer=False, greedy=True):
        super().__init__(*(CostTable(accelerator=False) for _ in range(2)), transfer=transfer, greedy=greedy)
        self.source, self.gamma, self.checks = source, gamma, checks

    def choose(self, room):
        super().choose(room)
        last = room.left if self.transfer else room.left - 1
        if self.source == "lookup":
            gamma = min(self.gamma, room.found, last, room.verifiable)
        else:
            gamma = min(self.gamma, last, room.verifiable, room.draftable)
        return Choice(self.source, gamma) if gamma > 0 else Choice("nobody", 0)

    def look_up(self, matched, found, unread):
        return found if self.checks else 0

    def goes_on(self, sureness):
        return True


def decode(target, drafter, pacer, *, limit=64, eta=0.0, sampling=None, seed=0, eos=(), text=(5, 4, 3)):
    """Decode behind PROMPT and SHORT; looked up are `text`, the two prompts and the answer."""
    sampling = sampling or Sampling(max_new_tokens=limit)
    speculation = Speculation(eta=eta)
    runner = ModelRunner(target, role="target")
    runner.prefill(PROMPT, reserve=limit)
    index = NgramIndex(text, PROMPT, SHORT)
    proposer = None
    if drafter is not None:
        short = ModelRunner(drafter, role="drafter")
        short.prefill(SHORT, reserve=limit)
        sampler = Sampler(sampling, runner.vocab_size, PROMPT, CPU, seed + 1)
        proposer = RagDrafter(short, sampler, speculation, frozenset(eos), index=index, pacer=pacer)
    decoder = Decoder(
        runner, proposer, Sampler(sampling, runner.vocab_size, PROMPT, CPU, seed), speculation,
        max_new_tokens=limit, eos_ids=frozenset(eos), index=index, pacer=pacer,
    )  # fmt: skip
    return decoder, list(decoder.tokens()), runner, proposer


def policies(transfer=False, greedy=True):
    every = [Forced("lookup", gamma, transfer=transfer, greedy=greedy) for gamma in (1, 3, 20)]
    every += [
        Forced("drafter", g, checks=c, transfer=transfer, greedy=greedy) for g in (1, 3, 8) for c in (True, False)
    ]
    return [*every, Pacer(*(CostTable(accelerator=False) for _ in range(2)), transfer=transfer, greedy=greedy)]


@pytest.fixture(scope="module")
def pair():
    """A target and a drafter that often agree."""
    return tuple(loaded.model for loaded in tiny_pair("llama", closeness=0.97))


@pytest.fixture(scope="module")
def plain(pair):
    return [event.id for event in decode(pair[0], None, Forced("nobody", 0), limit=160)[1]]


@pytest.fixture(scope="module")
def text(plain):
    """The answer with every ninth token changed, so that lookups are sometimes right."""
    return [(id_ + 1) % 250 if position % 9 == 8 else id_ for position, id_ in enumerate(plain)]


@pytest.mark.parametrize("policy", range(10))
def test_whoever_drafts_the_greedy_answer_is_the_targets(pair, plain, text, policy):
    decoder, events, runner, proposer = decode(*pair, policies()[policy], limit=160, text=text)
    assert [event.id for event in events] == plain
    assert runner.sequence == [*PROMPT, *plain] and runner.length == len(runner.sequence) - 1
    assert proposer.runner.sequence == [*SHORT, *plain]
    assert sum(event.drafted for event in events) == decoder.counts.accepted


@pytest.mark.parametrize("architecture", ["gemma3_text", "qwen3", "mistral"])
def test_other_architectures_too(architecture):
    target, drafter = (loaded.model for loaded in tiny_pair(architecture, closeness=0.97))
    expected = [event.id for event in decode(target, None, Forced("nobody", 0), limit=100)[1]]
    text = [*expected[:40], 7, *expected[41:70]]
    for policy in policies():
        assert [event.id for event in decode(target, drafter, policy, limit=100, text=text)[1]] == expected


def test_lookups_are_made_and_some_are_right(pair, text):
    straight, *_ = decode(*pair, Forced("lookup", 20), limit=160, text=text)
    through, *_ = decode(*pair, Forced("drafter", 8), limit=160, text=text)
    assert 0 < straight.counts.sources["lookup"].accepted < straight.counts.sources["lookup"].drafted
    assert 0 < through.counts.looked_up_accepted < through.counts.looked_up


def test_checked_tokens_are_those_that_the_drafter_would_have_drafted(pair, text):
    """Greedy: the same proposals, token by token and all in one forward, and the same probabilities."""
    for answer in ([], text[:3], text[:12]):
        proposals = []
        for checks in (True, False):
            runner = ModelRunner(pair[1], role="drafter")
            runner.prefill(SHORT, reserve=64)
            index, pacer = NgramIndex(text, PROMPT, SHORT), Forced("drafter", 8, checks=checks)
            sampler = Sampler(Sampling(), runner.vocab_size, (), CPU, 0)
            drafter = RagDrafter(runner, sampler, Speculation(), frozenset(), index=index, pacer=pacer)
            drafter.commit(answer, 0)
            index.extend(answer)
            proposals.append(drafter.propose(8, 40))
        checked, single = proposals
        assert checked.ids[:8].tolist() == single.ids.tolist()
        assert torch.allclose(checked.probs[:8], single.probs, atol=1e-5)
        assert checked.sureness[:8] == pytest.approx(single.sureness, abs=1e-5)
        assert len(checked.ids) == len(checked.probs) <= 40


def test_with_transfer_every_token_has_it_and_pacing_does_not_change_the_answer(pair, text):
    answers = []
    for policy in policies(transfer=True):
        if isinstance(policy, Forced) and policy.source == "lookup":
            continue
        decoder, events, runner, proposer = decode(*pair, policy, limit=100, eta=20.0, text=text)
        assert decoder.counts.transferred == decoder.counts.emitted == 100
        assert proposer.runner.sequence[len(SHORT) :] == runner.sequence[len(PROMPT) :]
        answers.append([event.id for event in events])
    assert all(answer == answers[0] for answer in answers)
    assert answers[0] != [event.id for event in decode(pair[0], None, Forced("nobody", 0), limit=100)[1]]


def test_an_end_of_sequence_inside_looked_up_drafts_ends_the_answer_there(pair, plain, text):
    for position in (3, 20, 50):
        eos = plain[position]
        expected = plain[: plain.index(eos) + 1]
        for policy in policies():
            decoder, events, *_ = decode(*pair, policy, limit=160, eos=(eos,), text=text)
            assert [event.id for event in events] == expected
            assert decoder.finish_reason == "stop"


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_the_limit_and_the_windows_hold(limit):
    target = FixedLogits(torch.eye(10)[[1, 2, 3, 1, 0, 0, 0, 1, 7, 8]], window=40)
    drafter = FixedLogits(torch.eye(10)[[1, 2, 3, 1, 0, 0, 0, 1, 7, 8]], window=20)
    for policy in policies():
        assert len(decode(target, drafter, policy, limit=limit)[1]) == limit
        decoder, events, runner, proposer = decode(target, drafter, policy, limit=100)
        assert len(runner.sequence) == 40 and decoder.finish_reason == "length"
        assert proposer.runner.length <= 20


@pytest.mark.parametrize("source", ["lookup", "drafter"])
@pytest.mark.parametrize("options", [{}, {"top_k": 4}, {"temperature": 0.5}, {"top_p": 0.8}])
def test_without_transfer_the_law_is_the_targets_whoever_drafts(source, options):
    """3,000 tokens on 6 ids; a total variation over .08 by chance has odds below 10^-10."""
    generator = torch.Generator().manual_seed(3)
    z, d = (torch.randn(1, 6, generator=generator) * 1.5 for _ in range(2))
    sampling = Sampling(**{"temperature": 1.0, "max_new_tokens": 3_000, **options})
    pacer = Forced(source, 5, greedy=False)
    decoder, events, *_ = decode(
        FixedLogits(z, window=10**6), FixedLogits(d, window=10**6), pacer, limit=3_000, sampling=sampling
    )
    assert decoder.counts.sources[source].accepted > 200
    assert variation([event.id for event in events], filtered(z, sampling).softmax(-1)) < 0.08


def test_the_drafters_tokens_follow_its_own_law_also_where_it_checked_them():
    """1,500 pairs of drafts on 6 ids; a total variation over .12 by chance has odds below 10^-10."""
    d = torch.tensor([[0.0, 1.0, -1.0, 0.5, 2.0, 0.2]])
    runner = ModelRunner(FixedLogits(d, window=10**6), role="drafter")
    runner.prefill(SHORT, reserve=64)
    index, pacer = NgramIndex([1, 2, 3, 4, 5, 0, 1, 1, 2, 4, 4, 4, 1, 4]), Forced("drafter", 6, greedy=False)
    sampling = Sampling(temperature=1.0)
    drafter = RagDrafter(runner, Sampler(sampling, 6, (), CPU, 5), Speculation(), frozenset(), index=index, pacer=pacer)
    first, last = [], []
    for _ in range(1_500):
        proposal = drafter.propose(2, 12)
        first.append(int(proposal.ids[0]))
        last.append(int(proposal.ids[1]))
        drafter.commit(proposal.ids.tolist(), len(proposal.ids))
        index.extend(proposal.ids.tolist())
    assert variation(first, d.softmax(-1)) < 0.12
    assert variation(last, d.softmax(-1)) < 0.12


def test_with_transfer_the_law_holds_for_looked_up_drafts_through_the_drafter():
    """3,000 tokens on 6 ids; a total variation over .08 by chance has odds below 10^-10."""
    generator = torch.Generator().manual_seed(4)
    z, d = (torch.randn(1, 6, generator=generator) * 1.5 for _ in range(2))
    sampling = Sampling(temperature=1.0, max_new_tokens=3_000)
    pacer = Forced("drafter", 4, transfer=True, greedy=False)
    models = (FixedLogits(z, window=10**6), FixedLogits(d, window=10**6))
    decoder, events, *_ = decode(*models, pacer, limit=3_000, sampling=sampling, eta=6.0)
    assert decoder.counts.looked_up_accepted > 200 and decoder.counts.transferred == 3_000
    p, q = z.softmax(-1), d.softmax(-1)
    kept = torch.minimum(q, augmented_target(z, q, 6.0))
    rest = (p - kept).clamp_min(0)
    assert variation([event.id for event in events], kept + (1 - kept.sum()) * rest / rest.sum()) < 0.08


def test_penalties_are_the_same_whoever_drafts(pair):
    sampling = Sampling(max_new_tokens=60, repetition_penalty=1.2, frequency_penalty=0.3)
    expected = [event.id for event in decode(pair[0], None, Forced("nobody", 0), limit=60, sampling=sampling)[1]]
    for policy in policies():
        events = decode(*pair, policy, limit=60, sampling=sampling, text=expected)[1]
        assert [event.id for event in events] == expected


def test_lookup_needs_no_drafter():
    model = tiny_model("llama").model
    expected = [event.id for event in decode(model, None, Forced("nobody", 0), limit=120)[1]]
    decoder, events, *_ = decode(model, None, Forced("lookup", 8), limit=120, text=expected)
    assert [event.id for event in events] == expected
    assert decoder.counts.sources["lookup"].accepted > 80


def filtered(z, sampling):
    return Sampler(sampling, 6, (), CPU, 0).logits(z, torch.empty(0, dtype=torch.long))


def variation(ids, expected):
    found = torch.bincount(torch.tensor(ids), minlength=expected.shape[-1]) / len(ids)
    return float((found - expected[0]).abs().sum() / 2)
