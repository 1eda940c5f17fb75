"""What a benchmark measures: options, methods and kinds of prompts, checked before any model is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from rapid_core.config import Sampling, Speculation, check_several
from rapid_core.documents import PYTHON_REFERENCE
from rapid_core.errors import OptionError
from rapid_core.model_choice import ModelChoice

# What each method is called in tables, in the order in which the methods are shown.
METHODS = {
    "generate": "transformers generate()",
    "prompt-lookup": "transformers lookup",
    "assisted": "transformers assisted",
    "plain": "plain decoding, ours",
    "lossless": "RAPID, eta = 0",
    "transfer": "RAPID, eta > 0",
}
TRANSFORMERS_METHODS = ("generate", "prompt-lookup", "assisted")
RAPID_METHODS = ("lossless", "transfer")
KINDS = ("quoting", "explaining", "free")
# With random weights nothing can be guessed right: these would show their worst case only.
NOT_SIMULATED = {
    "prompt-lookup": "looked-up tokens of a random model are right by chance only, and transformers has no place "
    "for a simulated verdict",
    "assisted": "transformers has no place for a simulated verdict",
}
# A shorter answer can end with the burst of tokens that speed is counted from.
LEAST_NEW_TOKENS = 16
# Pacing would pick the length of drafts from an acceptance that nobody measured.
SIMULATED_GAMMA = 4


@dataclass(frozen=True, kw_only=True)
class BenchOptions(ModelChoice):
    """What to measure. Raises `OptionError` for values that break their rule.

    lengths: tokens of the document. prompts: of each kind. gamma of None leaves it to
    `Speculation`. compile: our engine's steps; transformers' methods stay as they are.
    random_weights: the configuration of a model to build instead of loading
    `target`; acceptance is then simulated, and None means 0.8.
    """

    lengths: tuple[int, ...] = (2000, 7600)
    max_new_tokens: int = 96
    repeats: int = 3
    prompts: int = 1
    methods: tuple[str, ...] = tuple(METHODS)
    kinds: tuple[str, ...] = KINDS
    document: str = PYTHON_REFERENCE
    gamma: int | None = None
    eta: float | Literal["auto"] = 10.0
    compile: bool = False
    random_weights: str | None = None
    acceptance: float | None = None
    left_out: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        check_several("methods", self.methods, tuple(METHODS))
        check_several("kinds", self.kinds, KINDS)
        if not self.lengths or min(self.lengths) < 1 or len(set(self.lengths)) < len(self.lengths):
            raise OptionError(f"lengths must be different numbers of tokens, at least 1, got {self.lengths}")
        for name, value in (("repeats", self.repeats), ("prompts", self.prompts)):
            if value < 1:
                raise OptionError(f"{name} must be at least 1, got {value}")
        if self.max_new_tokens < LEAST_NEW_TOKENS:
            raise OptionError(
                f"max_new_tokens must be at least {LEAST_NEW_TOKENS}, got {self.max_new_tokens}; speed is counted "
                "behind the first burst of tokens, and a shorter answer may have nothing there"
            )
        if "transfer" in self.methods and self.eta == 0:
            raise OptionError(
                f"eta must be above 0 for the method 'transfer', got {self.eta}; eta = 0 is the method 'lossless'"
            )
        self._check_simulation()
        left_out = {name: NOT_SIMULATED[name] for name in self.methods if name in NOT_SIMULATED and self.simulated}
        object.__setattr__(self, "left_out", left_out)
        if not self.measured:
            raise OptionError(
                f"methods must name one that random weights can show, got {', '.join(self.methods)}; "
                f"there is {', '.join(name for name in METHODS if name not in NOT_SIMULATED)}"
            )
        # They check their own rules before minutes are spent, whatever is measured.
        for method in METHODS:
            self.speculation(method)
        Sampling(max_new_tokens=self.max_new_tokens)

    @property
    def simulated(self) -> bool:
        """Whether the verdict about drafts is drawn at random at a given rate."""
        return self.random_weights is not None

    @property
    def measured(self) -> tuple[str, ...]:
        """The methods that are run, in the order of `METHODS`."""
        return tuple(name for name in METHODS if name in self.methods and name not in self.left_out)

    @property
    def simulated_acceptance(self) -> float | None:
        """The rate at which drafts are accepted by a simulated verdict; None where verdicts are real."""
        if not self.simulated:
            return None
        return 0.8 if self.acceptance is None else self.acceptance

    def speculation(self, method: str) -> Speculation:
        """How our engine decodes for one of our methods."""
        gamma = self.gamma if self.gamma is not None or not self.simulated else SIMULATED_GAMMA
        fixed: dict[str, Any] = {} if gamma is None else {"gamma": gamma}
        if method == "lossless":
            return Speculation.lossless(**fixed)
        if method == "transfer":
            return Speculation(eta=self.eta, **fixed)
        return Speculation.off()

    def _check_simulation(self) -> None:
        if not self.simulated:
            if self.acceptance is not None:
                raise OptionError(
                    f"acceptance is measured where weights are real, got {self.acceptance:g}; leave it out, or give "
                    "random_weights (CLI: --random-weights)"
                )
            return
        if self.simulated_acceptance is None or not 0 <= self.simulated_acceptance <= 1:
            raise OptionError(f"acceptance must be at least 0 and at most 1, got {self.acceptance}")
        asked = ("device_map", "drafter_device_map", "quantization", "drafter_quantization")
        not_built = [name for name in asked if getattr(self, name) is not None]
        if not_built:
            raise OptionError(
                f"random weights are built whole on one device, got {', '.join(not_built)}; leave that out, or "
                "measure real weights"
            )
        if self.target != "demo":
            raise OptionError(
                f"random weights take the place of a target, got both {self.random_weights!r} and {self.target!r}; "
                "leave one of them out"
            )
        if self.encoder is not None:
            raise OptionError(
                f"random weights have nothing to search for, got the encoder {self.encoder!r}; leave it out: the "
                "drafter reads the beginning of the document"
            )
