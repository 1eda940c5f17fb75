"""Questions whose answer stands in a document: in a few words, in a sentence, or as a clause of a contract."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rapid_core.evaluation.metrics import exact_match, token_f1
from rapid_core.evaluation.records import Question
from rapid_core.evaluation.tasks.folder import Folder
from rapid_core.evaluation.tasks.lines import Line, data_file, read_lines
from rapid_core.evaluation.tasks.local import SelectedQuestions, about, asked
from rapid_core.evaluation.tasks.packs import pack
from rapid_core.evaluation.tasks.task import TaskOptions

FILE = "long_qa.jsonl"


@dataclass(frozen=True, slots=True)
class Kind:
    """How answers of a kind are asked for. task: its name."""

    task: str
    instruction: str
    max_new_tokens: int


# By what lines of the file call them.
KINDS = {
    "short_answer": Kind("short-answer", "Answer with as few words as possible, taken from the text.", 32),
    "sentence_answer": Kind("sentence-answer", "Answer in one short sentence, from the text.", 64),
    "clause_extraction": Kind("clause-extraction", "Quote that part word for word, and write nothing else.", 256),
}


class ShortAnswer(SelectedQuestions):
    """Scores the words of an answer as SQuAD does.

    kind: of the lines that are taken. packed: about several documents joined, in place of each alone.
    """

    metrics: Mapping[str, str] = {"f1": "token F1", "exact_match": "exact match"}

    def __init__(self, options: TaskOptions, *, kind: str = "short_answer", packed: bool = False) -> None:
        name = KINDS[kind].task
        path = data_file(options.data, FILE, name)
        folder = Folder(path.parent)
        found, notes = read_lines(path, lambda line: _read(line, folder, kind), skip_bad=options.skip_bad)
        if packed:
            name, found, notes = pack(name, "long_qa", found, notes, folder, options)
        super().__init__(name, found, notes, options)

    def score(self, question: Question, text: str, likelihoods: Sequence[float] | None) -> dict[str, float]:  # noqa: ARG002
        """The reference that fits best counts, for each metric by itself."""
        return {"f1": token_f1(text, question.references), "exact_match": exact_match(text, question.references)}


def _read(line: Line, folder: Folder, kind: str) -> Iterable[Question]:
    asks = line.text("question")
    document = line.text("document_id")
    text = folder.document(line, document)
    read = KINDS[line.one_of("task", KINDS)]
    question = Question(
        id=line.text("id"),
        task=read.task,
        document=document,
        messages=asked(asks, read.instruction),
        context=about(text, asks),
        references=line.texts("answers"),
        source=line.text("source"),
        evidence=line.span("evidence", len(text)),
        max_new_tokens=read.max_new_tokens,
    )
    return [question] if read is KINDS[kind] else []
