"""Tests of event loops: a free loop, many calls at once, cancelled tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from itertools import pairwise
from time import perf_counter
from typing import Any

import pytest
from llama_index.core.llms import LLM

from rapid_integrations.llama_index.testing.asking import (
    ASYNC,
    STREAMED,
    aread,
    argument,
    awithin,
    read,
    text_of,
    user,
    within,
)
from rapid_integrations.llama_index.testing.properties import SuiteProperties


class LoopTests(SuiteProperties):
    """The async methods share an event loop with other tasks."""

    @pytest.mark.asyncio
    async def test_event_loop_stays_free(self, llm: LLM) -> None:
        """Other tasks run while the model works."""
        self.needs("slow_prompt")
        for method in ASYNC:
            pauses = []
            # A busy machine pauses, too; a model that blocks does it each time.
            for _ in range(3):
                seconds, pause = await _longest_pause(aread(llm, method, self.slow_prompt or ""))
                assert seconds >= 0.1, f"slow_prompt must keep the model busy for 0.1 s, got {seconds:.3f} s"
                pauses.append(pause / seconds)
                if pauses[-1] <= 0.5:
                    break
            else:
                shares = ", ".join(f"{share:.0%}" for share in pauses)
                raise AssertionError(f"{method} must leave the event loop free, and held it for {shares} of its time")

    @pytest.mark.asyncio
    async def test_ten_calls_at_once(self, llm: LLM) -> None:
        """Calls at the same time have the answers that they have one by one."""
        prompts = [f"{self.prompt} It is the {number}th day." for number in range(1, 11)]
        together = await asyncio.gather(*(llm.achat([user(prompt)]) for prompt in prompts))
        assert all(text_of(answer).strip() for answer in together), "ten achat at once must all answer"
        self.needs("is_deterministic")
        for prompt, answer in zip(prompts, together, strict=True):
            alone = text_of(await llm.achat([user(prompt)]))
            assert text_of(answer) == alone, f"of ten achat at once one must give {alone!r}, got {text_of(answer)!r}"

    @pytest.mark.asyncio
    async def test_cancelled_task_leaves_the_model_usable(self, llm: LLM) -> None:
        """A cancelled task ends as cancelled, and the next call is answered."""
        expected = text_of(await llm.achat([user(self.prompt)]))
        for method in ASYNC:
            task = asyncio.create_task(aread(llm, method, self.slow_prompt or self.prompt))
            await asyncio.sleep(0.02)
            running = task.cancel()
            await asyncio.wait({task}, timeout=self.patience)
            if running:
                assert task.cancelled(), f"a cancelled task of {method} must end as cancelled, got {task}"
            await self._answers(llm, expected, f"achat must answer after a cancelled {method}")

    @pytest.mark.asyncio
    async def test_abandoned_async_stream_leaves_the_model_usable(self, llm: LLM) -> None:
        """An async stream that is closed after its first item holds nothing back."""
        expected = text_of(await llm.achat([user(self.prompt)]))
        for method in (f"a{name}" for name in STREAMED):
            stream = await getattr(llm, method)(argument(method, self.prompt))
            await anext(stream)
            await stream.aclose()
            await self._answers(llm, expected, f"achat must answer after an {method} that was closed")

    async def _answers(self, llm: LLM, expected: str, rule: str) -> None:
        text = text_of(await awithin(self.patience, rule, llm.achat([user(self.prompt)])))
        if self.is_deterministic:
            assert text == expected, f"{rule} as before, {expected!r}, got {text!r}"

    def test_model_outlives_an_event_loop(self, llm: LLM) -> None:
        """One model answers without a loop, and in one loop after the other."""
        rule = "a model must answer in one event loop after the other"
        texts = [text_of(read(llm, "chat", self.prompt)[-1])]
        for _ in range(2):
            # In a thread: asyncio.run would take the loop away that pytest-asyncio keeps for this one.
            items = within(self.patience, rule, lambda: asyncio.run(aread(llm, "achat", self.prompt)))
            texts.append(text_of(items[-1]))
        texts.append(text_of(read(llm, "chat", self.prompt)[-1]))
        if self.is_deterministic:
            assert len(set(texts)) == 1, f"{rule} as without one, got the answers {texts}"


async def _longest_pause(work: Coroutine[Any, Any, Any]) -> tuple[float, float]:
    """Seconds that the work takes, and the longest time in it that another task waited for its turn."""
    beats: list[float] = []

    async def beat() -> None:
        while True:
            beats.append(perf_counter())
            await asyncio.sleep(0.005)

    ticker = asyncio.create_task(beat())
    await asyncio.sleep(0)
    begin = perf_counter()
    try:
        await work
    finally:
        ticker.cancel()
    times = [begin, *(time for time in beats if time > begin), perf_counter()]
    return times[-1] - begin, max(after - before for before, after in pairwise(times))
