"""Lookup: no drafter model; what followed the last tokens elsewhere in the prompt is the draft."""

from __future__ import annotations

from rapid_core.config import Speculation
from rapid_core.evaluation.method import Method, drafting
from rapid_core.evaluation.records import Setting


class Lookup(Method):
    """Drafts from the prompt's own text."""

    name = "lookup"
    place = 4
    uses = frozenset({"gamma"})

    def speculation(self, setting: Setting, document_tokens: int) -> Speculation:  # noqa: ARG002
        """Lossless speculation without a model."""
        return Speculation.lossless(**drafting(setting), drafter="lookup")


METHOD = Lookup()
