"""A drafter of another vocabulary: nothing is lost, and each role has its own prompt and its own tokens."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from helpers import DRAFTER_WORDS, TARGET_WORDS, TINY, ask, foreign_engine
from transformers import PreTrainedTokenizerFast

from rapid_core import (
    Constraint,
    InputError,
    Message,
    RapidEngine,
    Retrieval,
    Sampling,
    Speculation,
    VocabularyError,
)
from rapid_core.loading import LoadedModel
from rapid_core.testing import WordEncoder, save_tiny_model, tiny_foreign_pair, tiny_model
from rapid_core.vocabulary import pair_vocabularies


@pytest.fixture(scope="module")
def engine():
    with foreign_engine() as made:
        made.target.model.generation_config.eos_token_id = -1
        yield made


@pytest.mark.parametrize("gamma", [1, 2, 5, 16, "auto"])
@pytest.mark.parametrize("words", [(TARGET_WORDS, DRAFTER_WORDS), (DRAFTER_WORDS, TARGET_WORDS), ((), DRAFTER_WORDS)])
def test_the_greedy_answer_is_the_targets_own(document, words, gamma):
    with foreign_engine(*words) as engine:
        plain = ask(engine, document, speculation=Speculation.off())
        drafted = ask(engine, document, speculation=Speculation(gamma=gamma, eta=0.0))
        assert drafted.token_ids == plain.token_ids
        assert drafted.stats.drafted > 0


@pytest.mark.parametrize("architectures", [("llama", "gpt2"), ("gpt2", "llama"), ("qwen2", "gemma3_text")])
def test_a_drafter_of_another_architecture_leaves_the_greedy_answer(document, architectures):
    # github.com/huggingface/transformers/pull/46936: a crash with two tokenizers.
    target = tiny_model(architectures[0], words=TARGET_WORDS, padded_to=320)
    drafter = tiny_model(architectures[1], seed=1, words=DRAFTER_WORDS)
    with RapidEngine(target, drafter, retrieval=TINY, encoder=WordEncoder()) as engine:
        plain = ask(engine, document, speculation=Speculation.off())
        drafted = ask(engine, document, speculation=Speculation(gamma=3, eta=0.0))
        assert drafted.token_ids == plain.token_ids and drafted.stats.drafted > 0
        assert len(ask(engine, document, speculation=Speculation(gamma=3, eta=10.0)).token_ids) > 0


def test_drafts_of_the_same_knowledge_are_accepted_in_another_vocabulary():
    with foreign_engine() as engine:
        engine.target.model.generation_config.eos_token_id = -1
        drafted = engine.generate("Who?", sampling=Sampling(max_new_tokens=40), speculation=Speculation(gamma=4, eta=0))
        # One prompt, spelled in the tokens of each: only what one of them lacks makes a difference.
        assert drafted.stats.accepted > 5


def test_a_seed_gives_the_same_answer_again(engine, document):
    options = {"temperature": 1.0, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 7}
    first, again = (ask(engine, document, speculation=Speculation(eta=5.0), **options) for _ in range(2))
    assert first.token_ids == again.token_ids and first.stats.drafted > 0


def test_the_prompts_are_each_in_their_own_template(document):
    target, drafter = tiny_foreign_pair(target_words=TARGET_WORDS, drafter_words=DRAFTER_WORDS)
    drafter.tokenizer.chat_template = (
        "{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}\n{% endfor %}>"
    )
    with RapidEngine(target, drafter, retrieval=TINY, encoder=WordEncoder()) as engine:
        prompts = engine.prompts("Who lives in Lima?", context=document)
        ours = target.tokenizer.decode(prompts.target_ids)
        theirs = drafter.tokenizer.decode(prompts.drafter_ids)
        assert ours.startswith("<|im_start|>user\n") and document in ours
        assert theirs.startswith("[user] ") and theirs.endswith("Who lives in Lima?\n>")
        # Without a document both read the same messages.
        alone = engine.prompts([Message("system", "Be brief."), Message("user", "Hi")])
        assert drafter.tokenizer.decode(alone.drafter_ids) == "[system] Be brief.\n[user] Hi\n>"


def test_a_drafter_without_a_template_reads_the_targets_if_it_has_its_vocabulary(document):
    target, drafter = tiny_model(), tiny_model(seed=1)
    drafter.tokenizer.chat_template = None
    with RapidEngine(target, drafter, retrieval=TINY, encoder=WordEncoder()) as engine:
        text = drafter.tokenizer.decode(engine.prompts("Who lives in Lima?", context=document).drafter_ids)
        assert text.startswith("<|im_start|>user\n")


def test_an_end_of_another_name_ends_the_answer():
    target, drafter = tiny_foreign_pair(target_words=TARGET_WORDS, drafter_words=DRAFTER_WORDS)
    other = PreTrainedTokenizerFast.from_pretrained
    assert other
    drafter.tokenizer.add_special_tokens({"eos_token": "<end>"})
    drafter.model.generation_config.eos_token_id = drafter.tokenizer.eos_token_id
    renamed = LoadedModel(drafter.model, drafter.tokenizer, "renamed")
    renamed.model.config.vocab_size = len(drafter.tokenizer)
    target.tokenizer.add_special_tokens({"eos_token": "<stop>"})
    target.model.generation_config.eos_token_id = target.tokenizer.eos_token_id
    target.model.config.vocab_size = len(target.tokenizer)
    vocabulary = pair_vocabularies(target, renamed).vocabulary
    assert vocabulary.read([target.tokenizer.eos_token_id]) == [drafter.tokenizer.eos_token_id]
    assert bool(vocabulary.shared[target.tokenizer.eos_token_id])


def test_the_end_of_an_answer_is_matched_by_its_meaning_where_the_other_side_ends_with_another_token():
    # A base model as drafter: it knows the target's end as a token, and ends with another one.
    target, drafter = tiny_foreign_pair(target_words=TARGET_WORDS, drafter_words=DRAFTER_WORDS)
    drafter.tokenizer.eos_token = "<|endoftext|>"
    end = drafter.model.generation_config.eos_token_id = drafter.tokenizer.eos_token_id
    vocabulary = pair_vocabularies(target, drafter).vocabulary
    raw = torch.full((1, drafter.logit_size), -9.0)
    raw[0, end] = 9.0
    assert int(vocabulary.logits(raw).argmax()) == target.tokenizer.eos_token_id
    assert vocabulary.read([target.tokenizer.eos_token_id]) == [end]
    # The target's token of that name has lost its counterpart: no two ids of the target are one of the drafter's.
    ids = vocabulary.drafts(vocabulary.shared.nonzero().flatten()).tolist()
    assert len(ids) == len(set(ids))
    # Where the target's end may end the drafter's answers too, it stays what it is.
    drafter.model.generation_config.eos_token_id = [end, drafter.tokenizer.convert_tokens_to_ids("<|im_end|>")]
    kept = pair_vocabularies(target, drafter).vocabulary.read([target.tokenizer.eos_token_id])
    assert kept == [drafter.tokenizer.convert_tokens_to_ids("<|im_end|>")]


def test_what_the_drafter_reads_counts_in_its_own_tokens():
    words = ("garden", "river", "stone", "window", "morning", "lantern", "harbour", "mountain", "captain", "journey")
    target, drafter = tiny_foreign_pair(target_words=words, drafter_words=words[:1], window=8192)
    places = random.Random(1)
    text = "\n\n".join(" ".join(places.choice(words) for _ in range(40)) + "." for _ in range(12))
    with RapidEngine(target, drafter, retrieval=Retrieval(threshold=0.0), encoder=WordEncoder()) as engine:
        stats = ask(engine, text, "Where is the lantern?", Speculation(gamma=3, eta=0.0), max_new_tokens=6).stats
        theirs = len(drafter.tokenizer.encode(text))
    assert stats.retrieved and stats.drafted > 0
    assert stats.drafter_prompt_tokens < theirs


@pytest.mark.parametrize("eta", [0.0, 8.0])
def test_a_constraint_that_asks_for_what_the_drafter_lacks_is_kept(document, eta):
    # Every answer begins with a token that the target alone has, and has another in its middle.
    target, drafter = tiny_foreign_pair(target_words=TARGET_WORDS, drafter_words=DRAFTER_WORDS)
    target.tokenizer.add_tokens(["<call>"], special_tokens=True)
    id_ = target.tokenizer.convert_tokens_to_ids("<call>")
    target.model.resize_token_embeddings(id_ + 1, mean_resizing=False)
    constraint = Constraint.lark(f"start: <[{id_}]> /[a-h]{{3}}/ <[{id_}]> /[a-h]{{2,4}}/")
    for gamma in (4, "auto"):
        with RapidEngine(target, drafter, retrieval=TINY, encoder=WordEncoder()) as engine:
            options = {"constraint": constraint, "max_new_tokens": 24}
            plain = ask(engine, document, speculation=Speculation.off(), **options)
            drafted = ask(engine, document, speculation=Speculation(gamma=gamma, eta=eta), **options)
            assert drafted.token_ids.count(id_) == 2 and drafted.finish_reason == "stop"
            assert drafted.stats.drafted > 0
            if eta == 0:
                assert drafted.token_ids == plain.token_ids


@pytest.mark.parametrize("speculation", [Speculation(gamma=4, eta=0.0), Speculation(eta=0.0), Speculation(eta=8.0)])
def test_passages_that_are_searched_for_again_are_read_in_the_drafters_own_tokens(document, speculation):
    target, drafter = tiny_foreign_pair(target_words=TARGET_WORDS, drafter_words=DRAFTER_WORDS, window=4096)
    options = {"max_new_tokens": 90, "constraint": Constraint.regex(r"([A-Z][a-z]{2,5} [a-z]{3,6}\. ){6}")}
    again = replace(TINY, again_tokens=20)

    class Wandering(WordEncoder):
        def embed_query(self, text):
            return super().embed_query("Norway Oslo" if text.startswith("Who lives in Lima?\n") else text)

    with RapidEngine(target, drafter, retrieval=again, encoder=Wandering()) as engine:
        plain = ask(engine, document, speculation=Speculation.off(), **options)
        result = ask(engine, document, speculation=speculation, **options)
        assert result.stats.retrievals > 1 and result.stats.drafted > 0
        assert any(note.startswith("searched again") for note in result.stats.notes)
        if speculation.eta == 0:
            assert result.token_ids == plain.token_ids
        read = drafter.tokenizer.decode(engine._drafter.sequence)
        # Where it may wait it is perhaps not asked again.
        if speculation != Speculation(eta=0.0):
            assert "Oslo" in read and read.endswith(target.tokenizer.decode(result.token_ids))


def test_the_share_is_told_with_every_answer(engine, document):
    result = ask(engine, document)
    assert any(str(engine.shared_vocabulary) in note for note in result.stats.notes)
    assert 0 < engine.shared_vocabulary.of_drafter < 1


def test_vocabularies_are_matched_before_weights_are_read(tmp_path, monkeypatch):
    from rapid_core import loading, vocabulary

    folders = [save_tiny_model(tmp_path / name, words=words) for name, words in (("a", ()), ("b", DRAFTER_WORDS))]
    monkeypatch.setattr(vocabulary, "LEAST_SHARE", 0.999)
    monkeypatch.setattr(
        loading.AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("weights were read")
    )
    with pytest.raises(VocabularyError, match=r"258 tokens are shared, 100.0% of the target's 258 and 8\d\.\d% of"):
        RapidEngine.load(str(folders[0]), str(folders[1]))


def test_a_foreign_drafter_without_a_template_is_named():
    target, drafter = tiny_foreign_pair(target_words=TARGET_WORDS, drafter_words=DRAFTER_WORDS)
    drafter.tokenizer.chat_template = None
    with pytest.raises(InputError, match=r"the drafter 'tiny-llama-1' has another vocabulary .* needs a chat template"):
        RapidEngine(target, drafter)
