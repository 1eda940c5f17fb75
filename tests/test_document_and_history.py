"""A document and a long history in one request: a chat over documents."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conversations import CITIES, SYSTEM, assistant, call, chat, result, turn, user

from rapid_core import (
    Document,
    InputError,
    LongContext,
    LongHistory,
    Message,
    PromptTooLongError,
    RapidEngine,
    Retrieval,
    Sampling,
    Speculation,
    Tool,
)
from rapid_core.retrieval import join
from rapid_core.testing import ScriptedEngine, WordEncoder, tiny_model, tiny_pair

SMALL = Retrieval(chunk_tokens=96, threshold=0.3, floor_tokens=150)
SHORT = Sampling(max_new_tokens=4)
LINES = [f"Line {i} of the report is about nothing at all." for i in range(40)]
ROSA = "The many ships of Lima belong to the queen, who is called Rosa."
REPORT = "\n\n".join([*LINES[:20], ROSA, *LINES[20:]])
QUESTION = "Who are the many ships of Lima?"
# Forty turns, of which one is about Lima; the last of them and the question are the newest.
OTHERS = [f"{city} {i}" for i in range(4) for city in CITIES if city != "Lima"]
CHAT = chat(QUESTION, [*OTHERS[:20], "Lima", *OTHERS[20:]])
LIMA = turn("Lima")
FIRST, NEWEST = CHAT[1:3], CHAT[-3:]


def engine_of(encoder=None, *, window=16384, retrieval=SMALL, **options):
    return RapidEngine(*tiny_pair(window=window), retrieval=retrieval, encoder=encoder or WordEncoder(), **options)


def rendered(messages):
    return "".join(f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in messages) + "<|im_start|>assistant\n"


def prompts_of(engine, messages, context=None, **options):
    pair = engine.prompts(messages, context=context, sampling=SHORT, **options)
    decode = engine.target.tokenizer.decode
    return decode(pair.target_ids), decode(pair.drafter_ids) if pair.drafter_ids else None


def behind(document, message):
    return replace(message, content=f"{document}\n\n{message.content}")


# -- what each role reads -------------------------------------------------------------------------


@pytest.mark.parametrize("history", [None, LongHistory()], ids=["by itself", "told"])
def test_the_drafter_reads_passages_of_the_document_and_what_is_found_in_the_history(history):
    with engine_of() as engine:
        target, drafter = prompts_of(engine, CHAT, LongContext(REPORT, history=history))
        stats = engine.generate(CHAT, context=LongContext(REPORT, history=history), sampling=SHORT).stats
        count = engine.count_tokens
    document, older = stats.retrieved[:-1], stats.retrieved[-1]
    assert target == rendered([SYSTEM, behind(REPORT, CHAT[1]), *CHAT[2:]])
    # The first question holds the document, and stays with its answer.
    assert drafter == rendered([SYSTEM, behind(join(document), FIRST[0]), FIRST[1], *LIMA, *NEWEST])
    assert ROSA in join(document) and all(REPORT[c.start : c.end] == c.text for c in document)
    assert (older.text, older.start) == ("\n".join(message.content for message in LIMA), -1)
    searched = [CHAT[i].content + "\n" + CHAT[i + 1].content for i in range(3, len(CHAT) - 3, 2)]
    assert stats.context_tokens == count(REPORT) + sum(map(count, searched))
    assert stats.notes == ()


def test_a_short_history_beside_a_document_is_read_whole():
    messages = chat(QUESTION, CITIES[:7])
    with engine_of() as engine:
        _, drafter = prompts_of(engine, messages, LongContext(REPORT, (ROSA,)))
        assert drafter == rendered([SYSTEM, behind(ROSA, messages[1]), *messages[2:]])
        # Unless the caller says that it is long.
        _, drafter = prompts_of(engine, messages, LongContext(REPORT, (ROSA,), history=LongHistory(newest=1)))
        assert drafter == rendered([SYSTEM, behind(ROSA, messages[1]), messages[2], *turn("Lima"), messages[-1]])
        # The document counts nothing, however long it is.
        _, drafter = prompts_of(engine, messages, LongContext(REPORT * 4, (ROSA,)))
        assert drafter == rendered([SYSTEM, behind(ROSA, messages[1]), *messages[2:]])


def test_chunks_of_the_caller_are_read_and_the_history_is_searched_all_the_same():
    with engine_of() as engine:
        context = LongContext(REPORT, (LINES[7], ROSA))
        _, drafter = prompts_of(engine, CHAT, context)
        stats = engine.generate(CHAT, context=context, sampling=SHORT).stats
    passages = f"{LINES[7]}\n\n{ROSA}"
    assert drafter == rendered([SYSTEM, behind(passages, FIRST[0]), FIRST[1], *LIMA, *NEWEST])
    assert [chunk.text for chunk in stats.retrieved[:2]] == [LINES[7], ROSA] and len(stats.retrieved) == 3


def test_without_passages_of_the_document_the_drafter_reads_those_of_the_history():
    with engine_of() as engine:
        _, drafter = prompts_of(engine, CHAT, LongContext(REPORT, ()))
        assert drafter == rendered([SYSTEM, *FIRST, *LIMA, *NEWEST])
        stats = engine.generate(CHAT, context=LongContext(REPORT, ()), sampling=SHORT).stats
        assert stats.notes == (
            "the drafter reads nothing of the document: the context came with an empty list of chunks",
        )
        stats = engine.generate(CHAT, context=LongContext("\n\n".join(LINES)), sampling=SHORT).stats
        assert "reads nothing of the document: no passage is as similar to the question as 0.3" in stats.notes[0]
        assert stats.drafter_prompt_tokens > 0 and len(stats.retrieved) == 1


def test_without_passages_of_the_history_the_drafter_reads_those_of_the_document():
    with engine_of() as engine:
        context = LongContext(REPORT, (ROSA,), history=LongHistory(rank=lambda *_: []))
        _, drafter = prompts_of(engine, CHAT, context)
        stats = engine.generate(CHAT, context=context, sampling=SHORT).stats
    assert drafter == rendered([SYSTEM, behind(ROSA, FIRST[0]), FIRST[1], *NEWEST])
    assert stats.notes == ("the drafter reads nothing of the older messages: LongHistory.rank left out every passage",)


def test_without_any_passage_there_is_no_drafter_and_the_notes_say_why():
    with engine_of() as engine:
        context = LongContext(REPORT, (), history=LongHistory(rank=lambda *_: []))
        stats = engine.generate(CHAT, context=context, sampling=SHORT).stats
        assert stats.notes == (
            "no drafter: of the document, the context came with an empty list of chunks; "
            "of the older messages, LongHistory.rank left out every passage",
        )
        assert (stats.drafter_prompt_tokens, stats.retrieved) == (0, ())
        # Where nothing is older than the newest turns there is no history to search.
        stats = engine.generate(CHAT[-1:], context=LongContext(REPORT, (), history=LongHistory()), sampling=SHORT).stats
        assert stats.notes == ("no drafter: the context came with an empty list of chunks",)


def test_an_own_ranking_is_asked_with_the_contexts_query_and_decides():
    asked = []

    def rank(query, passages):
        asked.append(query)
        return [next(i for i, text in enumerate(passages) if "Lima" in text)]

    context = LongContext(REPORT, (ROSA,), query="rewritten", history=LongHistory(newest=1, rank=rank))
    with engine_of() as engine:
        _, drafter = prompts_of(engine, CHAT, context)
    assert asked == ["rewritten"]
    assert drafter == rendered([SYSTEM, behind(ROSA, FIRST[0]), FIRST[1], *LIMA, CHAT[-1]])


# -- where the document stands --------------------------------------------------------------------


def test_the_message_with_the_place_is_read_wherever_it_stands():
    context = LongContext(REPORT, (ROSA,), place="{here}")
    with engine_of() as engine:
        for at, around in ((0, ()), (len(CHAT) - 1, ()), (9, (10,)), (12, (11,))):
            messages = list(CHAT)
            messages[at] = replace(CHAT[at], content=CHAT[at].content + "\n{here}\nThat was it.")
            target, drafter = prompts_of(engine, messages, context)
            whole, read = (
                replace(messages[at], content=messages[at].content.replace("{here}", text)) for text in (REPORT, ROSA)
            )
            assert target == rendered([*messages[:at], whole, *messages[at + 1 :]])
            places = {0, 41, 42, *around, at, *range(len(CHAT) - 3, len(CHAT))}
            assert [CHAT[41], CHAT[42]] == LIMA
            assert drafter == rendered([read if i == at else messages[i] for i in sorted(places)])


def test_the_text_around_the_document_is_never_cut_into_passages_of_the_history():
    frame = "Keep in mind what I say here. " * 40
    messages = [*CHAT[:1], user(f"{frame}{{here}}"), *CHAT[2:]]
    with engine_of() as engine:
        _, drafter = prompts_of(engine, messages, LongContext(REPORT, (ROSA,), place="{here}"))
    assert drafter.startswith(rendered([SYSTEM, user(frame + ROSA)]).removesuffix("<|im_start|>assistant\n"))


def test_a_long_answer_to_the_message_with_the_document_is_read_in_passages():
    story = "\n\n".join(f"Chapter {i} of the story tells of number {i}." for i in range(60))
    messages = [*CHAT[:2], assistant(story), *CHAT[3:]]
    with engine_of() as engine:
        target, drafter = prompts_of(engine, messages, LongContext(REPORT, (ROSA,)))
    assert story in target
    *_, answer = drafter.partition("<|im_start|>assistant\n")
    answer = answer.partition("<|im_end|>")[0]
    # What is found brings the best passage of a long message along that is read with it.
    assert answer in story and 0 < len(answer) <= 96
    assert drafter.endswith(rendered(NEWEST)) and LIMA[1].content in drafter


def test_a_document_that_a_message_holds_by_itself_stands_beside_a_history_too():
    fence = "-" * 20
    system = Message("system", f"Help the user with this:\n{fence}\n{REPORT}\n{fence}\n")
    big = REPORT * 4
    with engine_of() as engine:
        target, drafter = prompts_of(engine, [system, *CHAT[1:]])
        assert target == rendered([system, *CHAT[1:]])
        assert ROSA in drafter and LINES[3] not in drafter and drafter.endswith(rendered([*LIMA, *NEWEST]))
        assert drafter.startswith(f"<|im_start|>system\nHelp the user with this:\n{fence}\n")
        target, drafter = prompts_of(engine, [SYSTEM, user(f"{big}\n\nWhat is it?"), *CHAT[2:]])
        assert target == rendered([SYSTEM, user(f"{big}\n\nWhat is it?"), *CHAT[2:]])
        assert len(drafter) < len(target) / 4 and "\n\nWhat is it?<" in drafter
        assert drafter.endswith(rendered([FIRST[1], *LIMA, *NEWEST]))


def test_a_call_that_is_found_beside_a_document_stays_with_its_results():
    lookup = [user("Look it up."), call("look"), result("The many ships of Lima are old ships."), assistant("Old.")]
    messages = [*CHAT[:21], *lookup, *CHAT[41:]]
    messages[-1:] = [CHAT[-1], call("look", '{"at": "Lima"}'), result("Nothing new.")]
    tools = [Tool("look", "Looks things up.", {"type": "object"})]
    with engine_of() as engine:
        _, drafter = prompts_of(engine, messages, LongContext(REPORT, (ROSA,)), tools=tools)
    assert ROSA in drafter and "Looks things up." in drafter
    at = drafter.index("Look it up.")
    assert at < drafter.index('"name": "look"', at) < drafter.index("are old ships") < drafter.index("Old.<")
    assert '"at": "Lima"' in drafter and "Nothing new." in drafter and "Tokyo" not in drafter


def test_several_documents_stand_beside_a_history():
    documents = (Document("The king of Spain lives in Madrid.", "spain"), Document(REPORT, "report", position=-1))
    with engine_of(window=8192) as engine:
        context = LongContext(documents=(*documents, Document("x" * 9000, "large")))
        target, drafter = prompts_of(engine, CHAT, context)
        stats = engine.generate(CHAT, context=context, sampling=SHORT).stats
    assert stats.left_out == ("large",)
    assert f"user\n=== report ===\n\n{REPORT}\n\n=== spain ===\n\nThe king of Spain" in target
    assert ROSA in drafter and LINES[3] not in drafter and drafter.endswith(rendered([*LIMA, *NEWEST]))


# -- windows --------------------------------------------------------------------------------------


def test_fit_cuts_the_document_and_never_the_history():
    big = REPORT * 4
    with engine_of(window=8192) as engine:
        with pytest.raises(PromptTooLongError, match="choose fit='retrieve'"):
            engine.prompts(CHAT, context=LongContext(big))
        for fit in ("middle", "retrieve"):
            target, drafter = prompts_of(engine, CHAT, LongContext(big), fit=fit)
            assert target.endswith(rendered(CHAT[2:])) and big not in target and ROSA in target
            assert drafter.endswith(rendered([*LIMA, *NEWEST])) and ROSA in drafter


def test_both_share_a_small_window_of_the_drafter():
    target, drafter = tiny_model("llama", window=16384), tiny_model("gpt2", window=1024)
    wide = Retrieval(chunk_tokens=96, threshold=0.1, floor_tokens=4096)
    with RapidEngine(target, drafter, retrieval=wide, encoder=WordEncoder()) as engine:
        stats = engine.generate(CHAT, context=LongContext(REPORT), sampling=SHORT).stats
        assert 700 < stats.drafter_prompt_tokens <= 1024 - SHORT.max_new_tokens
        assert "the drafter's window of 1,024 tokens shrank its budget to" in stats.notes[0]
        assert {chunk.start >= 0 for chunk in stats.retrieved} == {True, False}
        # Chunks of the caller go first.
        given = LongContext(REPORT, (join(stats.retrieved[:1]), *LINES[:10]))
        stats = engine.generate(CHAT, context=given, sampling=SHORT).stats
        assert len(stats.retrieved) > 11 or "the older messages" in stats.notes[-1]
        with pytest.raises(PromptTooLongError, match="pass fewer chunks"):
            engine.generate(CHAT, context=LongContext(REPORT, (REPORT,)), sampling=SHORT)


# -- caches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache_gib", [4.0, 0.0])
@pytest.mark.parametrize("chunks", [None, (ROSA,)], ids=["searched", "given"])
def test_each_turn_reads_all_of_the_one_before_from_the_cache(cache_gib, chunks):
    messages, read_before = list(CHAT), 0
    with engine_of(cache_gib=cache_gib) as engine:
        for city in CITIES[:5]:
            context = LongContext(REPORT, chunks)
            answer = engine.generate(messages, context=context, sampling=SHORT)
            # All but the last token, which the first verification reads.
            assert answer.usage.cached_tokens >= read_before
            read_before = answer.usage.prompt_tokens - 1
            target, drafter = prompts_of(engine, messages, context)
            left_out = [message for message in messages[3:] if message.content not in drafter]
            assert len(left_out) > 60
            passages = join(chunk for chunk in answer.stats.retrieved if chunk.start >= 0)
            without = len(rendered(left_out)) - len(rendered([])) + len(REPORT) - len(passages)
            assert len(drafter) == len(target) - without
            assert answer.stats.drafter_prompt_tokens < answer.usage.prompt_tokens / 4
            messages += [assistant(answer.text), user(f"What are the ships of {city} called?")]


def test_every_turn_embeds_only_what_is_new():
    encoder, messages = WordEncoder(), list(CHAT)
    with engine_of(encoder) as engine:
        engine.generate(messages, context=LongContext(REPORT), sampling=SHORT)
        before = encoder.embedded
        messages += [assistant("I do not know, ask in Cusco."), user("What are the ships of Cusco called?")]
        engine.generate(messages, context=LongContext(REPORT), sampling=SHORT)
    # The turn that is no longer one of the newest.
    assert encoder.embedded - before == 1


def test_without_transfer_the_answer_is_the_targets_own():
    with engine_of() as engine:
        options = {"context": LongContext(REPORT), "sampling": Sampling(max_new_tokens=24)}
        plain = engine.generate(CHAT, speculation=Speculation.off(), **options)
        lossless = engine.generate(CHAT, speculation=Speculation.lossless(gamma=4), **options)
    assert lossless.token_ids == plain.token_ids and lossless.stats.drafted > 0


def test_a_document_beside_a_history_can_be_saved(tmp_path):
    with engine_of() as engine:
        expected = engine.generate(CHAT, context=LongContext(REPORT), sampling=SHORT)
        engine.save_document(tmp_path / "kept")
    with engine_of() as engine:
        loaded = engine.load_document(tmp_path / "kept")
        again = engine.generate(CHAT, context=loaded, sampling=SHORT)
    assert again.token_ids == expected.token_ids and again.usage.cached_tokens > len(REPORT)


# -- what does not work ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        ("newest", "LongContext.history must be a LongHistory or None, got str"),
        (LongHistory(newest=0), "LongContext.history.newest must be a whole number of at least 1.*got 0"),
        (LongHistory(rank=1), "LongContext.history.rank must be callable or None, got int"),
    ],
)
def test_a_history_that_cannot_be_read_is_an_error(history, reason):
    for engine in (engine_of(), ScriptedEngine(["one"])):
        with pytest.raises(InputError, match=reason):
            engine.generate("Who?", context=LongContext("text", history=history))


def test_the_scripted_engine_takes_a_document_with_a_history():
    engine = ScriptedEngine(["one"])
    context = LongContext("text", history=LongHistory(newest=3))
    assert engine.generate(CHAT, context=context, fit="retrieve").text == "one"
    assert engine.requests[0].context == context


# -- ranked chunks of the caller ------------------------------------------------------------------


def test_of_ranked_chunks_a_small_window_holds_the_best_and_of_others_none_may_be_left_out():
    chunks = tuple(f"Chunk {n} says: {'so ' * 40}" for n in range(12))
    with RapidEngine(tiny_model(window=8192), tiny_model(window=1024, seed=1), encoder=WordEncoder()) as engine:
        ranking = (7, 2, *(n for n in range(12) if n not in (7, 2)))
        context = LongContext(REPORT, chunks, ranking=ranking)
        _, drafter = prompts_of(engine, [user("Which?")], context)
        read = [n for n in range(12) if f"Chunk {n} says" in drafter]
        assert {2, 7} <= set(read) and 2 < len(read) < 12 and drafter.index("Chunk 2 ") < drafter.index("Chunk 7 ")
        stats = engine.generate([user("Which?")], context=context, sampling=SHORT).stats
        assert any(f"no room for {12 - len(read)} of 12 chunks" in note for note in stats.notes)
        assert len(stats.retrieved) == len(read)
        with pytest.raises(PromptTooLongError, match="pass fewer chunks"):
            prompts_of(engine, [user("Which?")], LongContext(REPORT, chunks))
        # A window that holds none leaves the target alone.
        huge = LongContext(REPORT, ("so " * 900,), ranking=(0,))
        assert prompts_of(engine, [user("Which?")], huge)[1] is None
        for wrong in ((0,), (0, 0), (0, 2)):
            with pytest.raises(InputError, match="must name each of 2 chunks once"):
                prompts_of(engine, [user("Which?")], LongContext(REPORT, chunks[:2], ranking=wrong))


def test_what_is_cut_for_the_target_goes_by_the_ranking():
    chunks = tuple(f"Chunk {n} says: {'so ' * 40}" for n in range(12))
    with engine_of(window=1024) as engine:
        context = LongContext(REPORT, chunks, ranking=(9, 5, *(n for n in range(12) if n not in (9, 5))))
        target, _ = prompts_of(engine, [user("Which?")], context, fit="retrieve")
        assert "Chunk 9 says" in target and "Chunk 5 says" in target and "Chunk 11 says" not in target
