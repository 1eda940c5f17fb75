"""The retriever that found some nodes, for a synthesizer that is given the nodes alone."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.query.query_transform.base import IdentityQueryTransform
from llama_index.core.instrumentation.span_handlers import SimpleSpanHandler
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.retrievers import TransformRetriever
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index_helpers import LEASE, QUESTION, SPLITTER, WordEmbedding
from llama_index_instrumentation import root_dispatcher

from rapid_integrations.llama_index.watching import (
    KEPT,
    RetrieverWatch,
    _answers,
    _owners,
    retriever_of,
    watch_retrievers,
)


def split():
    return SPLITTER.get_nodes_from_documents([Document(text=LEASE, id_="lease")])


def alike():
    """Two indices whose nodes have the same ids."""
    nodes = split()
    return [VectorStoreIndex(nodes, embed_model=WordEmbedding()) for _ in range(2)]


def engine_of(index, *steps):
    # The engine asks Settings for a model, also where a synthesizer brings its own.
    return index.as_query_engine(
        llm=MockLLM(), response_synthesizer=Noting(), node_postprocessors=list(steps), similarity_top_k=4
    )


def seen(engines):
    return [engine._response_synthesizer.seen for engine in engines]


class Noting(BaseSynthesizer):
    """Notes whose nodes it is given."""

    def __init__(self):
        watch_retrievers()
        super().__init__(llm=MockLLM())
        self.seen = []

    def _get_prompts(self):
        return {}

    def _update_prompts(self, prompts):
        pass

    def get_response(self, query_str, text_chunks, **kwargs):
        return ""

    async def aget_response(self, query_str, text_chunks, **kwargs):
        return ""

    def synthesize(self, query, nodes, additional_source_nodes=None, **kwargs):
        self.seen.append(retriever_of(nodes))
        return super().synthesize(query, nodes, additional_source_nodes, **kwargs)

    async def asynthesize(self, query, nodes, additional_source_nodes=None, **kwargs):
        await asyncio.sleep(0.01)
        self.seen.append(retriever_of(nodes))
        return await super().asynthesize(query, nodes, additional_source_nodes, **kwargs)


class Keeping(BaseRetriever):
    """Keeps its nodes itself, as BM25's do."""

    def __init__(self, nodes):
        self._nodes = nodes
        super().__init__()

    def _retrieve(self, query_bundle):
        return [NodeWithScore(node=node, score=1.0) for node in self._nodes[:2]]


class Copying(BaseNodePostprocessor):
    """Drops a node and copies the others."""

    def _postprocess_nodes(self, nodes, query_bundle=None):
        return [NodeWithScore(node=scored.node.model_copy(), score=0.5) for scored in nodes[1:]]


@pytest.mark.parametrize("steps", [[], [Copying()]])
def test_a_query_engine_s_synthesizer_finds_its_retriever(steps):
    engine = engine_of(alike()[0], *steps)
    engine.query(QUESTION)
    assert seen([engine]) == [[engine.retriever]]


def test_two_engines_in_two_threads_are_not_mixed_up():
    engines = [engine_of(index, Copying()) for index in alike()]
    started = threading.Barrier(2)

    def ask(engine):
        for _ in range(5):
            started.wait()
            engine.query(QUESTION)

    threads = [threading.Thread(target=ask, args=(engine,)) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen(engines) == [[engine.retriever] * 5 for engine in engines]


async def test_two_engines_in_two_tasks_are_not_mixed_up():
    engines = [engine_of(index, Copying()) for index in alike()]
    await asyncio.gather(*(engine.aquery(QUESTION) for engine in engines * 3))
    assert seen(engines) == [[engine.retriever] * 3 for engine in engines]


def test_nodes_that_were_retrieved_one_after_the_other_are_told_apart():
    watch_retrievers()
    first, second = (index.as_retriever() for index in alike())
    nodes, others = first.retrieve(QUESTION), second.retrieve(QUESTION)
    assert [scored.node.node_id for scored in nodes] == [scored.node.node_id for scored in others]
    assert retriever_of(nodes) is first and retriever_of(others) is second


def test_of_nested_retrievers_the_outermost_is_found():
    watch_retrievers()
    inner = alike()[0].as_retriever(similarity_top_k=4)
    outer = TransformRetriever(inner, IdentityQueryTransform())
    assert retriever_of(outer.retrieve(QUESTION)) is outer
    assert retriever_of(inner.retrieve(QUESTION)) is inner


def test_strange_nodes_have_no_retriever():
    watch_retrievers()
    retriever = alike()[0].as_retriever()
    retriever.retrieve(QUESTION)
    assert retriever_of([NodeWithScore(node=TextNode(text="made by hand"))]) is None and retriever_of([]) is None


def test_another_thread_knows_the_very_nodes_and_not_their_copies():
    watch_retrievers()
    retriever, heard = alike()[0].as_retriever(), []
    nodes = retriever.retrieve(QUESTION)
    copies = [NodeWithScore(node=scored.node.model_copy(), score=scored.score) for scored in nodes]
    for asked in (nodes, copies):
        thread = threading.Thread(target=lambda asked=asked: heard.append(retriever_of(asked)))
        thread.start()
        thread.join()
    assert heard == [retriever, None] and retriever_of(copies) is retriever
    del nodes, asked, thread
    gc.collect()
    # Nothing is kept of nodes that are gone.
    assert not any(owner[0]() is None for owner in _owners.values())


def test_only_the_last_one_is_kept_alive_and_nothing_without_end():
    watch_retrievers()
    retriever = Keeping(split())
    for _ in range(KEPT + 5):
        nodes = retriever.retrieve(QUESTION)
    assert len(_answers.get()) == KEPT and retriever_of(nodes) is retriever
    del retriever
    gc.collect()
    # It may be all that an application has left of its index.
    assert isinstance(retriever_of(nodes), Keeping)
    Keeping(split()).retrieve(QUESTION)
    gc.collect()
    assert retriever_of(nodes) is None


def test_it_watches_once_and_leaves_other_handlers_alone():
    other = SimpleSpanHandler()
    root_dispatcher.add_span_handler(other)
    try:
        watch_retrievers()
        watch_retrievers()
        assert sum(isinstance(handler, RetrieverWatch) for handler in root_dispatcher.span_handlers) == 1
        alike()[0].as_retriever().retrieve(QUESTION)
        assert any("retrieve" in span.id_ for span in other.completed_spans) and not other.open_spans
    finally:
        root_dispatcher.span_handlers.remove(other)
