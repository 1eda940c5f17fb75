"""A document between rules or tags: what applications send that know nothing of documents of their own."""

from __future__ import annotations

import pytest
from conversations import CITIES, assistant, turn, user
from hypothesis import given, settings
from hypothesis import strategies as st

from rapid_core import LongHistory, Message
from rapid_core.context import LONG_MESSAGE_TOKENS, QUESTION_CHARACTERS, read_messages, split, split_long_message
from rapid_core.fence import find_fence
from rapid_core.history import find_task
from rapid_core.testing import tiny_engine

PARAGRAPHS = "\n\n".join(f"Paragraph {i} speaks of many things and of the number {i}." for i in range(60))
MARKDOWN = "\n\n".join(f"## Part {i}\n\nSome text of part {i}.\n\n---" for i in range(60)) + "\n\nThe end."
CODE = "\n\n".join(f"# ------\n# part {i}\ndef part_{i}():\n    return {i}" for i in range(60))
QUESTION = "What does paragraph 7 of this text speak of?"
RULE = "---------------------"


def split_of(text):
    """The three parts, which must be the text together."""
    parts = split_long_message(text)
    assert "".join(parts) == text
    return parts


# Prompts in the forms that LlamaIndex has, in words of our own: {d} is the document, {q} the question.
PROMPTS = {
    "question": f"What is known stands below.\n{RULE}\n{{d}}\n{RULE}\nAnswer from it alone.\nQuery: {{q}}\nAnswer: ",
    "refine": (
        "The question was: {q}\nSo far the answer is: Many things.\nMake it better, where more is known now.\n"
        "------------\n{d}\n------------\nElse say it again.\nBetter answer: "
    ),
    "choice": f"Choose one of these.\n{RULE}\n{{d}}\n{RULE}\nWhich of them says most about this: '{{q}}'\n",
    "no line before the rule": f"Take keywords out of the text.{RULE}\n{{d}}\n{RULE}\nWrite: 'WORDS: ...'\n",
    "no line behind the text": f"A list of parts.\n{RULE}\n{{d}}\n{RULE}\nHere is a new part: {{q}}\n",
    "at the end": "Help the user with what stands here.\n--------------------\n{d}\n--------------------\n",
    "blank lines": f"Blocks are below.\n{RULE}\n\n\n{{d}}\n\n\n\n{RULE}\nQuery: {{q}}\nAnswer:",
    "windows": f"What is known:\r\n{RULE}\r\n{{d}}\r\n{RULE}\r\nQuery: {{q}}",
    "equal signs": "====\n{d}\n====\n\n{q}",
    "two kinds": "Begin\n======\n{d}\n------\n{q}",
    "tags": "Read this.\n<context>\n{d}\n</context>\n\n{q}",
    "tags with words": 'Read this.\n  <Documents kind="all">\n{d}\n  </Documents>\n{q}',
    "tags in tags": "<documents>\n<document>\n{d}\n</document>\n</documents>\n{q}",
}


@pytest.mark.parametrize("document", [PARAGRAPHS, MARKDOWN, CODE], ids=["text", "markdown", "code"])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_what_stands_between_two_rules_or_tags_is_the_document(prompt, document):
    text = PROMPTS[prompt].format(d=document, q=QUESTION)
    before, found, after = split_of(text)
    if prompt == "two kinds" and document == MARKDOWN:
        # Which of the many rules closes is not to be seen; the last paragraph is the question as ever.
        assert found.endswith("59.\n\n---") and after.endswith(f"\n{QUESTION}")
    elif prompt == "tags in tags":
        assert found == f"<document>\n{document}\n</document>"
    else:
        assert found == document
    assert (QUESTION in before + after) == ("{q}" in PROMPTS[prompt])


def test_the_question_is_searched_for_without_the_rules():
    with tiny_engine() as engine:
        for prompt in ("question", "tags"):
            text = PROMPTS[prompt].format(d=PARAGRAPHS, q=QUESTION)
            task = split(read_messages(text), None, engine.count_tokens)
            assert QUESTION in task.query and not set(task.query) & set("-<>") and "Paragraph" not in task.query
            assert task.with_context(task.context.text) == (Message("user", text),)


def test_of_several_rules_the_first_and_the_last_of_its_kind_are_the_fence():
    parts = [PARAGRAPHS, f"Also\n{RULE}\nthis", "And\n-----\nthat", "Last"]
    document = f"\n{RULE}\n".join(parts)
    assert split_of(f"Read.\n{RULE}\n{document}\n{RULE}\n{QUESTION}")[1] == document
    # Rules of the document alone, of which none stands before it.
    assert split_of(f"Read.\n~~~~\n{MARKDOWN}\n~~~~\n{QUESTION}")[1] == MARKDOWN
    # A rule of another kind before the fence.
    assert split_of(f"Part 1\n***\nRead.\n{RULE}\n{MARKDOWN}\n{RULE}\n{QUESTION}")[1] == MARKDOWN


@pytest.mark.parametrize(
    ("text", "document"),
    [
        # Front matter: what stands between the rules is the smaller part.
        (f"---\ntitle: Things\n---\n\n{PARAGRAPHS}\n\n{QUESTION}", f"---\ntitle: Things\n---\n\n{PARAGRAPHS}"),
        # One rule.
        (f"Title\n=========\n\n{PARAGRAPHS}\n\n{QUESTION}", f"Title\n=========\n\n{PARAGRAPHS}"),
        # Rules within lines, and too short ones.
        (f"a ---\n\n{PARAGRAPHS}\n\n--- b\n\n{QUESTION}", f"a ---\n\n{PARAGRAPHS}\n\n--- b"),
        (f"--\n\n{PARAGRAPHS}\n\n--\n\n{QUESTION}", f"--\n\n{PARAGRAPHS}\n\n--"),
        # Lines under headings.
        (f"Head\n----\n\n{PARAGRAPHS}\n\nFoot\n----\n\n{QUESTION}", f"Head\n----\n\n{PARAGRAPHS}\n\nFoot\n----"),
        # Tags that nobody closes, or that say nothing.
        (f"<context>\n\n{PARAGRAPHS}\n\n{QUESTION}", f"<context>\n\n{PARAGRAPHS}"),
        (f"</context>\n{PARAGRAPHS}\n<context>\n\n{QUESTION}", f"</context>\n{PARAGRAPHS}\n<context>"),
        (f"<b>\n{PARAGRAPHS}\n</b>\n\n{QUESTION}", f"<b>\n{PARAGRAPHS}\n</b>"),
        # Markdown's dividers.
        (f"{MARKDOWN}\n\n{QUESTION}", MARKDOWN),
        (f"---\n\n{MARKDOWN}\n\n---\n\n{QUESTION}".replace("\n", "\r\n"),
         f"---\n\n{MARKDOWN}\n\n---".replace("\n", "\r\n")),
        # Much around it.
        (f"{PARAGRAPHS}\n{RULE}\n{PARAGRAPHS * 2}\n{RULE}\n\n{QUESTION}",
         f"{PARAGRAPHS}\n{RULE}\n{PARAGRAPHS * 2}\n{RULE}"),
    ],
)  # fmt: skip
def test_other_rules_and_tags_are_text_as_ever(text, document):
    before, found, after = split_of(text)
    assert (before, found.rstrip(), after.strip()) == ("", document, QUESTION)


def test_the_frame_is_short():
    text = "{f}\n----\n{d}\n----\nWhy?"
    frame = len(text.format(f="", d=""))
    fits = "x" * (QUESTION_CHARACTERS - frame)
    assert find_fence(text.format(f=fits, d=PARAGRAPHS), longest_frame=QUESTION_CHARACTERS)[1] == PARAGRAPHS
    assert find_fence(text.format(f=fits + "x", d=PARAGRAPHS), longest_frame=QUESTION_CHARACTERS) is None


LINES = st.sampled_from(
    ["---", "-----", " ---- ", "===", "Text.---", "text", "more text of it", "", "<context>", "</context>", "text?"]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(LINES, max_size=12), st.sampled_from(["\n", "\n\n", "\r\n"]))
def test_nothing_of_any_text_is_lost(lines, between):
    before, document, after = split_of(between.join(lines))
    if fenced := find_fence(between.join(lines), longest_frame=50):
        assert "".join(fenced) == between.join(lines) and fenced[1] == fenced[1].strip("\r\n") != ""


@pytest.mark.parametrize("text", ["-" * 100_000 + "x", ("." + " " * 999 + "-" * 999 + " ") * 50, "<context " * 20_000])
def test_a_strange_text_costs_no_time(text):
    assert find_fence(text, longest_frame=100) is None


# -- system messages ------------------------------------------------------------------------------

INSTRUCTIONS = "You answer questions.\n" + "Be polite, and say only what you know.\n" * 60
FENCED = f"{INSTRUCTIONS}\nUse what stands here.\n--------------------\n{PARAGRAPHS * 2}\n--------------------\n"


def test_the_document_of_a_system_message_is_found_and_the_users_question_searched_for():
    messages = (Message("system", FENCED), *turn("Lima"), user(QUESTION))
    task = split(messages, None, len)
    assert len(INSTRUCTIONS) > QUESTION_CHARACTERS
    assert (task.index, task.context.text, task.query) == (0, PARAGRAPHS * 2, QUESTION)
    assert task.before.startswith(INSTRUCTIONS) and task.with_context(task.context.text) == messages


@pytest.mark.parametrize(
    "instructions",
    [
        INSTRUCTIONS * 3,
        f"Rules\n---\n{INSTRUCTIONS * 3}\n---\nMore rules",
        f"<rules>\n{INSTRUCTIONS * 3}\n</rules>",
        f"{INSTRUCTIONS * 3}\n<context>\nA few words.\n</context>",
    ],
)
def test_instructions_are_never_split(instructions):
    messages = (Message("system", instructions), user("Who?"))
    assert len(instructions) > LONG_MESSAGE_TOKENS and split(messages, None, len).context is None
    # Nor do they hide the document of the user.
    asked = split((messages[0], user(f"{PARAGRAPHS}\n\nWho?")), None, len)
    assert (asked.index, asked.context.text, asked.query) == (1, PARAGRAPHS, "Who?")


def test_the_longer_one_of_two_documents_is_the_document():
    short = f"Here.\n----------\n{'word ' * 300}\n----------\n"
    assert split((Message("system", short), user(f"{PARAGRAPHS}\n\nWho?")), None, len).index == 1
    assert split((Message("system", FENCED), user(f"{PARAGRAPHS}\n\nWho?")), None, len).index == 0


def test_a_history_keeps_the_document_of_its_system_message():
    turns = [message for city in CITIES * 4 for message in turn(city)]
    messages = (Message("system", FENCED), *turns, user(QUESTION))
    for told in (None, LongHistory(newest=3)):
        task = find_task(messages, told, len)
        assert (task.index, task.context.text, task.history) == (0, PARAGRAPHS * 2, told or LongHistory())
    plain = find_task((Message("system", INSTRUCTIONS), *turns, user(QUESTION)), None, len)
    assert plain.context is None and plain.history == LongHistory()
    # System messages do not make a history.
    short = find_task((Message("system", FENCED), *turns[:8], user(QUESTION)), None, len)
    assert short.context is not None and short.history is None
    # A long message of the user is a part of a history that the caller asks for.
    own = find_task((user(f"{PARAGRAPHS}\n\nWho?"), assistant("I."), user("Who?")), LongHistory(), len)
    assert own.context is None and own.history == LongHistory()
