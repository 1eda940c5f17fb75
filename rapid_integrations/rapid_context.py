"""The long context of a call: given whole, or found by the application's own retriever."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

from rapid_core import Chunk, Document, InputError, LongContext, LongHistory, Message, OptionError
from rapid_integrations.search import Hook, OnRetrievalError, Resolved, Search, check_on_retrieval_error


class BaseContext(ABC):
    """The long context of one call, for the keyword rapid_context.

    text, or documents (best-ranked first): what the target reads. chunks: what the drafter reads
    of it; without them passages are retrieved on the fly. query: what to search for, the last
    user message unless given. retriever: finds the chunks at each call; without text and
    documents see `from_retriever`. on_retrieval_error: the chat model's unless given. Its repr is
    a hash, so that caches and traces hold no documents; the answers to a retriever's context are
    cached by messages, also when its store changes.
    """

    def __init__(
        self,
        text: str = "",
        *,
        documents: Sequence[Any] = (),
        chunks: Sequence[Any] | None = None,
        query: str = "",
        retriever: Any = None,
        on_retrieval_error: OnRetrievalError | None = None,
    ) -> None:
        """Raises `InputError` where there is nothing to read."""
        check_on_retrieval_error(on_retrieval_error)
        if not text and not documents:
            raise InputError("a context needs text= or documents=, got none; see from_retriever, or leave it out")
        if (text and documents) or (chunks is not None and retriever is not None):
            raise InputError("a context takes text= or documents=, and chunks= or retriever=, got both")
        whole = tuple(self._to_document(document) for document in (documents or [text]))
        if retriever is not None:
            self._source: Resolved | Search = Search(
                self._to_hook(retriever), query=query, whole=whole, on_error=on_retrieval_error
            )
            return
        given = None if chunks is None else tuple(Chunk(self._to_text(chunk)) for chunk in chunks)
        self._source = Resolved(LongContext(documents=whole, chunks=given, query=query))

    @staticmethod
    @abstractmethod
    def _to_document(value: Any) -> Document:
        """A whole document of ours; raises `InputError` for what is none."""

    @staticmethod
    @abstractmethod
    def _to_text(chunk: Any) -> str:
        """A chunk's text; raises `InputError` for what has none."""

    @staticmethod
    @abstractmethod
    def _to_hook(retriever: Any) -> Hook:
        """A retriever that is asked for chunks alone; raises `InputError` for what is none."""

    @classmethod
    def of(cls, source: Resolved | Search) -> Self:
        """A context of something that is already known, or that has yet to be searched."""
        made = cls.__new__(cls)
        made._source = source
        return made

    @classmethod
    def read(cls, value: object) -> Self:
        """What a call may name: a text, a context of ours, or one of the core; raises `OptionError` for all else."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls(value)
        if isinstance(value, LongContext | LongHistory):
            return cls.of(Resolved(value))
        raise OptionError(
            f"rapid_context must be text, a {cls.__module__}.RapidContext, a LongContext or a LongHistory, got a "
            f"{type(value).__module__}.{type(value).__name__}"
        )

    def __repr__(self) -> str:
        digest = hashlib.sha256(repr(self._source).encode("utf-8", "surrogatepass")).hexdigest()
        return f"RapidContext({digest[:32]})"

    def resolve(self, messages: Sequence[Message], on_error: OnRetrievalError) -> Resolved:
        """What the engine is given; a retriever is asked now."""
        return self._source if isinstance(self._source, Resolved) else self._source.run(messages, on_error)

    async def aresolve(self, messages: Sequence[Message], on_error: OnRetrievalError) -> Resolved:
        """`resolve` for an event loop."""
        return self._source if isinstance(self._source, Resolved) else await self._source.arun(messages, on_error)
