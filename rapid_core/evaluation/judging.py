"""Judges answers that a run has kept without a judge: on another day, or where a judge can be reached."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from rapid_core.errors import InputError, OptionError
from rapid_core.evaluation.answers_file import RunFolder, read_description
from rapid_core.evaluation.judge import Judge
from rapid_core.evaluation.records import Answer
from rapid_core.evaluation.tasks import Task, TaskOptions, load_tasks
from rapid_core.evaluation.tasks.scattered import NAME, WITHOUT_JUDGE, not_judged

METRIC = "judge"


def judge_kept(folder: Path, judge: Judge, console: Console) -> None:
    """Score each answer of a run that no judge has scored, and write that into its files.

    What a judge has scored is kept whatever comes next: the same call goes on. The data must lie where the run
    had it. Raises `OptionError` for a run that has nothing to judge or that another judge has begun to judge,
    `InputError` where the data is not the run's, and `JudgeError` where nobody can be asked.
    """
    description = read_description(folder)
    options = description["options"]
    if NAME not in description["tasks"]:
        raise OptionError(
            f"a judge is for {NAME!r}, and the run in {str(folder)!r} has {', '.join(description['tasks'])}; leave the "
            "judge out"
        )
    before = options["judge_url"], options["judge_model"]
    if before not in ((None, None), (judge.url, judge.model)):
        raise OptionError(
            f"all answers of a run have one judge, and {str(folder)!r} has {before[1]!r} at {before[0]}, got "
            f"{judge.model!r} at {judge.url}; name that one, or make a copy of the folder without its scores"
        )
    [task] = load_tasks(
        [NAME], TaskOptions(data=Path(options["data"]), skip_bad=options["skip_bad"], seed=options["seed"], judge=judge)
    )
    notes = [note for note in description["notes"] if WITHOUT_JUDGE not in note]
    judged = description | {
        "options": options | {"judge_url": judge.url, "judge_model": judge.model},
        "tasks": description["tasks"] | {task.name: dict(task.metrics)},
        "notes": notes,
    }
    with RunFolder(folder).open(description) as run:
        answers = list(run.answers)
        places = [place for place, answer in enumerate(answers) if _is_open(answer)]
        try:
            with console.status("judging") as status:
                for done, place in enumerate(places):
                    status.update(f"judging, {done:,} of {len(places):,}")
                    answers[place] = _judged(answers[place], task)
        finally:
            run.rewrite(judged, answers)


def _is_open(answer: Answer) -> bool:
    return answer.task == NAME and not answer.error and METRIC not in answer.scores


def _judged(answer: Answer, task: Task) -> Answer:
    question = next((one for one in task.questions() if one.id == answer.question), None)
    if question is None or (question.messages[-1].content, question.references) != (answer.asked, answer.references):
        raise InputError(
            f"answers are judged by the data that was asked, and {answer.question!r} is not in it as it was; restore "
            "the data"
        )
    known = len(task.notes)
    scores = task.score(question, answer.text, None)
    # What a judge said before, or did not, is no longer so.
    notes = [note for note in answer.notes if not note.startswith(not_judged(question.id))]
    return replace(answer, scores=scores, notes=(*notes, *task.notes[known:]))
