"""What a method of decoding tells an evaluation about itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

from rapid_core.config import Speculation
from rapid_core.evaluation.records import Setting


class Method(ABC):
    """A way to answer, through the same engine and prompts as all others.

    name: what it is called on the command line and in the report. place: in the list of methods.
    uses: options of a `Setting` that it has a use for. engine: which drafter it wants, the run's own
    or the one of `--upward-drafter`.
    """

    name: ClassVar[str]
    place: ClassVar[int]
    uses: ClassVar[frozenset[str]] = frozenset()
    engine: ClassVar[Literal["drafter", "upward"]] = "drafter"

    @property
    def transfers(self) -> bool:
        """Whether it is RAPID itself: an eta can be told."""
        return "eta" in self.uses

    @property
    def is_lossless(self) -> bool:
        """Whether it drafts and leaves the choice to the target."""
        return "gamma" in self.uses and not self.transfers

    @abstractmethod
    def speculation(self, setting: Setting, document_tokens: int) -> Speculation:
        """How the engine decodes for a setting, about a document of so many of the target's tokens."""


def drafting(setting: Setting) -> dict[str, Any]:
    """The options of a `Speculation` that a setting names; what it leaves to the engine is left out."""
    return {name: value for name in ("eta", "gamma") if (value := getattr(setting, name)) is not None}
