"""Questions with lettered options, of which one is right."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rapid_core.evaluation.letters import MOST_CHOICES, find_choice, lettered
from rapid_core.evaluation.metrics import most_likely
from rapid_core.evaluation.records import Question
from rapid_core.evaluation.tasks.folder import Folder
from rapid_core.evaluation.tasks.lines import Line, data_file, read_lines
from rapid_core.evaluation.tasks.local import SelectedQuestions, about, asked
from rapid_core.evaluation.tasks.packs import pack
from rapid_core.evaluation.tasks.task import TaskOptions

FILE = "long_mc.jsonl"
INSTRUCTION = "Which option is right? Answer with its letter alone."
MAX_NEW_TOKENS = 8
METRICS = {
    "accuracy_letter": "accuracy, by the generated letter",
    "accuracy_likelihood": "accuracy, by the likelihood of the options",
    "accuracy_likelihood_per_byte": "accuracy, by the likelihood of the options per byte",
    "letter_found": "answers that name one option",
}


class MultipleChoice(SelectedQuestions):
    """Scores the option that an answer names, and the one that is most likely.

    packed: about several documents joined, in place of each alone.
    """

    metrics: Mapping[str, str] = METRICS

    def __init__(self, options: TaskOptions, *, packed: bool = False) -> None:
        name = "multiple-choice"
        path = data_file(options.data, FILE, name)
        folder = Folder(path.parent)
        found, notes = read_lines(path, lambda line: _read(line, folder, name), skip_bad=options.skip_bad)
        if packed:
            name, found, notes = pack(name, "long_mc", found, notes, folder, options)
        super().__init__(name, found, notes, options)

    def score(self, question: Question, text: str, likelihoods: Sequence[float] | None) -> dict[str, float]:
        """Accuracy by the letter, and by the likelihoods where there are any."""
        return score_choice(question, text, likelihoods)


def score_choice(question: Question, text: str, likelihoods: Sequence[float] | None) -> dict[str, float]:
    """The metrics of a question with options.

    likelihoods: of the text of each option, the sum over its tokens in nats. A long option has more
    tokens to pay for, so that they are compared per byte of its text, too. An answer that names no
    option, or several, is wrong; `letter_found` tells it apart.
    """
    if question.right is None:
        raise ValueError(f"the question {question.id!r} has no options")
    named = find_choice(text, question.choices)
    scores = {"accuracy_letter": float(named == question.right), "letter_found": float(named is not None)}
    if likelihoods is not None:
        sizes = [len(choice.encode("utf-8")) for choice in question.choices]
        per_byte = [value / size for value, size in zip(likelihoods, sizes, strict=True)]
        scores["accuracy_likelihood"] = most_likely(likelihoods, question.right)
        scores["accuracy_likelihood_per_byte"] = most_likely(per_byte, question.right)
    return scores


def _read(line: Line, folder: Folder, task: str) -> Iterable[Question]:
    asks = line.text("question")
    choices = line.texts("choices")
    if not 2 <= len(choices) <= MOST_CHOICES:
        raise line.bad(f"'choices' must be from 2 to {MOST_CHOICES} options, got {len(choices)}")
    right = line.index("answer_index", len(choices))
    document = line.text("document_id")
    yield Question(
        id=line.text("id"),
        task=task,
        document=document,
        messages=asked(f"{asks}\n\n{lettered(choices)}", INSTRUCTION),
        context=about(folder.document(line, document), asks),
        references=(choices[right],),
        source=line.text("source"),
        choices=choices,
        right=right,
        max_new_tokens=MAX_NEW_TOKENS,
    )
