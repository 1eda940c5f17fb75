"""transformers' own decoding: `generate()`, its prompt lookup, its assisted generation."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig
from transformers.utils import logging as transformers_logging

from rapid_core.bench.machine import now
from rapid_core.bench.records import Answer
from rapid_core.cache_store import shared_prefix
from rapid_core.loading import LoadedModel

PROMPT_LOOKUP_TOKENS = 10


class _Arrivals:
    """A streamer that notes when tokens come, and how many together."""

    def __init__(self) -> None:
        self.bursts: list[int] = []
        self.first_at = 0.0
        self._prompt_came = False

    def put(self, ids: Tensor) -> None:
        """Tokens that came to the host: the device has made them."""
        if not self._prompt_came:
            self._prompt_came = True
            return
        if not self.bursts:
            self.first_at = now()
        self.bursts.append(ids.numel())

    def end(self) -> None:
        """Nothing more comes."""


class _Reader:
    """A model that shares its weights with ours, and transformers' dynamic cache of one prompt.

    The cache keeps all but the prompt's last token, and is cut back to that after an answer.
    """

    def __init__(self, model: Any) -> None:
        # A copy, since generate() writes to the generation config of a model and of its assistant.
        self.model = copy.copy(model)
        self.model.generation_config = GenerationConfig(pad_token_id=0)
        self.device: torch.device = model.get_input_embeddings().weight.device
        self.clear()

    def clear(self) -> None:
        """Forget the prompt and give its memory back."""
        self.cache = DynamicCache()
        self.ids: tuple[int, ...] = ()

    @torch.no_grad()
    def read(self, ids: tuple[int, ...]) -> None:
        """Read a prompt but for its last id, in one forward, as generate() does."""
        kept = shared_prefix(self.ids, ids, len(ids) - 1)
        self.rewind(kept)
        self.ids = ids
        rest = torch.tensor([ids[kept:-1]], device=self.device)
        if rest.numel():
            few = {"logits_to_keep": 1} if self.model._supports_logits_to_keep() else {}
            self.model(input_ids=rest, past_key_values=self.cache, use_cache=True, **few)

    def rewind(self, length: int) -> None:
        """Go back to the first `length` ids."""
        extra = self.cache.get_seq_length() - length
        if extra > 0:
            # transformers counts what it removes as a negative number.
            self.cache.crop(-extra)


class Baselines:
    """transformers' methods on the models of an engine, whose own state stays as it is.

    Each prompt is read once and not for every answer. drafter: the assistant; with the target's
    own weights it takes a copy of the target's cache in place of reading the prompt again.
    """

    def __init__(self, target: LoadedModel, drafter: LoadedModel) -> None:
        self._target = _Reader(target.model)
        self._assistant = _Reader(drafter.model)
        self._same_weights = target.model is drafter.model

    def clear(self) -> None:
        """Forget the prompt and give its memory back."""
        self._target.clear()
        self._assistant.clear()

    def read(self, ids: tuple[int, ...]) -> float:
        """Make sure that the target's prompt is in its cache; returns the seconds that it took."""
        started = now(self._target.device)
        self._target.read(ids)
        return now(self._target.device) - started

    def answer(self, method: str, ids: tuple[int, ...], max_new_tokens: int) -> Answer:
        """One greedy answer by one of transformers' methods, behind a prompt that is already read."""
        self.read(ids)
        drafts: list[int] = []
        options: dict[str, Any] = {"do_sample": False, "max_new_tokens": max_new_tokens}
        if method == "prompt-lookup":
            options["prompt_lookup_num_tokens"] = PROMPT_LOOKUP_TOKENS
        elif method == "assisted":
            options["assistant_model"] = self._prepared_assistant(ids)
        model = self._target.model
        if method != "generate":
            model = copy.copy(model)
            model.prepare_inputs_for_generation = partial(_unread, model.prepare_inputs_for_generation, drafts)
        arrivals, device = _Arrivals(), self._target.device
        prompt = torch.tensor([ids], device=device)
        with _quiet():
            started = now(device)
            output = model.generate(prompt, past_key_values=self._target.cache, streamer=arrivals, **options)
            ended = now(device)
        self._target.rewind(len(ids) - 1)
        return Answer(
            ids=tuple(output[0, len(ids) :].tolist()),
            first_burst=arrivals.bursts[0],
            first_token_s=arrivals.first_at - started,
            total_s=ended - started,
            rounds=len(arrivals.bursts),
            drafted=sum(drafts) if method != "generate" else None,
            accepted=sum(arrivals.bursts) - len(arrivals.bursts) if method != "generate" else None,
        )

    def _prepared_assistant(self, ids: tuple[int, ...]) -> Any:
        """The assistant with its prompt read, which it would do in every answer before its first draft."""
        if self._same_weights:
            self._assistant.clear()
            for number, layer in enumerate(self._target.cache.layers):
                self._assistant.cache.update(layer.keys.clone(), layer.values.clone(), number)
        else:
            self._assistant.rewind(len(ids) - 1)
            self._assistant.read(ids)
        assistant = copy.copy(self._assistant.model)
        # The first call has no cache of its own; later ones bring what the first one gave back.
        assistant.generate = partial(assistant.generate, past_key_values=self._assistant.cache)
        return assistant


def _unread(
    prepare: Any, drafts: list[int], input_ids: Tensor, next_sequence_length: int | None = None, **kwargs: Any
) -> Any:
    """`prepare_inputs_for_generation` that leaves out what the cache holds, and notes the drafts.

    In its first step assisted decoding reads the whole prompt again behind a filled cache.
    """
    if next_sequence_length is None:
        next_sequence_length = input_ids.shape[1] - kwargs["past_key_values"].get_seq_length()
    drafts.append(next_sequence_length - 1)
    return prepare(input_ids, next_sequence_length=next_sequence_length, **kwargs)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what transformers says about its own calls of the assistant."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)
