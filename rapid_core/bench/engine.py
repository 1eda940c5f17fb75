"""`RapidEngine` with a stopwatch inside, and simulated verdicts where weights are random."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import torch

from rapid_core.bench.machine import now
from rapid_core.bench.records import Answer
from rapid_core.config import Sampling, Speculation
from rapid_core.datatypes import Delta, LongContext, Proposal, Result, Verdict
from rapid_core.decoder import Decoder
from rapid_core.engine import RapidEngine

FORWARD_REPEATS = 7


class SimulatedDecoder(Decoder):
    """A decoder whose verdict is drawn at random: each draft stands with the given probability.

    Drafting and verification do all their work; only what they decide is replaced.
    """

    def __init__(self, *arguments: Any, acceptance: float, verdicts: random.Random, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._acceptance = acceptance
        self._verdicts = verdicts

    def _verify(self, proposal: Proposal) -> Verdict:
        real = super()._verify(proposal)
        accepted = 0
        while accepted < len(proposal.ids) and self._verdicts.random() < self._acceptance:
            accepted += 1
        return Verdict(accepted, real.next_id)


class MeasuredEngine(RapidEngine):
    """An engine whose answers all have the same length, and whose forwards can be timed."""

    def prepare(self, simulated_acceptance: float | None) -> None:
        """Let no answer end before its limit; draw verdicts at a given rate where one is given.

        What is to be compiled is compiled here, and not in what is measured first.
        """
        for runner in (self._target, self._drafter):
            runner.compile_steps()
        for model in (self.target.model, self.drafter.model):
            model.generation_config.eos_token_id = -1
        if simulated_acceptance is not None:
            self._answerer.new_decoder = partial(
                SimulatedDecoder, acceptance=simulated_acceptance, verdicts=random.Random(0)
            )

    def forget(self) -> None:
        """Give the caches of all documents back: what comes next is cold, and its memory its own."""
        self._target.clear()
        self._drafter.clear()

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Where the target and the drafter run."""
        return self._target.device, self._drafter.device

    def answer(
        self, question: str, context: LongContext, speculation: Speculation, max_new_tokens: int
    ) -> tuple[Answer, Result]:
        """One greedy answer, with the time of its first token as the engine sees it.

        The engine's own clock and not that of the deltas: a detokenizer may hold tokens back.
        """
        started = now(*self.devices)
        deltas: list[Delta] = list(
            self.stream(
                question, context=context, sampling=Sampling(max_new_tokens=max_new_tokens), speculation=speculation
            )
        )
        total_s = now(*self.devices) - started
        result = Result.of(deltas)
        events = [event for delta in deltas for event in delta.events]
        stats = result.stats
        answer = Answer(
            ids=result.token_ids,
            first_burst=sum(event.round == events[0].round for event in events),
            first_token_s=stats.time_to_first_token_s,
            total_s=total_s,
            rounds=stats.rounds,
            drafted=stats.drafted if speculation.enabled else None,
            accepted=stats.accepted if speculation.enabled else None,
            transferred=stats.transferred,
            notes=stats.notes,
        )
        return answer, result

    def other_share(self, question: str, context: LongContext, speculation: Speculation, max_new_tokens: int) -> float:
        """The part of decoding that passes outside the two models, in a run of its own.

        Devices are waited for around every forward, so that a queue does not hide its work.
        """
        with self._model_spans() as spans:
            _, result = self.answer(question, context, speculation, max_new_tokens)
            ended = now(*self.devices)
        decode_s = result.stats.decode_s
        inside = sum(end - start for start, end in spans if start >= ended - decode_s)
        return max(0.0, 1 - inside / decode_s)

    def forward_seconds(self, counts: Sequence[int]) -> dict[int, float]:
        """Seconds of one target forward over so many tokens behind the last request; interleaved medians."""
        runner = self._target
        ids = torch.tensor(runner.sequence[-max(counts) :], device=runner.device)
        times: dict[int, list[float]] = {count: [] for count in counts}
        # The first of each is a warm-up.
        for _ in range(FORWARD_REPEATS + 1):
            for count in counts:
                started = now(runner.device)
                runner.forward(ids[:count], count)
                times[count].append(now(runner.device) - started)
                runner.commit(())
        return {count: median(values[1:]) for count, values in times.items()}

    @contextmanager
    def _model_spans(self) -> Iterator[list[tuple[float, float]]]:
        """Start and end of every forward of either model inside the block."""
        spans: list[tuple[float, float]] = []

        def timed(run: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
            def timed_run(*arguments: Any) -> torch.Tensor:
                started = now(*self.devices)
                logits = run(*arguments)
                spans.append((started, now(*self.devices)))
                return logits

            return timed_run

        runners = (self._target, self._drafter)
        for runner in runners:
            runner._run = timed(runner._run)  # type: ignore[method-assign]
        try:
            yield spans
        finally:
            for runner in runners:
                del runner._run
