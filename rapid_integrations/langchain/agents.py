"""`RapidHistoryMiddleware`: an agent's long history, read whole by the target and in part by the drafter."""

from __future__ import annotations

import hashlib
import threading
import uuid
import warnings
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore

from rapid_core import InputError, LongHistory
from rapid_integrations.contexts import RapidWarning
from rapid_integrations.langchain.chat_model import ChatRapid
from rapid_integrations.langchain.retrieval import RapidContext
from rapid_integrations.search import OnRetrievalError, Resolved, check_count, check_on_retrieval_error

_ID_KEY = "rapid_passage"
# A store that holds other texts too is asked for more, until enough of the history is among them.
_MOST_ASKED = 1024
# Ids that are taken to be in the store without asking; a server must not keep them for ever.
_MOST_KNOWN = 100_000


class RapidHistoryMiddleware(AgentMiddleware[Any, Any, Any]):
    """For `create_agent`: the target sees the whole history, the drafter what matters of it.

    The drafter reads the system message, the older turns and tool results that are retrieved for
    the last question, and the `newest` turns as they are; a tool call and its result stay
    together. vector_store: where older passages are kept and searched, each added once, under an
    id that is a hash of its text; the engine's own encoder without one. k: passages that are asked
    of the store. on_retrieval_error: "plain" answers without a drafter, with a warning, where the
    store fails; the chat model's unless given. A `rapid_context` that is already set stays, and
    models other than ChatRapid get their requests unchanged, both with a warning.
    """

    def __init__(
        self,
        vector_store: VectorStore | None = None,
        *,
        newest: int = 2,
        k: int = 16,
        on_retrieval_error: OnRetrievalError | None = None,
    ) -> None:
        super().__init__()
        check_on_retrieval_error(on_retrieval_error)
        if vector_store is not None and not isinstance(vector_store, VectorStore):
            raise InputError(f"vector_store must be a LangChain VectorStore, got {type(vector_store).__name__}")
        check_count("newest", newest)
        check_count("k", k)
        self._newest, self._on_error = newest, on_retrieval_error
        self._store = None if vector_store is None else HistoryStore(vector_store, k)

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
        model, settings = request.model, request.model_settings
        if not isinstance(model, ChatRapid):
            return _unchanged(request, f"a {type(model).__name__}: it needs a ChatRapid")
        if settings.get("rapid_context") is not None:
            return _unchanged(request, "a call whose rapid_context is already set")
        notes: list[str] = []
        rank = None
        if self._store is not None:
            rank = _Ranking(self._store, self._on_error or model.on_retrieval_error, notes)
        context = RapidContext.of(Resolved(LongHistory(newest=self._newest, rank=rank), notes))
        return request.override(model_settings={**settings, "rapid_context": context})


def _unchanged(request: ModelRequest[Any], what: str) -> ModelRequest[Any]:
    warnings.warn(f"RapidHistoryMiddleware does nothing for {what}", RapidWarning, stacklevel=4)
    return request


class _Ranking:
    """The ranking of one call, which tells the statistics what went wrong."""

    def __init__(self, store: HistoryStore, on_error: OnRetrievalError, notes: list[str]) -> None:
        self._store, self._on_error, self._notes = store, on_error, notes

    def __repr__(self) -> str:
        # A part of the keys of caches, in which a call is like the next one.
        return repr(self._store)

    def __call__(self, query: str, passages: Sequence[str]) -> list[int]:
        try:
            return self._store.rank(query, passages)
        except Exception as error:
            if self._on_error == "raise":
                raise
            note = f"the history could not be searched, and the answer is given without a drafter: {error}"
            self._notes.append(note)
            warnings.warn(note, RapidWarning, stacklevel=2)
            return []


class HistoryStore:
    """Ranks passages of histories with a vector store of the application, in which each is put once."""

    def __init__(self, store: VectorStore, k: int) -> None:
        self._store = store
        self._k = k
        self._known: set[str] = set()
        self._name = uuid.uuid4().hex
        # Several agents may share the middleware.
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"HistoryStore({self._name})"

    def rank(self, query: str, passages: Sequence[str]) -> list[int]:
        """The places of passages, best first; those that the store does not find are left out."""
        places = {_id(passage): place for place, passage in enumerate(passages)}
        with self._lock:
            complete = self._add(places, passages)
        found = self._search(query, places)
        if complete or len(found) >= min(self._k, len(places)):
            return found
        # The application may have emptied its store.
        with self._lock:
            self._known.clear()
            self._add(places, passages)
        return self._search(query, places)

    def _add(self, places: dict[str, int], passages: Sequence[str]) -> bool:
        """Put what is not known into the store; whether nothing was taken on trust."""
        new = [id_ for id_ in places if id_ not in self._known]
        if new:
            kept = self._kept(new)
            missing = [id_ for id_ in new if id_ not in kept]
            if missing:
                documents = [Document(passages[places[id_]], metadata={_ID_KEY: id_}) for id_ in missing]
                self._store.add_documents(documents, ids=missing)
        complete = len(new) == len(places)
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        self._known.update(places)
        return complete

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
