"""What each role reads of a long history."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from rapid_core.config import Retrieval
from rapid_core.datatypes import Chunk, PromptPair
from rapid_core.errors import PromptTooLongError
from rapid_core.history import LONG_HISTORY_TOKENS, History, HistoryTask, ranked_by
from rapid_core.plan import OnProgress, Plan
from rapid_core.prompts import ChatPrompter
from rapid_core.retrieval import Searcher, above, chunk_size


class HistoryPlanner:
    """Builds the two prompts of requests whose messages are long all together.

    window, drafter_window: tokens.
    """

    def __init__(
        self,
        prompter: ChatPrompter,
        retrieval: Retrieval,
        searcher: Searcher,
        *,
        window: int,
        drafter_window: int,
    ) -> None:
        self._prompter = prompter
        self._retrieval = retrieval
        self._searcher = searcher
        self._window = window
        self._drafter_window = drafter_window

    def plan_target(self, task: HistoryTask) -> Plan:
        """All messages; raises `PromptTooLongError` where they do not fit."""
        ids = self._prompter.encode(task.messages, task.tools)
        if len(ids) < self._window:
            return Plan(task, PromptPair(ids, None))
        raise PromptTooLongError(
            f"a prompt must be shorter than the target's window of {self._window:,} tokens, and this history makes one "
            f"of {len(ids):,}; summarise or drop older messages (fit is about documents, and cuts no history), or use "
            "a model with a longer window",
            prompt_tokens=len(ids),
            window=self._window,
        )

    def cut(self, task: HistoryTask) -> History:
        """The history in passages, of which there are none where nothing is older than the newest units."""
        # Cut alike in every turn, however long the history: what was embedded once stays as it is.
        size = chunk_size(min(LONG_HISTORY_TOKENS, self._window), self._retrieval)
        cut = partial(self._searcher.cut, chunk_tokens=size, to_embed=task.history.rank is None)
        return History(task, size, cut, self._prompter.count_tokens)

    def plan_drafter(
        self, task: HistoryTask, history: History, plan: Plan, reserve: int, on_progress: OnProgress
    ) -> None:
        """Choose the drafter's passages, and complete `plan` with its prompt or the reason for none."""
        texts = [passage.text for passage in history.passages]
        plan.context_tokens = sum(map(self._prompter.count_tokens, texts))
        taken = reserve + len(self._prompter.encode(history.read(()), task.tools))
        budget = plan.drafter_budget(self._retrieval, self._drafter_window, taken)
        if task.history.rank is not None:
            passages = [Chunk(text) for text in texts]
            ranked = ranked_by(task.history.rank, task.query, texts)
            near = len(ranked)
        else:
            scores = self._searcher.scores(texts, task.query, lambda done, total: on_progress("index", done, total))
            passages = [Chunk(text, score=float(score)) for text, score in zip(texts, scores, strict=True)]
            # Of equals the newest first.
            ranked = sorted(range(len(texts)), key=lambda index: (-passages[index].score, -index))
            near = len(above((passages[index] for index in ranked), self._retrieval.threshold))
        chosen = history.choose(ranked, near, budget)
        ids = self._prompter.encode(history.read(chosen), task.tools)
        # What the template puts around each message was not counted.
        while chosen and len(ids) + reserve > self._drafter_window:
            chosen.pop()
            ids = self._prompter.encode(history.read(chosen), task.tools)
        plan.retrieved = tuple(passages[index] for index in sorted(chosen))
        if chosen:
            plan.prompts = replace(plan.prompts, drafter_ids=ids)
        elif task.history.rank is not None and not ranked:
            plan.notes.append("no drafter: LongHistory.rank left out every passage")
        else:
            plan.note_nothing_found(self._retrieval, [passages[index] for index in ranked], near)
