"""What each role reads: the documents fitted to the target's window, the passages for the drafter."""

from __future__ import annotations

import time
from dataclasses import replace

from rapid_core.config import Fit, Retrieval, Speculation
from rapid_core.context import Task
from rapid_core.datatypes import Chunk, PromptPair
from rapid_core.drafter_planning import DrafterPlanner, rank_document
from rapid_core.errors import PromptTooLongError
from rapid_core.plan import OnProgress, Plan
from rapid_core.prompts import ChatPrompter
from rapid_core.retrieval import Encoder, Searcher, drift, fill, in_document_order, join
from rapid_core.several_documents import joined, name_of, whole_that_fit

# A prompt leaves the answer its max_new_tokens, but a window is never reserved for more than this part.
LARGEST_RESERVE = 4

SPECULATION_OFF = "plain decoding: speculation is off"
WITHOUT_PASSAGES = {
    "lookup": "no drafter model: drafts are looked up in the prompt and the answer",
    "streaming": "the target drafts for itself with the keys of its first and its last tokens",
}


class Planner:
    """Builds the two prompts of a request. One request at a time; the index outlives it.

    prompter, drafter_prompter: each model's own. window, drafter_window: tokens of each.
    `encoder` of None is loaded by name when first needed.
    """

    def __init__(
        self,
        prompter: ChatPrompter,
        drafter_prompter: ChatPrompter,
        retrieval: Retrieval,
        *,
        window: int,
        drafter_window: int,
        encoder: Encoder | None = None,
        encoder_device: str = "cpu",
    ) -> None:
        self._prompter, self._drafter_prompter = prompter, drafter_prompter
        self._retrieval = retrieval
        self._window = window
        self._drafter_window = drafter_window
        self.searcher = Searcher(retrieval, prompter.count_tokens, window, encoder, encoder_device)
        self._drafter_planner = self._planner_of(retrieval)

    def plan_target(self, task: Task, *, fit: Fit, reserve: int, on_progress: OnProgress) -> Plan:
        """Fit the documents to the target; the drafter has no prompt yet.

        reserve: tokens that the answer may take. Raises `PromptTooLongError` where the prompt
        does not fit and `fit` does not say how.
        """
        started = time.perf_counter()
        reserve = min(reserve, self._window // LARGEST_RESERVE)
        if task.context is None and task.history is not None:
            plan = self._plan_target_of_history(task)
        elif task.context is not None and task.context.documents:
            plan = self._plan_target_of_several(task, fit, reserve, on_progress)
        else:
            plan = self._plan_target(task, fit, reserve, on_progress)
        plan.retrieval_s = time.perf_counter() - started
        return plan

    def plan_drafter(
        self,
        plan: Plan,
        *,
        reserve: int,
        speculation: Speculation,
        drafts_without_context: bool,
        on_progress: OnProgress,
    ) -> None:
        """Choose the drafter's passages, and complete `plan` with its prompt or the reason for none.

        Raises `PromptTooLongError` where the chunks of the caller do not fit.
        """
        if not speculation.retrieves:
            plan.notes.append(WITHOUT_PASSAGES[speculation.drafter] if speculation.enabled else SPECULATION_OFF)
            return
        started = time.perf_counter()
        if not self._drafter_planner.plan(plan, self._drafter_reserve(reserve), on_progress):
            self._plan_same_prompt(plan, drafts_without_context)
        if plan.no_drafter:
            plan.notes.append(f"no drafter: {plan.no_drafter}")
        plan.retrieval_s += time.perf_counter() - started

    def plan_drafter_alone(self, task: Task, *, reserve: int, on_progress: OnProgress) -> Plan:
        """What the drafter reads where it answers by itself, as the prompt of whoever answers.

        Raises `PromptTooLongError` where it does not fit the drafter's window.
        """
        plan, started = self._unread(task), time.perf_counter()
        self._drafter_planner.plan(plan, self._drafter_reserve(reserve), on_progress)
        if plan.no_drafter:
            plan.notes.append(f"the drafter answers without passages: {plan.no_drafter}")
        plan.retrieval_s = time.perf_counter() - started
        ids = plan.prompts.drafter_ids
        if ids is None:
            ids = self._drafter_prompter.encode(plan.bare or task.messages, task.tools)
            if len(ids) >= self._drafter_window:
                raise PromptTooLongError(
                    f"a prompt must be shorter than the drafter's window of {self._drafter_window:,} tokens, and this "
                    f"one has {len(ids):,}; pass a long text as context=, so that passages of it are read",
                    prompt_tokens=len(ids),
                    window=self._drafter_window,
                )
        plan.prompts = PromptPair(ids, None)
        return plan

    def passages(self, task: Task, retrieval: Retrieval, *, reserve: int, on_progress: OnProgress) -> tuple[Chunk, ...]:
        """The passages that the drafter would read by `retrieval`, which differs in length and threshold alone."""
        plan = self._unread(task)
        self._planner_of(retrieval).plan(plan, self._drafter_reserve(reserve), on_progress)
        return plan.retrieved

    def plan_again(
        self, plan: Plan, answer: str, answered: int, *, reserve: int, on_progress: OnProgress
    ) -> tuple[int, ...] | None:
        """Choose passages by the question and the end of the `answer` so far, and complete `plan` with them.

        answered: tokens of the answer. Returns the drafter's prompt, or None where the one that it has stays:
        too little of the passages is new.
        """
        started = time.perf_counter()
        again = Plan(replace(plan.task, answer=answer), plan.prompts, plan.document_tokens)
        self._drafter_planner.plan(again, self._drafter_reserve(reserve, answered), on_progress)
        plan.retrieval_s += time.perf_counter() - started
        plan.retrievals += again.retrievals
        new = drift(plan.retrieved, again.retrieved)
        if not new:
            return None
        plan.notes.append(
            f"searched again behind {answered:,} tokens of the answer: {len(new)} of {len(again.retrieved)} passages "
            "that the drafter reads from there on are new"
        )
        plan.notes += [note for note in again.notes if note not in plan.notes]
        plan.prompts, plan.retrieved = again.prompts, again.retrieved
        return plan.prompts.drafter_ids

    def _drafter_reserve(self, reserve: int, answered: int = 0) -> int:
        """Tokens of the answer that the drafter's window leaves room for: where it fills up, drafting stops."""
        return min(reserve, answered + self._drafter_window // LARGEST_RESERVE)

    def warm_up(self) -> None:
        """Load the encoder and the store."""
        self.searcher.warm_up()

    def close(self) -> None:
        """Forget the indexes and the encoder."""
        self.searcher.close()

    def _planner_of(self, retrieval: Retrieval) -> DrafterPlanner:
        return DrafterPlanner(
            self._drafter_prompter,
            retrieval,
            self.searcher,
            counts_alike=self._drafter_prompter.tokenizer is self._prompter.tokenizer,
            window=self._window,
            drafter_window=self._drafter_window,
        )

    def _unread(self, task: Task) -> Plan:
        """A plan in which the target reads nothing, and so has room for all of several documents."""
        if task.context is not None and task.context.documents:
            text = joined(task.context.documents, task.context.separator)
            task = replace(task, context=replace(task.context, text=text))
        text = task.context.text if task.context is not None else ""
        return Plan(task, PromptPair((), None), self._prompter.count_tokens(text) if text else 0)

    def _plan_same_prompt(self, plan: Plan, drafts_without_context: bool) -> None:
        """Where nothing is left out the drafter reads what the target does, if that pays."""
        if not drafts_without_context:
            plan.no_drafter = "without a long text a model gains nothing by drafting for itself"
            return
        ids = self._drafter_prompter.encode(plan.task.messages, plan.task.tools)
        if len(ids) >= self._drafter_window:
            plan.no_drafter = (
                f"the prompt of {len(ids):,} tokens does not fit the drafter's window of {self._drafter_window:,}, and "
                "no long text in it could be shortened"
            )
        else:
            plan.prompts = replace(plan.prompts, drafter_ids=ids)

    def _plan_target_of_history(self, task: Task) -> Plan:
        """All messages; a history alone is never cut."""
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

    def _plan_target_of_several(self, task: Task, fit: Fit, reserve: int, on_progress: OnProgress) -> Plan:
        """Of several documents those that fit whole; of the best-ranked one alone `fit` decides."""
        assert task.context is not None
        separator, window = task.context.separator, self._window - reserve
        room = window - len(self._prompter.encode(task.with_context(" "), task.tools))
        kept, rest = whole_that_fit(task.context.documents, room, self._prompter.count_tokens, separator)
        text = joined(kept, separator)
        # Borders between texts cost a few tokens more.
        while len(kept) > 1 and len(self._prompter.encode(task.with_context(text), task.tools)) > window:
            rest.append(kept.pop())
            text = joined(kept, separator)
        task = replace(task, context=replace(task.context, text=text, documents=tuple(kept)))
        plan = self._plan_target(task, fit, reserve, on_progress)
        plan.left_out = tuple(name_of(document) for document in rest)
        if rest:
            plan.notes.append(
                f"the target's window of {self._window:,} tokens has room for {len(kept)} of "
                f"{len(kept) + len(rest)} documents, and these are left out: {'; '.join(plan.left_out)}"
            )
        return plan

    def _plan_target(self, task: Task, fit: Fit, reserve: int, on_progress: OnProgress) -> Plan:
        document = task.context.text if task.context else ""
        ids = self._prompter.encode(task.with_context(document), task.tools)
        tokens = self._prompter.count_tokens(document) if document else 0
        if len(ids) < self._window:
            return Plan(task, PromptPair(ids, None), tokens)
        if task.context is None or fit == "error":
            choices = (
                "choose fit='retrieve' (CLI: --fit retrieve) to read the best passages that fit, fit='middle' "
                "(--fit middle) to cut the middle out, or a model with a longer window"
                if task.context
                else "shorten the messages, pass the document as context=, or use a model with a longer window"
            )
            alone = " with the best-ranked document alone" if task.context and task.context.documents else ""
            raise PromptTooLongError(
                f"a prompt must be shorter than the target's window of {self._window:,} tokens, and this one has "
                f"{len(ids):,}{alone}; {choices}",
                prompt_tokens=len(ids),
                window=self._window,
            )
        return self._fit(task, fit, reserve, tokens, on_progress)

    def _fit(self, task: Task, fit: Fit, reserve: int, document_tokens: int, on_progress: OnProgress) -> Plan:
        """Cut the document until the prompt fits: borders between texts cost a few tokens more."""
        assert task.context is not None
        frame = len(self._prompter.encode(task.with_context(" "), task.tools))
        room = self._window - reserve - frame
        ranked = rank_document(task, self.searcher, on_progress) if fit == "retrieve" and room > 0 else []
        chosen: list[Chunk] = []
        while room > 0:
            if fit == "middle":
                text = self._prompter.first_and_last(task.context.text, room)
            else:
                chosen = in_document_order(fill(ranked, room, self._prompter.count_tokens))
                text = join(chosen, task.context.separator)
                if not chosen:
                    break
            ids = self._prompter.encode(task.with_context(text), task.tools)
            over = len(ids) + reserve - self._window
            if over <= 0:
                kept = self._prompter.count_tokens(text)
                how = (
                    f"its {len(chosen)} best passages of {len(ranked)}, in their order"
                    if fit == "retrieve"
                    else "its beginning and its end"
                )
                note = (
                    f"the document has {document_tokens:,} tokens and the target's window {self._window:,}: "
                    f"it reads {kept:,} of them, {how} (fit={fit!r})"
                )
                return Plan(task, PromptPair(ids, None), kept, notes=[note])
            room -= max(over, 16)
        if room > 0:
            raise PromptTooLongError(
                f"a passage must fit what the target's window of {self._window:,} tokens leaves beside the messages, "
                f"and none of {len(ranked)} does; pass shorter chunks, choose fit='middle', or lower max_new_tokens",
                prompt_tokens=frame,
                window=self._window,
            )
        raise PromptTooLongError(
            f"the messages alone must leave room in the target's window of {self._window:,} tokens, and they take "
            f"{frame:,} with {reserve:,} reserved for the answer; shorten them, or lower max_new_tokens",
            prompt_tokens=frame,
            window=self._window,
        )
