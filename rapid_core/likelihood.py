"""How probable given answers are behind a prompt: to the target, or with the drafter's transfer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rapid_core.config import Speculation
from rapid_core.runner import ModelRunner
from rapid_core.verification import augmented_target
from rapid_core.vocabulary import SAME_VOCABULARY, Vocabulary

# A token that is ruled out is as improbable as this, so that sums stay numbers.
LEAST_LOG_PROBABILITY = -100.0
# Bytes of logits that are remembered of a role: a row of a large vocabulary takes 600 KB.
MOST_REMEMBERED = 2**28


class Likelihoods:
    """Reads answers behind the prompts that both roles hold, and leaves both as they were.

    It remembers logits of the last answers that each role read: other strengths of the transfer
    ask for the same ones.
    """

    def __init__(self, target: ModelRunner, drafter: ModelRunner, vocabulary: Vocabulary) -> None:
        self._roles = {"target": (target, SAME_VOCABULARY), "drafter": (drafter, vocabulary)}
        self._vocabulary = vocabulary
        self._known: dict[str, _Known] = {}

    def of(
        self, answers: Sequence[Sequence[int]], speculation: Speculation, *, drafts: bool, weighed: bool = False
    ) -> tuple[float, ...]:
        """Log-probability in nats of each answer's ids, at temperature 1.

        With transfer it is that of the augmented target distribution, as if each position had been
        drafted (paper, Eq. 4). drafts: whether the drafter holds a prompt. weighed: whether the question
        was read again to choose an eta, after which the same keys are rounded otherwise.
        """
        found = []
        for answer in answers:
            # logits: [k, V], that of answer[i] in row i
            logits = self._rows("target", answer, weighed)
            if drafts and speculation.transfers:
                draft_probs = self._rows("drafter", answer, weighed).softmax(dim=-1).to(logits.device)
                options = (speculation.fixed_eta, 1.0, speculation.tail, speculation.alpha)
                shared = self._vocabulary.shared
                probs = augmented_target(
                    logits, draft_probs, *options, shared.to(logits.device) if shared is not None else None
                )
                logs = probs.log()
            else:
                logs = logits.log_softmax(dim=-1)
            wanted = torch.tensor(answer, device=logs.device).unsqueeze(-1)
            found.append(float(logs.gather(-1, wanted).clamp_min(LEAST_LOG_PROBABILITY).sum()))
        return tuple(found)

    def forget(self) -> None:
        """Give the memory of what is remembered back."""
        self._known.clear()

    def _rows(self, role: str, answer: Sequence[int], weighed: bool) -> Tensor:
        runner, vocabulary = self._roles[role]
        read = tuple(runner.sequence), weighed
        if role not in self._known or self._known[role].read != read:
            self._known[role] = _Known(read)
        rows = self._known[role].rows
        key = tuple(answer)
        if key in rows:
            return rows[key]
        found = _read(runner, vocabulary, answer)
        if found.nbytes + sum(known.nbytes for known in rows.values()) <= MOST_REMEMBERED:
            rows[key] = found
        return found


@dataclass(slots=True)
class _Known:
    """Logits by answer, and what they stand behind: a prompt, and whether the question was weighed."""

    read: tuple[tuple[int, ...], bool]
    rows: dict[tuple[int, ...], Tensor] = field(default_factory=dict)


def _read(runner: ModelRunner, vocabulary: Vocabulary, answer: Sequence[int]) -> Tensor:
    """Logits over the target's ids for each id of `answer`, [k, V]; the runner stands where it stood."""
    before, prompt = runner.length, list(runner.sequence)
    # A token of the target may be several of the drafter's, or none.
    read: list[int] = []
    behind = [0]
    for id_ in answer[:-1]:
        read += vocabulary.read([id_])
        behind.append(len(read))
    changes_keys = len(read) > runner.draft_room
    ids = torch.tensor([*runner.pending, *read], dtype=torch.long, device=runner.device)
    logits = runner.forward(ids, len(read) + 1)
    runner.rewind(before)
    runner.confirm()
    if changes_keys:
        # A longrope model has read the prompt for a text over its border: not what comes next.
        runner.prefill(prompt, reserve=0)
    return vocabulary.logits(logits[behind])
