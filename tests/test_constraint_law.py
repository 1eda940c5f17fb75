"""The law of constrained answers, exactly and with stated odds, on models whose logits are known."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import pytest
import torch
from scipy.stats import chi2
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from rapid_core import Constraint, ModelOutputError, Sampling, Speculation
from rapid_core.constrained import Grammars
from rapid_core.decoder import Decoder
from rapid_core.drafting import RagDrafter
from rapid_core.lookup import NgramIndex
from rapid_core.pacing import Choice, CostTable, Pacer
from rapid_core.runner import ModelRunner
from rapid_core.sampling import Sampler
from rapid_core.testing import FixedLogits, tiny_tokenizer

CPU = torch.device("cpu")
TOKENIZER = tiny_tokenizer()
SIZE = len(TOKENIZER)
EOS = TOKENIZER.eos_token_id
PROMPT = (5, 6, 7)


def ids(text):
    return TOKENIZER(text, add_special_tokens=False).input_ids


def matcher(constraint, limit=1000, eos=(EOS,), size=SIZE):
    return Grammars(TOKENIZER, size).matcher(constraint, frozenset(eos), limit)


def fitting(one, drafts=()):
    """The ids that fit behind the committed answer and `drafts`."""
    return set((~one.forbidden(drafts, 1)[0]).nonzero().flatten().tolist())


def spread(seed, **logits):
    """A table of one row: random, with the named letters where they matter."""
    table = torch.randn(1, SIZE, generator=torch.Generator().manual_seed(seed))
    for letter, value in logits.items():
        table[0, EOS if letter == "eos" else ids(letter)[0]] = value
    return table


class Lookups(Pacer):
    """Looks up straight or through the drafter, as much as is found."""

    def __init__(self, source, greedy):
        super().__init__(*(CostTable(accelerator=False) for _ in range(2)), transfer=False, greedy=greedy)
        self.source = source

    def choose(self, room):
        super().choose(room)
        found = room.found if self.source == "lookup" else 4
        gamma = min(found, room.left - 1, room.verifiable)
        return Choice(self.source, gamma) if gamma > 0 else Choice("nobody", 0)

    def look_up(self, matched, found, unread):
        return found


class Pair:
    """A target and a drafter with fixed logits that answer again and again."""

    def __init__(self, target, drafter, constraint, *, limit, sampling=None, speculation=None, text=None, source=""):
        self.sampling = sampling or Sampling(temperature=1.0)
        self.speculation = speculation or Speculation.lossless(gamma=4)
        self.runners = [ModelRunner(FixedLogits(table), role="either") for table in (target, drafter)]
        self.matcher, self.limit = matcher(constraint, limit), limit
        self.text, self.source = text, source

    def answer(self, seed=0):
        made = self.matcher.twin()
        target, drafter = self.runners
        for runner in self.runners:
            runner.prefill(PROMPT, reserve=self.limit)
        samplers = [
            Sampler(self.sampling, SIZE, PROMPT, CPU, seed, made),
            Sampler(self.sampling, SIZE, PROMPT, CPU, seed ^ 0x5DEECE66D, made.twin()),
        ]
        index = pacer = None
        if self.text is not None:
            index, pacer = NgramIndex(self.text), Lookups(self.source, self.sampling.greedy)
        proposer = None
        if self.speculation.enabled:
            proposer = RagDrafter(drafter, samplers[1], self.speculation, frozenset([EOS]), index=index, pacer=pacer)
        self.decoder = Decoder(
            target, proposer, samplers[0], self.speculation, max_new_tokens=self.limit, eos_ids=frozenset([EOS]),
            index=index, pacer=pacer,
        )  # fmt: skip
        events = list(self.decoder.tokens())
        assert self.decoder.finish_reason == "stop" and events[-1].id == EOS
        return TOKENIZER.decode([event.id for event in events[:-1]])


def masked(table, allowed):
    """The target's own probabilities among what fits."""
    logits = torch.full_like(table[0], -torch.inf)
    logits[allowed] = table[0, allowed]
    return logits.softmax(-1)


def law_of_letters(table, most):
    """The law of one to `most` letters of a and b, each drawn among what fits."""
    a, b = ids("ab")
    first, later = masked(table, [a, b]), masked(table, [a, b, EOS])
    law = {}
    for length in range(1, most + 1):
        for letters in itertools.product((a, b), repeat=length):
            chance = float(first[letters[0]])
            for letter in letters[1:]:
                chance *= float(later[letter])
            # Where nothing else fits, or nothing else has room, the end is sure.
            law[TOKENIZER.decode(list(letters))] = chance * (float(later[EOS]) if length < most else 1)
    return law


def assert_law(found, target):
    """By chance the distance of Pearson's test is so large once in 10^9 runs."""
    runs, expected = found.total(), law_of_letters(target, 3)
    assert set(found) <= set(expected) and sum(expected.values()) == pytest.approx(1, abs=1e-5)
    distance = sum((found[text] - runs * chance) ** 2 / (runs * chance) for text, chance in expected.items())
    assert distance < chi2.isf(1e-9, len(expected) - 1)


def test_the_law_of_the_drafter_is_told_apart():
    target, drafter = spread(0, a=0.5, b=-0.5, eos=0.0), spread(1, a=-1.0, b=1.0, eos=0.5)
    pair = Pair(drafter, drafter, Constraint.regex("[ab]{1,3}"), limit=50, speculation=Speculation.off())
    found = Counter(pair.answer(seed) for seed in range(500))
    assert_law(found, drafter)
    with pytest.raises(AssertionError):
        assert_law(found, target)


@pytest.mark.parametrize(
    "speculation", [Speculation.off(), *(Speculation.lossless(gamma=gamma) for gamma in (1, 2, 5))], ids=str
)
@pytest.mark.parametrize(("pattern", "limit"), [("[ab]{1,3}", 50), ("[ab]+", 4)])
def test_without_transfer_answers_follow_the_masked_target(speculation, pattern, limit):
    """14 answers, 500 times: whether the form or the limit ends them. Exceeded by chance once in 10^9 runs."""
    target = spread(0, a=0.5, b=-0.5, eos=0.0)
    pair = Pair(
        target, spread(1, a=-1.0, b=1.0, eos=0.5), Constraint.regex(pattern), limit=limit, speculation=speculation
    )
    assert_law(Counter(pair.answer(seed) for seed in range(500)), target)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_drafter_drafts_what_fits(temperature):
    """Alone it would draft x; a copy of the target that is masked like it is always accepted."""
    table = spread(0, a=0.5, b=-0.5, eos=0.0, x=30.0)
    pair = Pair(table, table, Constraint.regex("[ab]{12}"), limit=50, sampling=Sampling(temperature=temperature))
    pair.answer()
    assert pair.decoder.counts.accepted == pair.decoder.counts.drafted > 8


@pytest.mark.parametrize("source", ["lookup", "drafter"])
def test_looked_up_text_that_does_not_fit_is_not_taken_and_the_law_holds(source):
    """The text goes on with x, which both models like best and the form forbids; odds as above."""
    target = spread(0, a=0.5, b=-0.5, eos=0.0, x=9.0)
    text = [*PROMPT, *ids("abxabxaaxbbxbax"), *PROMPT, *ids("bxax"), *PROMPT]
    pair = Pair(
        target, spread(1, a=-1.0, b=1.0, eos=0.5, x=9.0), Constraint.regex("[ab]{1,3}"), limit=50,
        speculation=Speculation.lossless(), text=text, source=source,
    )  # fmt: skip
    looked_up = accepted = 0
    found: Counter[str] = Counter()
    for seed in range(500):
        found[pair.answer(seed)] += 1
        counts = pair.decoder.counts
        used = counts.sources.get("lookup")
        looked_up += used.drafted if used is not None else counts.looked_up
        accepted += used.accepted if used is not None else counts.looked_up_accepted
    assert 0 < accepted < looked_up
    assert_law(found, target)


@pytest.mark.parametrize("source", ["lookup", "drafter"])
def test_a_greedy_answer_is_the_same_whatever_is_looked_up(source):
    target, form = spread(0, a=2.0, b=1.0, x=9.0, eos=0.0), Constraint.regex("(ab|ba)*a?")
    plain = Pair(target, target, form, limit=20, sampling=Sampling(), speculation=Speculation.off()).answer()
    assert plain == "abababababababababa"
    for text in ("abxabab", "abababababx", "ababa"):
        behind = [*PROMPT, *ids(text), *PROMPT]
        pair = Pair(
            target, spread(1, x=9.0), form, limit=20, sampling=Sampling(), speculation=Speculation.lossless(),
            text=behind, source=source,
        )  # fmt: skip
        assert pair.answer() == plain


@pytest.mark.parametrize("lead", ["é", "日", "🌆"])
@pytest.mark.parametrize("limit", range(6, 16))
def test_no_answer_ends_within_a_character(lead, limit):
    """Both models want the bytes of one character again and again, and never the end of the string."""
    table = torch.full((1, SIZE), -9.0)
    table[0, ids(lead)] = 9.0
    for eta in (0.0, 10.0):
        pair = Pair(
            table, table, Constraint.json_schema({"type": "string"}), limit=limit, speculation=Speculation(eta=eta)
        )
        answer = json.loads(pair.answer(seed=limit))
        assert "\ufffd" not in answer
        # What is left holds no further character of up to four bytes.
        assert limit - len(answer.encode()) - 3 < 4


@pytest.mark.parametrize("eta", [0.0, 10.0])
def test_a_token_that_opens_more_than_there_is_room_for_is_not_taken(eta):
    """Both models want ever deeper lists; the form asks for an object of 15 tokens in each."""
    named = {"type": "object", "properties": {"long_name": {"type": "null"}}, "required": ["long_name"]}
    deep = {"type": "array", "items": {"anyOf": [{"$ref": "#"}, named]}, "minItems": 1}
    table = torch.full((1, SIZE), -5.0)
    table[0, ids("[")] = 9.0
    for limit in range(24, 40):
        pair = Pair(table, table, Constraint.json_schema(deep), limit=limit, speculation=Speculation(eta=eta, gamma=3))
        assert json.loads(pair.answer())


def test_without_a_closing_path_the_limit_cuts():
    """An endless form is the one kind that nothing can end."""
    endless = Constraint.json_schema({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})
    made = matcher(endless, limit=10)
    assert made.shortest == 0
    assert made.steer(ids('{"a": {"a'), 9) == (ids('{"a": {"a'), [])


def test_rows_are_those_of_a_matcher_that_never_read_a_draft():
    generator = torch.Generator().manual_seed(0)
    items = {"anyOf": [{"type": "string"}, {"type": "integer"}]}
    form = Constraint.json_schema({"type": "array", "items": items, "minItems": 100})
    used, answer = matcher(form, limit=5_000), []

    def any_of(choices):
        return choices[int(torch.randint(len(choices), (1,), generator=generator))]

    for _ in range(40):
        drafts: list[int] = []
        for _ in range(any_of(range(5))):
            drafts.append(any_of(sorted(fitting(fresh(form, answer), drafts))))
        rows = used.forbidden([*drafts, EOS, EOS], len(drafts) + 3)
        for row in range(len(drafts) + 1):
            assert torch.equal(rows[row], fresh(form, [*answer, *drafts[:row]]).forbidden((), 1)[0])
        # An end does not fit here, and nothing is asked for behind it.
        assert not rows[len(drafts) + 1 :].any()
        # A drafter asks for one row at a time, behind all drafts so far.
        assert torch.equal(used.forbidden(drafts, 1)[0], rows[len(drafts)])
        kept = drafts[: any_of(range(len(drafts) + 1))]
        used.commit(kept)
        answer.extend(kept)
    assert len(answer) > 30


def fresh(form, answer):
    made = matcher(form, limit=5_000)
    made.commit(answer)
    return made


def test_behind_what_does_not_fit_and_behind_the_end_rows_are_numbers():
    made = matcher(Constraint.regex("ab"))
    sampler = Sampler(Sampling(temperature=1.0, repetition_penalty=2.0), SIZE, PROMPT, CPU, 0, made)
    raw = spread(0).expand(5, -1)
    for drafts in (ids("axbx"), [*ids("ab"), EOS, EOS], [EOS, *ids("abc")]):
        logits = sampler.logits(raw, torch.tensor(drafts))
        assert torch.equal(torch.isfinite(logits[0]).nonzero().flatten(), torch.tensor(ids("a")))
        assert not torch.isnan(logits.softmax(-1)).any()


def test_only_what_the_tokenizer_knows_fits_and_ends_only_at_an_end():
    made = matcher(Constraint.regex("a?"), eos=(EOS, 0, 5000, -1), size=320)
    a = ids("a")[0]
    assert fitting(made) == {a, EOS, 0}
    assert fitting(made, [a]) == {EOS, 0}
    assert made.forbidden((), 1).shape == (1, 320)
    # Each end is one, and nothing follows it.
    for eos in (EOS, 0):
        ended = made.twin()
        assert ended.steer([a, eos], 5) == ([a, eos], [])
        ended.commit([a, eos])
        with pytest.raises(ModelOutputError, match=f"the model chose {a}"):
            ended.commit([a])


def test_steering_does_not_depend_on_how_long_the_rounds_are():
    form = Constraint.json_schema({"type": "array", "items": {"type": "string"}})
    text = ids('["one", "two", "three", "four"]')
    for limit in range(3, 40):
        whole, closing = matcher(form, limit).steer([*text, EOS], limit)
        single = matcher(form, limit)
        answer: list[int] = []
        for id_ in [*text, EOS]:
            standing, end = single.steer([id_], limit - len(answer))
            single.commit([*standing, *end])
            answer.extend([*standing, *end])
            if end:
                break
        assert answer == [*whole, *closing] and answer[-1] == EOS and len(answer) <= limit
        assert isinstance(json.loads(TOKENIZER.decode(answer[:-1])), list)


def test_a_draft_behind_which_nothing_fits_does_no_harm():
    made = matcher(Constraint.lark('start: "a" NOTHING | "b"\nNOTHING: /c/ & /d/'))
    a, b = ids("ab")
    assert not made.forbidden([a, a], 3)[1:].any()
    assert fitting(made) == {a, b}
    assert made.steer([a], 9) == ([], [b, EOS])


def test_a_tokenizer_that_writes_spaces_and_bytes_in_its_own_way_serves_as_well():
    """Words begin with a mark in place of their space, and bytes without a token are spelled as <0x..>."""
    marks = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *map(chr, range(33, 127)), "▁{", '"}']
    backend = Tokenizer(
        models.BPE({mark: id_ for id_, mark in enumerate(marks)}, [], byte_fallback=True, unk_token="<unk>")
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    space = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(space)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")
    form = Constraint.json_schema({"type": "object", "properties": {"a b": {"type": "string"}}, "required": ["a b"]})
    made = Grammars(tokenizer, len(tokenizer)).matcher(form, frozenset([tokenizer.eos_token_id]), 50)
    start = tokenizer.convert_tokens_to_ids([*list('{"a▁b":▁"'), "<0xC3>", "<0xA9>"])
    standing, closing = made.steer(start, len(start) + 4)
    assert standing == start
    made.commit(start)
    lead = tokenizer.convert_tokens_to_ids("<0xF0>")
    standing, closing = made.steer([lead], 4)
    assert (standing, json.loads(tokenizer.decode([*start, *closing[:-1]]))) == ([], {"a b": "é"})
