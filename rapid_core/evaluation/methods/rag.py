"""The retrieved context alone: the drafter answers by itself from its passages."""

from __future__ import annotations

from rapid_core.config import Speculation
from rapid_core.evaluation.method import Method
from rapid_core.evaluation.records import Setting


class RetrievedAlone(Method):
    """Plain decoding by the drafter; the target reads nothing."""

    name = "rag"
    place = 1
    uses = frozenset({"retrieved_tokens", "unrelated"})

    def speculation(self, setting: Setting, document_tokens: int) -> Speculation:  # noqa: ARG002
        """No drafts and no verification."""
        return Speculation.retrieved_alone()


METHOD = RetrievedAlone()
