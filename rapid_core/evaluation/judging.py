"""Judges answers that a run has kept without a judge: on another day, or where a judge can be reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from rapid_core.errors import InputError, OptionError
from rapid_core.evaluation.answers_file import RunFolder, read_description
from rapid_core.evaluation.judge import Judge
from rapid_core.evaluation.records import Answer, Question
from rapid_core.evaluation.tasks import Task, TaskOptions, load_tasks
from rapid_core.evaluation.tasks.scattered import METRIC, NAME, WITHOUT_JUDGE, not_judged


def judge_kept(folder: Path, judge: Judge, console: Console) -> None:
    """Score each answer of a run that no judge has scored, and write that into its files.

    Each score is written when it is there: the same call goes on. The data must lie where the run
    had it. Raises `OptionError` for a run that has nothing to judge or that another judge has begun to judge,
    `InputError` where the data is not the run's, and `JudgeError` where nobody can be asked.
    """
    description = read_description(folder, needed=("options", "tasks", "notes"))
    options = description["options"]
    if NAME not in description["tasks"]:
        raise OptionError(
            f"a judge is for {NAME!r}, and the run in {str(folder)!r} has {', '.join(description['tasks'])}; leave the "
            "judge out"
        )
    [task] = load_tasks(
        [NAME], TaskOptions(data=Path(options["data"]), skip_bad=options["skip_bad"], seed=options["seed"], judge=judge)
    )
    questions = {question.id: question for question in task.questions()}
    judged = description | {
        "tasks": description["tasks"] | {NAME: dict(task.metrics)},
        "notes": [note for note in description["notes"] if WITHOUT_JUDGE not in note],
        "judge": {"url": judge.url, "model": judge.model},
    }
    with RunFolder(folder).open(description) as run, console.status("judging") as status:
        answers = list(run.answers)
        if any(METRIC in answer.scores for answer in answers):
            _check_judge(description, judge)
        places = [place for place, answer in enumerate(answers) if _is_open(answer)]
        # Before anybody is asked, who may want to be paid.
        for place in places:
            _check_data(answers[place], questions)
        for done, place in enumerate(places):
            status.update(f"judging, {done:,} of {len(places):,}")
            answers[place] = _judged(answers[place], questions[answers[place].question], task)
            run.rewrite(judged, answers)


def _is_open(answer: Answer) -> bool:
    return answer.task == NAME and not answer.error and METRIC not in answer.scores


def _check_judge(description: Mapping[str, Any], judge: Judge) -> None:
    options = description["options"]
    begun = description.get("judge") or {"url": options["judge_url"], "model": options["judge_model"]}
    if begun != {"url": judge.url, "model": judge.model}:
        raise OptionError(
            f"all answers of a run have one judge, and this one has {begun['model']!r} at {begun['url']}, got "
            f"{judge.model!r} at {judge.url}; name that one"
        )


def _check_data(answer: Answer, questions: Mapping[str, Question]) -> None:
    if not answer.asked:
        raise InputError(
            f"answers are judged beside their questions, and the run has not kept that of {answer.question!r}; run it "
            "again"
        )
    question = questions.get(answer.question)
    if question is None or (question.messages[-1].content, question.references) != (answer.asked, answer.references):
        raise InputError(
            f"answers are judged by the data that was asked, and {answer.question!r} is not in it as it was; restore "
            "the data"
        )


def _judged(answer: Answer, question: Question, task: Task) -> Answer:
    known = len(task.notes)
    scores = task.score(question, answer.text, None)
    # What a judge said before, or did not, is no longer so.
    notes = [note for note in answer.notes if not note.startswith(not_judged(question.id))]
    return replace(answer, scores=scores, notes=(*notes, *task.notes[known:]))
