"""Tests over a real embedded Chroma store: query engines and a chat engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from zlib import crc32

import pytest
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.base.response.schema import AsyncStreamingResponse, StreamingResponse
from llama_index.core.chat_engine.types import BaseChatEngine, ChatMode
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.llms import LLM
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.schema import NodeWithScore, TextNode

from rapid_integrations.llama_index.testing.asking import within
from rapid_integrations.llama_index.testing.properties import SuiteProperties
from rapid_integrations.llama_index.testing.watching import Calls, watched

T = TypeVar("T")

_TEXTS = (
    "The harbour of Lima closes at nine in the evening.",
    "The lighthouse keeper feeds three cats every morning.",
    "Potatoes are planted in spring, when the frost is gone.",
)
_QUESTION = "When does the harbour of Lima close?"
_FOUND = _TEXTS[0]
_SECOND_QUESTION = "And what is planted in spring?"


class StoreTests(SuiteProperties):
    """The model at the end of retrieval, as applications put it there."""

    def test_query_engine(self, llm: LLM, tmp_path: Path) -> None:
        """A compact query engine hands the found node to the model, and its answer back."""
        engine = _index(tmp_path, _TEXTS).as_query_engine(llm=llm, similarity_top_k=1, response_mode="compact")
        with watched() as calls:
            response = self._sync(lambda: engine.query(_QUESTION))
        _check_answer("query", str(response), response.source_nodes, calls)

    def test_streaming_query_engine(self, llm: LLM, tmp_path: Path) -> None:
        """With streaming=True it gives the same text, piece by piece."""
        index = _index(tmp_path, _TEXTS)
        whole, streaming = (
            index.as_query_engine(llm=llm, similarity_top_k=1, streaming=streaming) for streaming in (False, True)
        )
        with watched() as calls:
            response = self._sync(lambda: streaming.query(_QUESTION))
            assert isinstance(response, StreamingResponse), f"streaming=True must stream, got {type(response).__name__}"
            streamed = "".join(str(token) for token in response.response_gen)
        _check_answer("query with streaming", streamed, response.source_nodes, calls)
        self._same(streamed, str(self._sync(lambda: whole.query(_QUESTION))), "query with streaming")

    @pytest.mark.asyncio
    async def test_async_query_engine(self, llm: LLM, tmp_path: Path) -> None:
        """aquery gives an answer, whole and streamed, that is the same."""
        index = _index(tmp_path, _TEXTS)
        with watched() as calls:
            whole = await index.as_query_engine(llm=llm, similarity_top_k=1).aquery(_QUESTION)
        _check_answer("aquery", str(whole), whole.source_nodes, calls)
        response = await index.as_query_engine(llm=llm, similarity_top_k=1, streaming=True).aquery(_QUESTION)
        assert isinstance(response, AsyncStreamingResponse), f"aquery must stream, got {type(response).__name__}"
        streamed = "".join([token async for token in response.async_response_gen()])
        self._same(streamed, str(whole), "aquery with streaming")

    def test_chat_engine(self, llm: LLM, tmp_path: Path) -> None:
        """A context chat engine reads nodes and earlier turns; its second turn is streamed."""
        engine = _chat_engine(llm, tmp_path)
        with watched() as calls:
            first = self._sync(lambda: engine.chat(_QUESTION))
        _check_answer("chat", first.response, first.source_nodes, calls)
        with watched() as calls:
            second = self._sync(lambda: engine.stream_chat(_SECOND_QUESTION))
            streamed = "".join(second.response_gen)
        _check_second_turn("stream_chat", streamed, first.response, calls)

    @pytest.mark.asyncio
    async def test_async_chat_engine(self, llm: LLM, tmp_path: Path) -> None:
        """The same for its async twins."""
        engine = _chat_engine(llm, tmp_path)
        with watched() as calls:
            first = await engine.achat(_QUESTION)
        _check_answer("achat", first.response, first.source_nodes, calls)
        with watched() as calls:
            second = await engine.astream_chat(_SECOND_QUESTION)
            streamed = "".join([token async for token in second.async_response_gen()])
        _check_second_turn("astream_chat", streamed, first.response, calls)

    def test_long_node(self, llm: LLM, tmp_path: Path) -> None:
        """A node of 20,000 words costs as many calls as the model's real window asks for."""
        self.needs("calls_for_long_node")
        text = " ".join(f"word{number % 97}" for number in range(20_000))
        engine = _index(tmp_path, [text]).as_query_engine(llm=llm)
        with watched() as calls:
            response = self._sync(lambda: engine.query("What is word7?"))
        assert str(response).strip(), f"a query over a long node must be answered, got {response!s}"
        assert len(calls.prompts) == self.calls_for_long_node, (
            f"a node of 20,000 words must cost {self.calls_for_long_node} calls, as calls_for_long_node says, "
            f"got {len(calls.prompts)} with a context_window of {llm.metadata.context_window}"
        )

    def _sync(self, ask: Callable[[], T]) -> T:
        # In a thread: LlamaIndex's sync engines make an event loop where there is none, and leave it open.
        return within(self.patience, "an engine must answer", ask)

    def _same(self, text: str, expected: str, what: str) -> None:
        if self.is_deterministic:
            assert text == expected, f"{what} must give the same text, {expected!r}, got {text!r}"


class _WordEmbedding(BaseEmbedding):
    """Texts are near each other if they share words: nothing is downloaded."""

    def _get_text_embedding(self, text: str) -> list[float]:
        vector = [0.0] * 256
        for word in re.findall(r"\w{4,}", text.lower()):
            vector[crc32(word.encode()) % 256] += 1.0
        length = sum(value * value for value in vector) ** 0.5 or 1.0
        return [value / length for value in vector]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


def _index(folder: Path, texts: tuple[str, ...] | list[str]) -> VectorStoreIndex:
    """An index whose nodes lie in a Chroma store of its own."""
    chromadb = pytest.importorskip("chromadb", reason="chromadb is not installed")
    chroma = pytest.importorskip(
        "llama_index.vector_stores.chroma", reason="llama-index-vector-stores-chroma is not installed"
    )
    collection = chromadb.PersistentClient(str(folder)).create_collection("suite")
    storage = StorageContext.from_defaults(vector_store=chroma.ChromaVectorStore(chroma_collection=collection))
    nodes = [TextNode(text=text) for text in texts]
    return VectorStoreIndex(nodes, storage_context=storage, embed_model=_WordEmbedding())


def _chat_engine(llm: LLM, folder: Path) -> BaseChatEngine:
    # The default memory is an SQLite database that nobody closes.
    memory = ChatMemoryBuffer.from_defaults(tokenizer_fn=str.split)
    return _index(folder, _TEXTS).as_chat_engine(ChatMode.CONTEXT, llm=llm, similarity_top_k=1, memory=memory)


def _check_answer(method: str, text: str, sources: list[NodeWithScore], calls: Calls) -> None:
    assert text.strip(), f"{method} must answer, got {text!r}"
    found = [source.text for source in sources]
    assert found == [_FOUND], f"{method} must name its sources, {[_FOUND]}, got {found}"
    assert any(_FOUND in prompt for prompt in calls.prompts), (
        f"{method} must hand the found node to the model, got {calls.prompts}"
    )


def _check_second_turn(method: str, text: str, first: str, calls: Calls) -> None:
    assert text.strip(), f"{method} of a chat engine must answer, got {text!r}"
    prompt = "\n".join(calls.prompts)
    for part in (_QUESTION, first, _TEXTS[2]):
        assert part in prompt, f"{method} must hand earlier turns and new nodes to the model, not {part!r} in {prompt}"
