"""From options to files: data, models, plan, run, report."""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from rich.console import Console
from rich.text import Text

from rapid_core.engine import RapidEngine
from rapid_core.errors import InputError
from rapid_core.evaluation.answers_file import RunFolder, read_answers, read_description, read_measurements
from rapid_core.evaluation.engines import load_engines
from rapid_core.evaluation.options import EvalOptions
from rapid_core.evaluation.plan import Plan, Planner
from rapid_core.evaluation.progress import RunProgress
from rapid_core.evaluation.records import Answer
from rapid_core.evaluation.report import print_summary, write_html, write_markdown
from rapid_core.evaluation.run import run
from rapid_core.evaluation.summary import summarize
from rapid_core.evaluation.tasks import Task, TaskOptions, load_tasks
from rapid_core.extras import check_installed

# What a report needs of a description.
TOLD = ("target", "drafter", "tasks", "answers", "notes")
# Parts of a description that the summary has, or that say nothing to a reader.
NOT_TOLD = ("tasks", "notes", "questions")


def evaluate(options: EvalOptions, out: Path, console: Console) -> bool:
    """Run an evaluation into a folder, or go on with one; returns whether it came to its end.

    Ctrl-C ends it with what was answered so far. What can be wrong with options, folder and data is found
    before a model is loaded.
    """
    check_installed("matplotlib", "scipy", extra="eval")
    folder = RunFolder(out)
    folder.check({"options": options.as_object(), "versions": versions()})
    _load_tasks(options, None)
    with console.status("loading models") as status, load_engines(options) as engines:
        status.stop()
        tasks = _load_tasks(options, engines["drafter"])
        plan = Planner(options.settings, engines["drafter"].count_tokens).plan([task.questions() for task in tasks])
        notes = [*options.notes, *(f"{task.name}: {note}" for task in tasks for note in task.notes), *plan.notes]
        for note in notes:
            console.print(Text(f"note: {note}", style="yellow"), soft_wrap=True)
        if not len(plan):
            raise InputError(f"an evaluation needs a question, and no task has one left: {'; '.join(notes)}")
        with folder.open(_description(options, engines, tasks, plan, notes)):
            try:
                with RunProgress(console, len(folder.answers), len(plan)) as progress:
                    run(plan, options, engines, {task.name: task for task in tasks}, folder, progress)
            except KeyboardInterrupt:
                console.print("stopped; the same command goes on from here")
                return False
    return True


def report(folder: Path, console: Console) -> dict[str, Any]:
    """Write the report of what is in a folder, print its tables, and return what fits one line of JSON."""
    description, answers = read_description(folder, TOLD), read_answers(folder)
    told = {name: value for name, value in description.items() if name not in NOT_TOLD}
    notes = list(description["notes"])
    if len(answers) < description["answers"]:
        notes.insert(
            0, f"This run is not at its end: {len(answers):,} of {description['answers']:,} answers are there."
        )
    found = summarize(answers, read_measurements(folder), description["tasks"], notes=notes)
    write_html(found, told, folder / "report.html")
    write_markdown(found, told, folder / "report.md")
    print_summary(found, console)
    return _in_short(folder, description, answers)


def versions() -> dict[str, str]:
    """Of everything that answers depend on."""
    return {
        "rapid-integrations": version("rapid-integrations"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }


def _in_short(folder: Path, description: Mapping[str, Any], answers: Sequence[Answer]) -> dict[str, Any]:
    """How far a run is, and the mean scores of each setting."""
    tasks: dict[str, dict[str, dict[str, float]]] = {}
    for task in description["tasks"]:
        by_setting: dict[str, list[Answer]] = {}
        for answer in answers:
            if answer.task == task and not answer.error:
                by_setting.setdefault(answer.setting.label, []).append(answer)
        tasks[task] = {label: _means(found) for label, found in by_setting.items()}
    return {
        "rapid_eval": version("rapid-integrations"),
        "out": str(folder),
        "target": description["target"],
        "drafter": description["drafter"],
        "complete": len(answers) == description["answers"],
        "answers": len(answers),
        "failed": sum(bool(answer.error) for answer in answers),
        "tasks": tasks,
    }


def _means(answers: Sequence[Answer]) -> dict[str, float]:
    """How many answers there are, and the mean of each metric over those that have it."""
    scores: dict[str, list[float]] = {}
    for answer in answers:
        for metric, score in answer.scores.items():
            scores.setdefault(metric, []).append(score)
    return {"answers": len(answers)} | {metric: round(mean(found), 3) for metric, found in scores.items()}


def _load_tasks(options: EvalOptions, engine: RapidEngine | None) -> list[Task]:
    """The tasks, measured by an engine's target; without one only to see whether their data can be used."""
    return load_tasks(
        options.tasks,
        TaskOptions(
            data=Path(options.data) if options.data is not None else None,
            skip_bad=options.skip_bad,
            limit=options.limit,
            documents=options.documents,
            max_document_tokens=options.max_document_tokens if engine is not None else None,
            count_tokens=engine.count_tokens if engine is not None else None,
            cut_middle=engine.first_and_last if engine is not None else None,
            seed=options.seed,
            chain_of_thought=options.chain_of_thought,
            judge=options.judge,
        ),
    )


def _description(
    options: EvalOptions, engines: Mapping[str, RapidEngine], tasks: list[Task], plan: Plan, notes: list[str]
) -> dict[str, Any]:
    """What the run is, for JSON."""
    target = engines["drafter"].target
    return {
        "command": shlex.join(sys.argv),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "target": options.target,
        "drafter": engines["drafter"].names[1],
        "upward_drafter": options.upward_drafter,
        "dtype": str(target.model.dtype).removeprefix("torch."),
        "device": target.device,
        "data": options.data,
        "tasks": {task.name: dict(task.metrics) for task in tasks},
        "answers": len(plan),
        "notes": notes,
        "options": options.as_object(),
        "versions": versions(),
        "questions": plan.fingerprint(),
    }
