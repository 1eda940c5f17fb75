"""Two vocabularies: which tokens are shared, what is drawn, and what the drafter reads."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from helpers import DRAFTER_WORDS, TARGET_WORDS, ask, foreign_engine
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rapid_core import (
    RapidEngine,
    Sampling,
    SharedVocabulary,
    Speculation,
    VocabularyError,
)
from rapid_core.datatypes import Proposal
from rapid_core.decoder import Decoder
from rapid_core.drafting import RagDrafter
from rapid_core.loading import LoadedModel
from rapid_core.runner import ModelRunner
from rapid_core.sampling import Sampler
from rapid_core.testing import FixedLogits, tiny_foreign_pair, tiny_model, tiny_tokenizer
from rapid_core.verification import augmented_target, greedy_target
from rapid_core.vocabulary import SAME_VOCABULARY, pair_vocabularies

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def engine():
    with foreign_engine() as made:
        made.target.model.generation_config.eos_token_id = -1
        yield made


@pytest.fixture(scope="module")
def pairing():
    return pair_vocabularies(*tiny_foreign_pair(target_words=TARGET_WORDS, drafter_words=DRAFTER_WORDS))


def spelled(tokenizer, ids):
    """The bytes of some ids."""
    table = {letter: byte for byte, letter in _byte_letters().items()}
    special = set(tokenizer.all_special_ids)
    texts = [
        tokenizer.convert_ids_to_tokens(id_).encode()
        if id_ in special
        else bytes(table[letter] for letter in tokenizer.convert_ids_to_tokens(id_))
        for id_ in ids
    ]
    return b"".join(texts)


def _byte_letters():
    """How a byte-level vocabulary writes each byte (GPT-2's table)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + place) for place, byte in enumerate(others)}


# --- which tokens are shared


def test_tokens_of_one_text_stand_for_each_other_whatever_their_ids():
    target, drafter = tiny_model(words=TARGET_WORDS), tiny_model(words=DRAFTER_WORDS)
    pairing = pair_vocabularies(target, drafter)
    ours, theirs = target.tokenizer.get_vocab(), drafter.tokenizer.get_vocab()
    # The byte 255 stands in no text, and counts for nothing.
    both = ours.keys() & theirs.keys() - {"ÿ"}
    assert pairing.report == SharedVocabulary(len(ours) - 1, len(theirs) - 1, len(both))
    assert len(both) > 259 and any(ours[token] != theirs[token] for token in both)
    shared = torch.tensor([ours[token] for token in sorted(both)])
    assert pairing.vocabulary.shared.nonzero().flatten().tolist() == sorted(shared.tolist())
    assert pairing.vocabulary.drafts(shared).tolist() == [theirs[token] for token in sorted(both)]


def test_one_vocabulary_stays_as_it_is():
    pairing = pair_vocabularies(tiny_model(), tiny_model(seed=1))
    assert pairing.vocabulary is SAME_VOCABULARY
    assert (pairing.target_size, pairing.drafter_size) == (259, 259)
    assert pairing.report == SharedVocabulary(259, 259, 259)


def test_a_token_more_is_no_reason_to_refuse_a_drafter(document):
    other = tiny_tokenizer()
    other.add_tokens(["<extra>"])
    with RapidEngine(tiny_model(), LoadedModel(tiny_model(seed=1, padded_to=260).model, other, "other")) as engine:
        assert engine.shared_vocabulary == SharedVocabulary(258, 259, 258)


def test_vocabularies_that_share_too_little_are_refused_with_the_numbers():
    many = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({f"word{n}": n for n in range(1000)} | {"[UNK]": 1000}, "[UNK]")),
        eos_token="[UNK]",
    )
    many.chat_template = tiny_tokenizer().chat_template
    drafter = LoadedModel(tiny_model(padded_to=1001).model, many, "words")
    with pytest.raises(VocabularyError) as error:
        RapidEngine(tiny_model(), drafter)
    for part in ("at least 5% of each one's tokens", "0 tokens are shared", "258", "1,001", "'words'"):
        assert part in str(error.value)


def test_a_vocabulary_of_pieces_with_underscores_is_matched_by_its_bytes():
    # As SentencePiece writes: a space is "▁", and a byte that is no token has one of its own.
    pieces = ["<s>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "a", "b", "▁", "▁a", "ab", "▁ab"]
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b")]
    backend = Tokenizer(
        models.BPE({piece: id_ for id_, piece in enumerate(pieces)}, merges, byte_fallback=True, unk_token="<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", bos_token="<s>", unk_token="<unk>")
    target = tiny_model(words=(" ab",))
    drafter = LoadedModel(tiny_model(padded_to=len(tokenizer)).model, tokenizer, "pieces")
    drafter.model.generation_config.eos_token_id = tokenizer.eos_token_id
    vocabulary = pair_vocabularies(target, drafter).vocabulary
    ids = target.tokenizer.encode(" ab", add_special_tokens=False)
    assert len(ids) == 1 and vocabulary.read(ids) == [pieces.index("▁ab")]
    # "a" is a token and a byte; the one that a text is really made of is its counterpart.
    assert vocabulary.read(target.tokenizer.encode("a", add_special_tokens=False)) == [pieces.index("a")]
    assert vocabulary.read(target.tokenizer.encode("é", add_special_tokens=False)) == [
        pieces.index("<0xC3>"), pieces.index("<0xA9>"),
    ]  # fmt: skip
    # What ends an answer means the same, however it is written.
    assert vocabulary.read([target.tokenizer.eos_token_id]) == [pieces.index("</s>")]


def test_vocabularies_of_whole_words_are_matched_as_they_are_written():
    def words(names):
        backend = Tokenizer(
            models.WordLevel({name: id_ for id_, name in enumerate(["[UNK]", "</s>", *names])}, "[UNK]")
        )
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
        made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="[UNK]")
        made.chat_template = tiny_tokenizer().chat_template
        loaded = LoadedModel(tiny_model(padded_to=len(made)).model, made, "words")
        loaded.model.generation_config.eos_token_id = made.eos_token_id
        return loaded

    pairing = pair_vocabularies(words(["king", "queen", "of"]), words(["of", "judge", "king"]))
    assert pairing.report == SharedVocabulary(5, 5, 4)
    assert pairing.vocabulary.read([2, 3, 4, 1]) == [4, 2, 1]


# --- what is drawn


def test_logits_are_brought_to_the_targets_ids_and_the_rest_cannot_be_drawn(pairing):
    raw = torch.randn(3, pairing.drafter_size, generator=torch.Generator().manual_seed(0))
    brought = pairing.vocabulary.logits(raw)
    assert brought.shape == (3, pairing.target_size)
    shared = pairing.vocabulary.shared
    assert bool((brought[:, ~shared] == -torch.inf).all())
    ids = shared.nonzero().flatten()
    assert torch.equal(brought[:, shared], raw[:, pairing.vocabulary.drafts(ids)])
    # Renormalised: the shared tokens have all of the mass.
    assert torch.allclose(brought.softmax(-1)[:, shared].sum(-1), torch.ones(3))


def test_transfer_touches_shared_tokens_only():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(4, 8, generator=generator)
    shared = torch.tensor([1, 1, 1, 0, 1, 1, 0, 0]).bool()
    draft_probs = torch.randn(4, 8, generator=generator).masked_fill(~shared, -torch.inf).softmax(-1)
    for tail in (None, "reference"):
        augmented = augmented_target(logits, draft_probs, 5.0, tail=tail, shared=shared)
        # Two ids that nobody shifts keep their odds.
        before, after = logits.softmax(-1), augmented
        assert torch.allclose(after[:, 3] / after[:, 6], before[:, 3] / before[:, 6], rtol=1e-4)
    free = augmented_target(logits, draft_probs, 5.0, tail=None)
    assert not torch.allclose(free, augmented_target(logits, draft_probs, 5.0, tail=None, shared=shared))
    shift = 5.0 * (draft_probs - logits.softmax(-1)) * shared
    assert torch.equal(greedy_target(logits, draft_probs, 5.0, None, shared=shared), (logits + shift).argmax(-1))


class Crossed:
    """A vocabulary of four ids for a target of five: id 4 the drafter does not have, the others stand in reverse."""

    shared = torch.tensor([True, True, True, True, False])
    _theirs = torch.tensor([3, 2, 1, 0, 0])

    def read(self, ids):
        # It spells the id that it lacks as two of its own.
        return [theirs for id_ in ids for theirs in ([0, 1] if id_ == 4 else [3 - id_])]

    def drafts(self, ids):
        return self._theirs[ids]

    def logits(self, raw):
        return raw[..., self._theirs].masked_fill(~self.shared, -torch.inf)

    def beginning(self, ids):
        return list(itertools.takewhile(lambda id_: id_ != 4, ids))


TARGET_LOGITS = torch.tensor([[0.5, 1.0, -0.3, 0.2, 1.3]])
DRAFT_LOGITS = torch.tensor([[0.1, 1.5, -1.0, 0.8]])


def crossed_answer(seed, sampling, eta, tail):
    """The first two tokens of an answer, two drafts a round."""
    speculation = Speculation(gamma=2, eta=eta, tail=tail)
    target = ModelRunner(FixedLogits(TARGET_LOGITS), role="target")
    target.prefill((0, 1), reserve=4)
    drafter = ModelRunner(FixedLogits(DRAFT_LOGITS), role="drafter")
    drafter.prefill((0, 1), reserve=4)
    samplers = [Sampler(sampling, 5, (), CPU, seed), Sampler(sampling, 5, (), CPU, seed ^ 0x5DEECE66D)]
    proposer = RagDrafter(drafter, samplers[1], speculation, frozenset(), vocabulary=Crossed())
    decoder = Decoder(target, proposer, samplers[0], speculation, max_new_tokens=2, eos_ids=frozenset())
    return tuple(event.id for event in decoder.tokens())


def law(sampling, eta, tail):
    """The exact law at a drafted position (docs: what the output distribution is)."""
    shape = Sampler(sampling, 5, (), CPU, 0)
    logits = shape.logits(TARGET_LOGITS, torch.empty(0, dtype=torch.long))
    probs = logits.softmax(-1)
    draft_probs = shape.logits(Crossed().logits(DRAFT_LOGITS), torch.empty(0, dtype=torch.long)).softmax(-1)
    augmented = augmented_target(logits, draft_probs, eta, 1.0, tail, 0.1, Crossed.shared)
    least = torch.minimum(draft_probs, augmented)
    rest = (probs - least).clamp_min(0)
    return (least + (1 - least.sum()) * rest / rest.sum())[0]


@pytest.mark.parametrize(
    ("eta", "tail", "options"),
    [(0.0, "reference", {}), (0.0, None, {"top_p": 0.9}), (4.0, "reference", {}), (4.0, None, {}), (4.0, "paper", {})],
)
def test_answers_follow_the_law_of_the_mapped_drafter(eta, tail, options):
    """Pearson's distance over 25 pairs of ids; by chance it is above its bound once in 10^7 runs."""
    from scipy.stats import chi2

    sampling = Sampling(temperature=1.0, max_new_tokens=2, **options)
    runs = 4000
    found = Counter(crossed_answer(seed, sampling, eta, tail) for seed in range(runs))
    one = law(sampling, eta, tail)
    if eta == 0:
        shape = Sampler(sampling, 5, (), CPU, 0)
        own = shape.logits(TARGET_LOGITS, torch.empty(0, dtype=torch.long)).softmax(-1)[0]
        assert torch.allclose(one, own, atol=1e-6)
    expected = {(a, b): runs * float(one[a] * one[b]) for a in range(5) for b in range(5)}
    assert all(expected[pair] > 0 for pair in found)
    likely = {pair: count for pair, count in expected.items() if count >= 5}
    distance = sum((found[pair] - count) ** 2 / count for pair, count in likely.items())
    assert distance < chi2.isf(1e-7, len(likely))


# --- what the drafter reads


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40), st.sampled_from(["", "The king of Peru is number ☃ in 東京", "}} Oslo"]))
def test_what_is_committed_reaches_the_drafter_as_the_same_text(pairing, text, more):
    ours, theirs = tiny_tokenizer(words=TARGET_WORDS), tiny_tokenizer(words=DRAFTER_WORDS)
    ids = ours.encode(text + more, add_special_tokens=False)
    assert spelled(theirs, pairing.vocabulary.read(ids)) == spelled(ours, ids) == (text + more).encode()


def test_a_token_that_is_a_part_of_a_character_is_read_as_its_bytes(pairing):
    ours, theirs = tiny_tokenizer(words=TARGET_WORDS), tiny_tokenizer(words=DRAFTER_WORDS)
    ids = ours.encode("☃ in 東", add_special_tokens=False)
    vocabulary = ours.get_vocab()
    part = vocabulary[
        max((token for token in vocabulary if spelled(ours, [vocabulary[token]]) == "☃".encode()[:2]), key=len)
    ]
    assert not bool(pairing.vocabulary.shared[part]) and ids
    assert spelled(theirs, pairing.vocabulary.read([part])) == "☃".encode()[:2]


def test_bytes_that_the_drafter_lacks_are_left_out_and_the_rest_is_read():
    # Some learned vocabularies have no token for control characters.
    letters = ["<unk>", "</s>", *"abcdefgh", "ab"]
    backend = Tokenizer(
        models.BPE({letter: id_ for id_, letter in enumerate(letters)}, [("a", "b")], unk_token="<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    few = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")
    target = tiny_model(words=("ab\x01", "abz"))
    target = LoadedModel(target.model, target.tokenizer, "target")
    drafter = LoadedModel(tiny_model(padded_to=len(letters)).model, few, "few")
    from rapid_core import vocabulary as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LEAST_SHARE", 0.0)
        vocabulary = pair_vocabularies(target, drafter).vocabulary
    ids = target.tokenizer.encode("ab\x01c", add_special_tokens=False)
    assert few.convert_ids_to_tokens(vocabulary.read(ids)) in (["a", "b", "c"], ["ab", "c"])


@pytest.mark.parametrize("speculation", [Speculation(gamma=3, eta=0.0), Speculation(gamma=4, eta=10.0), Speculation()])
def test_the_drafters_cache_holds_the_text_of_the_answer(engine, document, speculation):
    result = ask(engine, document, speculation=speculation)
    runner = engine._drafter
    runner.commit(())
    fresh = ModelRunner(runner.model, role="fresh")
    fresh.prefill([*runner.sequence, 0], reserve=1)
    assert result.stats.drafted > 0
    # What it has read is what it would have read at once: no key of a rejected draft is left.
    ids = torch.tensor([5])
    runner.rewind(runner.length)
    again = ModelRunner(runner.model, role="again")
    again.prefill([*runner.sequence[: runner.length], 0], reserve=1)
    assert torch.allclose(runner.forward(ids, 1), again.forward(ids, 1), atol=1e-4)
    answer = spelled(engine.target.tokenizer, result.token_ids)
    assert spelled(engine.drafter.tokenizer, runner.sequence[-len(answer) :]).endswith(answer)


def test_looked_up_tokens_that_the_drafter_lacks_are_not_checked_by_it(pairing):
    ours = tiny_tokenizer(words=TARGET_WORDS)
    ids = [*ours.encode("ab", add_special_tokens=False), *ours.encode(" of Peru", add_special_tokens=False)]
    assert pairing.vocabulary.beginning(ids) == ids[:2]
    assert isinstance(Proposal(torch.tensor([1]), None).shared, type(None))
