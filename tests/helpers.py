"""What several test files do with an engine."""

from __future__ import annotations

import asyncio

from rapid_core import RapidEngine, Retrieval, Sampling, Speculation
from rapid_core.testing import WordEncoder, tiny_foreign_pair

TINY = Retrieval(chunk_tokens=64, threshold=0.0, floor_tokens=128)
RANDOM = {"temperature": 1.0, "max_new_tokens": 24}
# Some words are tokens of both, some of one; the ids of everything differ.
TARGET_WORDS = ("The king", " of Peru", " is number", "☃ in 東京", "}")
DRAFTER_WORDS = (" the king", " of Spain", " is number", " lives in", "Oslo")


def ask(engine, document, question="Who lives in Lima?", speculation=None, **options):
    return engine.generate(
        question,
        context=document,
        sampling=Sampling(**{"max_new_tokens": 40, **options}),
        speculation=speculation or Speculation(),
    )


def count_forwards(engine):
    calls = [0]

    def count(*_):
        calls[0] += 1

    engine.target.model.register_forward_hook(count)
    return calls


async def ticks_while(work):
    """What `work` gives, and how often the event loop was free for another task meanwhile."""
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.01)

    ticker = asyncio.create_task(tick())
    try:
        return await work, ticks
    finally:
        ticker.cancel()


def foreign_engine(target_words=TARGET_WORDS, drafter_words=DRAFTER_WORDS, **options):
    """An engine whose drafter has another vocabulary."""
    target, drafter = tiny_foreign_pair(target_words=target_words, drafter_words=drafter_words, **options)
    return RapidEngine(target, drafter, retrieval=TINY, encoder=WordEncoder())
