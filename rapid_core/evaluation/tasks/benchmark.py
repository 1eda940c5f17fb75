"""What readers of public benchmarks have in common: where their file is, and how long documents are cut."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from rapid_core.datatypes import LongContext
from rapid_core.errors import DocumentError, InputError
from rapid_core.evaluation.records import Question
from rapid_core.evaluation.tasks.local import SelectedQuestions
from rapid_core.evaluation.tasks.task import TaskOptions
from rapid_core.extras import require

# Source: paper, section 4.1. Instruction, question, options and template stand in the rest, so that all
# questions about a document share one text.
PROMPT_TOKENS = 128_000
DOCUMENT_TOKENS = PROMPT_TOKENS - 1_000

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


class BenchmarkQuestions(SelectedQuestions):
    """Questions whose documents are cut in their middle where they have more than 127,000 tokens.

    As `options.cut_middle` cuts; without it they stay whole.
    """

    def __init__(self, name: str, found: Sequence[Question], notes: Sequence[str], options: TaskOptions) -> None:
        super().__init__(name, found, notes, _once_cut(options))
        self._questions = self._cut(self._questions, options)

    def _cut(self, questions: Sequence[Question], options: TaskOptions) -> list[Question]:
        if options.cut_middle is None or options.count_tokens is None:
            return list(questions)
        texts = {question.document: _context(question).text for question in questions}
        counts = {name: options.count_tokens(text) for name, text in texts.items()}
        shorter = {
            name: options.cut_middle(text, DOCUMENT_TOKENS)
            for name, text in texts.items()
            if counts[name] > DOCUMENT_TOKENS
        }
        if shorter:
            self.notes.append(
                f"Documents of more than {DOCUMENT_TOKENS:,} tokens, up to {max(counts.values()):,}, are cut in their "
                f"middle, as in the paper: {len(shorter):,} of {len(texts):,}."
            )
        return [
            replace(question, context=replace(_context(question), text=shorter[question.document]))
            if question.document in shorter
            else question
            for question in questions
        ]


def benchmark_file(data: Path | None, file: str, hub_name: str, task: str) -> Path:
    """The path of a benchmark's file: `data` itself, in that folder, or of the dataset of that name on the hub.

    None stands for the dataset `hub_name`. Raises `InputError` where there is nothing of that kind, `DocumentError`
    where the hub does not give it.
    """
    if data is not None and data.is_file():
        return data
    if data is not None and data.is_dir():
        if not (data / file).is_file():
            raise InputError(
                f"the task {task!r} reads {file}, and the folder {data} has none; put it there, or give the file "
                "itself with --data"
            )
        return data / file
    name = hub_name if data is None else data.as_posix()
    if not _HUB_NAME.fullmatch(name):
        raise InputError(
            f"the task {task!r} reads {file}, and {data} is no file, no folder and no name of a dataset on the hub; "
            f"give one of them with --data, {hub_name} say"
        )
    return _fetch(name, file)


def document_name(text: str) -> str:
    """What a document without a name is called: the same in every file and whatever the order."""
    return f"text-{sha256(text.encode()).hexdigest()[:12]}"


def _fetch(name: str, file: str) -> Path:
    hub = require("huggingface_hub", extra="eval")
    try:
        return Path(hub.hf_hub_download(name, file, repo_type="dataset"))
    # The hub's errors are kinds of OSError, and of ValueError for names and missing answers.
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise DocumentError(
            f"{file} must be a file of the dataset {name} on the hub, and cannot be fetched ({reason}); fetch "
            f"https://huggingface.co/datasets/{name}/resolve/main/{file} by other means, and give its path with --data"
        ) from error


def _once_cut(options: TaskOptions) -> TaskOptions:
    """The options by which to choose: a document that will be cut is as long as the cut leaves it."""
    longest = options.max_document_tokens
    fits = options.cut_middle is not None and longest is not None and longest >= DOCUMENT_TOKENS
    return replace(options, max_document_tokens=None) if fits else options


def _context(question: Question) -> LongContext:
    assert isinstance(question.context, LongContext)
    return question.context
