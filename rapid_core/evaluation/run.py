"""A run: every question of a plan with every setting, each answer written when it is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rapid_core.engine import RapidEngine
from rapid_core.errors import InputError
from rapid_core.evaluation.answers_file import ANSWERS, RunFolder
from rapid_core.evaluation.asking import Asker, Engines, Scorer
from rapid_core.evaluation.options import EvalOptions
from rapid_core.evaluation.plan import Plan
from rapid_core.evaluation.records import Question, Setting

# Called with the number of answers so far, before what is asked next.
OnStep = Callable[[int, Question, Setting], None]


def run(
    plan: Plan,
    options: EvalOptions,
    engines: Mapping[str, RapidEngine],
    scorers: Mapping[str, Scorer],
    folder: RunFolder,
    on_step: OnStep,
) -> None:
    """Ask what the folder has no answer to yet, in the order of the plan.

    scorers: the tasks by their names. A question that cannot be answered gets an `Answer` with its error; any other
    exception ends the run with all answers so far in the files. Raises `InputError` where these
    are not the beginning of the plan.
    """
    there = [(answer.question, answer.setting) for answer in folder.answers]
    asked = [(question.id, setting) for part in plan.parts for question, setting in part]
    for number, (found, wanted) in enumerate(zip(there, asked, strict=False), 1):
        if found != wanted:
            raise InputError(
                f"answers must stand in the order in which they are asked for, and line {number} of {ANSWERS} has "
                f"{found[0]!r} by {found[1].label}, where {wanted[0]!r} by {wanted[1].label} is asked; name "
                "another --out"
            )
    place, for_all = 0, Engines(engines)
    for part in plan.parts:
        asker = Asker(for_all, options, part)
        for question, setting in part:
            place += 1
            if place > len(there):
                on_step(place - 1, question, setting)
                folder.append(*asker.ask(question, setting, scorers[question.task]))
