"""Summaries of documents and meetings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rapid_core.evaluation.metrics import rouge_l_sum
from rapid_core.evaluation.records import Question
from rapid_core.evaluation.tasks.folder import Folder
from rapid_core.evaluation.tasks.lines import Line, data_file, read_lines
from rapid_core.evaluation.tasks.local import SelectedQuestions, about, asked
from rapid_core.evaluation.tasks.task import TaskOptions
from rapid_core.extras import check_installed

FILE = "long_sum.jsonl"
NAME = "summary"
INSTRUCTION = "Answer in one paragraph of several sentences."


class Summary(SelectedQuestions):
    """Scores a summary by ROUGE-L-Sum. max_new_tokens: of each summary."""

    metrics: Mapping[str, str] = {"rouge_l_sum": "ROUGE-L-Sum"}

    def __init__(self, options: TaskOptions, *, max_new_tokens: int = 192) -> None:
        # Before any model is loaded, and not behind the first answer.
        check_installed("rouge_score", extra="eval")
        path = data_file(options.data, FILE, NAME)
        folder = Folder(path.parent)
        found, notes = read_lines(path, lambda line: _read(line, folder, max_new_tokens), skip_bad=options.skip_bad)
        super().__init__(NAME, found, notes, options)

    def score(self, question: Question, text: str, likelihoods: Sequence[float] | None) -> dict[str, float]:  # noqa: ARG002
        """Of several references the one that fits best counts."""
        return {"rouge_l_sum": rouge_l_sum(text, question.references)}


def _read(line: Line, folder: Folder, max_new_tokens: int) -> Iterable[Question]:
    asks = line.text("instruction")
    if "dialogue_id" in line.fields:
        document = line.text("dialogue_id")
        text = folder.dialogue(line, document).transcript()
    else:
        document = line.text("document_id")
        text = folder.document(line, document)
    yield Question(
        id=line.text("id"),
        task=NAME,
        document=document,
        messages=asked(asks, INSTRUCTION),
        context=about(text, asks),
        references=line.texts("references"),
        source=line.text("source"),
        max_new_tokens=max_new_tokens,
    )
