"""Texts of messages, and what they ask."""

from __future__ import annotations

from collections.abc import Sequence

from rapid_core import Message

# Where a prompt template puts the document; the engine looks for it.
PLACE = "\ue000the document stands here\ue001"


def paragraphs(texts: Sequence[str]) -> str:
    """Blocks of a message as one text; a document and a question in two blocks are two paragraphs."""
    joined = ""
    for text in texts:
        apart = joined and text and not joined[-1].isspace() and not text[0].isspace()
        joined += ("\n\n" if apart else "") + text
    return joined


def last_question(messages: Sequence[Message]) -> str:
    """What to search for: the last user message, or the last one of all."""
    chosen = [message for message in messages if message.role == "user"] or messages
    return chosen[-1].content if chosen else ""
