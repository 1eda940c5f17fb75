"""What retrieval keeps between questions: the encoder, the index, and each document's chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rapid_core.config import Retrieval
from rapid_core.datatypes import Chunk
from rapid_core.retrieval.chunking import split_chunks
from rapid_core.retrieval.embedding import Encoder, Vectors, load_encoder
from rapid_core.retrieval.index import MOST_DOCUMENTS, DocumentIndex
from rapid_core.retrieval.passages import PassageIndex
from rapid_core.retrieval.select import chunk_size
from rapid_core.retrieval.store import Store

# Two tokenizers differ on a text by less than this, as a part of the encoder's window.
ENCODER_MARGIN = 0.25
# Texts of histories whose passages are remembered; the least recently used go when there are more.
MOST_CUTS = 2048


@dataclass(frozen=True, slots=True)
class EmbeddedDocument:
    """A document's chunks and their vectors, as they are kept across restarts.

    encoder: its name. chunk_tokens: the size that the document was cut to. borders: [n, 2]
    int64, where each chunk starts and ends, in characters. vectors: [n, D] float32.
    """

    encoder: str
    chunk_tokens: int
    borders: NDArray[np.int64]
    vectors: Vectors


class Searcher:
    """Ranks the chunks of documents, and passages of histories. One search at a time; what it embedded outlives it.

    window: tokens of the target. `encoder` of None is loaded by name when first needed.
    """

    def __init__(
        self,
        retrieval: Retrieval,
        count_tokens: Callable[[str], int],
        window: int,
        encoder: Encoder | None,
        encoder_device: str,
    ) -> None:
        self._retrieval = retrieval
        self._count = count_tokens
        self._window = window
        self._encoder = encoder
        self._encoder_device = encoder_device
        self._store: Store | None = None
        self._index: DocumentIndex | None = None
        self._passages: PassageIndex | None = None
        self._chunked: dict[str, list[Chunk]] = {}
        # Vectors from a file, which the store takes when it is first searched.
        self._restored: dict[str, Vectors] = {}
        # The texts of a history come back with every turn.
        self._cut_once = lru_cache(MOST_CUTS)(
            lambda text, size, to_embed: self._cut(text, size, self._load_encoder() if to_embed else None)
        )

    def warm_up(self) -> None:
        """Load the encoder and the store."""
        self._load()

    def close(self) -> None:
        """Forget the indexes and the encoder."""
        if self._store is not None:
            self._store.close()
        self._store = self._index = self._passages = self._encoder = None
        self._cut_once.cache_clear()
        self._chunked.clear()
        self._restored.clear()

    def rank(self, document: str, query: str, on_batch: Callable[[int, int], None]) -> list[Chunk]:
        """All chunks of `document` with their similarity to `query`, best first."""
        encoder, index = self._load()
        chunks = self.chunks(document, encoder)
        ranked = index.rank(document, chunks, encoder, query, on_batch, known=self._restored.get(document))
        self._restored.pop(document, None)
        return ranked

    def chunks(self, document: str, encoder: Encoder) -> list[Chunk]:
        """The document's chunks; the same for every question, since they are embedded only once."""
        chunks = self._chunked.get(document)
        if chunks is None:
            chunks = self._cut(document, self._chunk_size(document), encoder)
        self._remember(document, chunks)
        return chunks

    def cut(self, text: str, chunk_tokens: int, *, to_embed: bool) -> list[Chunk]:
        """`text` in passages of at most `chunk_tokens` tokens; to_embed: none that the encoder would cut off."""
        return self._cut_once(text, chunk_tokens, to_embed)

    def scores(self, passages: Sequence[str], query: str, on_batch: Callable[[int, int], None]) -> Vectors:
        """The similarity of each passage to `query`, [n]; only those that were never searched are embedded."""
        encoder = self._load_encoder()
        if self._passages is None:
            self._passages = PassageIndex(self._open_store())
        return self._passages.scores(passages, encoder, query, on_batch)

    def embedded(self, document: str) -> EmbeddedDocument | None:
        """What is known of `document` without work; None where nobody searched it."""
        chunks, name = self._chunked.get(document), self._encoder_name()
        if chunks is None:
            return None
        vectors = self._restored.get(document)
        if vectors is None and self._index is not None:
            vectors = self._index.vectors(document, chunks, name)
        if vectors is None:
            return None
        borders = np.array([(chunk.start, chunk.end) for chunk in chunks], dtype=np.int64)
        return EmbeddedDocument(name, self._chunk_size(document), borders, vectors)

    def restore(self, document: str, embedded: EmbeddedDocument) -> None:
        """Take over what `embedded` gave, where encoder and chunk size are those of this engine."""
        if (embedded.encoder, embedded.chunk_tokens) != (self._encoder_name(), self._chunk_size(document)):
            return
        borders = [(int(start), int(end)) for start, end in embedded.borders]
        self._remember(document, [Chunk(document[start:end], start, end) for start, end in borders])
        self._restored[document] = embedded.vectors

    def _load(self) -> tuple[Encoder, DocumentIndex]:
        encoder = self._load_encoder()
        if self._index is None:
            self._index = DocumentIndex(self._open_store())
        return encoder, self._index

    def _open_store(self) -> Store:
        if self._store is None:
            self._store = Store()
        return self._store

    def _load_encoder(self) -> Encoder:
        if self._encoder is None:
            self._encoder = load_encoder(self._retrieval.encoder, self._encoder_device)
        return self._encoder

    def _encoder_name(self) -> str:
        """Its name, also before it is loaded."""
        return self._encoder.name if self._encoder is not None else self._retrieval.encoder

    def _chunk_size(self, document: str) -> int:
        return chunk_size(min(self._count(document), self._window), self._retrieval)

    def _cut(self, text: str, size: int, encoder: Encoder | None) -> list[Chunk]:
        # What the encoder would cut off could never be found: where it reads little more than a
        # chunk, a chunk is full when either of the two tokenizers says so.
        if encoder is not None and size > ENCODER_MARGIN * encoder.max_tokens:
            count, theirs = self._count, encoder.count_tokens
            return split_chunks(text, min(size, encoder.max_tokens), lambda part: max(count(part), theirs(part)))
        return split_chunks(text, size, self._count)

    def _remember(self, document: str, chunks: list[Chunk]) -> None:
        self._chunked.pop(document, None)
        self._chunked[document] = chunks
        if len(self._chunked) > MOST_DOCUMENTS:
            oldest = next(iter(self._chunked))
            del self._chunked[oldest]
            self._restored.pop(oldest, None)
