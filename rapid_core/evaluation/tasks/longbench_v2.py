"""LongBench v2, from its own file: hard multiple-choice questions about long texts, with and without chain of thought.

Source of format, lengths, temperature and how answers are read: THUDM/LongBench.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rapid_core.datatypes import LongContext, Message
from rapid_core.evaluation.records import Question, SecondCall
from rapid_core.evaluation.tasks.benchmark import BenchmarkQuestions, benchmark_file, document_name
from rapid_core.evaluation.tasks.lines import Line, read_lines
from rapid_core.evaluation.tasks.multiple_choice import METRICS, score_choice
from rapid_core.evaluation.tasks.task import TaskOptions

FILE = "data.json"
HUB_NAME = "THUDM/LongBench-v2"
LETTERS = "ABCD"
DIFFICULTIES = ("easy", "hard")
LENGTHS = ("short", "medium", "long")
TEMPERATURE = 0.1

_FORM = 'Write one sentence of this form and nothing else, with a letter for X: "The correct answer is (X)"'
AT_ONCE = f"Which of the four options is right? {_FORM}"
STEP_BY_STEP = "Which of the four options is right? Think step by step before you decide."
WITHOUT_TEXT = "This is a question about a text that is too long to be shown here."
DECIDE = f"Which single option is most likely right, by these thoughts? {_FORM}"

# The form that was asked for comes before the one without brackets, wherever they stand.
_STATED = (re.compile(r"The correct answer is \(([A-D])\)"), re.compile(r"The correct answer is ([A-D])"))


class LongBenchV2(BenchmarkQuestions):
    """Scores the letter that an answer states in the form that was asked for, and the most likely option.

    chain_of_thought: 1,024 tokens to think in, then a second call for the letter, which shows question, options
    and thoughts but not the text, as the benchmark's does, and no likelihoods. An answer in another
    form is wrong, as in the benchmark, and `letter_found` tells it apart.
    """

    def __init__(self, options: TaskOptions, *, chain_of_thought: bool = False) -> None:
        self.metrics: Mapping[str, str] = (
            {name: METRICS[name] for name in ("accuracy_letter", "letter_found")} if chain_of_thought else METRICS
        )
        name = "longbench-v2-cot" if chain_of_thought else "longbench-v2"
        path = benchmark_file(options.data, FILE, HUB_NAME, name)
        found, notes = read_lines(
            path,
            lambda line: [_read(line, name, chain_of_thought)],
            skip_bad=options.skip_bad,
            key=lambda line: line.text("_id"),
        )
        super().__init__(name, found, notes, options)

    def score(self, question: Question, text: str, likelihoods: Sequence[float] | None) -> dict[str, float]:
        """Accuracy by the stated letter, and by the likelihoods where there are any."""
        named = stated_choice(text)
        by_letter = {"accuracy_letter": float(named == question.right), "letter_found": float(named is not None)}
        return by_letter if likelihoods is None else score_choice(question, text, likelihoods) | by_letter


def stated_choice(text: str) -> int | None:
    """The index of the option in "The correct answer is (A)", the first such sentence; None where there is none.

    Source: `extract_answer` of the benchmark; asterisks and the brackets may be there or not.
    """
    plain = text.replace("*", "")
    for pattern in _STATED:
        if found := pattern.search(plain):
            return LETTERS.index(found[1])
    return None


def _read(line: Line, task: str, chain_of_thought: bool) -> Question:
    asks = line.text("question").strip()
    choices = tuple(line.text(f"choice_{letter}").strip() for letter in LETTERS)
    right = LETTERS.index(line.one_of("answer", LETTERS))
    text = line.text("context").strip()
    listed = "\n".join(f"({letter}) {choice}" for letter, choice in zip(LETTERS, choices, strict=True))
    instruction = STEP_BY_STEP if chain_of_thought else AT_ONCE
    second = SecondCall(before=f"{WITHOUT_TEXT}\n\n{asks}\n\n{listed}\n\nThoughts: ", after=f"\n\n{DECIDE}")
    return Question(
        id=f"{task}/{line.text('_id')}",
        task=task,
        document=document_name(text),
        messages=(Message("user", f"{asks}\n\n{listed}\n\n{instruction}"),),
        context=LongContext(text, query=f"{asks}\n\n{listed}"),
        references=(choices[right],),
        source=line.text("domain"),
        choices=() if chain_of_thought else choices,
        right=right,
        groups=(line.one_of("difficulty", DIFFICULTIES), line.one_of("length", LENGTHS)),
        max_new_tokens=1024 if chain_of_thought else 128,
        temperature=TEMPERATURE,
        second=second if chain_of_thought else None,
    )
