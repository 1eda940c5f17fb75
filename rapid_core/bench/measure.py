"""The benchmark itself: every method on every prompt, interleaved, in one process."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rapid_core.bench.baselines import Baselines
from rapid_core.bench.engine import MeasuredEngine
from rapid_core.bench.machine import bandwidth, device_name, peak_memory
from rapid_core.bench.options import LEAST_NEW_TOKENS, METHODS, RAPID_METHODS, TRANSFORMERS_METHODS, BenchOptions
from rapid_core.bench.prompts import Question, cut, questions
from rapid_core.bench.random_weights import random_model
from rapid_core.bench.records import FirstToken, LengthFigures, Memory, Run
from rapid_core.bench.sizes import cache_bytes, read_bytes, weight_bytes
from rapid_core.config import Retrieval, Speculation
from rapid_core.datatypes import Chunk, LongContext, Result
from rapid_core.documents import ReadDocument
from rapid_core.errors import InputError, PromptTooLongError
from rapid_core.retrieval import budget_tokens

# Tokens of one forward by which the cost of a longer one is judged.
FORWARDS = (1, 8)

OnStep = Callable[[str], None]


def load(options: BenchOptions) -> MeasuredEngine:
    """The engine to measure, with everything loaded that an answer needs."""
    if options.random_weights is not None:
        target = random_model(options.random_weights, device=options.device, dtype=options.dtype)
        drafter = None
        if options.drafter is not None:
            drafter = random_model(
                options.drafter,
                device=options.drafter_device or options.device,
                dtype=options.drafter_dtype or options.dtype,
            )
        engine = MeasuredEngine(target, drafter, compile=options.compile)
    else:
        engine = MeasuredEngine.load(**options.to_load(), retrieval=options.retrieval(), compile=options.compile)
        if set(options.measured) & set(RAPID_METHODS):
            engine.warm_up()
    engine.prepare(options.simulated_acceptance)
    return engine


class Bench:
    """Measures, and keeps what it has measured when it is interrupted.

    runs: one for each answer. figures: by length. complete: whether all was measured.
    """

    def __init__(self, options: BenchOptions, engine: MeasuredEngine, document: ReadDocument) -> None:
        self.options = options
        self.runs: list[Run] = []
        self.figures: dict[int, LengthFigures] = {}
        self.complete = False
        self._engine = engine
        self._document = document
        self._baselines = Baselines(engine.target, engine.drafter)
        target, drafter = engine.target.model, engine.drafter.model
        self.device: torch.device = engine.devices[0]
        self.device_name = device_name(self.device)
        self.dtype = str(target.dtype).removeprefix("torch.")
        self.read_bytes = read_bytes(target)
        self.cache_bytes, self._drafter_cache_bytes = cache_bytes(target), cache_bytes(drafter)
        self._weights = weight_bytes(target) + (0 if drafter is target else weight_bytes(drafter))
        self.bandwidth = bandwidth(self.device)
        self._ours = [method for method in options.measured if method not in TRANSFORMERS_METHODS]
        self._rapid = [method for method in options.measured if method in RAPID_METHODS]

    def measure(self, on_step: OnStep) -> None:
        """Measure all lengths, shortest first; Ctrl-C ends it with what was measured so far.

        Raises `InputError` before any of it where the document is too short, or a prompt and
        its answer do not fit the target's window.
        """
        contexts = {length: self._context(length) for length in sorted(self.options.lengths)}
        prompts = {length: self._prompts(context) for length, context in contexts.items()}
        try:
            for length, context in contexts.items():
                self._measure_length(length, context, prompts[length], on_step)
            self.complete = True
        except KeyboardInterrupt:
            on_step("stopped")

    def _context(self, length: int) -> LongContext:
        tokenizer = self._engine.target.tokenizer
        text = cut(self._document.text, length, tokenizer)
        if not self.options.simulated:
            return LongContext(text)
        # Nothing can be found by random weights: the drafter reads as much as retrieval would give it.
        passage = cut(self._document.text, max(1, budget_tokens(length, Retrieval())), tokenizer)
        return LongContext(text, chunks=(Chunk(passage),))

    def _prompts(self, context: LongContext) -> dict[Question, tuple[int, ...]]:
        """The questions about a document, each with its prompt for the target."""
        asked = questions(context.text, self.options.kinds, self.options.prompts)
        measured = [question for question in asked if question.number < self.options.prompts]
        return {question: self._prompt(question, context) for question in measured}

    def _prompt(self, question: Question, context: LongContext) -> tuple[int, ...]:
        try:
            ids = self._engine.prompts(question.text, context=context, speculation=Speculation.off()).target_ids
            tokens = len(ids)
        except PromptTooLongError as error:
            tokens = error.prompt_tokens
        needed = tokens + self.options.max_new_tokens + max(FORWARDS)
        if needed > self._engine.window:
            raise InputError(
                f"a prompt and its answer must fit the target's window of {self._engine.window:,} tokens, and they "
                f"take {needed:,}; name shorter lengths (CLI: --lengths) or fewer max_new_tokens"
            )
        return ids

    def _measure_length(
        self, length: int, context: LongContext, prompts: dict[Question, tuple[int, ...]], on_step: OnStep
    ) -> None:
        figures = self.figures.setdefault(length, LengthFigures(prompt_tokens=len(next(iter(prompts.values())))))
        first = next(iter(prompts))
        self._baselines.clear()
        self._engine.forget()
        if self._ours:
            on_step(f"{length:,} tokens: the first token, ours")
            # Another passage than any of the measured questions is about.
            second = questions(context.text, ("explaining",), self.options.prompts)[-1]
            self._measure_cold(figures, first, second, context)
            figures.forward_s = self._engine.forward_seconds(FORWARDS)
        if "generate" in self.options.measured:
            on_step(f"{length:,} tokens: the first token, transformers")
            self._measure_cold_generate(figures, prompts[first])
        for question, ids in prompts.items():
            for repeat in range(self.options.repeats):
                for method in self._order(repeat + question.number):
                    on_step(
                        f"{length:,} tokens, {question.kind} {question.number + 1}, repeat {repeat + 1} of "
                        f"{self.options.repeats}: {METHODS[method]}"
                    )
                    self._run(length, question, context, ids, repeat, method)
        for method in self._rapid:
            on_step(f"{length:,} tokens: time outside the models, {METHODS[method]}")
            figures.other_share[method] = self._engine.other_share(
                first.text, context, self.options.speculation(method), self.options.max_new_tokens
            )

    def _order(self, turn: int) -> tuple[str, ...]:
        """The methods, another one first each time, so that a slow minute hits all alike."""
        methods = self.options.measured
        start = turn % len(methods)
        return methods[start:] + methods[:start]

    def _run(
        self,
        length: int,
        question: Question,
        context: LongContext,
        ids: tuple[int, ...],
        repeat: int,
        method: str,
    ) -> None:
        limit = self.options.max_new_tokens
        if method in TRANSFORMERS_METHODS:
            answer = self._baselines.answer(method, ids, limit)
        else:
            answer, _ = self._engine.answer(question.text, context, self.options.speculation(method), limit)
        self.runs.append(
            Run(
                length=length,
                kind=question.kind,
                prompt=question.number,
                repeat=repeat,
                method=method,
                prompt_tokens=len(ids),
                answer=answer,
            )
        )

    def _measure_cold(self, figures: LengthFigures, first: Question, second: Question, context: LongContext) -> None:
        """Our first token with nothing cached, and that of another question about the same document."""
        speculation = self.options.speculation((self._rapid or self._ours)[0])
        with peak_memory(*self._engine.devices) as peak:
            _, result = self._engine.answer(first.text, context, speculation, LEAST_NEW_TOKENS)
        figures.cold = _first_token(result)
        tokens = result.usage.total_tokens * self.cache_bytes
        if result.stats.drafter_prompt_tokens:
            drafter_tokens = result.stats.drafter_prompt_tokens + result.usage.completion_tokens
            tokens += drafter_tokens * self._drafter_cache_bytes
        figures.memory = Memory(self._weights, tokens, peak.bytes - tokens)
        _, result = self._engine.answer(second.text, context, speculation, LEAST_NEW_TOKENS)
        figures.warm = _first_token(result)

    def _measure_cold_generate(self, figures: LengthFigures, ids: tuple[int, ...]) -> None:
        with peak_memory(self.device) as peak:
            prefill_s = self._baselines.read(ids)
            answer = self._baselines.answer("generate", ids, LEAST_NEW_TOKENS)
        figures.cold_generate = FirstToken(prefill_s + answer.first_token_s, prefill_s=prefill_s)
        caches = (len(ids) + len(answer.ids)) * self.cache_bytes
        figures.memory_generate = Memory(weight_bytes(self._engine.target.model), caches, peak.bytes - caches)


def _first_token(result: Result) -> FirstToken:
    stats = result.stats
    return FirstToken(
        stats.time_to_first_token_s,
        stats.retrieval_s,
        stats.prefill_s,
        stats.draft_prefill_s,
        result.usage.cached_tokens,
    )
