"""RAPID: the drafter reads the passages, and passes its focus on with strength eta."""

from __future__ import annotations

from rapid_core.config import Speculation
from rapid_core.evaluation.method import Method, drafting
from rapid_core.evaluation.records import Setting


class Rapid(Method):
    """Speculation with knowledge transfer; with eta = 0 it is `sd`."""

    name = "rapid"
    place = 5
    uses = frozenset({"eta", "gamma", "retrieved_tokens", "unrelated"})

    def speculation(self, setting: Setting, document_tokens: int) -> Speculation:  # noqa: ARG002
        """Speculation with the eta of the setting."""
        return Speculation(**drafting(setting))


METHOD = Rapid()
