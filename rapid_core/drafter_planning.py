"""What the drafter reads: passages of the document, and passages of the messages where these are a history."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, takewhile

from rapid_core.config import Retrieval
from rapid_core.context import Task
from rapid_core.datatypes import Chunk
from rapid_core.errors import PromptTooLongError
from rapid_core.history import LONG_HISTORY_TOKENS, History, ranked_by
from rapid_core.plan import OnProgress, Plan
from rapid_core.prompts import ChatPrompter
from rapid_core.retrieval import (
    SEPARATOR,
    Searcher,
    above,
    budget_tokens,
    chunk_size,
    falls_off,
    fill,
    in_document_order,
    join,
    least_tokens,
)


@dataclass(frozen=True, slots=True)
class _Found:
    """What a search gave: all passages and their ranking, of which the first `near` are good enough.

    tokens: of all that was searched, which the budget depends on. standing_out: how many
    passages stand out by their similarity, where budget="auto" asks; similar: how many reach the threshold.
    """

    passages: Sequence[Chunk]
    ranked: Sequence[int]
    near: int
    tokens: int
    standing_out: int = 0
    similar: int = 0

    def why_nothing(self, retrieval: Retrieval) -> str:
        """None of the passages is near, or those that are do not fit."""
        if self.near:
            return "no passage fits the drafter's budget"
        best = f"; the best one has {self.passages[self.ranked[0]].score:.2f}" if self.ranked else ""
        return f"no passage is as similar to the question as {retrieval.threshold:g}{best}"

    def why_so_long(self, chosen: Sequence[Chunk], tokens: int, most: int) -> str:
        """How many passages were chosen, `tokens` of at most `most` tokens, and what ended the choice."""
        ended = "do not fall off before"
        if self.near == self.similar < self.standing_out:
            ended = "of the others do not reach the threshold"
        elif self.standing_out < self.near:
            ended = "fall off before, and no less is read"
        elif self.standing_out == self.near <= len(chosen) < len(self.ranked):
            last, following = (self.passages[self.ranked[place]].score for place in (self.near - 1, self.near))
            ended = f"fall from {last:.2f} to {following:.2f} behind them"
        count = f"{len(chosen)} of {len(self.passages)} passages, {tokens:,} of at most {most:,} tokens"
        return f"{count}; the similarities {ended}"


_NOTHING = _Found((), (), 0, 0)


class DrafterPlanner:
    """Builds the drafter's prompt of requests with a document, a long history, or both.

    prompter: the drafter's; what it reads counts in its own tokens. counts_alike: whether they are
    the target's. window: the target's, in tokens of the target; drafter_window: in the drafter's.
    """

    def __init__(
        self,
        prompter: ChatPrompter,
        retrieval: Retrieval,
        searcher: Searcher,
        *,
        counts_alike: bool,
        window: int,
        drafter_window: int,
    ) -> None:
        self._prompter = prompter
        self._counts_alike = counts_alike
        self._retrieval = retrieval
        self._searcher = searcher
        self._window = window
        self._drafter_window = drafter_window

    def plan(self, plan: Plan, reserve: int, on_progress: OnProgress) -> bool:
        """Complete `plan` with the drafter's prompt or the reason for none; False where nothing can be left out.

        Passages of the document and of the history share the window, and either of them makes a
        prompt. Raises `PromptTooLongError` where the chunks of the caller do not fit.
        """
        task = plan.task
        history = self._history(task)
        if task.context is None and history is None:
            return False
        plan.bare = tuple(task.with_context("") if history is None else history.read((), ""))
        given = self._given(plan, history, reserve)
        self._note_again(plan, searched=given is None or history is not None, given=given is not None)
        document = self._search_document(plan, on_progress) if given is None else _NOTHING
        older = self._search_history(task, history, on_progress) if history is not None else _NOTHING
        plan.history_tokens = older.tokens
        # Chunks of the caller are read whatever they take.
        taken = reserve + len(self._encode(task, history, self._text(task, given or ()) or " "))
        for_document, room = self._budgets(plan, document, older, self._drafter_window - taken)
        chosen = given
        if chosen is None:
            near = [document.passages[index] for index in document.ranked[: document.near]]
            chosen = tuple(in_document_order(fill(near, for_document, self._prompter.count_tokens)))
            room -= self._tokens(chosen)
        found: list[int] = []
        for_history = min(room, budget_tokens(older.tokens, self._retrieval))
        if history is not None:
            found = history.choose(older.ranked, older.near, for_history)
        text = self._text(task, chosen)
        ids = self._encode(task, history, text, found)
        # What the template puts around each message was not counted.
        while found and len(ids) + reserve > self._drafter_window:
            found.pop()
            ids = self._encode(task, history, text, found)
        remembered = tuple(older.passages[index] for index in sorted(found))
        plan.retrieved = (*chosen, *remembered)
        if given is None:
            self._note_length(plan, "the document", document, chosen, for_document)
        if history is not None:
            self._note_length(plan, "the older messages", older, remembered, for_history)
        missing = {}
        if task.context is not None and not chosen:
            brought = bool(task.context.chunks)
            empty = (
                "no passage fits the drafter's budget" if brought else "the context came with an empty list of chunks"
            )
            missing["the document"] = document.why_nothing(self._retrieval) if given is None else empty
        if history is not None and not found:
            left_out = history.rank is not None and not older.ranked
            why = "LongHistory.rank left out every passage" if left_out else older.why_nothing(self._retrieval)
            missing["the older messages"] = why
        self._finish(plan, ids, missing)
        return True

    def _given(self, plan: Plan, history: History | None, reserve: int) -> tuple[Chunk, ...] | None:
        """The chunks of the caller; of ranked ones those that the window holds, in their order."""
        context = plan.task.context
        chunks = context.chunks if context is not None else None
        if not chunks or context is None or context.ranking is None:
            return chunks
        room = self._drafter_window - reserve - len(self._encode(plan.task, history, " "))
        sizes = [self._prompter.count_tokens(chunk.text + context.separator) for chunk in chunks]
        kept: set[int] = set()
        for index in context.ranking:
            if sizes[index] <= room:
                kept.add(index)
                room -= sizes[index]
        if left := len(chunks) - len(kept):
            window = f"the drafter's window of {self._drafter_window:,} tokens"
            plan.notes.append(f"{window} has no room for {left} of {len(chunks)} chunks, the worst-ranked ones")
        return tuple(chunk for index, chunk in enumerate(chunks) if index in kept)

    def _history(self, task: Task) -> History | None:
        """The history in passages; None where there is none, or where nothing is older than the newest units."""
        if task.history is None:
            return None
        # Cut alike in every turn, however long the history: what was embedded once stays as it is.
        size = chunk_size(min(LONG_HISTORY_TOKENS, self._window), self._retrieval)
        cut = partial(self._searcher.cut, chunk_tokens=size, to_embed=task.history.rank is None)
        history = History(task, task.history, size, cut, self._prompter.count_tokens)
        return history if history.passages else None

    def _search_document(self, plan: Plan, on_progress: OnProgress) -> _Found:
        if plan.task.context is None:
            return _NOTHING
        ranked = rank_document(plan.task, self._searcher, on_progress)
        # In the drafter's own tokens, as its passages are: another vocabulary may take many more for one text.
        tokens = plan.document_tokens if self._counts_alike else self._prompter.count_tokens(plan.task.context.text)
        return self._found(ranked, range(len(ranked)), tokens)

    def _search_history(self, task: Task, history: History, on_progress: OnProgress) -> _Found:
        texts = [passage.text for passage in history.passages]
        tokens = sum(map(self._prompter.count_tokens, texts))
        if history.rank is not None:
            ranked = ranked_by(history.rank, task.searched(history.query), texts)
            return _Found([Chunk(text) for text in texts], ranked, len(ranked), tokens)
        query = task.searched(history.query)
        scores = self._searcher.scores(texts, query, lambda done, total: on_progress("index", done, total))
        passages = [Chunk(text, score=float(score)) for text, score in zip(texts, scores, strict=True)]
        # Of equals the newest first.
        ranked = sorted(range(len(texts)), key=lambda index: (-passages[index].score, -index))
        return self._found(passages, ranked, tokens)

    def _found(self, passages: Sequence[Chunk], ranked: Sequence[int], tokens: int) -> _Found:
        """Passages that were searched, cut where their similarities are too low or, with budget="auto", fall off."""
        best = [passages[index] for index in ranked]
        near = len(above(best, self._retrieval.threshold))
        if self._retrieval.budget != "auto" or near == 0:
            return _Found(passages, ranked, near, tokens)
        # The smaller of the paper's two lengths is read in any case, and the best passage.
        lengths = accumulate(self._prompter.count_tokens(chunk.text + SEPARATOR) for chunk in best)
        least = sum(1 for _ in takewhile(lambda length: length <= least_tokens(tokens, self._retrieval), lengths))
        standing_out = falls_off([chunk.score for chunk in best])
        return _Found(passages, ranked, min(near, max(least, standing_out)), tokens, standing_out, near)

    def _budgets(self, plan: Plan, document: _Found, older: _Found, room: int) -> tuple[int, int]:
        """Tokens for passages of the document, and for all passages; a room that is too small is shared out."""
        for_document, for_history = (budget_tokens(found.tokens, self._retrieval) for found in (document, older))
        both = for_document + for_history
        if both <= room:
            return for_document, both
        room = max(room, 0)
        if both:
            plan.notes.append(f"the drafter's window of {self._drafter_window:,} tokens shrank its budget to {room:,}")
        return room * for_document // max(both, 1), room

    def _note_length(self, plan: Plan, what: str, found: _Found, chosen: Sequence[Chunk], most: int) -> None:
        if self._retrieval.budget != "auto" or not chosen:
            return
        if math.isnan(chosen[0].score):
            plan.notes.append(
                f"budget='auto' needs similarities, and LongHistory.rank gives none: {what} have the paper's length"
            )
            return
        why = found.why_so_long(chosen, self._tokens(chosen), most)
        plan.notes.append(f"budget='auto' for {what}: {why}")

    def _note_again(self, plan: Plan, *, searched: bool, given: bool) -> None:
        """Write down whether passages can be searched for again."""
        plan.retrievals += searched
        if searched:
            plan.again_tokens = self._retrieval.again_tokens
        if given and self._retrieval.again_tokens:
            plan.notes.append("the document is not searched again: its chunks were given, and are used as they are")
        if given and self._retrieval.budget == "auto":
            plan.notes.append("budget='auto' is not for chunks that were given: they are used as they are")

    def _tokens(self, chunks: Sequence[Chunk]) -> int:
        return sum(self._prompter.count_tokens(chunk.text + SEPARATOR) for chunk in chunks)

    def _text(self, task: Task, chunks: Sequence[Chunk]) -> str:
        return join(chunks, task.context.separator) if task.context is not None else ""

    def _encode(self, task: Task, history: History | None, text: str, found: Sequence[int] = ()) -> tuple[int, ...]:
        messages = task.with_context(text) if history is None else history.read(found, text)
        return self._prompter.encode(messages, task.tools)

    def _finish(self, plan: Plan, ids: tuple[int, ...], missing: Mapping[str, str]) -> None:
        """Take `ids` as the drafter's prompt, if it has a passage; missing: what has none in it, and why."""
        if not plan.retrieved:
            reasons = [why if len(missing) == 1 else f"of {what}, {why}" for what, why in missing.items()]
            plan.no_drafter = "; ".join(reasons)
            return
        plan.notes += [f"the drafter reads nothing of {what}: {why}" for what, why in missing.items()]
        if len(ids) >= self._drafter_window:
            raise PromptTooLongError(
                f"the drafter's prompt must be shorter than its window of {self._drafter_window:,} tokens, and with "
                f"the given chunks it has {len(ids):,}; pass fewer chunks",
                prompt_tokens=len(ids),
                window=self._drafter_window,
            )
        plan.prompts = replace(plan.prompts, drafter_ids=ids)


def rank_document(task: Task, searcher: Searcher, on_progress: OnProgress) -> list[Chunk]:
    """The document's chunks, best first; the caller's own as they are ranked, or else in their order."""
    assert task.context is not None
    chunks, ranking = task.context.chunks, task.context.ranking
    if chunks is not None and ranking is not None:
        chunks = tuple(chunks[index] for index in ranking)
    if chunks is not None and task.context.documents:
        # Passages of documents that were left out are the drafter's alone.
        places = [(chunk, task.context.text.find(chunk.text)) for chunk in chunks]
        found = tuple(replace(chunk, start=at, end=at + len(chunk.text)) for chunk, at in places if at >= 0)
        chunks = found or None
    if chunks is not None:
        return list(chunks)
    query = task.searched(task.query)
    return searcher.rank(task.context.text, query, lambda done, total: on_progress("index", done, total))
