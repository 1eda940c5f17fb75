"""Answers that a run has kept without a judge, judged later."""

from __future__ import annotations

import json

import pytest
from judge_server import Server, fails, says
from rich.console import Console
from run_helpers import made_engines, made_run, options, run_eval

from rapid_core.errors import InputError, OptionError
from rapid_core.evaluation.answers_file import RunFolder, read_answers, read_description
from rapid_core.evaluation.judge import Judge, JudgeError
from rapid_core.evaluation.judging import judge_kept
from rapid_core.evaluation.tasks import TaskOptions, load_tasks
from rapid_core.evaluation.tasks.scattered import NAME

SILENT = Console(quiet=True)


def dialogue(name):
    turns = []
    for number in range(3):
        turns.append({"role": "user", "content": f"What is {name} {number} ?"})
        turns.append({"role": "assistant", "content": f"It is reply {number} ."})
    return {"id": name, "task": "CM", "turns": turns}


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    lines = [json.dumps(dialogue(f"d{number}")) for number in range(4)]
    (folder / "mtbench101_sample.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.fixture
def run(data, tmp_path):
    """A run without a judge, four answers by each of two methods."""
    asked = options(data=str(data), tasks=(NAME,), methods=("lc", "lookup"), gamma=3)
    [task] = load_tasks(
        [NAME], TaskOptions(data=data, max_document_tokens=200, count_tokens=lambda text: len(text.split()))
    )
    description = {
        "options": asked.as_object(),
        "tasks": {NAME: dict(task.metrics)},
        "notes": ["something else", f"{NAME}: {task.notes[-1]}"],
    }
    folder = tmp_path / "run"
    answers = made_run(folder, [task], asked, made_engines(), begin=description)
    assert len(answers) == 8 and all(set(answer.scores) == {"rouge_l_sum"} for answer in answers)
    assert "No judge is given" in description["notes"][1]
    return folder


def judge_at(server):
    return Judge(url=server.url, model="a-judge", tries=1)


def test_kept_answers_are_judged_and_the_rest_of_them_stays(run):
    before = read_answers(run)
    with Server(says("Score: 3"), says("Score: 9")) as server:
        judge_kept(run, judge_at(server), SILENT)
    after = read_answers(run)
    assert [answer.scores.get("judge") for answer in after] == [0.3] + [0.9] * 7
    for old, new in zip(before, after, strict=True):
        assert (old.question, old.setting, old.text, old.notes) == (new.question, new.setting, new.text, new.notes)
        assert old.scores["rouge_l_sum"] == new.scores["rouge_l_sum"]
        assert f"<reply>\n{old.text}\n</reply>" in server.asked.pop(0)["messages"][1]["content"]
    description = read_description(run)
    assert list(description["tasks"][NAME]) == ["judge", "rouge_l_sum"]
    assert description["judge"] == {"url": server.url, "model": "a-judge"}
    assert description["notes"] == ["something else"]


def test_what_is_judged_is_not_judged_again(run):
    with Server(says("Score: 3")) as server:
        judge = judge_at(server)
        judge_kept(run, judge, SILENT)
        kept = (run / "answers.jsonl").read_bytes()
        judge_kept(run, judge, SILENT)
        assert len(server.asked) == 8
    assert (run / "answers.jsonl").read_bytes() == kept


def test_a_judge_that_stops_leaves_what_it_has_judged_and_the_same_call_goes_on(run):
    with Server(says("Score: 3"), says("Score: 4"), fails(401), says("Score: 5")) as server:
        judge = judge_at(server)
        with pytest.raises(JudgeError, match="refused model"):
            judge_kept(run, judge, SILENT)
        assert [answer.scores.get("judge") for answer in read_answers(run)] == [0.3, 0.4] + [None] * 6
        judge_kept(run, judge, SILENT)
    assert [answer.scores["judge"] for answer in read_answers(run)] == [0.3, 0.4] + [0.5] * 6


def test_an_answer_that_gets_no_score_says_so_until_it_has_one(run):
    with Server(says("Nothing."), says("Score: 4")) as server:
        judge = judge_at(server)
        judge_kept(run, judge, SILENT)
        first = read_answers(run)[0]
        assert "judge" not in first.scores and "is not judged: a judge's reply must hold" in first.notes[-1]
        judge_kept(run, judge, SILENT)
    first = read_answers(run)[0]
    assert first.scores["judge"] == 0.4 and not any("not judged" in note for note in first.notes)


def test_each_score_is_written_when_it_is_there(run):
    seen = []

    def reply(_):
        seen.append(sum("judge" in answer.scores for answer in read_answers(run)))
        return says("Score: 3")

    with Server(reply) as server:
        judge_kept(run, judge_at(server), SILENT)
    assert seen == list(range(8))


def test_a_run_has_one_judge_and_one_that_scored_nothing_is_none(run):
    with Server(fails(404), says("Score: 3")) as server:
        with pytest.raises(JudgeError, match="refused model 'typo'"):
            judge_kept(run, Judge(url=server.url, model="typo"), SILENT)
        judge_kept(run, judge_at(server), SILENT)
        with pytest.raises(OptionError, match="all answers of a run have one judge.*'a-judge'.*got 'another'"):
            judge_kept(run, Judge(url=server.url, model="another"), SILENT)


def test_a_run_that_was_judged_goes_on_as_it_began(run, data):
    with Server(says("Score: 3")) as server:
        judge_kept(run, judge_at(server), SILENT)
    begun = {name: value for name, value in read_description(run).items() if name in ("options", "versions")}
    RunFolder(run).check(begun)


def test_questions_that_a_run_has_not_kept_are_no_fault_of_the_data(run):
    lines = [json.loads(line) for line in (run / "answers.jsonl").read_text().splitlines()]
    older = [{name: value for name, value in line.items() if name not in ("asked", "references")} for line in lines]
    (run / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in older))
    with pytest.raises(InputError, match="the run has not kept that of 'scattered-dialogue/d.'; run it again"):
        judge_kept(run, Judge(url="http://localhost:1/v1", model="a-judge"), SILENT)


def test_other_data_than_the_runs_is_not_judged(run, data):
    file = data / "mtbench101_sample.jsonl"
    lines = file.read_text().splitlines()
    changed = [
        [line.replace("It is reply 2 .", "Something else !") for line in lines],
        [line.replace(" 2 ?", " 2 , then ?") for line in lines],
        lines[:1] + [line.replace('"id": "d', '"id": "e') for line in lines[1:]],
    ]
    with Server(says("Score: 3")) as server:
        for other in changed:
            file.write_text("\n".join(other))
            with pytest.raises(InputError, match="'scattered-dialogue/d.' is not in it as it was; restore the data"):
                judge_kept(run, judge_at(server), SILENT)
        assert server.asked == []


def test_a_run_without_dialogues_has_nothing_to_judge(run):
    found = read_description(run)
    (run / "run.json").write_text(json.dumps(found | {"tasks": {"summary": {}}}))
    with pytest.raises(OptionError, match="a judge is for 'scattered-dialogue', and the run in .* has summary"):
        judge_kept(run, Judge(url="http://localhost:1/v1", model="a-judge"), SILENT)


def test_the_report_of_a_run_that_was_judged_later_has_the_judges_scores(run):
    described = read_description(run) | {"target": "tiny", "drafter": "tiny", "answers": 8}
    (run / "run.json").write_text(json.dumps(described))
    words = ("--out", run, "--report-only")
    with Server(says("Score: 3")) as server:
        asked = ("--judge-url", server.url, "--judge-model", "a-judge")
        status, out, _ = run_eval(*words, *asked)
        found = json.loads(out.splitlines()[-1])
        assert status == 0 and found["tasks"][NAME]["lc"]["judge"] == 0.3
        assert "judge's score, in percent of 10" in (run / "report.md").read_text()
        kept = (run / "report.md").read_bytes()
        assert run_eval(*words)[0] == 0 and (run / "report.md").read_bytes() == kept
        assert len(server.asked) == 8


def test_judging_that_is_stopped_says_that_it_goes_on_and_reports_what_is_there(run, monkeypatch):
    described = read_description(run) | {"target": "tiny", "drafter": "tiny", "answers": 8}
    (run / "run.json").write_text(json.dumps(described))
    scores = iter([5.0, 7.0])

    def score(*_):
        for found in scores:
            return found
        raise KeyboardInterrupt

    monkeypatch.setattr(Judge, "score", score)
    status, out, err = run_eval(
        "--out", run, "--report-only", "--judge-url", "http://localhost:1/v1", "--judge-model", "a-judge"
    )
    assert status == 130 and "the same command goes on from here" in err
    assert json.loads(out.splitlines()[-1])["answers"] == 8
    assert [answer.scores.get("judge") for answer in read_answers(run)] == [0.5, 0.7] + [None] * 6
