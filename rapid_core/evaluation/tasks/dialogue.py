"""Questions about a long conversation: the model's own with a user, or a meeting of others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rapid_core.datatypes import LongHistory, Message
from rapid_core.evaluation.metrics import rouge_l_sum, token_f1
from rapid_core.evaluation.records import Question
from rapid_core.evaluation.tasks.folder import Folder
from rapid_core.evaluation.tasks.lines import Line, data_file, read_lines
from rapid_core.evaluation.tasks.local import SelectedQuestions, about, asked
from rapid_core.evaluation.tasks.task import TaskOptions
from rapid_core.extras import check_installed

FILE = "dialogue.jsonl"
NAME = "dialogue"
INSTRUCTION = "Answer in a few sentences."
# By what lines of the file call their metric: its name here, how it scores, and tokens of an answer.
_METRICS: Mapping[str, tuple[str, Callable[[str, Sequence[str]], float], int]] = {
    "f1": ("f1", token_f1, 32),
    "rouge": ("rouge_l_sum", rouge_l_sum, 128),
}


class Dialogue(SelectedQuestions):
    """Scores each answer by the metric that its line names: short ones by F1, sentences by ROUGE-L-Sum.

    A chat is read as the messages that it is; a meeting as a document with the names of the speakers.
    """

    metrics: Mapping[str, str] = {"f1": "token F1", "rouge_l_sum": "ROUGE-L-Sum"}

    def __init__(self, options: TaskOptions) -> None:
        # Before any model is loaded, and not behind the first answer.
        check_installed("rouge_score", extra="eval")
        path = data_file(options.data, FILE, NAME)
        folder = Folder(path.parent)
        self._metric_of: dict[str, str] = {}
        found, notes = read_lines(path, lambda line: self._read(line, folder), skip_bad=options.skip_bad)
        super().__init__(NAME, found, notes, options)

    def score(self, question: Question, text: str, likelihoods: Sequence[float] | None) -> dict[str, float]:  # noqa: ARG002
        """Of several references the one that fits best counts."""
        name, score, _ = _METRICS[self._metric_of[question.id]]
        return {name: score(text, question.references)}

    def _read(self, line: Line, folder: Folder) -> Iterable[Question]:
        asks = line.text("question")
        document = line.text("dialogue_id")
        dialogue = folder.dialogue(line, document)
        metric = line.one_of("metric", _METRICS)
        self._metric_of[line.text("id")] = metric
        yield Question(
            id=line.text("id"),
            task=NAME,
            document=document,
            # A question that goes on with a chat says itself how it wants to be answered.
            messages=(*dialogue.messages(), Message("user", asks)) if dialogue.is_chat else asked(asks, INSTRUCTION),
            context=LongHistory() if dialogue.is_chat else about(dialogue.transcript(), asks),
            references=line.texts("answers"),
            source=line.text("source"),
            max_new_tokens=_METRICS[metric][2],
        )
