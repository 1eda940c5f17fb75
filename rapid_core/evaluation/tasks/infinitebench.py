"""∞Bench's questions about English books, from its own files: En.QA, En.MC and En.Sum.

Source of format, lengths and metrics: OpenBMB/InfiniteBench; of the temperature: paper, section 4.1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from rapid_core.datatypes import LongContext, Message
from rapid_core.evaluation.letters import MOST_CHOICES, lettered
from rapid_core.evaluation.metrics import rouge_l_sum, token_f1
from rapid_core.evaluation.records import Question
from rapid_core.evaluation.tasks.benchmark import BenchmarkQuestions, benchmark_file, document_name
from rapid_core.evaluation.tasks.lines import Line, read_lines
from rapid_core.evaluation.tasks.multiple_choice import METRICS, score_choice
from rapid_core.evaluation.tasks.task import TaskOptions
from rapid_core.extras import check_installed

HUB_NAME = "xinrongzhang2022/InfiniteBench"
TEMPERATURE = 1.0
CONCISE = "Answer from the book above, in as few words as possible."
LETTER = "One of these options is right, by the book above. Answer with its letter alone."
SUMMARIZE = "Summarize the book above."


class _BookQuestions(BenchmarkQuestions, ABC):
    """Questions about the books of a file, each of which is kept once however many lines hold it."""

    name: str
    file: str

    def __init__(self, options: TaskOptions) -> None:
        path = benchmark_file(options.data, self.file, HUB_NAME, self.name)
        self._books: dict[str, str] = {}
        found, notes = read_lines(path, lambda line: [self._read(line)], skip_bad=options.skip_bad, key=_id)
        super().__init__(self.name, found, notes, options)

    @abstractmethod
    def _read(self, line: Line) -> Question:
        """The question of a line."""

    def _question(self, line: Line, asks: str, instruction: str, **fields: Any) -> Question:
        text = line.text("context")
        document = document_name(text)
        text = self._books.setdefault(document, text)
        return Question(
            id=f"{self.name}/{_id(line)}",
            task=self.name,
            document=document,
            messages=(Message("user", f"{asks}\n\n{instruction}".strip()),),
            context=LongContext(text, query=asks or instruction),
            source="InfiniteBench",
            temperature=TEMPERATURE,
            **fields,
        )


class EnQA(_BookQuestions):
    """Scores the words of an answer by F1, as SQuAD does."""

    name = "infinitebench-qa"
    file = "longbook_qa_eng.jsonl"
    metrics: Mapping[str, str] = {"f1": "token F1"}

    def score(self, question: Question, text: str, likelihoods: Sequence[float] | None) -> dict[str, float]:  # noqa: ARG002
        """Of several references the one that fits best counts."""
        return {"f1": token_f1(text, question.references)}

    def _read(self, line: Line) -> Question:
        return self._question(line, line.text("input"), CONCISE, references=line.texts("answer"), max_new_tokens=40)


class EnMC(_BookQuestions):
    """Scores the option that an answer names, and the one that is most likely.

    An answer names an option in more ways than for the benchmark, which takes a letter that comes
    first, follows "answer is" and the like, or is the first one to stand alone.
    """

    name = "infinitebench-choice"
    file = "longbook_choice_eng.jsonl"
    metrics: Mapping[str, str] = METRICS

    def score(self, question: Question, text: str, likelihoods: Sequence[float] | None) -> dict[str, float]:
        """Accuracy by the letter, and by the likelihoods where there are any."""
        return score_choice(question, text, likelihoods)

    def _read(self, line: Line) -> Question:
        choices = line.texts("options")
        if not 2 <= len(choices) <= MOST_CHOICES:
            raise line.bad(f"'options' must be from 2 to {MOST_CHOICES} texts, got {len(choices)}")
        # A text, or a list of it; some copies have its letter behind it.
        answer = line.fields.get("answer")
        right = answer if isinstance(answer, str) else line.texts("answer")[0]
        if right not in choices:
            raise line.bad(f"'answer' must be one of 'options', got {right!r}")
        return self._question(
            line,
            f"{line.text('input')}\n\n{lettered(choices)}",
            LETTER,
            references=(right,),
            choices=choices,
            right=choices.index(right),
            max_new_tokens=40,
        )


class EnSum(_BookQuestions):
    """Scores a summary by ROUGE-L-Sum of its lines: the benchmark does not split it into sentences."""

    name = "infinitebench-sum"
    file = "longbook_sum_eng.jsonl"
    metrics: Mapping[str, str] = {"rouge_l_sum": "ROUGE-L-Sum"}

    def __init__(self, options: TaskOptions) -> None:
        # Before any model is loaded, and not behind the first answer.
        check_installed("rouge_score", extra="eval")
        super().__init__(options)

    def score(self, question: Question, text: str, likelihoods: Sequence[float] | None) -> dict[str, float]:  # noqa: ARG002
        """Of several references the one that fits best counts."""
        return {"rouge_l_sum": rouge_l_sum(text, question.references, by_sentence=False)}

    def _read(self, line: Line) -> Question:
        return self._question(line, "", SUMMARIZE, references=line.texts("answer"), max_new_tokens=1200)


def _id(line: Line) -> str:
    """The files number their lines in a field; a number is as good as a text."""
    number = line.fields.get("id")
    return str(number) if isinstance(number, int) and not isinstance(number, bool) else line.text("id")
