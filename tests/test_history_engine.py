"""Long histories behind the engine: both prompts, the index, the caches, and what is an error."""

from __future__ import annotations

import asyncio

import pytest
from conversations import CITIES, SYSTEM, assistant, call, chat, result, turn, user
from helpers import count_forwards

from rapid_core import (
    EngineStateError,
    InputError,
    LongHistory,
    OptionError,
    PromptTooLongError,
    RapidEngine,
    Retrieval,
    RetrievalError,
    Sampling,
    Speculation,
)
from rapid_core.context import LONG_MESSAGE_TOKENS
from rapid_core.loading import LoadedModel
from rapid_core.retrieval import Searcher
from rapid_core.retrieval.passages import PassageIndex
from rapid_core.testing import ScriptedEngine, WordEncoder, tiny_model, tiny_pair, tiny_tokenizer

# Passages of whole units; the small budget holds one turn about a city, and a short one.
WHOLE_UNITS = Retrieval(chunk_tokens=256, threshold=0.3)
SMALL_BUDGET = Retrieval(chunk_tokens=256, threshold=0.3, floor_tokens=150)
SHORT = Sampling(max_new_tokens=4)
STRICT = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "[{{ m['role'] }}]{{ m['content'] }}{% endfor %}[assistant]"
)


def engine_of(encoder=None, *, window=8192, retrieval=SMALL_BUDGET, **options):
    return RapidEngine(*tiny_pair(window=window), retrieval=retrieval, encoder=encoder or WordEncoder(), **options)


def rendered(messages):
    return "".join(f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in messages) + "<|im_start|>assistant\n"


def prompts_of(engine, messages, context=None):
    pair = engine.prompts(messages, context=context)
    return engine.target.tokenizer.decode(pair.target_ids), engine.target.tokenizer.decode(pair.drafter_ids)


# -- what each role reads -------------------------------------------------------------------------


@pytest.mark.parametrize("context", [None, LongHistory()], ids=["by itself", "given"])
def test_the_target_reads_every_message_and_the_drafter_the_found_and_the_newest_ones(context):
    others = [city for city in CITIES if city != "Lima"] * 3
    messages = chat("Who are the many ships of Lima?", [*others[:20], "Lima", *others[20:]])
    messages[5:7] = [user("Does anybody live in Lima with ships?"), assistant("Ships of Lima: many.")]
    with engine_of() as engine:
        target, drafter = prompts_of(engine, messages, context)
        assert target == rendered(messages)
        found = [message for message in messages[1:-3] if "Lima" in message.content]
        assert len(found) == 4
        assert drafter == rendered([SYSTEM, *found, *messages[-3:]])
        stats = engine.generate(messages, context=context, sampling=SHORT).stats
        assert [chunk.text for chunk in stats.retrieved] == [
            f"{question.content}\n{answer.content}" for question, answer in zip(found[::2], found[1::2], strict=True)
        ]
        assert all((chunk.start, chunk.end) == (-1, -1) and chunk.score >= 0.3 for chunk in stats.retrieved)
        older = [messages[i].content + "\n" + messages[i + 1].content for i in range(1, len(messages) - 3, 2)]
        assert stats.context_tokens == sum(engine.count_tokens(text) for text in older)
        assert stats.drafter_prompt_tokens == len(engine.prompts(messages, context=context).drafter_ids)


@pytest.mark.parametrize("newest", [1, 2, 4])
def test_the_newest_units_stay_as_they_are(newest):
    messages = chat("Who are the many ships of Lima?")
    with engine_of() as engine:
        _, drafter = prompts_of(engine, messages, LongHistory(newest))
    assert drafter == rendered([SYSTEM, *turn("Lima"), *messages[len(messages) + 1 - 2 * newest :]])


def test_all_ways_to_ask_read_a_history_alike():
    messages = chat("Who lives in Lima?")
    options = {"context": LongHistory(), "sampling": SHORT}
    with engine_of() as engine:
        whole = engine.generate(messages, **options)
        *_, last = engine.stream(messages, **options)
        later = asyncio.run(engine.agenerate(messages, **options))
    assert whole.stats.retrieved == last.stats.retrieved == later.stats.retrieved != ()


def test_a_long_tool_result_is_whole_for_the_target_and_in_passages_for_the_drafter():
    filler = [f"Line {i} of the report is about nothing." for i in range(60)]
    report = "\n\n".join([*filler[:30], "The queen of Peru is called Rosa.", *filler[30:]])
    assert len(report) > LONG_MESSAGE_TOKENS
    small = Retrieval(chunk_tokens=64, threshold=0.3, floor_tokens=256)
    messages = [SYSTEM, *(m for city in CITIES * 3 for m in turn(city)), user("How is the queen of Peru called?")]
    messages += [call("report", '{"about": "Peru"}'), result(report)]
    with engine_of(retrieval=small) as engine:
        target, drafter = prompts_of(engine, messages)
        assert report in target and "queen of Peru is called Rosa" in drafter
        assert report[:200] not in drafter and "How is the queen of Peru called?" in drafter
        assert len(drafter) < len(target) / 3
        result_ = engine.generate(messages, sampling=SHORT)
    assert any("Rosa" in chunk.text for chunk in result_.stats.retrieved)


def test_a_template_without_system_role_and_with_strict_turns_gets_a_conversation():
    target = tiny_model(window=8192)
    strict = LoadedModel(target.model, tiny_tokenizer(STRICT), "strict")
    messages = chat("Who lives in Lima?")
    messages[7:7] = [user("One more."), user("And another one of many ships?")]
    with RapidEngine(strict, retrieval=WHOLE_UNITS, encoder=WordEncoder()) as engine:
        pair = engine.prompts(messages, context=LongHistory())
        text = engine.target.tokenizer.decode(pair.drafter_ids)
    assert text.startswith("[user]Be brief.\n\nWhat can you tell me")
    assert text.endswith("[user]Who lives in Lima?[assistant]")
    assert "Lima has a harbour" in text


def test_a_short_chat_is_read_whole_by_both():
    messages = chat("Who?", CITIES[:6])
    with engine_of() as engine:
        pair = engine.prompts(messages)
        assert pair.drafter_ids == pair.target_ids
        # And so is one that holds nothing older than its newest units.
        pair = engine.prompts(messages[-3:], context=LongHistory())
        assert pair.drafter_ids == pair.target_ids
    with RapidEngine(tiny_model(), retrieval=WHOLE_UNITS, encoder=WordEncoder()) as alone:
        plain = alone.generate(messages[-3:], context=LongHistory(), sampling=SHORT)
    assert "without a long text a model gains nothing" in plain.stats.notes[0]


# -- the caller's own ranking ---------------------------------------------------------------------


class NoEncoder(WordEncoder):
    def embed_passages(self, texts, on_batch):
        raise AssertionError("nothing is embedded")

    embed_query = embed_passages


def test_an_own_ranking_is_asked_with_query_and_passages_and_decides():
    asked, messages = [], chat("Who lives in Oslo?")

    def rank(query, passages):
        asked.append((query, list(passages)))
        return [next(i for i, text in enumerate(passages) if city in text) for city in ("Rome", "Madrid", "Lima")]

    with engine_of(NoEncoder(), retrieval=WHOLE_UNITS) as engine:
        _, drafter = prompts_of(engine, messages, LongHistory(rank=rank))
        retrieved = engine.generate(messages, context=LongHistory(rank=rank), sampling=SHORT).stats.retrieved
    passages = [f"{messages[i].content}\n{messages[i + 1].content}" for i in range(1, len(messages) - 3, 2)]
    query = f"{messages[-3].content}\nWho lives in Oslo?"
    assert asked[0] == asked[1] == (query, passages)
    # A quarter of eleven passages is the budget, and the third one does not fit.
    assert drafter == rendered([SYSTEM, *turn("Madrid"), *turn("Rome"), *messages[-3:]])
    assert [chunk.text for chunk in retrieved] == [passages[0], passages[4]]
    assert all(chunk.score != chunk.score for chunk in retrieved)


def test_an_error_of_the_callers_ranking_reaches_the_caller():
    class StoreError(Exception):
        pass

    def rank(query, passages):
        raise StoreError("the store is gone")

    with engine_of() as engine:
        calls = count_forwards(engine)
        for ask in (engine.generate, engine.prompts):
            with pytest.raises(StoreError, match="the store is gone"):
                ask(chat("Who?"), context=LongHistory(rank=rank), sampling=SHORT)
        assert engine.generate(chat("Who?"), sampling=SHORT).usage.completion_tokens > 0 and calls[0] > 0


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([11], "each index at most once, from 0 to 10, got 11"),
        ([0, -1], "got -1"),
        ([3, 3], "at most once, from 0 to 10, got 3"),
        ([0.5], "got 0.5"),
        (["Lima"], "got 'Lima'"),
        (None, "must return indices of passages, got NoneType"),
    ],
)
def test_a_ranking_that_is_none_is_an_error(given, reason):
    with engine_of() as engine, pytest.raises(InputError, match=reason):
        engine.prompts(chat("Who?"), context=LongHistory(rank=lambda query, passages: given))


def test_a_ranking_that_leaves_everything_out_is_plain_decoding_and_says_so():
    with engine_of() as engine:
        stats = engine.generate(chat("Who?"), context=LongHistory(rank=lambda *_: []), sampling=SHORT).stats
    assert stats.notes[0] == "no drafter: LongHistory.rank left out every passage"
    assert (stats.drafter_prompt_tokens, stats.retrieved) == (0, ())


# -- the index ------------------------------------------------------------------------------------


def test_every_turn_embeds_only_what_is_new():
    encoder, messages = WordEncoder(), chat("What are the ships of Lima called?")
    with engine_of(encoder) as engine:
        engine.generate(messages, context=LongHistory(), sampling=SHORT)
        # All but the newest two units, of which the last is the question.
        assert encoder.embedded == len(CITIES) - 1
        for new in ("Cusco", "Arica", "Tacna"):
            before = encoder.embedded
            messages += [assistant(f"I do not know, ask in {new}."), user(f"What are the ships of {new} called?")]
            engine.generate(messages, context=LongHistory(), sampling=SHORT)
            assert encoder.embedded == before + 1
        engine.generate(messages, context=LongHistory(newest=1), sampling=SHORT)
        assert encoder.embedded == before + 2


def test_equal_passages_are_embedded_once():
    encoder = WordEncoder()
    with engine_of(encoder) as engine:
        engine.prompts(chat("Who lives in Lima?", CITIES[:3] * 4), context=LongHistory())
    assert encoder.embedded == 3


def test_the_index_forgets_what_was_searched_longest_ago(monkeypatch, store):
    from rapid_core.retrieval import passages as module

    monkeypatch.setattr(module, "MOST_PASSAGES", 3)
    encoder, index = WordEncoder(), PassageIndex(store)

    def search(*texts):
        before = encoder.embedded
        scores = index.scores(texts, encoder, "Lima", lambda *_: None)
        assert [float(score) > 0.5 for score in scores] == ["Lima" in text for text in texts]
        return encoder.embedded - before

    assert [search("Lima"), search("Oslo", "Rome"), search("Lima"), search("Paris")] == [1, 2, 0, 1]
    assert [search("Lima", "Rome", "Paris"), search("Oslo")] == [0, 1]
    # What is searched at once is never too much.
    assert [search("Lima", "Oslo", "Rome", "Paris"), search("Rome", "Oslo")] == [1, 0]


def test_an_interrupted_search_is_made_again(store):
    encoder, index = WordEncoder(), PassageIndex(store)

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index.scores(["one", "two"], encoder, "one", interrupt)
    assert len(index.scores(["one", "two"], encoder, "one", lambda *_: None)) == 2


def test_a_failing_encoder_is_an_error_with_its_reason():
    encoder = WordEncoder()
    encoder.embed_query = lambda _: (_ for _ in ()).throw(RuntimeError("out of memory"))
    with engine_of(encoder) as engine, pytest.raises(RetrievalError, match="out of memory.*LongHistory"):
        engine.prompts(chat("Who?"), context=LongHistory())


def test_texts_of_a_history_are_cut_once(monkeypatch):
    from rapid_core.retrieval import searcher as module

    cut, original = [], module.split_chunks
    monkeypatch.setattr(module, "split_chunks", lambda text, *a: cut.append(text) or original(text, *a))
    searcher = Searcher(WHOLE_UNITS, len, 8192, WordEncoder(), "cpu")
    story = "Nothing happens in this chapter. " * 20
    first = searcher.cut(story, 100, to_embed=True)
    assert searcher.cut(story, 100, to_embed=True) == first and cut == [story]
    assert max(len(chunk.text) for chunk in first) <= 100


# -- caches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("eta", [0.0, 10.0])
@pytest.mark.parametrize("cache_gib", [4.0, 0.0])
@pytest.mark.parametrize("self_speculating", [False, True])
def test_each_of_ten_turns_goes_on_from_the_one_before(eta, cache_gib, self_speculating):
    """Also where the budget keeps nothing but what each role works with: a drafter's prompt changes every turn."""
    models = (tiny_model(window=8192),) if self_speculating else tiny_pair(window=8192)
    messages, read_before = chat("What are the ships of Lima called?"), 0
    with RapidEngine(*models, retrieval=WHOLE_UNITS, encoder=WordEncoder(), cache_gib=cache_gib) as engine:
        for city in CITIES[:10]:
            answer = engine.generate(
                messages, context=LongHistory(), sampling=SHORT, speculation=Speculation(gamma=4, eta=eta)
            )
            assert answer.stats.drafter_prompt_tokens < answer.usage.prompt_tokens / 2
            assert answer.usage.cached_tokens >= read_before
            read_before = answer.usage.prompt_tokens - 1
            messages += [assistant(answer.text), user(f"What are the ships of {city} called?")]


def test_without_transfer_the_answer_is_the_targets_own():
    messages = chat("What are the ships of Lima called?")
    with engine_of() as engine:
        options = {"context": LongHistory(), "sampling": Sampling(max_new_tokens=24)}
        plain = engine.generate(messages, speculation=Speculation.off(), **options)
        lossless = engine.generate(messages, speculation=Speculation.lossless(gamma=4), **options)
    assert lossless.token_ids == plain.token_ids and lossless.stats.drafted > 0
    assert plain.stats.context_tokens == 0 and plain.stats.retrieved == ()


# -- what does not work ---------------------------------------------------------------------------


def test_a_history_over_the_targets_window_is_an_error_whatever_fit_says():
    messages = chat("Who lives in Lima?", CITIES * 3)
    with engine_of(window=2048) as engine:
        for options in ({"context": LongHistory()}, {}, {"fit": "retrieve"}):
            with pytest.raises(PromptTooLongError, match="this history makes one of .*; summarise or drop") as raised:
                engine.generate(messages, **options)
            assert raised.value.window == 2048 < raised.value.prompt_tokens
        with pytest.raises(OptionError, match="target reads a history whole, got fit='middle'; leave it out"):
            engine.generate(messages, context=LongHistory(), fit="middle")


def test_where_nothing_is_similar_there_is_no_drafter_and_the_notes_say_so():
    with engine_of(retrieval=Retrieval(chunk_tokens=256, threshold=0.99)) as engine:
        stats = engine.generate(chat("Zebra?"), context=LongHistory(), sampling=SHORT).stats
    assert "no drafter: no passage is as similar to the question as 0.99; the best one has" in stats.notes[0]
    assert stats.drafter_prompt_tokens == 0 and "drafter" not in stats.sources


def test_a_small_drafter_reads_what_its_window_holds():
    target, drafter = tiny_model("llama", window=8192), tiny_model("gpt2", window=640)
    messages = chat("What are the ships of Lima called?", CITIES * 4)
    with RapidEngine(target, drafter, retrieval=WHOLE_UNITS, encoder=WordEncoder()) as engine:
        result = engine.generate(messages, sampling=SHORT)
        assert 0 < result.stats.drafter_prompt_tokens <= 640 - 4
        assert "shrank its budget" in result.stats.notes[0] and result.stats.retrieved
        messages[-1] = user("What are the ships of Lima called? " * 20)
        result = engine.generate(messages, sampling=SHORT)
    assert result.stats.drafter_prompt_tokens == 0
    assert "shrank its budget to 0" in result.stats.notes[0] and "no drafter" in result.stats.notes[1]


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        (LongHistory(newest=0), "newest must be a whole number of at least 1, the question's own, got 0"),
        (LongHistory(newest=1.5), "got 1.5"),
        (LongHistory(rank="best"), "rank must be callable or None, got str"),
    ],
)
def test_a_history_that_cannot_be_read_is_an_error(history, reason):
    for engine in (engine_of(), ScriptedEngine(["one"])):
        with pytest.raises(InputError, match=reason):
            engine.generate(chat("Who?"), context=history)


def test_a_history_is_no_document_to_save(tmp_path):
    for engine in (engine_of(), ScriptedEngine(["one"])):
        engine.generate(chat("Who?"), context=LongHistory(), sampling=SHORT)
        with pytest.raises(EngineStateError, match="save_document saves"):
            engine.save_document(tmp_path / "kept")


def test_the_scripted_engine_notes_the_history_that_it_was_asked_with():
    engine = ScriptedEngine(["one"])
    engine.generate(chat("Who?"), context=LongHistory(newest=3))
    assert engine.requests[0].context == LongHistory(newest=3)
    with pytest.raises(OptionError, match="target reads a history whole"):
        engine.generate(chat("Who?"), context=LongHistory(), fit="retrieve")
