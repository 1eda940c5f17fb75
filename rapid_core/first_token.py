"""What happens before the first token: both prompts, both prefills, side by side where that pays."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch

from rapid_core.config import Fit, Retrieval, Sampling, Speculation
from rapid_core.context import Task
from rapid_core.datatypes import Chunk
from rapid_core.plan import OnProgress, Plan
from rapid_core.planning import Planner
from rapid_core.question import Reader, Weigher
from rapid_core.transfer import Evidence, auto_eta, in_words


class _StoppedError(BaseException):
    """Ends the work of one thread since the other one failed; never leaves this module."""


class _Together:
    """Two threads that report progress one at a time, and that end together."""

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def progress(self, stage: str, done: int, total: int) -> None:
        """Report for either thread; raises where the other one has failed."""
        with self._lock:
            if self._stopped.is_set():
                raise _StoppedError
            self._on_progress(stage, done, total)

    def stop(self) -> None:
        """Let the other thread end with its next report."""
        self._stopped.set()


@dataclass(slots=True)
class Prepared:
    """Two roles that can answer. Seconds are what each prefill took by itself; counts are of reused tokens.

    speculation: as it was asked for, with an eta that is a number. evidence: what the passages are
    worth, where that number hangs on it and it is known. drafter_may_wait: whether the drafter was
    allowed not to read its prompt; drafter_ready: whether it has. waited_s: of its prefills, what
    passed after the first token's preparation, while it was already decoding.
    """

    plan: Plan
    speculation: Speculation
    cached: int = 0
    draft_cached: int = 0
    prefill_s: float = 0.0
    draft_prefill_s: float = 0.0
    evidence: Evidence | None = None
    drafter_may_wait: bool = False
    drafter_ready: bool = False
    waited_s: float = 0.0


class Preparer:
    """Plans requests and prefills both roles, one request at a time.

    The target prefills while passages are retrieved, and while the drafter prefills where it is
    another model: a model that attends in two threads would have its attention switched under it.
    """

    def __init__(self, planner: Planner, target: Reader, drafter: Reader, *, encoder_device: str) -> None:
        self._planner = planner
        self._weigher = Weigher(target, drafter)
        self._target = target.runner
        self._drafter = drafter.runner
        self._encoder_device = torch.device(encoder_device)
        self._two_models = target.runner.model is not drafter.runner.model

    def forget(self) -> None:
        """Give the memory back that no role's cache has."""
        self._weigher.forget()

    def plan(self, task: Task, sampling: Sampling, speculation: Speculation, fit: Fit, on_progress: OnProgress) -> Plan:
        """Both prompts, one after the other."""
        plan = self._plan_target(task, sampling, fit, on_progress)
        self._plan_drafter(plan, sampling, speculation, on_progress)
        return plan

    def prepare(
        self,
        task: Task,
        sampling: Sampling,
        speculation: Speculation,
        fit: Fit,
        on_progress: OnProgress,
        *,
        reserve: int,
        drafter_may_wait: bool = False,
    ) -> Prepared:
        """Plan a request and prefill both roles.

        reserve: tokens to come after either prompt. drafter_may_wait: leave the drafter's prefill
        to `prefill_drafter`, unless it costs no time beside the target's. on_progress may be called from another
        thread, never from two at once. What it raises, or either side, ends both within a chunk
        and is raised once; both runners stay valid.
        """
        prepared = Prepared(
            self._plan_target(task, sampling, fit, on_progress), speculation, drafter_may_wait=drafter_may_wait
        )
        self._read(prepared, sampling, reserve, on_progress)
        if prepared.speculation.eta == "auto":
            self._choose_eta(prepared)
        return prepared

    def _read(self, prepared: Prepared, sampling: Sampling, reserve: int, on_progress: OnProgress) -> None:
        """Choose the passages and prefill both roles."""
        speculation, drafter_may_wait = prepared.speculation, prepared.drafter_may_wait
        beside = speculation.retrieves and pays_side_by_side(
            self._target.device, self._drafter.device, self._encoder_device
        )
        if not beside:
            self._plan_drafter(prepared.plan, sampling, speculation, on_progress)
            self._prefill_target(prepared, reserve, on_progress)
            if not drafter_may_wait:
                self._prefill_drafter(prepared, reserve, on_progress)
            return
        both = _Together(on_progress)

        def read() -> None:
            try:
                self._prefill_target(prepared, reserve, both.progress)
            except BaseException:
                both.stop()
                raise

        # Leaving the block waits for the thread, whatever happened.
        with ThreadPoolExecutor(1, thread_name_prefix="rapid-prefill") as pool:
            reading = pool.submit(read)
            try:
                self._plan_drafter(prepared.plan, sampling, speculation, both.progress)
                if self._two_models:
                    self._prefill_drafter(prepared, reserve, both.progress)
                reading.result()
            except _StoppedError:
                reading.result()
            except BaseException:
                both.stop()
                raise
        if not self._two_models and not drafter_may_wait:
            self._prefill_drafter(prepared, reserve, on_progress)

    def prefill_drafter(self, prepared: Prepared, ids: list[int], *, reserve: int, on_progress: OnProgress) -> None:
        """Let the drafter read a prompt and what was committed since, which are `ids`."""
        started = time.perf_counter()
        cached = self._drafter.prefill(ids, reserve=reserve, on_chunk=lambda a, b: on_progress("draft prefill", a, b))
        seconds = time.perf_counter() - started
        prepared.waited_s += seconds
        prepared.draft_prefill_s += seconds
        if not prepared.drafter_ready:
            prepared.draft_cached, prepared.drafter_ready = cached, True

    def passages(
        self, task: Task, retrieval: Retrieval, sampling: Sampling, on_progress: OnProgress
    ) -> tuple[Chunk, ...]:
        """The passages that the drafter would read by `retrieval`."""
        return self._planner.passages(task, retrieval, reserve=sampling.max_new_tokens, on_progress=on_progress)

    def plan_again(
        self, prepared: Prepared, answer: str, answered: int, sampling: Sampling, on_progress: OnProgress
    ) -> tuple[int, ...] | None:
        """The drafter's prompt with passages that are found for the end of the answer so far, if enough is new."""
        return self._planner.plan_again(
            prepared.plan, answer, answered, reserve=sampling.max_new_tokens, on_progress=on_progress
        )

    def _plan_target(self, task: Task, sampling: Sampling, fit: Fit, on_progress: OnProgress) -> Plan:
        return self._planner.plan_target(task, fit=fit, reserve=sampling.max_new_tokens, on_progress=on_progress)

    def _plan_drafter(self, plan: Plan, sampling: Sampling, speculation: Speculation, on_progress: OnProgress) -> None:
        self._planner.plan_drafter(
            plan,
            reserve=sampling.max_new_tokens,
            speculation=speculation,
            drafts_without_context=self._two_models,
            on_progress=on_progress,
        )

    def _prefill_target(self, prepared: Prepared, reserve: int, on_progress: OnProgress) -> None:
        started = time.perf_counter()
        prepared.cached = self._target.prefill(
            prepared.plan.prompts.target_ids, reserve=reserve, on_chunk=lambda a, b: on_progress("prefill", a, b)
        )
        prepared.prefill_s = time.perf_counter() - started

    def _prefill_drafter(self, prepared: Prepared, reserve: int, on_progress: OnProgress) -> None:
        drafter_ids = prepared.plan.prompts.drafter_ids
        if drafter_ids is not None:
            self.prefill_drafter(prepared, list(drafter_ids), reserve=reserve, on_progress=on_progress)
            prepared.waited_s = 0.0

    def _choose_eta(self, prepared: Prepared) -> None:
        """Make eta="auto" a number, before anything is drawn."""
        plan, started = prepared.plan, time.perf_counter()
        if plan.prompts.drafter_ids is not None:
            found = self._weigher.weigh(plan.task, plan.bare)
            prepared.evidence = found if isinstance(found, Evidence) else None
            plan.notes.append(in_words(found))
        elif prepared.speculation.drafter == "streaming":
            plan.notes.append("eta='auto' is 0: it judges passages, and nobody reads any")
        prepared.speculation = replace(prepared.speculation, eta=auto_eta(prepared.evidence))
        prepared.draft_prefill_s += time.perf_counter() - started


class AlonePreparer(Preparer):
    """Prepares answers of the drafter by itself: its prompt takes the target's place, and so does its runner."""

    def __init__(self, planner: Planner, drafter: Reader, *, encoder_device: str) -> None:
        super().__init__(planner, drafter, drafter, encoder_device=encoder_device)

    def _plan_target(self, task: Task, sampling: Sampling, fit: Fit, on_progress: OnProgress) -> Plan:  # noqa: ARG002
        """The one prompt that there is; `fit` is about what a target reads."""
        return self._planner.plan_drafter_alone(task, reserve=sampling.max_new_tokens, on_progress=on_progress)

    def _plan_drafter(self, plan: Plan, sampling: Sampling, speculation: Speculation, on_progress: OnProgress) -> None:
        """Nobody drafts for it."""

    def _read(self, prepared: Prepared, sampling: Sampling, reserve: int, on_progress: OnProgress) -> None:  # noqa: ARG002
        self._prefill_target(prepared, reserve, on_progress)


def pays_side_by_side(target: torch.device, drafter: torch.device, encoder: torch.device) -> bool:
    """Whether the target leaves anything free for the others: another device, or cores of the CPU."""
    if {drafter, encoder} != {target}:
        return True
    return target.type == "cpu" and _usable_cores() > torch.get_num_threads()


def _usable_cores() -> int:
    # Not every system tells which cores this process may use.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
