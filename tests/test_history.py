"""Long histories: which messages belong together, and what a choice among their passages leaves."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from conversations import CITIES, SYSTEM, assistant, call, chat, result, turn, user
from hypothesis import given, settings
from hypothesis import strategies as st

from rapid_core import LongHistory, Message
from rapid_core.context import LONG_MESSAGE_TOKENS
from rapid_core.history import (
    LEAST_UNITS,
    LONG_HISTORY_TOKENS,
    OMITTED,
    History,
    find_history,
    find_task,
    history_query,
    units_of,
)
from rapid_core.retrieval import split_chunks

# Ten tokens, of one a word.
SIZE = 10


def words(text):
    return len(text.split())


def history_of(messages, newest=1):
    task = find_task(tuple(messages), LongHistory(newest), words)
    return History(task, task.history, SIZE, lambda text: split_chunks(text, SIZE, words), words)


def read(messages, *found, newest=1, budget=1000):
    """The drafter's messages where each of `found` is in a passage that was found, in this order."""
    history = history_of(messages, newest)
    texts = [passage.text for passage in history.passages]
    ranked = [next(i for i, text in enumerate(texts) if part in text) for part in found]
    return history.read(history.choose(ranked, len(ranked), budget))


# -- units ----------------------------------------------------------------------------------------

AGENT = [
    SYSTEM,
    user("Where does it rain today?"),  # 1
    call("weather", '{"city": "Oslo"}'),  # 2
    result("rain in Oslo"),  # 3
    call("weather", '{"city": "Lima"}'),  # 4
    result("sun in Lima"),  # 5
    result("and wind in Cusco"),  # 6
    assistant("It rains in Oslo."),  # 7
    user("Thanks."),  # 8
    assistant("Anything else?"),  # 9
    user("And tomorrow?"),  # 10
    call("forecast"),  # 11
    result("fog"),  # 12
]


def test_a_question_and_its_answer_are_a_unit_and_so_is_each_call_with_its_results():
    units = [(unit.places, unit.frame) for unit in units_of(AGENT)]
    assert units == [
        ((2, 3), (1, 7)),
        ((4, 5, 6), (1, 7)),
        ((1, 7), (1, 7)),
        ((8, 9), (8, 9)),
        ((10,), (10,)),
        ((11, 12), (10,)),
    ]


def test_a_call_that_is_found_is_read_with_its_results_its_question_and_the_final_answer():
    assert read(AGENT, "wind in Cusco") == [AGENT[i] for i in (0, 1, 4, 5, 6, 7, 10, 11, 12)]
    assert read(AGENT, "Lima") == read(AGENT, "wind in Cusco")
    assert read(AGENT, "rains in Oslo") == [AGENT[i] for i in (0, 1, 7, 10, 11, 12)]
    assert read(AGENT) == [AGENT[i] for i in (0, 10, 11, 12)]
    assert read(AGENT, newest=2) == [AGENT[i] for i in (0, 8, 9, 10, 11, 12)]


def test_the_newest_turns_stay_with_their_calls_of_many_the_last_ones():
    steps = [call("one"), result("first"), call("two"), result("second")]
    turns = [user("Old?"), *steps, assistant("Done."), user("New?"), *steps, assistant("Done again."), user("Well?")]
    assert read(turns, newest=2) == turns[6:]
    many = [*turns[:1], *steps * 4, assistant("Done."), user("Well?")]
    assert read(many, newest=2) == [many[0], *many[9:]]


def test_a_result_without_tool_calls_before_it_stays_with_the_message_before_it():
    messages = [user("Who?"), assistant("I look."), result("Rosa"), assistant("Rosa."), user("Thanks.")]
    assert read(messages, "Rosa") == messages
    assert [unit.places for unit in units_of(messages)] == [(1, 2), (0, 3), (4,)]


def test_the_conversation_begins_with_the_user_whatever_stands_before():
    messages = [SYSTEM, assistant("Welcome to the harbour!"), *turn("Lima"), user("Who?")]
    assert read(messages, "Lima has") == [SYSTEM, *messages[2:]]
    without_user = [SYSTEM, call("one"), result("first"), call("two"), result("second")]
    assert read(without_user, "first") == without_user


def test_a_system_message_in_the_middle_stays_in_its_place():
    note = Message("system", "From now on in verse.")
    messages = [SYSTEM, *turn("Lima"), *turn("Oslo"), note, *turn("Rome"), user("Who?")]
    assert read(messages, "Oslo has") == [SYSTEM, *turn("Oslo"), note, user("Who?")]


EXCHANGE = st.tuples(st.integers(0, 3), st.integers(1, 2), st.sampled_from(["short", "long " * SIZE * 3]))


@settings(max_examples=200, deadline=None)
@given(st.lists(EXCHANGE, min_size=1, max_size=5), st.booleans(), st.integers(1, 4), st.randoms(), st.integers(0, 90))
def test_whatever_is_chosen_the_drafter_reads_a_conversation_in_its_order(exchanges, answered, newest, rng, budget):
    messages = [SYSTEM]
    for calls, results, text in exchanges:
        messages.append(user(f"{text} question {len(messages)}"))
        for _ in range(calls):
            messages.append(call(f"tool-{len(messages)}"))
            messages += [result(f"{text} result {len(messages)} {i}") for i in range(results)]
        messages.append(assistant(f"{text} answer {len(messages)}"))
    messages = [*messages, user("Last?")] if answered or messages[-2].role != "tool" else messages[:-1]
    messages = [replace(message, name=str(place)) for place, message in enumerate(messages)]
    history = history_of(messages, newest)
    ranked = rng.sample(range(len(history.passages)), len(history.passages))
    left = history.read(history.choose(ranked, rng.randint(0, len(ranked)), budget))
    places = [int(message.name) for message in left]
    assert places == sorted(set(places)) and places[-1] == len(messages) - 1
    assert all(m == messages[int(m.name)] for m in left if words(messages[int(m.name)].content) <= SIZE)
    assert places[0] == 0 and left[1].role == "user"
    for place in places:
        assert messages[place].role != "tool" or place - 1 in places
        assert place == len(messages) - 1 or messages[place + 1].role != "tool" or place + 1 in places
    spoken = [m.role for m in left if m.role in ("user", "assistant") and not m.tool_calls]
    assert all(one != two for one, two in pairwise(spoken))


# -- long messages and the budget -----------------------------------------------------------------

STORY = "\n\n".join(f"Chapter {i} of the story tells of number {i}." for i in range(20))


def test_of_an_older_long_message_only_what_was_found_is_read_in_order():
    messages = [user("Tell me a story."), assistant(STORY), user("Who?")]
    told = "Chapter 3 of the story tells of number 3.\n\nChapter 12 of the story tells of number 12."
    assert read(messages, "number 12", "number 3.") == [messages[0], assistant(told), messages[2]]


def test_a_question_that_is_found_brings_the_best_of_its_long_answer_along():
    messages = [user("Tell me a story."), assistant(STORY), user("Who?")]
    history = history_of(messages)
    texts = [passage.text for passage in history.passages]
    question, chapter = texts.index("Tell me a story."), next(i for i, text in enumerate(texts) if "number 5." in text)
    assert history.read(history.choose([question, chapter], 1, 100))[1].content == texts[chapter]
    assert history.read(history.choose([question], 1, 100))[1].content == OMITTED


def test_an_older_long_user_message_keeps_its_question():
    messages = [user(STORY + "\n\nWhat is chapter 2 about?"), assistant("Two."), user("Who?")]
    first, *rest = read(messages, "number 9")
    assert first.content == "Chapter 9 of the story tells of number 9.\n\nWhat is chapter 2 about?"
    assert rest == messages[1:]
    assert read(messages, "Two.")[0].content == "What is chapter 2 about?"


def test_a_newest_message_is_reduced_only_where_it_is_long_by_itself():
    assert words(STORY) > SIZE and read([*turn("Lima"), user("Who?"), result(STORY)], "Lima has")[-1].content == STORY
    long = "\n\n".join([STORY] * 10)
    assert words(long) > LONG_MESSAGE_TOKENS
    messages = [*turn("Lima"), user(long + "\n\nWhat is chapter 2 about?")]
    reduced = read(messages, "Chapter 4 ")[-1].content
    assert reduced == "Chapter 4 of the story tells of number 4.\n\nWhat is chapter 2 about?"
    # What is the last message and has no question of its own still ends as it ended.
    bare = "word " * (2 * LONG_MESSAGE_TOKENS) + "last"
    assert read([*turn("Lima"), user(bare)], "Lima has")[-1].content.endswith("word last")


def test_the_budget_counts_what_is_read_along_and_passes_over_what_does_not_fit():
    messages = [*turn("Lima"), user("One two three?"), *turn("Oslo"), user("Who?")]
    whole = sum(words(message.content) for message in turn("Oslo"))
    assert read(messages, "Oslo has", "three?", budget=whole - 1) == [messages[2], messages[-1]]
    assert read(messages, "Oslo has", "three?", budget=whole) == [*turn("Oslo"), messages[-1]]
    assert read(messages, "Oslo has", "three?", budget=whole + 3) == messages[2:]


def test_long_arguments_of_a_call_can_be_found_and_are_never_cut():
    arguments = '{"text": "' + STORY.replace("\n", " ") + '"}'
    messages = [user("Write it."), call("write", arguments), result("done"), user("Who?")]
    assert read(messages, "11.") == messages
    assert read(messages, "11.", budget=20) == [messages[-1]]


# -- what is searched for -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "query"),
    [
        (chat("Who lives in the house at the harbour?"), "Who lives in the house at the harbour?"),
        ([*turn("Lima"), user("And there?")], "What can you tell me of the harbour of Lima?\nAnd there?"),
        (AGENT, "Thanks.\nAnd tomorrow?\nforecast {}"),
        (AGENT[:7], 'Where does it rain today?\nweather {"city": "Lima"}'),
        ([*turn("Lima"), user("\n\n".join([STORY] * 10) + "\n\nWhat is chapter 2 about?")], "What is chapter 2 about?"),
    ],
)  # fmt: skip
def test_the_last_question_is_searched_for_and_behind_results_the_call_too(messages, query):
    assert history_query(find_task(tuple(messages), LongHistory(), len), len) == query


# -- when messages are a history ------------------------------------------------------------------


def is_history(messages):
    return find_history(tuple(messages), None, len) is not None


def test_many_messages_that_are_long_together_are_a_history_by_themselves():
    half = "x" * (LONG_HISTORY_TOKENS // LEAST_UNITS // 2 + 1)
    messages = [m for _ in range(LEAST_UNITS) for m in (user(half), assistant(half))] + [user("?")]
    assert is_history(messages)
    assert not is_history([user(m.content[:-4] or "?") if m.role == "user" else m for m in messages])
    assert not is_history([user(half * LEAST_UNITS), assistant(half * LEAST_UNITS), user("?")])
    assert not is_history([Message("system", half * 20), *chat("Who?", CITIES[:6])])


def test_a_message_that_is_half_of_the_history_is_a_document_and_the_history_none():
    turns = [message for city in CITIES * 3 for message in turn(city)]
    others = sum(len(message.content) for message in turns) + 1
    for role in ("user", "tool"):
        assert not is_history([*turns, Message(role, "x" * others), assistant(""), user("?")])
        assert is_history([*turns, Message(role, "x" * (others - 1)), assistant(""), user("?")])
    assert is_history([*turns, user("?"), assistant("x" * others), user("?")])
