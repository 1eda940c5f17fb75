"""One request, from its prompts to its last delta."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial

from rapid_core.config import Retrieval, Sampling, Speculation
from rapid_core.constrained import Grammars, Matcher
from rapid_core.constraint import Constraint
from rapid_core.context import Task
from rapid_core.datatypes import Chunk, Delta, PromptPair, Stats, Usage
from rapid_core.decoder import Counts, Decoder
from rapid_core.document_keeper import DocumentKeeper
from rapid_core.drafting import RagDrafter, WaitingPrompt
from rapid_core.errors import InputError, PromptTooLongError
from rapid_core.first_token import Prepared, Preparer
from rapid_core.history import find_task
from rapid_core.likelihood import Likelihoods
from rapid_core.loading import LoadedModel
from rapid_core.lookup import NgramIndex
from rapid_core.pacing import CostTable, Pacer
from rapid_core.prompts import ChatPrompter
from rapid_core.request import Progress, Request
from rapid_core.runner import ModelRunner
from rapid_core.sampling import Sampler
from rapid_core.second_retrieval import SecondRetrieval
from rapid_core.streaming import TextStream
from rapid_core.streaming_llm import StreamingRunner
from rapid_core.tool_grammar import constraint_with_tools
from rapid_core.tool_parsing import ToolCallStream
from rapid_core.vocabulary import SAME_VOCABULARY, Vocabulary

IsCancelled = Callable[[], bool]


class _CancelledError(BaseException):
    """Ends the work before decoding for a caller who has given up; never leaves this module."""


class _ProgressError(BaseException):
    """Carries what the caller's progress callback raised past everything that handles errors of ours."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def _carried(progress: Progress) -> Progress:
    """A progress callback whose errors come as `_ProgressError`."""

    def report(stage: str, done: int, total: int) -> None:
        try:
            progress(stage, done, total)
        except BaseException as error:
            raise _ProgressError(error) from error

    return report


class Answerer:
    """Answers requests with two runners, one at a time.

    loaded: the target. vocabulary: how the drafter reads and writes its ids. keeper: of the target's
    documents, if what answers is the target. costs: what forwards
    of the target and of the drafter cost, over all requests. new_decoder: what makes a decoder;
    another kind of it simulates verdicts.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        target: ModelRunner,
        drafter: ModelRunner,
        *,
        vocabulary: Vocabulary,
        prompter: ChatPrompter,
        preparer: Preparer,
        keeper: DocumentKeeper | None = None,
    ) -> None:
        self._loaded = loaded
        self._target, self._drafter = target, drafter
        self._vocabulary = vocabulary
        self._prompter = prompter
        self._preparer = preparer
        self._keeper = keeper
        self._likelihoods = Likelihoods(target, drafter, vocabulary)
        self._grammars = Grammars(loaded.tokenizer, target.vocab_size)
        self.costs = tuple(CostTable(accelerator=runner.device.type != "cpu") for runner in (target, drafter))
        # A drafter that reads a part of the target's keys costs neither what the target does nor what the drafter does.
        self._streaming_costs = CostTable(accelerator=target.device.type != "cpu")
        self.new_decoder: Callable[..., Decoder] = Decoder

    def forget(self) -> None:
        """Give the memory back that no role's cache has."""
        self._preparer.forget()
        self._likelihoods.forget()

    def prompts(self, request: Request) -> PromptPair:
        """The two prompts of a request."""
        plan = self._preparer.plan(
            self._task(request), request.sampling, request.speculation, request.fit, request.progress
        )
        return plan.prompts

    def read(self, request: Request) -> Stats:
        """Read the prompts of a request, and answer nothing."""
        try:
            prepared = self._prepare(request, _carried(request.progress))
        except _ProgressError as raised:
            raise raised.error from None
        return self._stats(prepared, Counts(), 0, 0, 0.0, 0.0)

    def retrieve(self, request: Request, retrieval: Retrieval) -> tuple[Chunk, ...]:
        """The passages that the drafter would read by `retrieval`."""
        return self._preparer.passages(self._task(request), retrieval, request.sampling, request.progress)

    def log_likelihoods(self, request: Request, answers: Sequence[str]) -> tuple[float, ...]:
        """Log-probability of each of `answers` behind the prompt of a request."""
        ids = [self._prompter.token_ids(answer) for answer in answers]
        for answer, tokens in zip(answers, ids, strict=True):
            if not tokens:
                raise InputError(f"an answer must have a token, got {answer!r}")
        longest = max(map(len, ids), default=1)
        request = replace(request, sampling=replace(request.sampling, max_new_tokens=longest))
        prepared = self._prepare(request, request.progress)
        drafts = prepared.plan.prompts.drafter_ids is not None
        lengths = [(self._target, longest)]
        if drafts:
            lengths.append((self._drafter, max((len(self._vocabulary.read(one)) for one in ids), default=1)))
        for runner, longest in lengths:
            if longest > runner.room:
                raise PromptTooLongError(
                    f"an answer must fit behind the prompt in the {runner.role}'s window of {runner.window:,} tokens, "
                    f"and the longest takes {longest:,} behind {len(runner.sequence):,}; shorten the prompt",
                    prompt_tokens=len(runner.sequence),
                    window=runner.window,
                )
        weighed = request.speculation.eta == "auto"
        return self._likelihoods.of(ids, prepared.speculation, drafts=drafts, weighed=weighed)

    def _prepare(self, request: Request, progress: Progress, *, drafter_may_wait: bool = False) -> Prepared:
        """Both prompts of a request, and both roles behind them."""
        prepared = self._preparer.prepare(
            self._task(request),
            request.sampling,
            request.speculation,
            request.fit,
            progress,
            reserve=request.reserve,
            drafter_may_wait=drafter_may_wait,
        )
        if self._keeper is not None:
            self._keeper.note(prepared.plan.task, prepared.plan.prompts.target_ids)
        return prepared

    def answer(self, request: Request, is_cancelled: IsCancelled) -> Generator[Delta]:
        """One request from its prompts to its last delta."""
        started = time.perf_counter()
        own = request.sampling.constraint
        request = self._with_form_of_calls(request)
        matcher = self._matcher(request.sampling, own)
        report = _carried(request.progress)

        def progress(stage: str, done: int, total: int) -> None:
            if is_cancelled():
                raise _CancelledError
            report(stage, done, total)

        try:
            prepared = self._prepare(request, progress, drafter_may_wait=request.drafter_may_wait)
        except _CancelledError:
            yield Delta("", finish_reason="cancelled", usage=Usage(), stats=Stats())
            return
        except _ProgressError as raised:
            raise raised.error from None
        plan = prepared.plan
        decode_started = time.perf_counter()
        seed = request.sampling.seed if request.sampling.seed is not None else secrets.randbits(63)
        self._check_room(matcher)
        decoder = self._decoder(request, prepared, matcher, seed, progress, is_cancelled)
        text = self._text(request)
        first_token_s = 0.0
        try:
            for event in decoder.tokens():
                first_token_s = first_token_s or time.perf_counter() - started
                delta = text.push(event)
                if delta is not None:
                    yield delta
                if text.stopped:
                    break
        except _CancelledError:
            # The drafter was reading its prompt; the answer ends with what was decided before.
            pass
        except _ProgressError as raised:
            raise raised.error from None
        rest = text.finish()
        decode_s = time.perf_counter() - decode_started
        if matcher is not None and not matcher.ends:
            plan.notes.append("no end of the answer's form was found, and nothing makes it whole within max_new_tokens")
        stats = self._stats(prepared, decoder.counts, seed, text.tokens, first_token_s, decode_s)
        usage = Usage(len(plan.prompts.target_ids), text.tokens, prepared.cached)
        reason = "stop" if text.stopped else decoder.finish_reason
        yield replace(rest, finish_reason=reason, usage=usage, stats=stats)

    def _with_form_of_calls(self, request: Request) -> Request:
        """The request with a constraint that makes the answer a call, where it has to be one or may be one."""
        if not request.tools.shown:
            return request
        constraint = constraint_with_tools(
            request.tools, self._prompter.tool_format, request.sampling.constraint, self._prompter.added_tokens
        )
        return replace(request, sampling=replace(request.sampling, constraint=constraint))

    def _text(self, request: Request) -> TextStream:
        """What turns the answer's tokens into text, and into calls where there are tools."""
        stop, shown = request.sampling.stop_strings, request.tools.shown
        if not shown:
            return TextStream(self._loaded.tokenizer, stop)
        calls = ToolCallStream(self._prompter.tool_format, [tool.name for tool in shown])
        return TextStream(self._loaded.tokenizer, stop, calls=calls, shown=self._prompter.tool_tokens)

    def _stats(
        self, prepared: Prepared, counts: Counts, seed: int, tokens: int, first_token_s: float, decode_s: float
    ) -> Stats:
        plan, evidence = prepared.plan, prepared.evidence
        drafts = self._drafts(prepared)
        by_drafter = plan.prompts.drafter_ids is not None
        notes = [*plan.notes, *self._target.notes, *(self._drafter.notes if by_drafter else ())]
        if counts.drafter_full:
            notes.append("the drafter's window filled up, and the answer went on without it")
        return Stats(
            rounds=counts.rounds,
            drafted=counts.drafted,
            accepted=counts.accepted,
            sources=dict(counts.sources),
            looked_up=counts.looked_up,
            looked_up_accepted=counts.looked_up_accepted,
            transferred=counts.transferred,
            eta=prepared.speculation.fixed_eta if drafts else None,
            passages_gain=evidence.passages if evidence is not None else None,
            document_gain=evidence.document if evidence is not None else None,
            drafter_prompt_tokens=len(plan.prompts.drafter_ids or ()),
            drafter_cached_tokens=prepared.draft_cached,
            context_tokens=plan.document_tokens + plan.history_tokens,
            retrieved=plan.retrieved,
            retrievals=plan.retrievals,
            left_out=plan.left_out,
            retrieval_s=plan.retrieval_s,
            prefill_s=prepared.prefill_s,
            draft_prefill_s=prepared.draft_prefill_s,
            decode_s=decode_s,
            draft_s=counts.draft_s - prepared.waited_s,
            verify_s=counts.verify_s,
            time_to_first_token_s=first_token_s,
            tokens_per_s=tokens / max(decode_s, 1e-9),
            seed=seed,
            notes=tuple(notes),
        )

    def _task(self, request: Request) -> Task:
        task = find_task(request.messages, request.context, self._prompter.count_tokens)
        return replace(task, tools=request.tools.shown)

    def _decoder(
        self,
        request: Request,
        prepared: Prepared,
        matcher: Matcher | None,
        seed: int,
        progress: Progress,
        is_cancelled: IsCancelled,
    ) -> Decoder:
        prompts, size, reserve = prepared.plan.prompts, self._target.vocab_size, request.reserve
        index, pacer = self._pacing(request.sampling, prepared)
        drafter = again = None
        if self._drafts(prepared):
            reads, vocabulary = self._drafter, self._vocabulary
            if prompts.drafter_ids is None:
                reads, vocabulary = self._streaming(prepared.speculation, reserve), SAME_VOCABULARY
                if self._target.compiles:
                    prepared.plan.notes.append("the drafter is not compiled: its window of keys moves")
            # Drafts must not be drawn with the numbers that decide about them: another seed.
            sampler = Sampler(
                request.sampling,
                size,
                prompts.target_ids,
                reads.device,
                seed ^ 0x5DEECE66D,
                matcher.twin() if matcher is not None else None,
            )
            drafter = RagDrafter(
                reads,
                sampler,
                prepared.speculation,
                self._loaded.eos_ids,
                vocabulary=vocabulary,
                waiting=self._waiting(request, prepared, reserve, progress),
                index=index,
                pacer=pacer,
            )
            again = self._second_retrieval(request, prepared, drafter, reserve, progress)
        elif prepared.speculation.enabled and prepared.speculation.drafter == "streaming":
            prepared.plan.notes.append(
                "no drafter: the target encodes positions by the length of its text, and keys of a part would not fit"
            )
        return self.new_decoder(
            self._target,
            drafter,
            Sampler(request.sampling, size, prompts.target_ids, self._target.device, seed, matcher),
            prepared.speculation,
            max_new_tokens=request.sampling.max_new_tokens,
            eos_ids=self._loaded.eos_ids,
            is_cancelled=is_cancelled,
            index=index,
            pacer=pacer,
            again=again,
        )

    def _drafts(self, prepared: Prepared) -> bool:
        """Whether a model drafts."""
        speculation = prepared.speculation
        streams = speculation.enabled and speculation.drafter == "streaming" and self._target.keys_stay
        return prepared.plan.prompts.drafter_ids is not None or streams

    def _streaming(self, speculation: Speculation, reserve: int) -> StreamingRunner:
        return StreamingRunner(
            self._target, sinks=speculation.sinks, sliding_window=speculation.sliding_window, reserve=reserve
        )

    def _second_retrieval(
        self, request: Request, prepared: Prepared, drafter: RagDrafter, reserve: int, progress: Progress
    ) -> SecondRetrieval | None:
        if not prepared.plan.again_tokens:
            return None
        return SecondRetrieval(
            self._target,
            drafter,
            every=prepared.plan.again_tokens,
            decode=partial(self._loaded.tokenizer.decode, skip_special_tokens=True),
            search=lambda text, tokens: self._preparer.plan_again(prepared, text, tokens, request.sampling, progress),
            read=self._reader(prepared, reserve, progress),
        )

    def _matcher(self, sampling: Sampling, own: Constraint | None) -> Matcher | None:
        if sampling.constraint is None:
            return None
        return self._grammars.matcher(
            sampling.constraint, self._loaded.eos_ids, sampling.max_new_tokens, shorter=own or sampling.constraint
        )

    def _check_room(self, matcher: Matcher | None) -> None:
        """Refuse a prompt behind which the shortest answer of the constraint does not fit."""
        room, window = self._target.room, self._target.window
        if matcher is not None and matcher.shortest > room:
            raise PromptTooLongError(
                f"the target's window of {window:,} tokens must leave room for an answer of the constraint's form: the "
                f"shortest one that was found takes {matcher.shortest}, and the prompt of {window - room:,} leaves "
                f"{room}; shorten the prompt",
                prompt_tokens=window - room,
                window=window,
            )

    def _waiting(self, request: Request, prepared: Prepared, reserve: int, progress: Progress) -> WaitingPrompt | None:
        """The drafter's prompt where it is read when the first draft is asked for."""
        drafter_ids = prepared.plan.prompts.drafter_ids
        if drafter_ids is None or not prepared.drafter_may_wait:
            return None
        # With sampling a prompt that happens to be read counts as waiting too: how many cores were
        # free must not change what a seed gives.
        if prepared.drafter_ready and request.sampling.greedy:
            return None
        return WaitingPrompt(list(drafter_ids), self._reader(prepared, reserve, progress))

    def _reader(self, prepared: Prepared, reserve: int, progress: Progress) -> Callable[[list[int]], None]:
        return lambda ids: self._preparer.prefill_drafter(prepared, ids, reserve=reserve, on_progress=progress)

    def _pacing(self, sampling: Sampling, prepared: Prepared) -> tuple[NgramIndex | None, Pacer | None]:
        """Where to look drafts up, and who chooses: both for gamma="auto", the first one for lookups alone too."""
        speculation, prompts = prepared.speculation, prepared.plan.prompts
        looks_up = speculation.drafter == "lookup"
        if not speculation.enabled or (speculation.gamma != "auto" and not looks_up):
            return None, None
        # The answer goes on behind the last text, which ends as the other one does. In another
        # vocabulary the passages are no texts of the target's ids, and stand in its prompt anyway.
        texts = [prompts.target_ids]
        if prompts.drafter_ids is not None and self._vocabulary.shared is None:
            texts.append(prompts.drafter_ids)
        if speculation.gamma != "auto":
            return NgramIndex(*texts), None
        streams = speculation.drafter == "streaming"
        pacer = Pacer(
            self.costs[0],
            self._streaming_costs if streams else self.costs[1],
            transfer=speculation.transfers and self._drafts(prepared),
            greedy=sampling.greedy,
        )
        return NgramIndex(*texts), pacer
