"""The long context alone: the target reads everything and decodes plainly."""

from __future__ import annotations

from rapid_core.config import Speculation
from rapid_core.evaluation.method import Method
from rapid_core.evaluation.records import Setting


class LongContextAlone(Method):
    """Plain decoding by the target: what all others are compared with."""

    name = "lc"
    place = 0

    def speculation(self, setting: Setting, document_tokens: int) -> Speculation:  # noqa: ARG002
        """No speculation."""
        return Speculation.off()


METHOD = LongContextAlone()
