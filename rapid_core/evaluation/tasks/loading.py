"""Tasks by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from rapid_core.errors import InputError, OptionError
from rapid_core.evaluation.tasks.dialogue import Dialogue
from rapid_core.evaluation.tasks.multiple_choice import MultipleChoice
from rapid_core.evaluation.tasks.short_answer import KINDS, ShortAnswer
from rapid_core.evaluation.tasks.summary import Summary
from rapid_core.evaluation.tasks.task import Task, TaskOptions

TASKS: Mapping[str, Callable[[TaskOptions], Task]] = {
    **{kind.task: partial(ShortAnswer, kind=name) for name, kind in KINDS.items()},
    "short-answer-packed": partial(ShortAnswer, packed=True),
    "multiple-choice": MultipleChoice,
    "multiple-choice-packed": partial(MultipleChoice, packed=True),
    "summary": Summary,
    "dialogue": Dialogue,
}


def load_tasks(names: Sequence[str], options: TaskOptions) -> list[Task]:
    """The tasks of these names, with their data read and checked.

    Raises `OptionError` for names that are none or twice, `BadLineError` for a line that cannot be used
    unless `options.skip_bad`, and `InputError` where data is missing or ids of two tasks are the same.
    """
    unknown = [name for name in names if name not in TASKS]
    if unknown or not names or len(set(names)) < len(names):
        raise OptionError(f"tasks must be some of {', '.join(TASKS)}, each once, got {', '.join(names) or 'none'}")
    tasks = [TASKS[name](options) for name in names]
    task_of: dict[str, str] = {}
    for task in tasks:
        for question in task.questions():
            other = task_of.setdefault(question.id, task.name)
            if other != task.name:
                raise InputError(
                    f"ids of questions must differ in a run, got {question.id!r} in the tasks {other!r} and "
                    f"{task.name!r}; rename one, or run the tasks apart"
                )
    return tasks
