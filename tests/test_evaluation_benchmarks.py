"""Readers of ∞Bench and LongBench v2: their formats, prompts, lengths and metrics."""

import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from rapid_core import LongContext, OptionError
from rapid_core.errors import BadLineError, DocumentError, InputError
from rapid_core.evaluation.tasks import TaskOptions, load_tasks
from rapid_core.evaluation.tasks.benchmark import DOCUMENT_TOKENS
from rapid_core.evaluation.tasks.longbench_v2 import stated_choice
from rapid_core.testing import tiny_engine

BOOK = "Miss Ada kept bees on the roof. In spring she sold the honey at the gate."
OTHER = "The ferry ran twice a day. Nobody took the second one."

QA = [
    {"id": 0, "context": BOOK, "input": "What did Ada keep?", "answer": ["Bees", "a hive of bees"], "options": []},
    {"id": 1, "context": OTHER, "input": "How often did the ferry run?", "answer": ["twice a day"], "options": []},
    {"id": 2, "context": BOOK, "input": "Where did she sell honey?", "answer": ["at the gate"], "options": []},
]
OPTIONS = ["Bees", "Ants", "Wasps", "Moths"]
CHOICE = [{"id": 0, "context": BOOK, "input": "What did Ada keep?", "answer": ["Wasps"], "options": OPTIONS}]
SUM = [{"id": 0, "context": BOOK, "input": "", "answer": ["Ada keeps bees.\nShe sells honey."], "options": []}]
FILES = {"longbook_qa_eng": QA, "longbook_choice_eng": CHOICE, "longbook_sum_eng": SUM}

LONGBENCH = [
    {
        "_id": f"66f{number}",
        "domain": "Single-Document QA",
        "sub_domain": "Literary",
        "difficulty": difficulty,
        "length": length,
        "question": " What did Ada keep? ",
        "choice_A": "Ants",
        "choice_B": " Bees ",
        "choice_C": "Wasps",
        "choice_D": "Moths",
        "answer": "B",
        "context": f"\n{text}\n",
    }
    for number, (difficulty, length, text) in enumerate(
        [("easy", "short", BOOK), ("hard", "medium", OTHER), ("hard", "long", f"{BOOK} {OTHER}")]
    )
]


def write_lines(path, records):
    path.write_text("\n".join(json.dumps(record) for record in records), encoding="utf-8")
    return path


@pytest.fixture
def books(tmp_path):
    for name, records in FILES.items():
        write_lines(tmp_path / f"{name}.jsonl", records)
    return tmp_path


@pytest.fixture
def data_json(tmp_path):
    path = tmp_path / "data.json"
    path.write_text(json.dumps(LONGBENCH, indent=2), encoding="utf-8")
    return path


def load(name, data, **options):
    [task] = load_tasks([name], TaskOptions(data=data, **options))
    return task


def count_words(text):
    return len(text.split())


def cut_words(text, tokens):
    words = text.split()
    return " ".join(words[: tokens // 2] + words[-(tokens // 2) :])


def shown(question):
    """The user message as the engine puts it together: the document, then the question."""
    [message] = question.messages
    assert message.role == "user"
    return message.content


# ∞Bench


def test_questions_about_a_book_stand_together_and_share_its_text(books):
    questions = load("infinitebench-qa", books).questions()
    assert [question.id for question in questions] == [f"infinitebench-qa/{number}" for number in (0, 2, 1)]
    assert [question.context.text for question in questions] == [BOOK, BOOK, OTHER]
    assert questions[0].context.text is questions[1].context.text
    assert questions[0].document == questions[1].document != questions[2].document


def test_a_book_has_the_same_name_in_all_three_files(books):
    tasks = load_tasks(
        ["infinitebench-qa", "infinitebench-choice", "infinitebench-sum"], TaskOptions(data=books, limit=1, seed=3)
    )
    by_book = {question.context.text: question.document for task in tasks for question in task.questions()}
    assert by_book[BOOK] == tasks[1].questions()[0].document == tasks[2].questions()[0].document


def test_a_question_is_one_user_message_that_stands_behind_the_book(books):
    question = load("infinitebench-qa", books).questions()[0]
    assert shown(question).startswith("What did Ada keep?\n\n")
    assert question.context == LongContext(BOOK, query="What did Ada keep?")
    assert (question.temperature, question.max_new_tokens) == (1.0, 40)
    assert question.references == ("Bees", "a hive of bees")


def test_options_are_lettered_and_the_right_one_is_known_by_its_text(books):
    question = load("infinitebench-choice", books).questions()[0]
    assert "What did Ada keep?\n\nA. Bees\nB. Ants\nC. Wasps\nD. Moths\n\n" in shown(question)
    assert (question.choices, question.right, question.references) == (tuple(OPTIONS), 2, ("Wasps",))
    assert (question.temperature, question.max_new_tokens) == (1.0, 40)


@pytest.mark.parametrize("answer", ["Wasps", ["Wasps"], ["Wasps", "C"]])
def test_all_forms_of_the_right_answer_are_read(tmp_path, answer):
    path = write_lines(tmp_path / "mine.jsonl", [CHOICE[0] | {"answer": answer}])
    assert load("infinitebench-choice", path).questions()[0].right == 2


def test_a_book_is_summarized_without_a_question(books):
    question = load("infinitebench-sum", books).questions()[0]
    assert question.messages[0].content == question.context.query != ""
    assert (question.temperature, question.max_new_tokens) == (1.0, 1200)


def test_short_answers_are_scored_by_the_reference_that_fits_best(books):
    task = load("infinitebench-qa", books)
    question = task.questions()[0]
    # "hive of" against "hive of bees" without its article: precision 1, recall 2/3.
    assert task.score(question, "The hive of", None) == {"f1": pytest.approx(0.8)}
    assert task.score(question, "bees!", None) == {"f1": 1.0}


def test_choices_are_scored_by_letter_and_by_likelihood(books):
    task = load("infinitebench-choice", books)
    question = task.questions()[0]
    assert task.score(question, "C. Wasps", None) == {"accuracy_letter": 1.0, "letter_found": 1.0}
    scores = task.score(question, "B", (-3.0, -2.0, -1.0, -4.0))
    assert (scores["accuracy_letter"], scores["accuracy_likelihood"]) == (0.0, 1.0)
    assert set(scores) == set(task.metrics)


def test_summaries_are_compared_line_by_line_as_they_stand(books):
    task = load("infinitebench-sum", books)
    question = task.questions()[0]
    # By lines: "she sells honey" is found in the second one, and of the first "ada ... bees" and the
    # words of "keeps" in their order. On one line the order of the sentences counts.
    assert task.score(question, "Ada keeps bees.\nShe sells honey.", None) == {"rouge_l_sum": 1.0}
    in_lines = task.score(question, "She sells honey.\nAda keeps bees.", None)["rouge_l_sum"]
    in_one = task.score(question, "She sells honey. Ada keeps bees.", None)["rouge_l_sum"]
    assert in_lines == 1.0
    # Each line of the reference has three words in common with the one line, and together all six.
    assert in_one == 1.0
    # Without a line break in the reference only one sentence is in order: 3 of 6 words, both ways.
    flat = replace(question, references=("Ada keeps bees. She sells honey.",))
    assert task.score(flat, "She sells honey. Ada keeps bees.", None) == {"rouge_l_sum": pytest.approx(0.5)}


@pytest.mark.parametrize(
    ("name", "broken", "problem"),
    [
        ("longbook_qa_eng", {"answer": []}, "'answer' must be a list of texts"),
        ("longbook_qa_eng", {"answer": "Bees"}, "'answer' must be a list of texts"),
        ("longbook_qa_eng", {"context": ""}, "'context' must be text"),
        ("longbook_qa_eng", {"input": 3}, "'input' must be text"),
        ("longbook_qa_eng", {"id": None}, "'id' must be text"),
        ("longbook_qa_eng", {"id": True}, "'id' must be text"),
        ("longbook_qa_eng", {"id": 0}, "the id '0' is that of line 1"),
        ("longbook_choice_eng", {"answer": ["Birds"]}, "'answer' must be one of 'options', got 'Birds'"),
        ("longbook_choice_eng", {"answer": []}, "'answer' must be a list of texts"),
        ("longbook_choice_eng", {"options": ["Wasps"]}, "'options' must be from 2 to 26 texts, got 1"),
        ("longbook_sum_eng", {"answer": None}, "'answer' must be a list of texts"),
    ],
)
def test_a_broken_line_is_named_and_skipped_only_when_asked(tmp_path, name, broken, problem):
    good = FILES[name][0]
    path = write_lines(tmp_path / f"{name}.jsonl", [good, good | {"id": 7} | broken])
    task = {"qa": "infinitebench-qa", "choice": "infinitebench-choice", "sum": "infinitebench-sum"}[name.split("_")[1]]
    with pytest.raises(BadLineError, match=rf"line 2: {problem}"):
        load(task, path)
    loaded = load(task, path, skip_bad=True)
    assert len(loaded.questions()) == 1
    assert loaded.notes[0].startswith(f"{name}.jsonl, line 2, is left out: {problem}")


# LongBench v2


@pytest.mark.parametrize("form", ["data.json", "mine.json", "data.jsonl"])
def test_the_file_is_a_list_or_has_an_object_a_line(tmp_path, form):
    path = tmp_path / form
    path.write_text(
        "\n".join(map(json.dumps, LONGBENCH)) if form.endswith("l") else json.dumps(LONGBENCH), encoding="utf-8"
    )
    questions = load("longbench-v2", path).questions()
    assert [question.id for question in questions] == [f"longbench-v2/66f{number}" for number in range(3)]
    assert [question.groups for question in questions] == [("easy", "short"), ("hard", "medium"), ("hard", "long")]
    assert {question.source for question in questions} == {"Single-Document QA"}


def test_question_and_options_stand_behind_the_text_in_one_user_message(data_json):
    question = load("longbench-v2", data_json).questions()[0]
    listed = "What did Ada keep?\n\n(A) Ants\n(B) Bees\n(C) Wasps\n(D) Moths"
    assert shown(question).startswith(f"{listed}\n\n")
    assert '"The correct answer is (X)"' in shown(question)
    assert question.context == LongContext(BOOK, query=listed)
    assert (question.choices, question.right) == (("Ants", "Bees", "Wasps", "Moths"), 1)
    assert (question.temperature, question.max_new_tokens, question.second) == (0.1, 128, None)


def test_a_chain_of_thought_is_followed_by_a_second_question(data_json):
    task = load("longbench-v2-cot", data_json)
    question = task.questions()[0]
    assert "step by step" in shown(question) and "The correct answer is" not in shown(question)
    assert (question.temperature, question.max_new_tokens, question.second.max_new_tokens) == (0.1, 1024, 128)
    # Its own message has everything but the text.
    asks = question.second.message("Ada sold honey.")
    listed = "What did Ada keep?\n\n(A) Ants\n(B) Bees\n(C) Wasps\n(D) Moths"
    assert asks.role == "user" and BOOK not in asks.content and "too long to be shown" in asks.content
    assert f"\n\n{listed}\n\nThoughts: Ada sold honey.\n\n" in asks.content
    assert asks.content.endswith('"The correct answer is (X)"')
    # There are no likelihoods of options behind thoughts.
    assert question.choices == () and question.right == 1
    assert task.score(question, "The correct answer is (B)", None) == {"accuracy_letter": 1.0, "letter_found": 1.0}
    assert set(task.metrics) == {"accuracy_letter", "letter_found"}


def test_both_ways_of_asking_can_be_compared_in_one_run(data_json):
    plain, thought = load_tasks(["longbench-v2", "longbench-v2-cot"], TaskOptions(data=data_json))
    assert plain.questions()[0].document == thought.questions()[0].document
    assert plain.questions()[0].id != thought.questions()[0].id


def test_chain_of_thought_as_an_option_names_the_task_that_thinks(data_json):
    assert load("longbench-v2", data_json, chain_of_thought=True).name == "longbench-v2-cot"
    assert load("longbench-v2-cot", data_json, chain_of_thought=True).name == "longbench-v2-cot"
    with pytest.raises(OptionError, match="chain_of_thought is for longbench-v2 alone, got the tasks summary-cot"):
        load("summary", data_json, chain_of_thought=True)


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("The correct answer is (A)", 0),
        ("**The correct answer is (B).**", 1),
        ("The correct answer is **C**.", 2),
        ("I weigh it. The correct answer is (D), since nobody took the ferry.", 3),
        ("The correct answer is (A). No: The correct answer is (B).", 0),
        ("The correct answer is B, or rather: The correct answer is (C)", 2),
        ("The correct answer is (X)", None),
        ("The correct answer is (E)", None),
        ("the correct answer is (A)", None),
        ("(A)", None),
        ("", None),
    ],
)
def test_answers_are_read_as_the_benchmark_reads_them(text, choice):
    assert stated_choice(text) == choice


def test_an_answer_in_another_form_is_wrong_and_told_apart(data_json):
    task = load("longbench-v2", data_json)
    question = task.questions()[0]
    assert task.score(question, "B", None) == {"accuracy_letter": 0.0, "letter_found": 0.0}
    assert task.score(question, "The correct answer is (A)", None) == {"accuracy_letter": 0.0, "letter_found": 1.0}
    scores = task.score(question, "B", (-3.0, -1.0, -2.0, -4.0))
    assert (scores["accuracy_letter"], scores["accuracy_likelihood"]) == (0.0, 1.0)
    assert set(scores) == set(task.metrics)


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        ({"answer": "E"}, "'answer' must be one of A, B, C, D, got \"E\""),
        ({"difficulty": "odd"}, "'difficulty' must be one of easy, hard"),
        ({"length": 3}, "'length' must be text, got 3"),
        ({"choice_D": None}, "'choice_D' must be text, got null"),
        ({"_id": "66f0"}, "the id '66f0' is that of entry 1"),
    ],
)
def test_a_broken_entry_of_a_list_is_named_and_skipped_only_when_asked(tmp_path, broken, problem):
    path = tmp_path / "data.json"
    path.write_text(json.dumps([LONGBENCH[0], LONGBENCH[1] | broken]), encoding="utf-8")
    with pytest.raises(BadLineError, match=rf"data.json, entry 2: {problem}.*mend the entry") as raised:
        load("longbench-v2", path)
    assert (raised.value.line, raised.value.unit) == (2, "entry")
    loaded = load("longbench-v2", path, skip_bad=True)
    assert len(loaded.questions()) == 1
    assert loaded.notes[0].startswith(f"data.json, entry 2, is left out: {problem}")


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"[{]", "must be JSON as a whole, .*data.json is not"),
        (b'{"_id": "a"}\n{"_id": "b"}', "must be JSON as a whole.*ends in .jsonl"),
        (b'{"_id": "a"}', "must be a list of objects"),
        (b'["\xff"]', "must be JSON as a whole"),
    ],
)
def test_a_json_file_that_is_no_list_is_refused_as_a_whole(tmp_path, content, rule):
    path = tmp_path / "data.json"
    path.write_bytes(content)
    with pytest.raises(DocumentError, match=rule):
        load("longbench-v2", path, skip_bad=True)


# Lengths


def long_text(words, seed=0):
    draw = random.Random(seed)
    return " ".join(f"w{draw.randrange(1000)}" for _ in range(words))


def test_long_documents_are_cut_in_their_middle_once_for_all_their_questions(tmp_path):
    long = long_text(DOCUMENT_TOKENS + 1)
    records = [
        {"id": 0, "context": long, "input": "What?", "answer": ["It"]},
        {"id": 1, "context": long, "input": "Who?", "answer": ["It"]},
        {"id": 2, "context": BOOK, "input": "Who?", "answer": ["Ada"]},
    ]
    calls = []

    def cut(text, tokens):
        calls.append(tokens)
        return cut_words(text, tokens)

    path = write_lines(tmp_path / "mine.jsonl", records)
    task = load("infinitebench-qa", path, count_tokens=count_words, cut_middle=cut)
    first, second, short = task.questions()
    assert calls == [DOCUMENT_TOKENS]
    assert first.context.text == second.context.text == cut_words(long, DOCUMENT_TOKENS)
    assert short.context.text == BOOK
    assert first.context.query == "What?"
    [note] = task.notes
    assert note.startswith("Documents of more than 127,000 tokens, up to 127,001, are cut in their middle")
    assert note.endswith(": 1 of 2.")


def test_documents_stay_whole_where_nothing_can_cut_them(tmp_path):
    long = long_text(DOCUMENT_TOKENS + 1)
    path = write_lines(tmp_path / "mine.jsonl", [{"id": 0, "context": long, "input": "What?", "answer": ["It"]}])
    assert load("infinitebench-qa", path).questions()[0].context.text == long


@pytest.mark.parametrize(("most", "left"), [(DOCUMENT_TOKENS, 2), (DOCUMENT_TOKENS - 1, 1), (20, 1)])
def test_what_is_cut_is_left_out_only_where_it_is_still_too_long(tmp_path, most, left):
    records = [
        {"id": 0, "context": long_text(DOCUMENT_TOKENS + 50), "input": "What?", "answer": ["It"]},
        {"id": 1, "context": BOOK, "input": "Who?", "answer": ["Ada"]},
    ]
    path = write_lines(tmp_path / "mine.jsonl", records)
    task = load("infinitebench-qa", path, count_tokens=count_words, cut_middle=cut_words, max_document_tokens=most)
    assert len(task.questions()) == left


@pytest.mark.parametrize("name", ["infinitebench-qa", "infinitebench-choice", "infinitebench-sum", "longbench-v2"])
def test_the_target_reads_the_text_first_and_the_question_last(books, data_json, name):
    with tiny_engine(window=4096) as engine:
        task = load(name, books, count_tokens=engine.count_tokens, cut_middle=engine.first_and_last)
        question = task.questions()[0]
        ids = engine.prompts(question.messages, context=question.context).target_ids
        prompt = engine.target.tokenizer.decode(ids)
    said, text = question.messages[-1].content, question.context.text
    assert text == BOOK
    assert prompt.count(said) == prompt.count(text) == 1
    assert prompt.index(text) + len(text) < prompt.index(said)
    # One user message: nothing but the blank line stands between them.
    assert prompt[prompt.index(text) + len(text) : prompt.index(said)].strip() == ""


def test_a_target_cuts_a_document_to_its_own_tokens(books, monkeypatch):
    monkeypatch.setattr("rapid_core.evaluation.tasks.benchmark.DOCUMENT_TOKENS", 40)
    with tiny_engine(window=4096) as engine:
        task = load("infinitebench-qa", books, count_tokens=engine.count_tokens, cut_middle=engine.first_and_last)
        text = task.questions()[0].context.text
        assert engine.count_tokens(text) <= 44
    assert BOOK.startswith(text[:10]) and BOOK.endswith(text[-10:])
    assert task.notes[0].startswith("Documents of more than 40 tokens, up to ")
    assert task.notes[0].endswith(": 2 of 2.")


# Where the files are


def test_a_folder_without_the_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"'longbench-v2' reads data.json, and the folder .* has none; put it there"):
        load("longbench-v2", tmp_path)


def test_a_path_that_is_nothing_is_no_name_on_the_hub_either(tmp_path):
    with pytest.raises(InputError, match=r"is no file, no folder and no name of a dataset .* THUDM/LongBench-v2 say"):
        load("longbench-v2", tmp_path / "nothing" / "there")


@pytest.mark.parametrize(
    ("data", "repository"), [(None, "xinrongzhang2022/InfiniteBench"), (Path("mine/Books"), "mine/Books")]
)
def test_the_file_is_fetched_from_the_hub_by_the_name_of_its_dataset(monkeypatch, books, tmp_path, data, repository):
    asked = []

    def hf_hub_download(name, file, *, repo_type):
        asked.append((name, file, repo_type))
        return str(books / file)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=hf_hub_download))
    monkeypatch.chdir(tmp_path)
    assert len(load("infinitebench-qa", data).questions()) == 3
    assert asked == [(repository, "longbook_qa_eng.jsonl", "dataset")]


def test_a_hub_out_of_reach_says_what_to_fetch_and_where_to_put_it(monkeypatch, tmp_path):
    # The real library, on a machine that is told to stay offline.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        DocumentError,
        match=r"data.json must be .* of the dataset THUDM/LongBench-v2 .* cannot be fetched \(.+\); fetch "
        r"https://huggingface.co/datasets/THUDM/LongBench-v2/resolve/main/data.json .* --data",
    ):
        load("longbench-v2", None)
