"""What a run asks, and in which order: task by task, document by document, question by question, setting by setting."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from rapid_core.datatypes import LongContext
from rapid_core.evaluation.lengths import SEPARATOR, CountTokens, cut_to, lengthened
from rapid_core.evaluation.records import Question, Setting


@dataclass(frozen=True)
class Part:
    """The questions about one text, which is read once for all of them.

    asked: each question with its settings. tokens: of the text, for the target. other: the text of another
    document of the task, whose passages have nothing to do with the questions.
    """

    asked: tuple[tuple[Question, tuple[Setting, ...]], ...]
    tokens: int
    other: str = ""

    def __iter__(self) -> Iterator[tuple[Question, Setting]]:
        """Every question with every setting, in their order."""
        return ((question, setting) for question, settings in self.asked for setting in settings)


@dataclass(frozen=True)
class Plan:
    """All parts of a run, and sentences about what is left out."""

    parts: tuple[Part, ...]
    notes: tuple[str, ...]

    def __len__(self) -> int:
        """How many answers there will be."""
        return sum(len(settings) for part in self.parts for _, settings in part.asked)

    def fingerprint(self) -> str:
        """A hash of all that is asked, which two runs can compare."""
        found = hashlib.sha256()
        for part in self.parts:
            for question, settings in part.asked:
                rank = asdict(question)
                found.update(json.dumps([rank, [asdict(setting) for setting in settings]], default=str).encode())
            found.update(part.other.encode())
        return found.hexdigest()


class Planner:
    """Plans a run. The order in which a task has its questions decides only in which order they are asked."""

    def __init__(self, settings: Sequence[Setting], count_tokens: CountTokens) -> None:
        self._settings = settings
        self._count_tokens = count_tokens
        self._left_out: Counter[str] = Counter()

    def plan(self, tasks: Sequence[Sequence[Question]]) -> Plan:
        """The questions of each task, in parts."""
        self._left_out.clear()
        parts = [part for questions in tasks for part in self._of_task(questions)]
        notes = [reason.format(f"{count:,} question{'s' * (count > 1)}") for reason, count in self._left_out.items()]
        return Plan(tuple(parts), tuple(notes))

    def _of_task(self, questions: Sequence[Question]) -> Iterator[Part]:
        documents: dict[str, list[Question]] = {}
        for question in questions:
            documents.setdefault(question.document, []).append(question)
        # By name, so that what stands beside a document does not depend on the order of the questions.
        texts = {name: text for name in sorted(documents) if (text := _text(documents[name][0])) is not None}
        for name, own in documents.items():
            others = [text for other, text in texts.items() if other > name]
            others += [text for other, text in texts.items() if other < name]
            for tokens in dict.fromkeys(setting.context_tokens for setting in self._settings):
                settings = [setting for setting in self._settings if setting.context_tokens == tokens]
                sized = self._sized(own, tokens, others)
                other = ""
                if others and any(setting.unrelated for setting in settings):
                    # A text may be lengthened with all others but the last one.
                    most = len(SEPARATOR.join([texts.get(name, ""), *others[:-1]]))
                    other = "" if any(len(_text(question) or "") > most for question in sized) else others[-1]
                asked = [(question, self._settings_of(question, settings, other)) for question in sized]
                asked = [(question, found) for question, found in asked if found]
                if asked:
                    yield Part(tuple(asked), self._tokens(asked[0][0]), other)

    def _sized(self, questions: Sequence[Question], tokens: int | None, others: Sequence[str]) -> list[Question]:
        """The questions that a document of so many tokens can answer, with that document."""
        if tokens is None:
            return list(questions)
        found, made = [], {}
        for question in questions:
            text = _text(question)
            if text is None:
                self._leave_out(question, f"with {tokens:,} tokens of context, since a history is not cut")
                continue
            if text not in made:
                long = self._count_tokens(text) > tokens
                made[text] = (
                    long,
                    cut_to(text, tokens, self._count_tokens)
                    if long
                    else lengthened(text, others, tokens, self._count_tokens),
                )
            long, fitted = made[text]
            if not fitted and long:
                self._leave_out(question, f"with {tokens:,} tokens of context, since no paragraph ends before")
            elif not fitted:
                self._leave_out(
                    question, f"with {tokens:,} tokens of context, since all documents together are shorter"
                )
            elif long and question.evidence is None:
                self._leave_out(question, f"with {tokens:,} tokens of context, since the cut may have its evidence")
            elif question.evidence is not None and question.evidence[1] > len(fitted):
                self._leave_out(question, f"with {tokens:,} tokens of context, since the evidence is behind the cut")
            else:
                found.append(_with_text(question, fitted))
        return found

    def _settings_of(self, question: Question, settings: Sequence[Setting], other: str) -> tuple[Setting, ...]:
        """The settings that a question can be asked with."""
        found = []
        for setting in settings:
            if _text(question) is None and (setting.retrieved_tokens is not None or setting.unrelated):
                self._leave_out(question, f"by {setting.label}, since passages are chosen of documents alone")
            elif setting.unrelated and not other:
                self._leave_out(question, f"by {setting.label}, since the task has no other document beside its text")
            else:
                found.append(setting)
        return tuple(found)

    def _tokens(self, question: Question) -> int:
        text = _text(question)
        return self._count_tokens("\n".join(message.content for message in question.messages) if text is None else text)

    def _leave_out(self, question: Question, why: str) -> None:
        self._left_out[f"{question.task}: {{}} not asked {why}"] += 1


def _with_text(question: Question, text: str) -> Question:
    assert isinstance(question.context, LongContext)  # it has a text, so it is one
    return replace(question, context=replace(question.context, text=text))


def _text(question: Question) -> str | None:
    """The one document of a question; None where it is about something else."""
    context = question.context
    return context.text or None if isinstance(context, LongContext) else None
