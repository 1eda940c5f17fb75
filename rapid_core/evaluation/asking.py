"""One question with one setting after the other: prompts read once, answers, likelihoods, scores."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from rapid_core.config import Sampling, Speculation
from rapid_core.datatypes import Chunk, LongContext, LongHistory, Message, Result, Stats
from rapid_core.engine import RapidEngine
from rapid_core.errors import InputError, ModelOutputError, NotEnoughMemoryError, RetrievalError
from rapid_core.evaluation.engines import EnginesBeside
from rapid_core.evaluation.methods import METHODS
from rapid_core.evaluation.options import EvalOptions
from rapid_core.evaluation.plan import Part
from rapid_core.evaluation.prompt_clock import PromptClock
from rapid_core.evaluation.records import Answer, Measurement, Question, SecondCall, Setting
from rapid_core.planning import SPECULATION_OFF, WITHOUT_PASSAGES

ANY_SIMILARITY = -1.0
# What is wrong with one question, and says nothing of the others.
FAILURES = (InputError, ModelOutputError, NotEnoughMemoryError, RetrievalError)


class Scorer(Protocol):
    """A task, as far as an answer needs it. notes: more of them say what a score lacks."""

    notes: list[str]

    def score(self, question: Question, text: str, likelihoods: Sequence[float] | None) -> dict[str, float]:
        """What an answer is worth, 0 to 1 by the name of the metric."""


@dataclass(frozen=True)
class _Request:
    """A question in the words of an engine: what all its calls have in common."""

    question: Question
    setting: Setting
    engine: RapidEngine
    context: LongContext | LongHistory | None
    speculation: Speculation
    sampling: Sampling

    @property
    def by_target(self) -> bool:
        """Whether the target reads the document."""
        return self.speculation.answers == "target"


@dataclass
class _Known:
    """What is already measured or known of the question at hand, whoever asked first.

    target_s: by engine, seconds of the target's prompt. drafter: what the drafter's
    prompt took, and passages: what was found in how many seconds, by engine and choice of passages. likelihoods: of
    the choices, by engine, where the target alone decides.
    """

    target_s: dict[str, float] = field(default_factory=dict)
    drafter: dict[tuple[object, ...], Stats] = field(default_factory=dict)
    passages: dict[tuple[object, ...], tuple[tuple[Chunk, ...], float]] = field(default_factory=dict)
    likelihoods: dict[str, tuple[float, ...]] = field(default_factory=dict)


class Engines:
    """The engines of a run by what methods call them, those beside them, and a clock for each role of each."""

    def __init__(self, engines: Mapping[str, RapidEngine]) -> None:
        self.engines = engines
        self.beside = EnginesBeside(engines)
        self.target_clocks = {name: PromptClock() for name in engines}
        self.drafter_clocks = {name: PromptClock() for name in engines}


class Asker:
    """Asks the questions of one part.

    Every prompt is read before it is answered behind, so that what an answer takes does not depend on who
    was asked first.
    """

    def __init__(self, engines: Engines, options: EvalOptions, part: Part) -> None:
        self._engines = engines
        self._options = options
        self._part = part
        self._question: Question | None = None
        self._known = _Known()

    def ask(self, question: Question, setting: Setting, scorer: Scorer) -> tuple[Answer, Measurement | None]:
        """The answer, and what it took; None where there is none."""
        if question is not self._question:
            self._question, self._known = question, _Known()
        named: dict[str, Any] = {
            "question": question.id,
            "task": question.task,
            "document": question.document,
            "source": question.source,
            "groups": question.groups,
            "setting": setting,
            "asked": question.messages[-1].content,
            "references": question.references,
        }
        try:
            return self._answer(question, setting, scorer, named)
        except FAILURES as error:
            return Answer(**named, text="", finish_reason="", error=str(error)), None

    def _answer(
        self, question: Question, setting: Setting, scorer: Scorer, named: Mapping[str, Any]
    ) -> tuple[Answer, Measurement]:
        context, searched_s = self._passages(question, setting)
        request = _Request(
            question,
            setting,
            self._engine(setting),
            context,
            METHODS[setting.method].speculation(setting, self._part.tokens),
            self._sampling(question, setting),
        )
        read = self._prefill(request)
        results = [self._generate(request, question.messages)]
        if question.second is not None:
            results.append(self._answer_alone(request, question.second, results[0].text))
        first, last = results[0], results[-1]
        likelihoods = self._likelihoods(request, first.stats.eta) if question.choices else None
        known = len(scorer.notes)
        scores = scorer.score(question, last.text, likelihoods)
        answer = Answer(
            **named,
            text=last.text,
            reasoning=first.text if question.second is not None else "",
            finish_reason=last.finish_reason,
            tokens=sum(result.usage.completion_tokens for result in results),
            # Where the drafter answers by itself, its prompt is the only one.
            prompt_tokens=first.usage.prompt_tokens if request.by_target else 0,
            drafter_prompt_tokens=first.stats.drafter_prompt_tokens if request.by_target else first.usage.prompt_tokens,
            likelihoods=likelihoods,
            eta=first.stats.eta,
            scores=scores,
            notes=(*_notes(results), *scorer.notes[known:]),
        )
        # The engine counts the choice of an eta that sets itself as reading by the drafter.
        chosen_s = first.stats.draft_prefill_s if setting.eta == "auto" else 0.0
        later = [result.stats for result in results[1:]]
        measurement = Measurement(
            question=question.id,
            setting=setting,
            retrieval_s=searched_s + read.retrieval_s,
            prefill_s=read.prefill_s + sum(stats.prefill_s for stats in later),
            draft_prefill_s=read.draft_prefill_s + chosen_s + sum(stats.draft_prefill_s for stats in later),
            decode_s=sum(result.stats.decode_s for result in results),
            tokens=answer.tokens,
            rounds=sum(result.stats.rounds for result in results),
            drafted=sum(result.stats.drafted for result in results),
            accepted=sum(result.stats.accepted for result in results),
        )
        return answer, measurement

    def _passages(self, question: Question, setting: Setting) -> tuple[LongContext | LongHistory | None, float]:
        """The context with the passages that a setting asks for, and the seconds of finding those.

        A setting that asks for none leaves them to the engine, which measures that by itself.
        """
        context = question.context
        if not isinstance(context, LongContext) or (setting.retrieved_tokens is None and not setting.unrelated):
            return context, 0.0
        key = _choice(setting)
        if key not in self._known.passages:
            source = replace(context, text=self._part.other) if setting.unrelated else context
            # Those of another document would hardly reach the threshold, and nobody would read them.
            threshold = ANY_SIMILARITY if setting.unrelated else None
            started = time.perf_counter()
            found = self._engine(setting).retrieve(
                question.messages, context=source, tokens=setting.retrieved_tokens, threshold=threshold
            )
            seconds = time.perf_counter() - started
            if setting.unrelated:
                # Their places are in another document.
                found = tuple(replace(chunk, start=-1, end=-1) for chunk in found)
            self._known.passages[key] = found, seconds
        passages, seconds = self._known.passages[key]
        return replace(context, chunks=passages), seconds

    def _prefill(self, request: _Request) -> Stats:
        """Both prompts, read: what that took the first who needed them."""
        engine, prefill_s = METHODS[request.setting.method].engine, 0.0
        if request.by_target:
            if engine not in self._known.target_s:
                plain = replace(request, context=request.question.context, speculation=Speculation.off())
                clock = self._engines.target_clocks[engine]
                self._known.target_s[engine] = clock.whole(self._read(plain, clock, "prefill").prefill_s)
            prefill_s = self._known.target_s[engine]
        if not request.speculation.retrieves:
            return Stats(prefill_s=prefill_s)
        key = _choice(request.setting)
        if key not in self._known.drafter:
            clock = self._engines.drafter_clocks[engine]
            if request.by_target:
                # An eta that sets itself would add what it takes to that of settings without one.
                fixed = replace(request.speculation, eta=0.0)
                found = self._read(replace(request, speculation=fixed), clock, "draft prefill")
                seconds = found.draft_prefill_s
            else:
                found = self._read(request, clock, "prefill")
                seconds = found.prefill_s
            self._known.drafter[key] = replace(found, draft_prefill_s=clock.whole(seconds))
        return replace(self._known.drafter[key], prefill_s=prefill_s)

    def _read(self, request: _Request, clock: PromptClock, stage: str) -> Stats:
        clock.begin(stage)
        return request.engine.prefill(
            request.question.messages,
            context=request.context,
            sampling=request.sampling,
            speculation=request.speculation,
            fit=self._options.fit,
            progress=clock,
        )

    def _generate(self, request: _Request, messages: Sequence[Message]) -> Result:
        return request.engine.generate(
            messages,
            context=request.context,
            sampling=request.sampling,
            speculation=request.speculation,
            fit=self._options.fit,
        )

    def _answer_alone(self, request: _Request, second: SecondCall, reasoning: str) -> Result:
        """The second call of chain of thought, by the model that answered, decoded plainly whatever the method.

        It has no document, from which drafts would come, and is short.
        """
        alone = replace(
            request,
            engine=self._engines.beside.of(METHODS[request.setting.method].engine),
            context=None,
            speculation=Speculation.off() if request.by_target else request.speculation,
            sampling=replace(request.sampling, max_new_tokens=second.max_new_tokens),
        )
        return self._generate(alone, [second.message(reasoning)])

    def _likelihoods(self, request: _Request, eta: float | None) -> tuple[float, ...]:
        """Log-likelihood of each choice; where the target alone decides it is read once.

        eta: what the answer had. One that sets itself would weigh the question again, and leave keys that
        were read in other pieces.
        """
        question, engine, speculation = request.question, METHODS[request.setting.method].engine, request.speculation
        if speculation.eta == "auto":
            speculation = replace(speculation, eta=eta or 0.0)
        if not request.by_target or speculation.transfers:
            return request.engine.log_likelihoods(
                question.messages,
                question.choices,
                context=request.context,
                speculation=speculation,
                fit=self._options.fit,
            )
        if engine not in self._known.likelihoods:
            self._known.likelihoods[engine] = request.engine.log_likelihoods(
                question.messages,
                question.choices,
                context=question.context,
                speculation=Speculation.off(),
                fit=self._options.fit,
            )
        return self._known.likelihoods[engine]

    def _engine(self, setting: Setting) -> RapidEngine:
        return self._engines.engines[METHODS[setting.method].engine]

    def _sampling(self, question: Question, setting: Setting) -> Sampling:
        temperature = self._options.temperature
        return Sampling(
            temperature=question.temperature if temperature is None else temperature,
            max_new_tokens=question.max_new_tokens,
            seed=seed_of(self._options.seed, question, setting),
        )


def seed_of(seed: int, question: Question, setting: Setting) -> int:
    """The seed of one answer: of its question and its setting alone, whatever was asked before."""
    name = json.dumps([seed, question.id, setting.as_object()], sort_keys=True)
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) >> 1


def _choice(setting: Setting) -> tuple[object, ...]:
    """What the drafter's prompt depends on, beside the question."""
    return METHODS[setting.method].engine, setting.retrieved_tokens, setting.unrelated


def _notes(results: Sequence[Result]) -> tuple[str, ...]:
    """What the engine decided by itself, each once; not what its method has asked for."""
    known = (SPECULATION_OFF, *WITHOUT_PASSAGES.values())
    return tuple(dict.fromkeys(note for result in results for note in result.stats.notes if note not in known))
