"""Speculative decoding with the passages, and without transfer: eta = 0."""

from __future__ import annotations

from rapid_core.config import Speculation
from rapid_core.evaluation.method import Method, drafting
from rapid_core.evaluation.records import Setting


class SpeculativeDecoding(Method):
    """The drafter reads the passages, and the output stays the target's own."""

    name = "sd"
    place = 2
    uses = frozenset({"gamma", "retrieved_tokens", "unrelated"})

    def speculation(self, setting: Setting, document_tokens: int) -> Speculation:  # noqa: ARG002
        """Lossless speculation."""
        return Speculation.lossless(**drafting(setting))


METHOD = SpeculativeDecoding()
