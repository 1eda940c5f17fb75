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
# What stands behind the question is read again, and the prompt without passages a second time: with
# more tokens than these the question is not weighed.
MOST_BEHIND = 512
MOST_BARE = 2048
# A token that a model rules out is as improbable as this, so that sums stay numbers.
LEAST_LOG_PROBABILITY = -30.0


@dataclass(frozen=True, slots=True)
class Reader:
    """A role that has read its prompt, and the prompter of its vocabulary."""

    runner: ModelRunner
    prompter: ChatPrompter


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the ids of the question begin in a role's prompt, and in its bare one, which has no passages."""

    ids: list[int]
    prompt: list[int]
    in_prompt: int
    bare: list[int]
    in_bare: int


class Weigher:
    """Weighs questions for both roles, one at a time.

    Bare prompts are read by runners of its own, which must not push a cache out of the engine's
    budget. They keep the last one, so that the next turn goes on in it.
    """

    def __init__(self, target: Reader, drafter: Reader) -> None:
        self._target, self._drafter = target, drafter
        self._asides = {id(role.runner.model): _aside(role.runner) for role in (target, drafter)}

    def weigh(self, task: Task, bare: Sequence[Message]) -> Evidence | str:
        """How much more probable each role finds the question with what it has read than without, or why nobody knows.

        bare: the messages without passages. All else is the same in both, since what other turns or a
        system message say of the question is no merit of the passages. Both roles stand behind their
        prompts again when this returns.
        """
        behind = _behind_the_passages(task)
        if not behind:
            return "the last message is no question behind a document or a history"
        # A query in other words stands nowhere. An instruction in the question's place gains nothing by a text.
        text = task.query if task.query in behind else behind
        places = []
        for role in (self._target, self._drafter):
            place = _find(text[:MOST_CHARACTERS], role, role.prompter.encode(bare, task.tools))
            if isinstance(place, str):
                return place
            places.append(place)
        # Of one set of weights this is the same twice, and the second time in the cache.
        gains = [
            _log_probability(role.runner, place.prompt, place.in_prompt, len(place.ids)) - self._bare(role, place)
            for role, place in zip((self._target, self._drafter), places, strict=True)
        ]
        return Evidence(document=gains[0], passages=gains[1])

    def forget(self) -> None:
        """Give the memory of the bare prompts back."""
        for aside in self._asides.values():
            aside.clear()

    def _bare(self, role: Reader, place: _Place) -> float:
        """Log-probability of the question without passages."""
        aside = self._asides[id(role.runner.model)]
        aside.prefill(place.bare, reserve=1)
        return _log_probability(aside, place.bare, place.in_bare, len(place.ids))


def _aside(runner: ModelRunner) -> ModelRunner:
    return ModelRunner(runner.model, role=runner.role, vocab_size=runner.vocab_size, reproducible=runner.reproducible)


def _behind_the_passages(task: Task) -> str:
    """The text of the question's message that stands behind what was searched; empty where there is none.

    Where tools have spoken since, their calls may repeat the question.
    """
    newest = len(task.messages) - 1
    if task.messages[newest].role != "user" or (task.context is None and task.history is None):
        return ""
    in_document = task.context is not None and task.index == newest
    return (task.after if in_document else task.messages[newest].content).strip()


def _find(text: str, reader: Reader, bare: Sequence[int]) -> _Place | str:
    """The last place of `text` in a role's prompt and in its bare one, or why it cannot be weighed there."""
    # What stands around a text may join its first token and its last one.
    ids = list(reader.prompter.token_ids(text)[1:-1])
    if not ids:
        return "the question is too short to tell"
    prompt = reader.runner.sequence
    place = _Place(ids, prompt, _last_place(ids, prompt), list(bare), _last_place(ids, bare))
    if min(place.in_prompt, place.in_bare) < 1:
        return "the question is not found behind the passages"
    if len(prompt) - place.in_prompt - len(ids) > MOST_BEHIND:
        return f"more than {MOST_BEHIND} tokens stand behind the question"
    if len(bare) > MOST_BARE:
        return f"more than {MOST_BARE:,} tokens stand beside document and passages"
    if not reader.runner.rereads(place.in_prompt - 1):
        return (
            f"the {reader.runner.role} encodes positions by the length of its text, which changes within the question"
        )
    return place


def _last_place(wanted: Sequence[int], ids: Sequence[int]) -> int:
    """Where `wanted` begins in `ids` for the last time; -1 where it does not."""
    starts = (at for at in range(len(ids) - len(wanted), -1, -1) if ids[at] == wanted[0])
    return next((at for at in starts if list(ids[at : at + len(wanted)]) == list(wanted)), -1)


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
