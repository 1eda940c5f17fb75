"""Vectors of passages that come back from request to request, each of them made once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from rapid_core.errors import RetrievalError
from rapid_core.retrieval.embedding import Encoder, Vectors
from rapid_core.retrieval.store import Store

# The least recently searched passages go when there are more: 34 MB of vectors of 1,024 numbers.
MOST_PASSAGES = 8192


class PassageIndex:
    """One collection of passages, each under the hash of its text.

    A history that has grown by a turn embeds that turn alone, and two histories share what they
    have in common.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._collection = store.open("rapid-passages")
        # Ids of what is stored, the least recently searched first.
        self._stored: dict[str, None] = {}

    def scores(
        self, texts: Sequence[str], encoder: Encoder, query: str, on_batch: Callable[[int, int], None]
    ) -> Vectors:
        """The cosine similarity of each text to `query`, [n].

        on_batch: told (passages done, of all that are new). Raises `RetrievalError` with the cause
        where embedding or the store fails.
        """
        try:
            ids = [_id(encoder.name, text) for text in texts]
            self._embed_new(dict(zip(ids, texts, strict=True)), encoder, on_batch)
            # All are compared, for the reason that `DocumentIndex` has.
            vectors = self._vectors(list(dict.fromkeys(ids)))
            question = encoder.embed_query(query)
            return np.array([vectors[id_] @ question for id_ in ids], dtype=np.float32)
        except (ArithmeticError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
            raise RetrievalError(
                f"the history could not be searched: {error}. Check the encoder, rank the passages yourself with "
                "LongHistory(rank=...), or ask with Speculation.off()"
            ) from error

    def _embed_new(self, texts: dict[str, str], encoder: Encoder, on_batch: Callable[[int, int], None]) -> None:
        new = [id_ for id_ in texts if id_ not in self._stored]
        if new:
            vectors = encoder.embed_passages([texts[id_] for id_ in new], lambda done: on_batch(done, len(new)))
            for rows in self._batches(new):
                self._collection.upsert(ids=new[rows], embeddings=vectors[rows])
        for id_ in texts:
            self._stored.pop(id_, None)
            self._stored[id_] = None
        # What is searched now stays, also where it is more than that.
        old = list(self._stored)[: max(0, len(self._stored) - max(MOST_PASSAGES, len(texts)))]
        for rows in self._batches(old):
            self._collection.delete(ids=old[rows])
        for id_ in old:
            del self._stored[id_]

    def _vectors(self, ids: list[str]) -> dict[str, Vectors]:
        found: dict[str, Vectors] = {}
        for rows in self._batches(ids):
            stored = self._collection.get(ids=ids[rows], include=["embeddings"])
            found.update(zip(stored["ids"], np.asarray(stored["embeddings"], dtype=np.float32), strict=True))
        return found

    def _batches(self, items: Sequence[str]) -> Iterator[slice]:
        """The store takes so many at once, and no more."""
        batch = self._store.client.get_max_batch_size()
        return (slice(first, first + batch) for first in range(0, len(items), batch))


def _id(encoder_name: str, text: str) -> str:
    return hashlib.sha256(f"{encoder_name}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()[:40]
