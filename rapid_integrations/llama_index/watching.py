"""Which retriever found some nodes: a synthesizer is given the nodes and not their retriever."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.instrumentation.span_handlers import NullSpanHandler
from llama_index.core.schema import BaseNode, NodeWithScore
from llama_index_instrumentation import root_dispatcher

# A retriever may ask others before it answers; older answers are forgotten.
KEPT = 16


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a retriever returned, held weakly: by id the nodes."""

    retriever: weakref.ref[BaseRetriever]
    nodes: dict[str, weakref.ref[BaseNode]]

    def matches(self, nodes: Sequence[NodeWithScore]) -> tuple[int, int]:
        """How many of the nodes it returned itself, and how many have an id that it returned."""
        known = [(scored.node, self.nodes.get(scored.node.node_id)) for scored in nodes]
        return sum(found is not None and found() is node for node, found in known), sum(
            found is not None for _, found in known
        )


# By the identity of nodes, for those who retrieve in one thread or task and answer in another.
_owners: dict[int, tuple[weakref.ref[BaseNode], weakref.ref[BaseRetriever]]] = {}
# Each thread and task sees its own answers, and those from before it began.
_answers: ContextVar[tuple[_Answer, ...]] = ContextVar("rapid_retrieved", default=())
# The last one is held: index.as_retriever().retrieve(…) leaves nobody else who would.
_last: ContextVar[BaseRetriever | None] = ContextVar("rapid_last_retriever", default=None)
_lock = threading.Lock()


class RetrieverWatch(NullSpanHandler):
    """Notes what retrievers return, for the thread or task that asked them."""

    @classmethod
    def class_name(cls) -> str:
        """The name that LlamaIndex knows it by."""
        return "RetrieverWatch"

    def span_exit(
        self,
        id_: str,  # noqa: ARG002
        bound_args: inspect.BoundArguments,  # noqa: ARG002
        instance: Any | None = None,
        result: Any | None = None,
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """Called by LlamaIndex when a step ends."""
        if not isinstance(instance, BaseRetriever) or not isinstance(result, list):
            return
        nodes = {
            scored.node.node_id: weakref.ref(scored.node) for scored in result if isinstance(scored, NodeWithScore)
        }
        if nodes:
            _answers.set((*_answers.get(), _Answer(weakref.ref(instance), nodes))[-KEPT:])
            _last.set(instance)
            for scored in result:
                if isinstance(scored, NodeWithScore):
                    _own(scored.node, instance)


def _own(node: BaseNode, retriever: BaseRetriever) -> None:
    key = id(node)

    def forget(gone: weakref.ref[BaseNode]) -> None:
        # Another node may have the same address by now.
        if _owners.get(key, (None,))[0] is gone:
            del _owners[key]

    _owners[key] = weakref.ref(node, forget), weakref.ref(retriever)


def _owner_of(nodes: Sequence[NodeWithScore]) -> BaseRetriever | None:
    """The retriever that most of these very nodes came from, whoever asked it."""
    known = [(scored.node, _owners.get(id(scored.node))) for scored in nodes]
    found = [owner[1]() for node, owner in known if owner is not None and owner[0]() is node]
    there = [retriever for retriever in found if retriever is not None]
    return max(there, key=lambda retriever: sum(other is retriever for other in there), default=None)


def watch_retrievers() -> None:
    """Note from now on what retrievers return; to call it again does nothing."""
    with _lock:
        if not any(isinstance(handler, RetrieverWatch) for handler in root_dispatcher.span_handlers):
            root_dispatcher.add_span_handler(RetrieverWatch())


def retriever_of(nodes: Sequence[NodeWithScore]) -> BaseRetriever | None:
    """The retriever that returned these nodes, or most of them.

    Of a retriever and those that it asked, the outermost. Nodes that a postprocessor copied are
    known by their ids to the thread or task that retrieved them. None where nobody watched, and
    where the retriever is gone, if it was not the last one to answer.
    """
    best, found = (0, 0), None
    for answer in _answers.get():
        retriever, matches = answer.retriever(), answer.matches(nodes)
        # The last of equals: the outermost retriever answers last.
        if retriever is not None and matches > (0, 0) and matches >= best:
            best, found = matches, retriever
    return found if best[0] else _owner_of(nodes) or found
