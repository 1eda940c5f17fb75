"""Chunk, embed, rank, fit the budget, put back in document order."""

from rapid_core.retrieval.chunking import split_chunks
from rapid_core.retrieval.embedding import Encoder, load_encoder
from rapid_core.retrieval.index import DocumentIndex
from rapid_core.retrieval.searcher import EmbeddedDocument, Searcher
from rapid_core.retrieval.select import (
    SEPARATOR,
    above,
    budget_tokens,
    chunk_size,
    drift,
    falls_off,
    fill,
    in_document_order,
    join,
    least_tokens,
)

__all__ = [
    "SEPARATOR",
    "DocumentIndex",
    "EmbeddedDocument",
    "Encoder",
    "Searcher",
    "above",
    "budget_tokens",
    "chunk_size",
    "drift",
    "falls_off",
    "fill",
    "in_document_order",
    "join",
    "least_tokens",
    "load_encoder",
    "split_chunks",
]
