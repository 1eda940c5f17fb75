"""How the command line shows progress, an answer and what it cost."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from rapid_core.datatypes import Chunk, Delta, Stats, Usage

STAGES = {
    "index": "embedding the document's chunks",
    "prefill": "target reads the document",
    "draft prefill": "drafter reads the passages",
}
DRAFTED = "green"
PREVIEW_CHARACTERS = 32


class StageProgress:
    """One bar for each stage, drawn until the first token comes."""

    def __init__(self, console: Console) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            # Where the cursor cannot go back every refresh would leave an empty line.
            disable=not (console.is_terminal and console.is_interactive),
        )
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Move the bar of a stage."""
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(STAGES.get(stage, stage))
        self._bars.update(self._tasks[stage], completed=done, total=total)

    @contextmanager
    def shown(self) -> Iterator[StageProgress]:
        """Draw the bars inside the block."""
        with self._bars:
            yield self

    def stop(self) -> None:
        """Take the bars away; harmless when called again."""
        if self._bars.live.is_started:
            self._bars.stop()


def print_delta(console: Console, delta: Delta, *, show_drafts: bool) -> None:
    """Print a piece of the answer; with show_drafts, in colour where the drafter proposed most of it.

    A file or a pipe gets the text as it is; a terminal gets none of its control characters.
    """
    if not console.is_terminal:
        console.file.write(delta.text)
        console.file.flush()
        return
    drafted = show_drafts and 2 * sum(event.drafted for event in delta.events) > len(delta.events)
    console.print(Text(_printable(delta.text), style=DRAFTED if drafted else ""), end="", soft_wrap=True)


def print_summary(console: Console, usage: Usage, stats: Stats, *, show_drafts: bool) -> None:
    """Print one short table of what the answer cost, and a note for everything that was decided."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    for position, chunk in enumerate(stats.retrieved):
        table.add_row("retrieved" if position == 0 else "", _passage(chunk))
    reused = f", {usage.cached_tokens:,} of them from the cache" if usage.cached_tokens else ""
    table.add_row("prompt tokens", f"target {usage.prompt_tokens:,}{reused}; drafter {stats.drafter_prompt_tokens:,}")
    if stats.drafted:
        rate = f"{stats.accepted} of {stats.drafted} drafts, {stats.acceptance_rate:.0%}, in {stats.rounds} rounds"
        table.add_row("accepted", Text(rate, style=DRAFTED if show_drafts else ""))
    table.add_row(
        "first token",
        f"{stats.time_to_first_token_s:.1f} s: retrieval {stats.retrieval_s:.1f}, prefill {stats.prefill_s:.1f}, "
        f"the drafter's {stats.draft_prefill_s:.1f}",
    )
    table.add_row(
        "answer", f"{usage.completion_tokens:,} tokens in {stats.decode_s:.1f} s, {stats.tokens_per_s:.1f} tokens/s"
    )
    console.print(table)
    for note in stats.notes:
        console.print(Text(f"note: {note}", style="yellow"))


def _passage(chunk: Chunk) -> Text:
    place = f"{chunk.start:,} to {chunk.end:,}" if chunk.start >= 0 else "place unknown"
    score = f"{chunk.score:.2f}" if chunk.score == chunk.score else "    "
    preview = _printable(" ".join(chunk.text.split())[:PREVIEW_CHARACTERS])
    return Text(f"{score}  {place}  {preview}")


def _printable(text: str) -> str:
    """Text without the control characters by which a document could steer a terminal."""
    return "".join(char for char in text if char in "\n\t" or unicodedata.category(char) != "Cc")
