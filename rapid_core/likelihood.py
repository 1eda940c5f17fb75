"""How probable given answers are behind a prompt: to the target, or with the drafter's transfer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rapid_core.config import Speculation
from rapid_core.runner import ModelRunner
from rapid_core.verification import augmented_target
from rapid_core.vocabulary import Vocabulary

# A token that is ruled out is as improbable as this, so that sums stay numbers.
LEAST_LOG_PROBABILITY = -100.0


class Likelihoods:
    """Reads answers behind the prompts that both roles hold, and leaves both as they were.

    It remembers the logits of the last answers that each role read: other strengths of the transfer
    ask for the same ones.
    """

    def __init__(self, target: ModelRunner, drafter: ModelRunner, vocabulary: Vocabulary) -> None:
        self._target, self._drafter = target, drafter
        self._vocabulary = vocabulary
        self._known: dict[str, tuple[tuple[int, ...], dict[tuple[int, ...], Tensor]]] = {}

    def of(self, answers: Sequence[Sequence[int]], speculation: Speculation, *, drafts: bool) -> tuple[float, ...]:
        """Log-probability in nats of each answer's ids, at temperature 1.

        With transfer it is that of the augmented target distribution, as if each position had been
        drafted (paper, Eq. 4). drafts: whether the drafter holds a prompt.
        """
        found = []
        for answer in answers:
            # logits: [k, V], that of answer[i] in row i
            logits = self._rows("target", answer)
            if drafts and speculation.transfers:
                draft_probs = self._rows("drafter", answer).softmax(dim=-1).to(logits.device)
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

    def _rows(self, role: str, answer: Sequence[int]) -> Tensor:
        runner = self._target if role == "target" else self._drafter
        prompt = tuple(runner.sequence)
        if self._known.get(role, ((), {}))[0] != prompt:
            self._known[role] = (prompt, {})
        rows = self._known[role][1]
        key = tuple(answer)
        if key not in rows:
            before = runner.length
            rows[key] = self._read(runner, answer) if role == "target" else self._read_draft(runner, answer)
            runner.rewind(before)
            runner.confirm()
        return rows[key]

    def _read(self, runner: ModelRunner, answer: Sequence[int]) -> Tensor:
        ids = torch.tensor([*runner.pending, *answer[:-1]], dtype=torch.long, device=runner.device)
        return runner.forward(ids, len(answer))

    def _read_draft(self, runner: ModelRunner, answer: Sequence[int]) -> Tensor:
        """The drafter's logits over the target's ids; a token of the target may be several of the drafter's."""
        if self._vocabulary.shared is None:
            return self._read(runner, answer)
        unread, rows = list(runner.pending), []
        for id_ in answer:
            # A token that spells nothing the drafter knows leaves it where it was.
            if unread:
                ids = torch.tensor(unread, dtype=torch.long, device=runner.device)
                rows.append(self._vocabulary.logits(runner.forward(ids, 1)))
            else:
                rows.append(rows[-1])
            unread = self._vocabulary.read([id_])
        return torch.cat(rows)
