"""What passages and document are worth to the question, by the models' own reading of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rapid_core.context import Task
from rapid_core.datatypes import Message
from rapid_core.prompts import ChatPrompter
from rapid_core.runner import ModelRunner
from rapid_core.transfer import Evidence

# The beginning of a long question tells enough; its logits are a matrix with a row for each token.
MOST_CHARACTERS = 256
# What stands behind the question is read again, and what stands before it in its message a second time:
# with more tokens than this in either place it is not weighed.
MOST_AROUND = 512
# A token that a model rules out is as improbable as this, so that sums stay numbers.
LEAST_LOG_PROBABILITY = -30.0


@dataclass(frozen=True, slots=True)
class Reader:
    """A role that has read its prompt, and the prompter of its vocabulary."""

    runner: ModelRunner
    prompter: ChatPrompter


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the ids of the question begin in a role's prompt, and in one of the question alone."""

    ids: list[int]
    prompt: list[int]
    in_prompt: int
    alone: list[int]
    in_alone: int

    @property
    def costs_little(self) -> bool:
        """Whether few tokens stand around the question."""
        behind = len(self.prompt) - self.in_prompt - len(self.ids)
        return max(behind, self.in_alone) <= MOST_AROUND


def weigh(task: Task, target: Reader, drafter: Reader) -> Evidence | None:
    """How much more probable each role finds the question behind what it has read than by itself.

    Both stand behind their prompts again when this returns. None where the question does not
    stand behind document and passages.
    """
    behind = _behind_the_passages(task)
    for text in dict.fromkeys((task.query, behind)):
        if text in behind:
            of_target, of_drafter = (_find(text[:MOST_CHARACTERS], behind, reader) for reader in (target, drafter))
            if of_target and of_drafter and of_target.costs_little and of_drafter.costs_little:
                return _weigh(target.runner, of_target, drafter.runner, of_drafter)
    return None


def _weigh(target: ModelRunner, of_target: _Place, drafter: ModelRunner, of_drafter: _Place) -> Evidence:
    alone_target = alone_drafter = _alone(target, of_target)
    # With one set of weights the question alone is read once.
    if drafter.model is not target.model:
        alone_drafter = _alone(drafter, of_drafter)
    behind_document = _log_probability(target, of_target.prompt, of_target.in_prompt, len(of_target.ids))
    behind_passages = _log_probability(drafter, of_drafter.prompt, of_drafter.in_prompt, len(of_drafter.ids))
    return Evidence(document=behind_document - alone_target, passages=behind_passages - alone_drafter)


def _behind_the_passages(task: Task) -> str:
    """The text of the question's message that stands behind what was searched; empty where there is none.

    Where tools have spoken since, their calls may repeat the question.
    """
    newest = len(task.messages) - 1
    if task.messages[newest].role != "user" or (task.context is None and task.history is None):
        return ""
    in_document = task.context is not None and task.index == newest
    return (task.after if in_document else task.messages[newest].content).strip()


def _find(text: str, behind: str, reader: Reader) -> _Place | None:
    """The last place of `text` in a role's prompt, and in a prompt of `behind` alone; None where it is not in both."""
    # What stands around a text may join its first token and its last one.
    ids = list(reader.prompter.token_ids(text)[1:-1])
    if not ids:
        return None
    prompt, alone = reader.runner.sequence, list(reader.prompter.encode((Message("user", behind),)))
    place = _Place(ids, prompt, _last_place(ids, prompt), alone, _last_place(ids, alone))
    return place if place.in_prompt > 0 and place.in_alone > 0 else None


def _last_place(wanted: Sequence[int], ids: Sequence[int]) -> int:
    """Where `wanted` begins in `ids` for the last time; -1 where it does not."""
    starts = (at for at in range(len(ids) - len(wanted), -1, -1) if ids[at] == wanted[0])
    return next((at for at in starts if list(ids[at : at + len(wanted)]) == list(wanted)), -1)


def _alone(runner: ModelRunner, place: _Place) -> float:
    """Log-probability of the question by itself.

    Read by a runner of its own: it must not push a cache out of the engine's budget.
    """
    aside = ModelRunner(runner.model, role=runner.role, vocab_size=runner.vocab_size)
    aside.prefill(place.alone[: place.in_alone], reserve=len(place.ids))
    read = place.alone[: place.in_alone + len(place.ids)]
    return _log_probability(aside, read, place.in_alone, len(place.ids))


def _log_probability(runner: ModelRunner, sequence: Sequence[int], place: int, count: int) -> float:
    """Log-probability, in nats, of `count` ids of `sequence` from `place` on; the runner then stands at its end.

    The runner holds what stands before, and perhaps more, which is read again. The last id of
    `sequence` is left unread, as by a prefill.
    """
    runner.rewind(place - 1)
    ids = torch.tensor(sequence[place - 1 : -1], dtype=torch.long, device=runner.device)
    logits = runner.forward(ids[:count], count)
    # wanted: [count, 1]
    wanted = torch.tensor(sequence[place : place + count], device=logits.device).unsqueeze(-1)
    found = logits.log_softmax(dim=-1).gather(-1, wanted)
    if len(ids) > count:
        runner.forward(ids[count:], 1)
    runner.confirm()
    return float(found.clamp_min(LEAST_LOG_PROBABILITY).sum())
