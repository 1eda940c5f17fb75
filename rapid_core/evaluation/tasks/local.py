"""What the tasks over a folder of data have in common: questions that are read, chosen among, and asked."""

from __future__ import annotations

from collections.abc import Sequence

from rapid_core.datatypes import LongContext, Message
from rapid_core.errors import InputError
from rapid_core.evaluation.records import Question
from rapid_core.evaluation.tasks.selection import select
from rapid_core.evaluation.tasks.task import TaskOptions

SYSTEM = "You answer from the text that the user gives you."


class SelectedQuestions:
    """The part of a task that asks: those of `found` that the options choose.

    notes: about what was left out while reading. Raises `InputError` where no question is left.
    """

    def __init__(self, name: str, found: Sequence[Question], notes: Sequence[str], options: TaskOptions) -> None:
        self.name = name
        self._questions, left_out = select(found, options)
        self.notes = [*notes, *left_out]
        if not self._questions:
            reasons = " ".join(self.notes) or "The data has none."
            raise InputError(
                f"the task {name!r} must have a question, and none is left; ask for less to be left out: {reasons}"
            )

    def questions(self) -> Sequence[Question]:
        """All that are asked: those of one document together, always in the same order."""
        return self._questions


def asked(question: str, instruction: str) -> tuple[Message, ...]:
    """The messages of a question about a document, which goes before the second one.

    The instruction stands behind the document: small models forget what they read before it.
    """
    return Message("system", SYSTEM), Message("user", f"{question}\n\n{instruction}")


def about(text: str, question: str) -> LongContext:
    """The document of a question: passages are searched for the question alone, without the instruction."""
    return LongContext(text, query=question)
