"""How far a run is: a bar with the time left on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from rapid_core.evaluation.records import Question, Setting

LINE_EVERY_S = 60.0
# Documents are read at the beginning of their questions: over less time than this, speed says nothing.
SPEED_OVER_S = 3600.0


class RunProgress:
    """Shows how many of `total` answers there are; `done` of them were there before."""

    def __init__(self, console: Console, done: int, total: int) -> None:
        self._console = console
        self._before, self._total = done, total
        self._started = self._said = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            speed_estimate_period=SPEED_OVER_S,
            disable=not (console.is_terminal and console.is_interactive),
        )
        self._task = self._bar.add_task("", total=total, completed=done)

    def __call__(self, done: int, question: Question, setting: Setting) -> None:
        """So many answers are there, and this one is next."""
        where = f"{question.task}, {question.document}: {setting.label}"
        self._bar.update(self._task, completed=done, description=where)
        now = time.monotonic()
        if self._bar.disable and now - self._said >= LINE_EVERY_S:
            self._said = now
            self._console.print(
                f"{done:,} of {self._total:,} answers, {self._left(done, now)}; {where}", soft_wrap=True
            )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _left(self, done: int, now: float) -> str:
        if done == self._before:
            return "time left unknown"
        left = (now - self._started) / (done - self._before) * (self._total - done)
        return f"about {timedelta(seconds=round(left))} left"
