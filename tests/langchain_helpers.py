"""What the tests of the LangChain integration share: embeddings and stores."""

from __future__ import annotations

import uuid

from langchain_chroma import Chroma
from langchain_core.embeddings import Embeddings

from rapid_core.testing import WordEncoder


class WordEmbeddings(Embeddings):
    """Texts are near each other if they share words."""

    def __init__(self):
        self._encoder = WordEncoder()

    def embed_documents(self, texts):
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text):
        return self._encoder.embed_query(text).tolist()


def chroma():
    """A real store of its own: collections of one process are shared by name."""
    return Chroma(f"t{uuid.uuid4().hex}", WordEmbeddings())
