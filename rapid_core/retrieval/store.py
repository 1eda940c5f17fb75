"""Where the indexes of one engine keep their vectors: a Chroma of its own."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from typing import Any

from rapid_core.extras import require


class Store:
    """A Chroma in a temporary folder, which goes with it.

    In-memory clients of one process are one and the same, and with other settings than the first
    one's a second cannot be opened: an application's own must not meet ours.
    """

    def __init__(self) -> None:
        chromadb = require("chromadb", extra="retrieval")
        folder = tempfile.mkdtemp(prefix="rapid-index-")
        settings = chromadb.config.Settings(anonymized_telemetry=False)
        self.client: Any = chromadb.PersistentClient(folder, settings=settings)
        # Whoever forgets to close an engine must not leave its threads and files behind.
        self._clean_up = weakref.finalize(self, _remove, self.client, folder)

    def open(self, name: str) -> Any:
        """The collection of this name, compared by cosine similarity; made where there is none."""
        return self.client.get_or_create_collection(
            name, embedding_function=None, configuration={"hnsw": {"space": "cosine"}}
        )

    def close(self) -> None:
        """Delete everything."""
        self._clean_up()


def _remove(client: Any, folder: str) -> None:
    client.close()
    shutil.rmtree(folder, ignore_errors=True)
