"""What a run found, as plain data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rapid_core.errors import InputError
from rapid_core.evaluation.comparison import Comparison, compare
from rapid_core.evaluation.pairing import compared
from rapid_core.evaluation.records import Answer, Measurement, Setting
from rapid_core.evaluation.scores import Score
from rapid_core.evaluation.speed import Measured, Speed, usable
from rapid_core.evaluation.sweeps import Sweep, Unrelated, sweeps, unrelated

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSummary:
    """A task. metrics: titles by name, the main one first. comparisons: by the length of the context."""

    name: str
    metrics: Mapping[str, str]
    comparisons: tuple[Comparison, ...]
    sweeps: tuple[Sweep, ...]
    unrelated: tuple[Unrelated, ...]

    @property
    def main(self) -> str:
        """The name of the main metric."""
        return next(iter(self.metrics))

    def score(self, setting: Setting) -> Score | None:
        """Of the main metric."""
        found = (each.scores[self.main].get(setting) for each in self.comparisons)
        return next((score for score in found if score is not None), None)

    def speed(self, setting: Setting) -> Speed | None:
        """Of a setting; None where nothing was measured."""
        found = (each.speeds.get(setting) for each in self.comparisons)
        return next((speed for speed in found if speed is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All tasks of a run.

    decided: the engine's own notes, and in how many answers each stands; notes that differ in their
    numbers alone are one, with # for these.
    """

    baseline: str
    seed: int
    tasks: tuple[TaskSummary, ...]
    notes: tuple[str, ...]
    decided: Mapping[str, int]


def summarize(
    answers: Sequence[Answer],
    measurements: Iterable[Measurement],
    metrics: Mapping[str, Mapping[str, str]],
    *,
    baseline: str = "lc",
    seed: int = 0,
    notes: Sequence[str] = (),
) -> Summary:
    """What the records of a run say; their order does not matter.

    metrics: of each task, the title of each metric by its name, the main one first. baseline: the
    method that all are compared with. seed: of the bootstrap. notes: sentences about what was left
    out and what failed. Raises `InputError` for a task without metrics, and for two records of one
    question and setting.
    """
    found = compared(answers)
    if unnamed := [name for name in (*found, *metrics) if not metrics.get(name)]:
        raise InputError(f"every task must have a metric, got none for {', '.join(sorted(set(unnamed)))}; name it")
    measured, broken = _measured(measurements)
    tasks = []
    for name, titles in metrics.items():
        own = found.get(name, [])
        settings = [setting for each in own for setting in each.settings]
        tasks.append(
            TaskSummary(
                name=name,
                metrics=dict(titles),
                comparisons=tuple(compare(each, titles, measured, baseline=baseline, seed=seed) for each in own),
                sweeps=tuple(sweeps(settings)),
                unrelated=tuple(unrelated(settings)),
            )
        )
    lacking = [f"No question of the task {task.name!r} was asked." for task in tasks if not task.comparisons]
    if broken:
        lacking.append(f"Measurements left out, since a time of theirs is below zero or no number: {broken:,}.")
    return Summary(
        baseline=baseline,
        seed=seed,
        tasks=tuple(tasks),
        notes=(*notes, *lacking),
        decided=_by_kind(note for answer in answers for note in answer.notes),
    )


def _measured(measurements: Iterable[Measurement]) -> tuple[Measured, int]:
    """The usable measurements by question and setting, and how many others there are."""
    found: dict[tuple[str, Setting], Measurement] = {}
    for measurement in measurements:
        place = (measurement.question, measurement.setting)
        if place in found:
            raise InputError(
                f"an answer is measured once, and that of {measurement.setting.label!r} to {measurement.question!r} "
                "was twice; take one of the two out"
            )
        found[place] = measurement
    good = {place: measurement for place, measurement in found.items() if usable(measurement)}
    return good, len(found) - len(good)


def _by_kind(notes: Iterable[str]) -> dict[str, int]:
    """How often each kind of note comes, the most frequent first."""
    kinds: dict[str, list[str]] = {}
    for note in notes:
        kinds.setdefault(_NUMBER.sub("#", note), []).append(note)
    counts = {own[0] if len(set(own)) == 1 else kind: len(own) for kind, own in kinds.items()}
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
