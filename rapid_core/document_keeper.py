"""Keeps prefilled documents across restarts: between the target's caches, the index and a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rapid_core.cache_store import shared_prefix
from rapid_core.context import Task
from rapid_core.datatypes import LongContext
from rapid_core.document_file import SavedDocument, open_document, write_document
from rapid_core.errors import EngineStateError
from rapid_core.fingerprint import fingerprint
from rapid_core.kv_cache import KVCache
from rapid_core.prompts import ChatPrompter
from rapid_core.retrieval import Searcher
from rapid_core.runner import ModelRunner

# Two questions that begin differently: one of them differs from any question at its first letter.
OTHER_QUESTIONS = ("\n\nWhy?", "\n\n1 or 2?")
# Room behind a loaded document for a question and its answer, so that nothing grows for them.
ROOM = 1024


class DocumentKeeper:
    """Saves the document of the last request, and loads saved ones. One call at a time.

    model_name: what the user calls the target.
    """

    def __init__(self, target: ModelRunner, prompter: ChatPrompter, searcher: Searcher, model_name: str) -> None:
        self._target = target
        self._prompter = prompter
        self._searcher = searcher
        self._model_name = model_name
        self._last: tuple[Task, tuple[int, ...]] | None = None

    def note(self, task: Task, target_ids: tuple[int, ...]) -> None:
        """Keep in mind what the target has just read."""
        self._last = (task, target_ids)

    def forget(self) -> None:
        """Let go of the last request's text."""
        self._last = None

    def save(self, path: Path) -> None:
        """Write the document of the last request with its keys and values.

        Raises `EngineStateError` where there is none that could be saved.
        """
        task, target_ids = self._last or (None, ())
        if task is not None and task.context is None and task.history is not None:
            raise EngineStateError(
                "save_document saves a document, and the last request had none but a long history; pass the document "
                "as context= and ask about it first"
            )
        if task is None or task.context is None:
            raise EngineStateError(
                "save_document saves the document of the last request, and there was none; ask a question about it "
                "first, with context="
            )
        text = task.context.text
        if task.before.strip():
            raise EngineStateError(
                "a document can be saved where it stands before the question, and in the last request it stood behind "
                "it; pass it as context="
            )
        if self._prompter.encode(task.with_context(text), task.tools) != target_ids:
            raise EngineStateError(
                "only a document that the target read whole can be saved, and in the last request it was cut to fit "
                "the window; use a model with a longer window, or save a part that fits"
            )
        ids = self._before_the_question(task, target_ids)
        slot = self._target.store.find(ids)
        if slot is None:
            raise EngineStateError(
                "the document's keys are no longer in the cache: a request failed, or another document took their "
                "place; ask about it again first"
            )
        document = SavedDocument(
            text, ids, slot.cache.states(len(ids)), slot.beyond_border, self._searcher.embedded(text)
        )
        write_document(path, document, fingerprint(self._target.model), self._model_name)

    def load(self, path: Path) -> LongContext:
        """Put a saved document into the target's caches and into the index.

        Raises `SavedDocumentError` before anything changes.
        """
        with open_document(path) as file:
            file.check_fits(fingerprint(self._target.model), self._model_name, self._target.window)
            file.check_whole()
            text, ids, embedded = file.text, file.ids, file.embedded

            def fill(cache: KVCache) -> None:
                for layer, keys, values in file.states():
                    device, _ = self._target.store.layout.layers[layer]
                    cache.update(keys.to(device), values.to(device), layer)

            room = min(len(ids) + ROOM, self._target.window)
            self._target.store.adopt(ids, room, beyond_border=file.beyond_border, fill=fill)
        if embedded is not None:
            self._searcher.restore(text, embedded)
        return LongContext(text)

    def _before_the_question(self, task: Task, target_ids: tuple[int, ...]) -> list[int]:
        """The ids that the prompt shares with the same prompt of any other question."""
        assert task.context is not None
        shared = len(target_ids)
        for question in OTHER_QUESTIONS:
            other = self._prompter.encode(replace(task, after=question).with_context(task.context.text), task.tools)
            shared = shared_prefix(target_ids, other, shared)
        return list(target_ids[:shared])
