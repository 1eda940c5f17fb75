"""The local tasks: what is read, what is asked, and what a broken line does."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapid_core import InputError, LongContext, LongHistory, Message, MissingDependencyError, OptionError
from rapid_core.errors import DocumentError
from rapid_core.evaluation.tasks import TASKS, BadLineError, TaskOptions, load_tasks
from rapid_core.evaluation.tasks.multiple_choice import score_choice
from rapid_core.evaluation.tasks.selection import select
from rapid_core.evaluation.tasks.summary import Summary

LIMA = "Anna lives in Lima.\r\n\r\nShe keeps “nine” llamas."
OSLO = "Bert lives in Oslo. He has two dogs."
QA = {"id": "q1", "document_id": "lima", "question": "Where does Anna live?", "answers": ["Lima", "in Lima"]}
QA |= {"source": "towns", "task": "short_answer", "evidence": [0, 19]}
MC = {"id": "m1", "document_id": "oslo", "question": "How many dogs?", "choices": ["one", "two"], "answer_index": 1}
MC |= {"source": "towns"}
SUM = {
    "id": "s1",
    "document_id": "oslo",
    "instruction": "Summarize it.",
    "references": ["Bert.", "Oslo."],
    "source": "t",
}
CHAT = {"id": "d1", "dialogue_id": "chat", "question": "What was first?", "answers": ["bees"], "metric": "f1"}
CHAT |= {"source": "talks"}
MEETING = CHAT | {"id": "d2", "dialogue_id": "meeting", "question": "What was said?", "metric": "rouge"}
PACK = {"id": "p1", "task": "long_qa", "document_ids": ["oslo", "lima"], "item_ids": ["q1"]}
GOOD = {"long_qa": QA, "long_mc": MC, "long_sum": SUM, "dialogue": CHAT, "packs": PACK}
TASK_OF = {"long_qa": "short-answer", "long_mc": "multiple-choice", "long_sum": "summary", "dialogue": "dialogue"}
TASK_OF |= {"packs": "short-answer-packed"}


def write_turns(path, *turns):
    path.write_text(json.dumps({"turns": [{"role": role, "content": content} for role, content in turns]}))


def write_lines(path, *rows):
    """Rows as JSON, or as the bytes that they are."""
    path.write_bytes(b"\n".join(row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows) + b"\n")


@pytest.fixture
def data(tmp_path):
    (tmp_path / "documents").mkdir()
    (tmp_path / "dialogues").mkdir()
    (tmp_path / "documents/lima.txt").write_bytes(LIMA.encode())
    (tmp_path / "documents/oslo.txt").write_bytes(OSLO.encode())
    write_turns(tmp_path / "dialogues/chat.json", ("user", "Of bees."), ("assistant", "Yes?"), ("user", "Of cats."))
    write_turns(tmp_path / "dialogues/meeting.json", ("Chair", "Let us begin."), ("Ann", "It is late."))
    for file, row in GOOD.items():
        write_lines(tmp_path / f"{file}.jsonl", row)
    return tmp_path


def load(name, data, **options):
    (task,) = load_tasks([name], TaskOptions(data=data, **options))
    return task


def only(name, data):
    (question,) = load(name, data).questions()
    return question


def test_a_short_answer_is_asked_behind_its_document(data):
    question = only("short-answer", data)
    assert (question.id, question.document, question.source) == ("q1", "lima", "towns")
    assert [message.role for message in question.messages] == ["system", "user"]
    assert question.messages[1].content.startswith("Where does Anna live?\n\n")
    # Character by character: offsets of evidence count on it. Passages are searched for the question alone.
    assert question.context == LongContext(LIMA, query="Where does Anna live?")
    assert LIMA[slice(*question.evidence)] == "Anna lives in Lima."
    assert question.references == ("Lima", "in Lima") and question.temperature == 0


def test_each_kind_of_answer_is_a_task_of_its_own(data):
    rows = [QA | {"id": kind, "task": kind} for kind in ("short_answer", "sentence_answer", "clause_extraction")]
    write_lines(data / "long_qa.jsonl", *rows)
    names = ["short-answer", "sentence-answer", "clause-extraction"]
    tasks = load_tasks(names, TaskOptions(data=data))
    assert [[question.id for question in task.questions()] for task in tasks] == [[row["task"]] for row in rows]
    assert [[question.task for question in task.questions()] for task in tasks] == [[name] for name in names]
    lengths = [task.questions()[0].max_new_tokens for task in tasks]
    assert lengths == sorted(lengths) and len({task.questions()[0].messages for task in tasks}) == 3


def test_options_are_lettered_and_the_letter_is_asked_for(data):
    question = only("multiple-choice", data)
    assert question.messages[1].content.startswith("How many dogs?\n\nA. one\nB. two\n\n")
    assert (question.choices, question.right, question.references) == (("one", "two"), 1, ("two",))


def test_a_chat_is_read_as_messages_and_a_meeting_as_a_document(data):
    write_lines(data / "dialogue.jsonl", CHAT, MEETING)
    chat, meeting = load("dialogue", data).questions()
    assert chat.context == LongHistory()
    assert chat.messages == (
        Message("user", "Of bees."),
        Message("assistant", "Yes?"),
        Message("user", "Of cats."),
        Message("user", "What was first?"),
    )
    assert meeting.context == LongContext("Chair: Let us begin.\nAnn: It is late.", query="What was said?")
    assert meeting.messages[-1].content.startswith("What was said?\n\n")


def test_a_summary_is_of_a_document_or_of_a_dialogue(data):
    of_meeting = {**SUM, "id": "s2", "dialogue_id": "meeting"}
    del of_meeting["document_id"]
    write_lines(data / "long_sum.jsonl", SUM, of_meeting)
    document, meeting = load("summary", data).questions()
    assert document.context.text == OSLO and document.references == ("Bert.", "Oslo.")
    assert meeting.context.text == "Chair: Let us begin.\nAnn: It is late." and meeting.document == "meeting"
    assert document.max_new_tokens == 192
    assert Summary(TaskOptions(data=data), max_new_tokens=7).questions()[0].max_new_tokens == 7


def test_in_a_pack_evidence_stands_where_its_document_does(data):
    write_lines(data / "long_qa.jsonl", QA, QA | {"id": "q2", "document_id": "oslo", "evidence": [20, 36]})
    write_lines(data / "packs.jsonl", PACK | {"item_ids": ["q2", "q1"]}, PACK | {"id": "p2", "document_ids": ["lima"]})
    in_oslo, in_lima, again = load("short-answer-packed", data).questions()
    text = in_oslo.context.text
    assert text == f"{OSLO}\n\n{LIMA}" and in_lima.context.text == text and again.context.text == LIMA
    assert text[slice(*in_oslo.evidence)] == "He has two dogs."
    assert text[slice(*in_lima.evidence)] == "Anna lives in Lima."
    assert (in_oslo.id, in_lima.id, again.id) == ("p1/q2", "p1/q1", "p2/q1")
    assert {in_oslo.document, in_lima.document} == {"p1"} and again.task == "short-answer-packed"
    assert in_lima.context.query == "Where does Anna live?"


def test_packs_of_options_are_told_from_those_of_answers(data):
    write_lines(data / "packs.jsonl", PACK, PACK | {"id": "p2", "task": "long_mc", "item_ids": ["m1"]})
    names = ["short-answer", "short-answer-packed", "multiple-choice", "multiple-choice-packed"]
    tasks = load_tasks(names, TaskOptions(data=data))
    assert [[question.id for question in task.questions()] for task in tasks] == [["q1"], ["p1/q1"], ["m1"], ["p2/m1"]]


def test_each_task_scores_by_its_metrics_and_names_the_main_one_first(data):
    write_lines(data / "dialogue.jsonl", CHAT, MEETING)
    short, summary, dialogue = load_tasks(["short-answer", "summary", "dialogue"], TaskOptions(data=data))
    assert short.score(short.questions()[0], "It is in Lima.", None) == {
        "f1": pytest.approx(2 / 3),
        "exact_match": 0.0,
    }
    assert summary.score(summary.questions()[0], "Oslo!", None) == {"rouge_l_sum": 1.0}
    chat, meeting = dialogue.questions()
    # Each by the metric of its line alone.
    assert dialogue.score(chat, "The bees.", None) == {"f1": 1.0}
    assert dialogue.score(meeting, "Bees.", None) == {"rouge_l_sum": 1.0}
    assert [next(iter(task.metrics)) for task in (short, summary, dialogue)] == ["f1", "rouge_l_sum", "f1"]


def test_options_are_scored_by_the_letter_and_by_likelihoods(data):
    task = load("multiple-choice", data)
    question = task.questions()[0]
    assert task.score(question, "B", None) == {"accuracy_letter": 1.0, "letter_found": 1.0}
    assert task.score(question, "A", None) == {"accuracy_letter": 0.0, "letter_found": 1.0}
    assert task.score(question, "Perhaps.", None) == {"accuracy_letter": 0.0, "letter_found": 0.0}
    scores = task.score(question, "", [-2.0, -1.0])
    assert scores["accuracy_likelihood"] == scores["accuracy_likelihood_per_byte"] == 1
    assert set(scores) == set(task.metrics) and next(iter(task.metrics)) == "accuracy_letter"
    write_lines(data / "long_mc.jsonl", MC | {"choices": ["no", "never ever"]})
    longer = only("multiple-choice", data)
    # -3 / 2 bytes against -5 / 10.
    scores = score_choice(longer, "", [-3.0, -5.0])
    assert (scores["accuracy_likelihood"], scores["accuracy_likelihood_per_byte"]) == (0, 1)
    with pytest.raises(ValueError, match="shorter|longer"):
        score_choice(longer, "", [-3.0])


BROKEN = [
    ("long_qa", b"{not json", "it is no JSON"),
    ("long_qa", b"[1, 2]", r"it must be a JSON object, got \[1, 2\]"),
    ("long_qa", b"[" * 100_000, "it is no JSON"),
    ("long_qa", b'{"id": "\xff"}', "it is no UTF-8"),
    ("long_qa", b'{"id": "\\ud800"}', "it is no Unicode text .*surrogates"),
    ("long_qa", {}, "the field 'id' is missing"),
    ("long_qa", QA, "the id 'q1' is that of line 2, and ids must differ"),
    ("long_qa", {"id": "x", "question": "Who?"}, "the field 'document_id' is missing"),
    ("long_qa", QA | {"id": 5}, "'id' must be text, got 5"),
    ("long_qa", QA | {"id": "x", "question": "  "}, "'question' must be text, got \"  \""),
    ("long_qa", QA | {"id": "x", "question": None}, "'question' must be text, got null"),
    ("long_qa", QA | {"id": "x", "answers": "Lima"}, "'answers' must be a list of texts, got \"Lima\""),
    ("long_qa", QA | {"id": "x", "answers": []}, "'answers' must be a list of texts"),
    ("long_qa", QA | {"id": "x", "answers": ["a", 1]}, "'answers' must be a list of texts"),
    ("long_qa", QA | {"id": "x", "task": "essay"}, "'task' must be one of short_answer, .*, got \"essay\""),
    ("long_qa", QA | {"id": "x", "evidence": [0, 9000]}, "'evidence' must be two offsets"),
    ("long_qa", QA | {"id": "x", "evidence": [5, 5]}, "'evidence' must be two offsets"),
    ("long_qa", QA | {"id": "x", "evidence": [0, True]}, "'evidence' must be two offsets"),
    ("long_qa", QA | {"id": "x", "document_id": "rome"}, "documents/rome.txt cannot be read"),
    ("long_qa", QA | {"id": "x", "document_id": "../lima"}, "and no path"),
    ("long_qa", QA | {"id": "x", "document_id": "latin"}, "documents/latin.txt is no UTF-8"),
    ("long_qa", QA | {"id": "x", "document_id": "nothing"}, "documents/nothing.txt is empty"),
    # Also where the line is of another task.
    ("long_qa", QA | {"id": "x", "task": "sentence_answer", "answers": None}, "'answers' must be a list of texts"),
    ("long_mc", MC | {"id": "x", "answer_index": 2}, "'answer_index' must be a whole number from 0 to 1, got 2"),
    ("long_mc", MC | {"id": "x", "answer_index": -1}, "'answer_index' must be a whole number from 0 to 1, got -1"),
    ("long_mc", MC | {"id": "x", "answer_index": True}, "'answer_index' must be a whole number"),
    ("long_mc", MC | {"id": "x", "answer_index": "1"}, "'answer_index' must be a whole number"),
    ("long_mc", MC | {"id": "x", "choices": ["one"]}, "'choices' must be from 2 to 26 options, got 1"),
    ("long_mc", MC | {"id": "x", "choices": ["it"] * 27}, "'choices' must be from 2 to 26 options, got 27"),
    ("long_sum", SUM | {"id": "x", "references": [""]}, "'references' must be a list of texts"),
    ("long_sum", {"id": "x", "instruction": "Go."}, "the field 'document_id' is missing"),
    ("dialogue", CHAT | {"id": "x", "metric": "bleu"}, "'metric' must be one of f1, rouge, got \"bleu\""),
    ("dialogue", CHAT | {"id": "x", "dialogue_id": "none"}, "dialogues/none.json cannot be read"),
    ("dialogue", CHAT | {"id": "x", "dialogue_id": "torn"}, "dialogues/torn.json is no JSON"),
    ("dialogue", CHAT | {"id": "x", "dialogue_id": "mute"}, "dialogues/mute.json must be an object with turns"),
    ("packs", PACK | {"id": "x", "task": "songs"}, "'task' must be one of long_qa, long_mc, got \"songs\""),
    ("packs", PACK | {"id": "x", "item_ids": ["q9"]}, "'item_ids' has 'q9', which is no question about one of its"),
    ("packs", PACK | {"id": "x", "document_ids": ["oslo"]}, "'item_ids' has 'q1', which is no question about one"),
    ("packs", PACK | {"id": "x", "item_ids": ["q1", "q1"]}, "each of its documents and questions once"),
]


@pytest.mark.parametrize(("file", "broken", "problem"), BROKEN)
def test_a_broken_line_is_named_and_left_out_only_when_asked(data, file, broken, problem):
    (data / "documents/latin.txt").write_bytes("Málaga".encode("latin-1"))
    (data / "documents/nothing.txt").write_text("\n")
    (data / "dialogues/torn.json").write_text("{")
    (data / "dialogues/mute.json").write_text('{"turns": [{"role": "user"}]}')
    path = data / f"{file}.jsonl"
    # Empty lines count, and are no fault.
    write_lines(path, b"", GOOD[file], b"  ", broken)
    with pytest.raises(BadLineError, match=problem) as caught:
        load(TASK_OF[file], data)
    assert (caught.value.path, caught.value.line) == (path, 4)
    assert str(caught.value).startswith(f"{path}, line 4: ") and "--skip-bad" in str(caught.value)
    task = load(TASK_OF[file], data, skip_bad=True)
    assert task.notes == [f"{path.name}, line 4, is left out: {caught.value.problem}."]
    write_lines(path, GOOD[file])
    assert task.questions() == load(TASK_OF[file], data).questions()


def test_each_broken_line_has_its_note(data):
    write_lines(data / "long_qa.jsonl", b"{", QA, b"7")
    assert [note.partition(" is left out")[0] for note in load("short-answer", data, skip_bad=True).notes] == [
        "long_qa.jsonl, line 1,",
        "long_qa.jsonl, line 3,",
    ]


def test_a_pack_tells_of_the_lines_that_its_questions_are_made_of(data):
    write_lines(data / "long_qa.jsonl", QA, b"{")
    with pytest.raises(BadLineError, match="long_qa.jsonl, line 2"):
        load("short-answer-packed", data)
    assert load("short-answer-packed", data, skip_bad=True).notes[0].startswith("long_qa.jsonl, line 2,")


def many(data, documents, questions):
    """That many documents, and questions about each, with lines of documents mixed."""
    for number in range(documents):
        (data / f"documents/doc{number}.txt").write_text("word " * (number + 1))
    rows = [
        QA | {"id": f"doc{number}-{turn}", "document_id": f"doc{number}", "evidence": [0, 4]}
        for turn in range(questions)
        for number in range(documents)
    ]
    write_lines(data / "long_qa.jsonl", *rows)
    return rows


def ids(task):
    return [question.id for question in task.questions()]


def documents(task):
    return list(dict.fromkeys(question.document for question in task.questions()))


def count_words(text):
    return len(text.split())


def test_questions_of_a_document_stand_together_in_the_order_of_the_file(data):
    many(data, 3, 2)
    task = load("short-answer", data)
    assert ids(task) == ["doc0-0", "doc0-1", "doc1-0", "doc1-1", "doc2-0", "doc2-1"] and task.notes == []


def test_a_limit_is_spread_evenly_over_the_documents(data):
    many(data, 8, 5)
    task = load("short-answer", data, limit=12, documents=4)
    assert Counter(question.document for question in task.questions()) == dict.fromkeys(documents(task), 3)
    assert task.notes == [
        "Documents taken: 4 of 8 (seed 0).",
        "Questions asked: 12 of 20, spread over the documents (seed 0).",
    ]
    fewer = load("short-answer", data, limit=11, documents=4)
    assert sorted(Counter(question.document for question in fewer.questions()).values()) == [2, 3, 3, 3]
    assert set(ids(fewer)) < set(ids(task))
    # Together, and in the order of the file.
    assert [name for name in ids(load("short-answer", data)) if name in ids(task)] == ids(task)


def test_the_seed_alone_decides_what_is_taken(data):
    rows = many(data, 8, 5)
    taken = ids(load("short-answer", data, limit=10, documents=4))
    assert taken == ids(load("short-answer", data, limit=10, documents=4))
    assert {frozenset(ids(load("short-answer", data, limit=10, documents=4, seed=seed))) for seed in range(5)} > {
        frozenset(taken)
    }
    # Neither the order of the lines does, nor what else is in the file.
    write_lines(data / "long_qa.jsonl", *reversed(rows), QA | {"task": "sentence_answer"})
    assert set(ids(load("short-answer", data, limit=10, documents=4))) == set(taken)


def test_tasks_over_the_same_documents_take_the_same_ones(data):
    rows = many(data, 8, 2)
    write_lines(data / "long_mc.jsonl", *(MC | {"id": f"m-{r['id']}", "document_id": r["document_id"]} for r in rows))
    short, choice = load_tasks(["short-answer", "multiple-choice"], TaskOptions(data=data, documents=3, seed=4))
    assert documents(short) == documents(choice)


def test_longer_documents_are_left_out_with_a_note_and_others_take_their_place(data):
    many(data, 8, 2)
    task = load("short-answer", data, max_document_tokens=3, count_tokens=count_words)
    assert documents(task) == ["doc0", "doc1", "doc2"]
    assert task.notes == ["Documents of more than 3 tokens, left out: 5, with 10 of the questions."]
    task = load("short-answer", data, max_document_tokens=3, count_tokens=count_words, documents=3)
    assert documents(task) == ["doc0", "doc1", "doc2"]
    with pytest.raises(
        InputError, match="'short-answer' must have a question.* Documents of more than 1 tokens, left out: 8"
    ):
        load("short-answer", data, max_document_tokens=1, count_tokens=lambda text: 2)


def test_the_length_of_a_chat_is_that_of_its_messages(data):
    # "Of bees. Yes? Of cats." without the question.
    assert load("dialogue", data, max_document_tokens=5, count_tokens=count_words).notes == []
    with pytest.raises(InputError, match="none is left"):
        load("dialogue", data, max_document_tokens=4, count_tokens=count_words)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6), limit=st.integers(1, 30), seed=st.integers(0, 9))
def test_no_document_gets_two_questions_more_than_another_that_has_them(data, sizes, limit, seed):
    question = only("short-answer", data)
    questions = [
        type(question)(
            id=f"{number}-{turn}",
            task="t",
            document=f"{number}",
            messages=question.messages,
            context=None,
            references=(),
        )
        for number, size in enumerate(sizes)
        for turn in range(size)
    ]
    taken, notes = select(questions, TaskOptions(limit=limit, seed=seed))
    assert len(taken) == min(limit, sum(sizes)) and bool(notes) == (limit < sum(sizes))
    counts = Counter(question.document for question in taken)
    for number, size in enumerate(sizes):
        assert all(counts[str(number)] + 1 >= count for count in counts.values()) or counts[str(number)] == size


def test_names_of_tasks_must_be_known_and_differ(data):
    options = TaskOptions(data=data)
    for names in (["essay"], [], ["summary", "summary"]):
        with pytest.raises(OptionError, match=f"tasks must be some of {', '.join(TASKS)}, each once, got "):
            load_tasks(names, options)
    assert [task.name for task in load_tasks(list(TASK_OF.values()), options)] == list(TASK_OF.values())


def test_ids_of_all_tasks_must_differ(data):
    write_lines(data / "long_mc.jsonl", MC | {"id": "q1"})
    with pytest.raises(InputError, match="'q1' in the tasks 'short-answer' and 'multiple-choice'"):
        load_tasks(["short-answer", "multiple-choice"], TaskOptions(data=data))


def test_missing_data_is_named_with_what_would_help(data):
    with pytest.raises(InputError, match=r"reads long_qa.jsonl .* no folder is given; name one with --data"):
        load("short-answer", None)
    (data / "packs.jsonl").unlink()
    with pytest.raises(InputError, match=r"'short-answer-packed' reads packs.jsonl .* has none"):
        load("short-answer-packed", data)


def test_a_file_that_cannot_be_read_is_a_document_error(data, monkeypatch):
    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.read_bytes", refuse)
    with pytest.raises(DocumentError, match=r"cannot read .*long_qa.jsonl: Permission denied"):
        load("short-answer", data)


@pytest.mark.parametrize("name", ["limit", "documents", "max_document_tokens"])
def test_counts_must_be_at_least_one(name):
    with pytest.raises(OptionError, match=f"{name} must be at least 1, got 0"):
        TaskOptions(**{name: 0}, count_tokens=len)


def test_a_longest_document_needs_a_count():
    with pytest.raises(OptionError, match="max_document_tokens needs count_tokens"):
        TaskOptions(max_document_tokens=100)


@pytest.mark.parametrize("name", ["summary", "dialogue"])
def test_a_task_that_needs_a_library_says_so_before_any_question(data, monkeypatch, name):
    monkeypatch.setattr("rapid_core.extras.find_spec", lambda module: None)
    with pytest.raises(MissingDependencyError, match=r"'rouge_score'.*\[eval\]"):
        load(name, data)
    assert load("short-answer", data).questions()
