"""Which questions of which documents are asked: the same ones whenever the options are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from itertools import islice, zip_longest
from typing import TypeVar

from rapid_core.datatypes import LongContext
from rapid_core.evaluation.records import Question
from rapid_core.evaluation.tasks.task import TaskOptions

T = TypeVar("T")


def select(questions: Sequence[Question], options: TaskOptions) -> tuple[list[Question], list[str]]:
    """The questions that are asked, those of a document together, and sentences about those that are not.

    Documents and questions stay in the order in which they came. Where not all are taken, the seed
    draws documents, and then questions of each document in turn.
    """
    by_document: dict[str, list[Question]] = {}
    for question in questions:
        by_document.setdefault(question.document, []).append(question)
    notes: list[str] = []
    # Drawn by name alone: tasks over the same documents take the same ones, which are then read once.
    names = _drawn(by_document, options.seed, str)
    taken = _fitting(names, by_document, options, notes)
    asked = [question for name, several in by_document.items() if name in taken for question in several]
    if options.limit is not None and len(asked) > options.limit:
        queues = [_drawn(by_document[name], options.seed, lambda question: question.id) for name in taken]
        in_turn = (question.id for turn in zip_longest(*queues) for question in turn if question is not None)
        chosen = set(islice(in_turn, options.limit))
        notes.append(
            f"Questions asked: {options.limit:,} of {len(asked):,}, spread over the documents (seed {options.seed})."
        )
        asked = [question for question in asked if question.id in chosen]
    return asked, notes


def _fitting(
    names: Sequence[str], by_document: dict[str, list[Question]], options: TaskOptions, notes: list[str]
) -> list[str]:
    """Names of the documents that are taken, in the order in which they were drawn."""
    taken: list[str] = []
    too_long: list[str] = []
    for name in names:
        if options.documents is not None and len(taken) == options.documents:
            break
        (taken if _fits(by_document[name][0], options) else too_long).append(name)
    if too_long and options.max_document_tokens is not None:
        notes.append(
            f"Documents of more than {options.max_document_tokens:,} tokens, left out: {len(too_long):,}, with "
            f"{sum(len(by_document[name]) for name in too_long):,} of the questions."
        )
    untouched = len(names) - len(too_long) - len(taken)
    if untouched:
        notes.append(f"Documents taken: {len(taken):,} of {len(names):,} (seed {options.seed}).")
    return taken


def _drawn(items: Iterable[T], seed: int, name: Callable[[T], str]) -> list[T]:
    """Items in an order that depends on the seed and their names, and not on each other."""
    return sorted(items, key=lambda item: (sha256(f"{seed} {name(item)}".encode()).digest(), name(item)))


def _fits(question: Question, options: TaskOptions) -> bool:
    if options.max_document_tokens is None or options.count_tokens is None:
        return True
    return options.count_tokens(_document_of(question)) <= options.max_document_tokens


def _document_of(question: Question) -> str:
    """What is read besides the question: the document, or the messages before it."""
    if isinstance(question.context, LongContext):
        return question.context.text
    return "\n".join(message.content for message in question.messages[:-1])
