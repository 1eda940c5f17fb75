"""MagicDec: the target drafts for itself from the whole document, through a StreamingLLM cache."""

from __future__ import annotations

from rapid_core.config import Speculation
from rapid_core.evaluation.method import Method, drafting
from rapid_core.evaluation.records import Setting

SINKS = 4
# The paper's 4,096 tokens of a context of 128K. A window of a few tokens would show nothing but its own size.
PART = 32
LEAST_WINDOW = 256


class MagicDec(Method):
    """Self-speculation whose drafter sees the first tokens and a sliding window, in proportion to the document."""

    name = "magicdec"
    place = 3
    uses = frozenset({"gamma"})

    def speculation(self, setting: Setting, document_tokens: int) -> Speculation:
        """Lossless speculation with 4 sink tokens and a window of 1/32 of the document, at least 256 tokens."""
        return Speculation.lossless(
            **drafting(setting),
            drafter="streaming",
            sinks=SINKS,
            sliding_window=max(LEAST_WINDOW, document_tokens // PART),
        )


METHOD = MagicDec()
