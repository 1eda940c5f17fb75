"""`RapidHistoryMiddleware`: an agent's long history, read whole by the target and in part by the drafter."""

from __future__ import annotations

import hashlib
import threading
import warnings
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore

from rapid_core import InputError, LongHistory, OptionError
from rapid_integrations.contexts import RapidWarning
from rapid_integrations.langchain.chat_model import ChatRapid
from rapid_integrations.langchain.retrieval import OnRetrievalError, RapidContext, Resolved, check_on_retrieval_error

_ID_KEY = "rapid_passage"
# A store that holds other texts too is asked for more, until enough of the history is among them.
_MOST_ASKED = 1024


class RapidHistoryMiddleware(AgentMiddleware[Any, Any, Any]):
    """For `create_agent`: the target sees the whole history, the drafter what matters of it.

    The drafter reads the system message, the older turns and tool results that are retrieved for
    the last question, and the `newest` turns as they are; a tool call and its result stay
    together. vector_store: where older passages are kept and searched, each added once, under an
    id that is a hash of its text; the engine's own encoder without one. k: passages that are asked
    of the store. on_retrieval_error: "plain" goes on without older turns, with a warning, where
    the store fails. Models other than ChatRapid get their requests unchanged, with a warning.
    """

    def __init__(
        self,
        vector_store: VectorStore | None = None,
        *,
        newest: int = 2,
        k: int = 16,
        on_retrieval_error: OnRetrievalError = "raise",
    ) -> None:
        super().__init__()
        check_on_retrieval_error(on_retrieval_error)
        if vector_store is not None and not isinstance(vector_store, VectorStore):
            raise InputError(f"vector_store must be a LangChain VectorStore, got {type(vector_store).__name__}")
        for name, value in (("newest", newest), ("k", k)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise OptionError(f"{name} must be a whole number of at least 1, got {value!r}")
        rank = None if vector_store is None else HistoryStore(vector_store, k, on_retrieval_error)
        self._context = RapidContext.of(Resolved(LongHistory(newest=newest, rank=rank)))

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Hand the history to the model in two ways."""
        return handler(self._with_context(request))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """`wrap_model_call` for an event loop; the store is searched in another thread."""
        return await handler(self._with_context(request))

    def _with_context(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        if not isinstance(request.model, ChatRapid):
            warnings.warn(
                f"RapidHistoryMiddleware does nothing for a {type(request.model).__name__}: it needs a ChatRapid",
                RapidWarning,
                stacklevel=2,
            )
            return request
        return request.override(model_settings={**request.model_settings, "rapid_context": self._context})


class HistoryStore:
    """Ranks passages of histories with a vector store of the application, in which each is put once."""

    def __init__(self, store: VectorStore, k: int, on_error: OnRetrievalError) -> None:
        self._store = store
        self._k = k
        self._on_error = on_error
        self._known: set[str] = set()
        # Several agents may share the middleware.
        self._lock = threading.Lock()

    def __call__(self, query: str, passages: Sequence[str]) -> list[int]:
        """The places of passages, best first; those that the store does not find are left out."""
        try:
            places = {_id(passage): place for place, passage in enumerate(passages)}
            with self._lock:
                self._add(places, passages)
            return self._search(query, places)
        except Exception as error:
            if self._on_error == "raise":
                raise
            warnings.warn(
                f"the history could not be searched, and the drafter reads none of its older turns: {error}",
                RapidWarning,
                stacklevel=2,
            )
            return []

    def _add(self, places: dict[str, int], passages: Sequence[str]) -> None:
        new = [id_ for id_ in places if id_ not in self._known]
        if not new:
            return
        kept = self._kept(new)
        missing = [id_ for id_ in new if id_ not in kept]
        if missing:
            documents = [Document(passages[places[id_]], metadata={_ID_KEY: id_}) for id_ in missing]
            self._store.add_documents(documents, ids=missing)
        self._known.update(new)

    def _kept(self, ids: list[str]) -> set[str]:
        """Those that the store holds already, from an earlier run."""
        try:
            return {str(document.metadata.get(_ID_KEY)) for document in self._store.get_by_ids(ids)}
        except NotImplementedError:
            return set()

    def _search(self, query: str, places: dict[str, int]) -> list[int]:
        wanted, asked = min(self._k, len(places)), self._k
        while True:
            found = self._store.similarity_search(query, k=asked)
            ids = dict.fromkeys(document.metadata.get(_ID_KEY) for document in found)
            known = [places[id_] for id_ in ids if id_ in places]
            if len(known) >= wanted or len(found) < asked or asked >= _MOST_ASKED:
                return known[: self._k]
            asked *= 2


def _id(passage: str) -> str:
    # A UUID, since some stores take no other ids.
    digest = hashlib.sha256(passage.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:]))
