"""A collection of one document, made for the request and kept for the next question."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from rapid_core.datatypes import Chunk
from rapid_core.errors import RetrievalError
from rapid_core.retrieval.embedding import Encoder, Vectors
from rapid_core.retrieval.store import Store

# The least recently used document's index goes when there are more.
MOST_DOCUMENTS = 16


class DocumentIndex:
    """Embedded chunks of documents, one collection each, named by what it holds.

    The name is a hash of document, encoder and chunk size, so that a second question about a
    document embeds nothing but the question.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._made: list[str] = []

    def rank(
        self,
        document: str,
        chunks: list[Chunk],
        encoder: Encoder,
        query: str,
        on_batch: Callable[[int, int], None],
        *,
        known: Vectors | None = None,
    ) -> list[Chunk]:
        """All chunks with their cosine similarity to `query`, best first.

        known: the chunks' vectors [n, D], which then need not be made. Raises `RetrievalError`
        with the cause where embedding or the store fails.
        """
        try:
            collection = self._collection(document, chunks, encoder, on_batch, known)
            # Chroma's own search walks a graph and misses some: 9 of 80 chunks were seen missing. A
            # document has few enough chunks to compare them all.
            stored = collection.get(include=["embeddings"])
            scores = np.asarray(stored["embeddings"]) @ encoder.embed_query(query)
        except (ArithmeticError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
            raise RetrievalError(
                f"the document could not be searched: {error}. Check the encoder, give chunks of your own in "
                "LongContext.chunks, or ask with Speculation.off()"
            ) from error
        scored = [
            replace(chunks[int(id_)], score=float(score)) for id_, score in zip(stored["ids"], scores, strict=True)
        ]
        return sorted(scored, key=lambda chunk: (-chunk.score, chunk.start))

    def vectors(self, document: str, chunks: list[Chunk], encoder_name: str) -> Vectors | None:
        """The vectors [n, D] of all chunks, in their order; None where they were never stored."""
        name = self._name(document, chunks, encoder_name)
        if name not in self._made:
            return None
        stored = self._store.open(name).get(include=["embeddings"])
        if len(stored["ids"]) != len(chunks):
            return None
        order = np.argsort([int(id_) for id_ in stored["ids"]])
        return np.asarray(stored["embeddings"], dtype=np.float32)[order]

    def _collection(
        self,
        document: str,
        chunks: list[Chunk],
        encoder: Encoder,
        on_batch: Callable[[int, int], None],
        known: Vectors | None,
    ) -> Any:
        collection = self._open(self._name(document, chunks, encoder.name))
        if collection.count() != len(chunks):
            # Every vector is made before one is stored: an interrupted run leaves an empty collection.
            vectors = known
            if vectors is None:
                texts = [chunk.text for chunk in chunks]
                vectors = encoder.embed_passages(texts, lambda done: on_batch(done, len(chunks)))
            self._put(collection, vectors)
        return collection

    def _open(self, name: str) -> Any:
        collection = self._store.open(name)
        self._made = [*(made for made in self._made if made != name), name]
        if len(self._made) > MOST_DOCUMENTS:
            self._store.client.delete_collection(self._made.pop(0))
        return collection

    def _put(self, collection: Any, vectors: Vectors) -> None:
        batch = self._store.client.get_max_batch_size()
        for first in range(0, len(vectors), batch):
            rows = range(first, min(first + batch, len(vectors)))
            collection.upsert(ids=[str(i) for i in rows], embeddings=vectors[rows.start : rows.stop])

    def _name(self, document: str, chunks: list[Chunk], encoder_name: str) -> str:
        borders = ",".join(str(chunk.start) for chunk in chunks)
        key = "\0".join((encoder_name, borders, document))
        return f"rapid-{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"
