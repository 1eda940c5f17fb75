"""What the tests of the LlamaIndex integration share: a text, its splitter, embeddings, a store of one's own."""

from __future__ import annotations

import uuid

import chromadb
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.tools import FunctionTool
from llama_index.vector_stores.chroma import ChromaVectorStore

from rapid_core.testing import ScriptedEngine, WordEncoder
from rapid_integrations.llama_index import RapidLLM

LEASE = "\n\n".join(f"Clause {n}. The tenant of house {n} pays {n}0 crowns on day {n}." for n in range(1, 20))
QUESTION = "What does the tenant of house 3 pay?"
# A clause or two a node, so that a lease has several.
SPLITTER = SentenceSplitter(chunk_size=60, chunk_overlap=20)


class WordEmbedding(BaseEmbedding):
    """Texts are near each other if they share words."""

    _encoder: WordEncoder = PrivateAttr(default_factory=WordEncoder)

    def _get_text_embedding(self, text):
        return self._encoder.embed_query(text).tolist()

    def _get_query_embedding(self, query):
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query):
        return self._get_query_embedding(query)


def chroma_store():
    """A real store of its own: collections of one process are shared by name."""
    return ChromaVectorStore(chroma_collection=chromadb.EphemeralClient().create_collection(f"t{uuid.uuid4().hex}"))


def llm_of(*answers, **options):
    return RapidLLM(engine=ScriptedEngine(list(answers)), **options)


def look(at: str, times: int = 1) -> str:
    """Looks at something."""
    return f"{at} is blue, {times} times"


TOOL = FunctionTool.from_defaults(look)
