"""How a command answers: one record for `rapid ask` and `rapid chat`."""

from __future__ import annotations

from dataclasses import dataclass

from rapid_core.command_field import option
from rapid_core.command_options import DEFAULT_ETA, number_or_word
from rapid_core.config import Fit, Retrieval, Sampling, Speculation
from rapid_core.documents import PYTHON_REFERENCE, ReadDocument
from rapid_core.model_choice import ModelChoice


@dataclass(frozen=True, kw_only=True)
class AnswerChoice:
    """Options of `RapidEngine.generate`, and of its retrieval, as they are written on the command line."""

    gamma: str = option("auto", "Draft tokens a round; 'auto' chooses each round who drafts and how many.")
    eta: str = option(
        DEFAULT_ETA,
        "Strength of the knowledge transfer; 0 is lossless, and 'auto' sets it by what the passages are worth.",
    )
    temperature: float = option(0.0, "0 is greedy.")
    top_p: float = option(1.0, "Nucleus sampling; 1 is off.")
    seed: int | None = option(None, "The same seed gives the same text.")
    max_new_tokens: int = option(192, "Length of the answer at the most, in tokens.")
    stop: list[str] | None = option(None, "End the answer before this text; may be given again.")
    fit: Fit | None = option(
        None,
        "If the document exceeds the target's window: refuse (error), read the best passages that fit (retrieve), or "
        f"cut its middle out (middle). Default: error, and retrieve for '{PYTHON_REFERENCE}'.",
    )
    budget: str = option(
        "paper",
        "Tokens that the drafter reads of the document: a number, 'paper' (4,096, or 1/24 of a longer one), or 'auto', "
        "which ends where the similarities fall off.",
    )
    no_speculation: bool = option(False, "Plain decoding by the target.", names=("--no-speculation",))
    show_drafts: bool = option(False, "Colour what the drafter proposed.", names=("--show-drafts",))

    def sampling(self) -> Sampling:
        """How tokens are chosen. Raises `OptionError`."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            max_new_tokens=self.max_new_tokens,
            stop=self.stop,
        )

    def speculation(self) -> Speculation:
        """Who drafts. Raises `OptionError`, also for options that plain decoding has no use for."""
        checked = Speculation(gamma=number_or_word(self.gamma), eta=number_or_word(self.eta))  # type: ignore[arg-type]
        return Speculation.off() if self.no_speculation else checked

    def retrieval(self, models: ModelChoice) -> Retrieval:
        """How passages are found, with the encoder of `models`. Raises `OptionError`."""
        return models.retrieval(budget=number_or_word(self.budget))

    def fit_of(self, document: ReadDocument) -> Fit:
        """What is asked for, or what suits a document."""
        return self.fit or ("retrieve" if document.name == PYTHON_REFERENCE else "error")
