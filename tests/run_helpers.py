"""Small tasks with texts of their own, and a run of them by a tiny engine."""

from __future__ import annotations

import io
import sys
import zlib

import pytest
from helpers import TINY

import rapid_core.retrieval.searcher
from rapid_core import LongContext, LongHistory, Message, RapidEngine, cli
from rapid_core.evaluation.answers_file import RunFolder
from rapid_core.evaluation.options import EvalOptions
from rapid_core.evaluation.plan import Planner
from rapid_core.evaluation.records import Question, SecondCall
from rapid_core.evaluation.run import run
from rapid_core.testing import WordEncoder, tiny_pair

CITIES = ("Madrid", "Oslo", "Lima", "Paris", "Rome", "Cairo")
PEOPLE = ("judge", "baker", "queen", "miller")


def text_of(name, paragraphs=9):
    """A document of its own, about 50 bytes a paragraph."""
    return "\n\n".join(
        f"The {PEOPLE[i % 4]} of {name} {i} lives in {CITIES[(i + len(name)) % 6]}." for i in range(paragraphs)
    )


class MadeTask:
    """A task of made-up questions, whose score is a hash of the answer: any other answer scores otherwise."""

    def __init__(self, name, questions):
        self.name = name
        self.notes = []
        self._questions = list(questions)

    def questions(self):
        return self._questions

    def score(self, question, text, likelihoods):
        return {"hash": zlib.crc32(repr((question.id, text, likelihoods)).encode()) / 2**32}


def about_documents(name="facts", documents=("Spain", "Norway"), questions=2, paragraphs=9, **options):
    """Questions about documents, each with its evidence."""
    found = []
    for document in documents:
        text = text_of(document, paragraphs)
        for number in range(questions):
            sentence = text.split("\n\n")[number]
            start = text.index(sentence)
            asks = f"Where does the {PEOPLE[number % 4]} of {document} {number} live?"
            found.append(
                Question(
                    id=f"{name}-{document}-{number}",
                    task=name,
                    document=document,
                    messages=(Message("system", "Answer."), Message("user", asks)),
                    context=LongContext(text, query=asks),
                    references=("Rome",),
                    **{"evidence": (start, start + len(sentence)), "max_new_tokens": 8, **options},
                )
            )
    return MadeTask(name, found)


def choices(**given):
    """Multiple-choice questions."""
    return about_documents("choice", choices=("Madrid", "Oslo", "Rome"), right=1, **given)


def reasoning(**given):
    """Questions that are asked twice: for thoughts, and for the answer."""
    second = SecondCall(before="You thought: ", after=" Now the city alone.", max_new_tokens=5)
    return about_documents("reasoning", second=second, questions=1, **given)


def about_history(name="talk", talks=("one", "two")):
    """Questions about a long conversation."""
    found = []
    for talk in talks:
        turns = []
        for number, paragraph in enumerate(text_of(talk, 12).split("\n\n")):
            turns += [Message("user", f"{number}: {paragraph}"), Message("assistant", f"Noted, {paragraph}")]
        asks = Message("user", f"What did I say of the queen of {talk} 2?")
        found.append(
            Question(
                id=f"{name}-{talk}",
                task=name,
                document=talk,
                messages=(*turns, asks),
                context=LongHistory(newest=1),
                references=("Rome",),
                max_new_tokens=8,
            )
        )
    return MadeTask(name, found)


def made_engines(*names, **options):
    """Engines as `load_engines` gives them, on tiny pairs; "upward" has a drafter of its own."""
    found = {}
    for name in names or ("drafter",):
        target, drafter = tiny_pair(**{"window": 4096, **options})
        found[name] = RapidEngine(target, drafter, retrieval=TINY, encoder=WordEncoder(), reproducible=True)
    return found


def made_run(folder, tasks, options, engines, on_step=lambda *_: None, begin=None):
    """Run tasks into a folder, or go on there; returns the answers."""
    plan = Planner(options.settings, engines["drafter"].count_tokens).plan([task.questions() for task in tasks])
    description = begin or {
        "options": options.as_object(),
        "versions": {"python": "3"},
        "questions": plan.fingerprint(),
    }
    with RunFolder(folder).open(description) as files:
        run(plan, options, engines, {task.name: task for task in tasks}, files, on_step)
    return files.answers


def by_setting(answers):
    """Answers by what they were asked: {(question, label): answer}."""
    return {(answer.question, answer.setting.label): answer for answer in answers}


def options(**given):
    """Options of a run; a number or a word stands for one value."""
    listed = {"eta", "gamma", "retrieved_tokens", "context_tokens", "methods"}
    alone = {name: (value,) for name, value in given.items() if name in listed and not isinstance(value, tuple)}
    return EvalOptions(**{**given, **alone})


def run_eval(*words):
    """Run `rapid eval ...`; returns (status, stdout, stderr)."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rapid_core.retrieval.searcher, "load_encoder", lambda *_: WordEncoder())
        patch.setattr(sys, "argv", ["rapid", "eval", *map(str, words)])
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        with pytest.raises(SystemExit) as end:
            cli.main()
    return end.value.code or 0, out.getvalue(), err.getvalue()
