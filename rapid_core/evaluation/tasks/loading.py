"""Tasks by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from rapid_core.errors import InputError, OptionError
from rapid_core.evaluation.tasks.dialogue import Dialogue
from rapid_core.evaluation.tasks.infinitebench import EnMC, EnQA, EnSum
from rapid_core.evaluation.tasks.longbench_v2 import LongBenchV2
from rapid_core.evaluation.tasks.multiple_choice import MultipleChoice
from rapid_core.evaluation.tasks.scattered import ScatteredDialogue
from rapid_core.evaluation.tasks.short_answer import KINDS, ShortAnswer
from rapid_core.evaluation.tasks.summary import Summary
from rapid_core.evaluation.tasks.task import Task, TaskOptions

# Ends the names of tasks whose answers are thought out first.
WITH_THOUGHT = "-cot"

TASKS: Mapping[str, Callable[[TaskOptions], Task]] = {
    **{kind.task: partial(ShortAnswer, kind=name) for name, kind in KINDS.items()},
    "short-answer-packed": partial(ShortAnswer, packed=True),
    "multiple-choice": MultipleChoice,
    "multiple-choice-packed": partial(MultipleChoice, packed=True),
    "summary": Summary,
    "dialogue": Dialogue,
    "scattered-dialogue": ScatteredDialogue,
    **{task.name: task for task in (EnQA, EnMC, EnSum)},
    "longbench-v2": LongBenchV2,
    f"longbench-v2{WITH_THOUGHT}": partial(LongBenchV2, chain_of_thought=True),
}


def load_tasks(names: Sequence[str], options: TaskOptions) -> list[Task]:
    """The tasks of these names, with their data read and checked.

    Raises `OptionError` for names that are none or twice, `BadLineError` for a line that cannot be used
    unless `options.skip_bad`, and `InputError` where data is missing or ids of two tasks are the same.
    """
    unknown = [name for name in names if name not in TASKS]
    if unknown or not names or len(set(names)) < len(names):
        raise OptionError(f"tasks must be some of {', '.join(TASKS)}, each once, got {', '.join(names) or 'none'}")
    if options.chain_of_thought:
        names = [name if name.endswith(WITH_THOUGHT) else f"{name}{WITH_THOUGHT}" for name in names]
        if not set(names) <= set(TASKS) or len(set(names)) < len(names):
            able = [name.removesuffix(WITH_THOUGHT) for name in TASKS if name.endswith(WITH_THOUGHT)]
            raise OptionError(
                f"chain_of_thought is for {', '.join(able)} alone, got the tasks {', '.join(names)}; leave it out"
            )
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
