"""A document, cut into chunks on paragraph and sentence borders."""

from __future__ import annotations

from collections.abc import Callable

from rapid_core.datatypes import Chunk
from rapid_core.extras import require


def split_chunks(text: str, chunk_tokens: int, count_tokens: Callable[[str], int]) -> list[Chunk]:
    """Cut `text` into chunks of at most `chunk_tokens` tokens, with character offsets.

    Borders are paragraphs where they fit, else sentences, else words. Only white space between
    chunks is left out. A token is taken to be a byte at least, and `count_tokens` of a text no
    more than its bytes. Source: paper, section 4.1 (512 tokens).
    """
    splitter = require("semantic_text_splitter", extra="retrieval").TextSplitter.from_callback(
        count_tokens, chunk_tokens
    )
    return [Chunk(piece, start, start + len(piece)) for start, piece in splitter.chunk_indices(text)]
