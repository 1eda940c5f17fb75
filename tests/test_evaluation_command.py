"""`rapid eval`, end to end on a tiny model and data of our own."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from run_helpers import CITIES, run_eval, text_of

from rapid_core.evaluation import asking, progress
from rapid_core.testing import save_tiny_model

# What is run once is run in one worker.
pytestmark = pytest.mark.xdist_group("eval")
SMALL = ("--tasks", "short-answer,multiple-choice", "--gamma", "3", "--device", "cpu")
SETTINGS = ("lc", "rag", "sd, gamma 3", "magicdec, gamma 3", "lookup, gamma 3", "rapid, eta 10, gamma 3")
# `rapid`, with an encoder that counts words.
PROGRAM = """
import torch
import rapid_core.retrieval.searcher
from rapid_core import cli
from rapid_core.testing import WordEncoder
torch.set_num_threads(1)
rapid_core.retrieval.searcher.load_encoder = lambda *_: WordEncoder()
cli.main()
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), window=4096)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder of data: two documents, each with a question and a multiple-choice question."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "documents").mkdir()
    short, several = [], []
    for name in ("Spain", "Norway"):
        text = text_of(name)
        (folder / "documents" / f"{name}.txt").write_text(text)
        asked = {"document_id": name, "question": f"Where does the judge of {name} 0 live?", "source": "own"}
        short.append(
            {
                "id": f"short {name}",
                "answers": [CITIES[len(name) % 6]],
                "task": "short_answer",
                "evidence": [0, text.index("\n")],
                **asked,
            }
        )
        several.append({"id": f"several {name}", "choices": list(CITIES[:3]), "answer_index": 1, **asked})
    for name, lines in (("long_qa", short), ("long_mc", several)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def words(model, data):
    return ("--target", model, "--data", data, *SMALL)


@pytest.fixture(scope="module")
def whole(words, tmp_path_factory):
    """One evaluation that nothing interrupted: (status, stdout, stderr, folder)."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "LINE_EVERY_S", 0.0)
        return *run_eval(*words, "--out", folder), folder


def test_the_folder_has_answers_measurements_and_a_report_in_both_forms(whole):
    status, _, _, folder = whole
    assert status == 0
    for name in ("answers.jsonl", "measurements.jsonl"):
        assert (folder / name).read_bytes().count(b"\n") == 4 * len(SETTINGS)
    for name in ("report.html", "report.md"):
        report = (folder / name).read_text()
        for method in ("lc", "rag", "sd", "magicdec", "lookup", "rapid"):
            assert method in report
    begun = json.loads((folder / "run.json").read_text())
    assert begun["options"]["methods"] == ["lc", "rag", "sd", "magicdec", "lookup", "rapid"]
    assert begun["answers"] == 24 and begun["dtype"] == "float32" and begun["device"] == "cpu"
    assert begun["command"].startswith("rapid eval --target ")


def test_the_last_line_is_one_object_with_the_means_of_every_setting(whole):
    _, out, _, folder = whole
    found = json.loads(out.splitlines()[-1])
    assert found["complete"] is True and (found["answers"], found["failed"]) == (24, 0)
    assert list(found["tasks"]) == ["short-answer", "multiple-choice"]
    answers = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    for task, settings in found["tasks"].items():
        assert list(settings) == list(SETTINGS)
        for label, means in settings.items():
            method = label.split(",")[0]
            own = [a["scores"] for a in answers if (a["task"], a["setting"]["method"]) == (task, method)]
            assert means.pop("answers") == len(own) == 2
            assert means == {name: round(sum(s[name] for s in own) / 2, 3) for name in own[0]}


def test_methods_without_transfer_give_the_answers_of_the_target_alone(whole):
    answers = [json.loads(line) for line in (whole[3] / "answers.jsonl").read_text().splitlines()]
    by_method = {}
    for answer in answers:
        found = (answer["question"], answer["text"], answer["likelihoods"])
        by_method.setdefault(answer["setting"]["method"], []).append(found)
    assert by_method["lc"] == by_method["sd"] == by_method["magicdec"] == by_method["lookup"]
    assert by_method["lc"] != by_method["rag"]
    assert all((found[2] is None) == found[0].startswith("short") for found in by_method["lc"])


def test_where_there_is_no_terminal_a_line_now_and_then_tells_how_far_the_run_is(whole):
    lines = [line for line in whole[2].splitlines() if "answers" in line]
    assert lines[0].startswith("0 of 24 answers, time left unknown; short-answer, ")
    assert "23 of 24 answers, about 0:0" in lines[-1] and lines[-1].endswith("rapid, eta 10, gamma 3")


def test_the_report_alone_is_written_again_without_models(whole, tmp_path, monkeypatch):
    _, out, _, folder = whole
    for name in ("answers.jsonl", "measurements.jsonl", "run.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    monkeypatch.setattr("rapid_core.evaluation.session.load_engines", None)
    status, again, _ = run_eval("--out", tmp_path, "--report-only")
    assert status == 0
    assert (tmp_path / "report.md").read_bytes() == (folder / "report.md").read_bytes()
    assert (tmp_path / "report.html").read_bytes() == (folder / "report.html").read_bytes()
    first, second = (json.loads(text.splitlines()[-1]) for text in (out, again))
    assert second == first | {"out": str(tmp_path)}


def test_a_judge_that_has_nothing_to_judge_is_refused(whole):
    status, _, err = run_eval(
        "--out", whole[3], "--report-only", "--judge-url", "http://localhost:1/v1", "--judge-model", "m"
    )
    assert status == 1 and "a judge is for 'scattered-dialogue'" in err


def test_an_answer_stands_beside_its_question_and_its_references(whole):
    answers = [json.loads(line) for line in (whole[3] / "answers.jsonl").read_text().splitlines()]
    short = next(answer for answer in answers if answer["question"] == "short Spain")
    assert "Where does the judge of Spain 0 live?" in short["asked"] and text_of("Spain") not in short["asked"]
    assert short["references"] == [CITIES[len("Spain") % 6]]


def test_an_interrupted_run_reports_what_it_has_and_goes_on_to_the_same_file(whole, words, tmp_path, monkeypatch):
    original = asking.Asker.ask

    def interrupt(self, question, setting, scorer):
        if question.task == "multiple-choice" and setting.method == "sd":
            raise KeyboardInterrupt
        return original(self, question, setting, scorer)

    with monkeypatch.context() as patch:
        patch.setattr(asking.Asker, "ask", interrupt)
        status, out, err = run_eval(*words, "--out", tmp_path)
    found = json.loads(out.splitlines()[-1])
    assert status == 130 and found["complete"] is False and found["answers"] == 14
    unfinished = "This run is not at its end: 14 of"
    assert "the same command goes on from here" in err
    assert all(unfinished in (tmp_path / name).read_text() for name in ("report.html", "report.md"))
    status, out, _ = run_eval(*words, "--out", tmp_path)
    assert status == 0 and json.loads(out.splitlines()[-1])["complete"] is True
    assert unfinished not in (tmp_path / "report.md").read_text()
    assert (tmp_path / "answers.jsonl").read_bytes() == (whole[3] / "answers.jsonl").read_bytes()


def test_a_run_that_is_killed_at_random_moments_goes_on_to_the_same_file(whole, words, tmp_path):
    drawn = random.Random(time.time_ns())
    command = [sys.executable, "-c", PROGRAM, "eval", *map(str, words), "--out", str(tmp_path / "out")]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    file, there = tmp_path / "out" / "answers.jsonl", 0
    for _ in range(2):
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            # Once it writes, it is killed at any moment of the next answers.
            while run.poll() is None and (not file.exists() or file.stat().st_size <= there):
                time.sleep(0.001)
            time.sleep(drawn.uniform(0, 0.1))
            run.send_signal(signal.SIGKILL)
        assert run.returncode in (-signal.SIGKILL, 0)
        there = file.stat().st_size
        assert there > 0
    status, _, _ = run_eval(*words, "--out", tmp_path / "out")
    assert status == 0
    assert file.read_bytes() == (whole[3] / "answers.jsonl").read_bytes()


def test_a_question_that_fails_is_said_by_the_exit_status_and_the_last_line(words, tmp_path, monkeypatch):
    original = asking.Asker._answer

    def fail(self, question, setting, scorer, named):
        if setting.method == "rag":
            raise asking.InputError("too long")
        return original(self, question, setting, scorer, named)

    monkeypatch.setattr(asking.Asker, "_answer", fail)
    given = (*words, "--methods", "lc,rag", "--tasks", "short-answer")
    given = tuple(word for word in given if word not in ("--gamma", "3"))
    status, out, _ = run_eval(*given, "--out", tmp_path)
    found = json.loads(out.splitlines()[-1])
    assert status == 3 and (found["answers"], found["failed"], found["complete"]) == (4, 2, True)
    assert "2 answers failed" in (tmp_path / "report.md").read_text()
    # Nothing is left to ask, and two questions have still failed.
    assert run_eval(*given, "--out", tmp_path)[0] == 3


def test_a_run_with_other_options_is_refused_with_the_difference_before_anything_is_loaded(whole, words, monkeypatch):
    monkeypatch.setattr("rapid_core.evaluation.session.load_engines", None)
    status, out, err = run_eval(*words, "--out", whole[3], "--seed", "1")
    assert (status, out) == (1, "") and "seed was 0 and is 1; repeat its options, or name another --out" in err


def test_a_broken_line_of_data_is_named_before_a_model_is_loaded_and_left_out_only_when_asked(
    words, data, tmp_path, monkeypatch
):
    lines = (data / "long_qa.jsonl").read_text().splitlines()
    monkeypatch.setattr("rapid_core.evaluation.session.load_engines", None)
    try:
        (data / "long_qa.jsonl").write_text("\n".join([lines[0], "{", lines[1]]) + "\n")
        status, out, err = run_eval(*words, "--out", tmp_path / "out")
        assert (status, out) == (1, "") and "long_qa.jsonl, line 2" in err and "--skip-bad" in err
        assert not (tmp_path / "out").exists()
        monkeypatch.undo()
        given = ("--methods", "lc", "--tasks", "short-answer", "--skip-bad", "--gamma", "10")
        status, out, err = run_eval(*words, *given, "--out", tmp_path / "out")
        assert status == 0 and json.loads(out.splitlines()[-1])["answers"] == 2
        assert "line 2" in err and "line 2" in (tmp_path / "out" / "report.md").read_text()
    finally:
        (data / "long_qa.jsonl").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--methods", "magic"), "methods must be some of lc, rag, sd"),
        (("--tasks", "riddles"), "tasks must be some of short-answer"),
        (("--eta", "much"), "eta must be a number or 'auto', got 'much'"),
        (("--retrieved-tokens", "2k"), "retrieved_tokens must be whole numbers separated by commas, got '2k'"),
        (("--methods", "rapid-upward"), "name it as upward_drafter (CLI: --upward-drafter)"),
        (("--judge-model", "gpt"), "a judge needs an address and the name of a model"),
        (("--report-only",), "--report-only takes the run as it is in --out, got --"),
    ],
)
def test_bad_options_are_refused_with_rule_value_and_remedy(words, tmp_path, given, message):
    status, out, err = run_eval(*words, "--out", tmp_path / "out", *given)
    assert (status, out) == (1, "") and err.startswith("error: ") and message in err and "Traceback" not in err
    assert not (tmp_path / "out").exists()


def test_a_report_of_a_folder_without_a_run_is_refused(tmp_path):
    status, out, err = run_eval("--out", tmp_path, "--report-only")
    assert (status, out) == (1, "") and "a run has a file run.json" in err
