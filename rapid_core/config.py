"""The options of a request, frozen and checked when made; unknown names raise."""

from __future__ import annotations

import difflib
import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar, dataclass_transform, get_args

from rapid_core.constraint import Constraint
from rapid_core.errors import OptionError, UnknownOptionError

T = TypeVar("T")

# Below, logits divided by the temperature leave float32; greedy is what is meant.
LEAST_TEMPERATURE = 1e-4
# A logit moves by eta at the most: far beyond any logit, and far from what float32 holds.
LARGEST_ETA = 1e6

Tail = Literal["reference", "paper"] | None
Fit = Literal["error", "retrieve", "middle"]
Budget = int | Literal["paper", "auto"]
Drafts = Literal["passages", "streaming", "lookup"]
Answers = Literal["target", "drafter"]


@dataclass_transform(frozen_default=True, kw_only_default=True)
def _options(cls: type[T]) -> type[T]:
    """A frozen, keyword-only dataclass whose unknown names raise `UnknownOptionError`."""
    made = dataclass(frozen=True, kw_only=True)(cls)
    known = [field.name for field in fields(made)]  # type: ignore[arg-type]
    generated: Callable[..., None] = made.__init__

    @functools.wraps(generated)
    def checked(self: Any, **options: Any) -> None:
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else "."
                raise UnknownOptionError(f"{cls.__name__} has no option {name!r}{hint} It knows: {', '.join(known)}")
        generated(self, **options)

    made.__init__ = checked  # type: ignore[method-assign]
    return made


def _whole(name: str, value: object, least: int) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise OptionError(f"{name} must be a whole number, got {value!r}")
    if number < least:
        raise OptionError(f"{name} must be at least {least}, got {number}")
    return number


def _real(name: str, value: object, low: float, high: float = math.inf, *, open_low: bool = False) -> float:
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise OptionError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except (OverflowError, ValueError, TypeError) as error:
        raise OptionError(f"{name} must be a number, got {str(value)[:40]}") from error
    inside = (low < number if open_low else low <= number) and number <= high
    if not inside or math.isinf(number):
        above = f"{'above' if open_low else 'at least'} {low:g}"
        bound = f"{above} and finite" if math.isinf(high) else f"{above} and at most {high:g}"
        raise OptionError(f"{name} must be {bound}, got {number}")
    return number


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise `OptionError` unless `value` is one of `choices`."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise OptionError(f"{name} must be one of {listed}, got {value!r}")


def check_several(name: str, values: Sequence[str], choices: Sequence[str]) -> None:
    """Raise `OptionError` unless `values` are some of `choices`, each once."""
    if not values or len(set(values)) < len(values) or not set(values) <= set(choices):
        raise OptionError(f"{name} must be some of {', '.join(choices)}, each once, got {', '.join(values) or 'none'}")


@_options
class Sampling:
    """How tokens are chosen, on both sides alike.

    temperature: 0 is greedy. top_k: 0 is off. top_p: 1 is off. min_p: 0 is off.
    repetition_penalty: 1 is off; divides the logits of what prompt and answer hold.
    presence_penalty, frequency_penalty: 0 is off; subtracted for what the answer holds.
    max_new_tokens: of the answer. stop: text before which the answer is cut.
    seed: None draws a fresh one, and the statistics name it. constraint: the form that an
    answer must have; None is any text.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_new_tokens: int = 512
    stop: str | Sequence[str] | None = ()
    seed: int | None = None
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        temperature = _real("temperature", self.temperature, 0)
        if 0 < temperature < LEAST_TEMPERATURE:
            raise OptionError(
                f"temperature must be 0 or at least {LEAST_TEMPERATURE:g}, got {temperature}; 0 is greedy"
            )
        checked: dict[str, object] = {
            "temperature": temperature,
            "top_k": _whole("top_k", self.top_k, 0),
            "top_p": _real("top_p", self.top_p, 0, 1, open_low=True),
            "min_p": _real("min_p", self.min_p, 0, 1),
            "repetition_penalty": _real("repetition_penalty", self.repetition_penalty, 0.01, 100),
            "presence_penalty": _real("presence_penalty", self.presence_penalty, -2, 2),
            "frequency_penalty": _real("frequency_penalty", self.frequency_penalty, -2, 2),
            "max_new_tokens": _whole("max_new_tokens", self.max_new_tokens, 1),
        }
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        if stop is not None and not isinstance(stop, Iterable):
            raise OptionError(f"stop must be text or a list of texts, got {self.stop!r}")
        stop = tuple(stop or ())
        if any(not isinstance(text, str) or not text for text in stop):
            raise OptionError(f"stop must be text that is not empty, got {self.stop!r}")
        checked["stop"] = stop
        if self.seed is not None:
            checked["seed"] = _whole("seed", self.seed, 0)
            if checked["seed"] >= 2**63:  # type: ignore[operator]
                raise OptionError(f"seed must be below 2**63, got {self.seed}")
        if self.constraint is not None and not isinstance(self.constraint, Constraint):
            raise OptionError(
                f"constraint must be a Constraint or None, got {type(self.constraint).__name__}; "
                "make one with Constraint.json_schema(...), for example"
            )
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as it was checked."""
        return tuple(self.stop or ())

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is taken, and no random number is used."""
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        """Whether the choice depends on what stands in the prompt or the answer."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


@_options
class Speculation:
    """How drafts are made and how much of the drafter's focus is passed on (paper, sections 3 and 4).

    gamma: draft tokens a round. "auto" chooses each round who drafts and how many tokens, from
    measured costs and acceptance: nobody, a lookup in the prompts and the answer, or the drafter,
    which may check looked-up tokens. With eta > 0 every position that the
    drafter's window reaches then has the transfer. A number
    means exactly that: the drafter, so many tokens, and the target's own token behind them.
    eta: strength of the knowledge transfer; 0 is lossless. "auto" sets it for each question
    by how much the drafter's passages keep of what the document tells about it, see `rapid_core.transfer`.
    tail, alpha: the tail cut of the transfer, see `rapid_core.verification.augmented_target`.
    draft_confidence: end a draft after a token to which the drafter gave less; 0 is off.
    drafter: who drafts. "passages" is the drafter model on retrieved passages. "streaming" is the target
    itself with the keys of the first `sinks` tokens and of the last `sliding_window` ones (StreamingLLM,
    arXiv 2309.17453, as in MagicDec, arXiv 2408.11049). "lookup" is no model: drafts are looked up in
    the prompt and the answer, and have nothing to transfer whatever eta is.
    enabled: False is plain decoding. answers: "drafter" is plain decoding by the drafter on its
    passages, and the target reads nothing: see `retrieved_alone`.
    """

    gamma: int | Literal["auto"] = "auto"
    eta: float | Literal["auto"] = 10.0
    tail: Tail = "reference"
    alpha: float = 0.1
    draft_confidence: float = 0.0
    drafter: Drafts = "passages"
    sinks: int = 4
    sliding_window: int = 4096
    enabled: bool = True
    answers: Answers = "target"

    def __post_init__(self) -> None:
        if isinstance(self.gamma, str) and self.gamma != "auto":
            raise OptionError(f"gamma must be a whole number or 'auto', got {self.gamma!r}")
        if self.gamma != "auto":
            object.__setattr__(self, "gamma", _whole("gamma", self.gamma, 1))
        if isinstance(self.eta, str) and self.eta != "auto":
            raise OptionError(f"eta must be a number or 'auto', got {self.eta!r}")
        if self.eta != "auto":
            object.__setattr__(self, "eta", _real("eta", self.eta, 0, LARGEST_ETA))
        object.__setattr__(self, "alpha", _real("alpha", self.alpha, 0, 1))
        object.__setattr__(self, "draft_confidence", _real("draft_confidence", self.draft_confidence, 0, 1))
        check_choice("tail", self.tail, ("reference", "paper", None))
        check_choice("enabled", self.enabled, (True, False))
        check_choice("drafter", self.drafter, get_args(Drafts))
        check_choice("answers", self.answers, get_args(Answers))
        object.__setattr__(self, "sinks", _whole("sinks", self.sinks, 0))
        object.__setattr__(self, "sliding_window", _whole("sliding_window", self.sliding_window, 1))
        if self.answers == "drafter" and self.enabled:
            raise OptionError(
                "a drafter that answers drafts for nobody, got answers='drafter' with enabled=True; use "
                "Speculation.retrieved_alone()"
            )

    @property
    def transfers(self) -> bool:
        """Whether the drafter's focus may reach the answer, so that drafted positions are not lossless."""
        return self.drafter != "lookup" and (self.eta == "auto" or self.eta > 0)

    @property
    def retrieves(self) -> bool:
        """Whether a drafter model reads passages."""
        return self.answers == "drafter" or (self.enabled and self.drafter == "passages")

    @property
    def fixed_eta(self) -> float:
        """`eta` as a number; raises `OptionError` where it is still "auto"."""
        if self.eta == "auto":
            raise OptionError("eta must be a number while decoding, got 'auto'; RapidEngine makes it one")
        return self.eta

    @classmethod
    def lossless(cls, **options: Any) -> Speculation:
        """Speculation with eta = 0: the output distribution is the target's own."""
        if "eta" in options:
            raise OptionError(f"eta is 0 in lossless speculation, got {options['eta']!r}; leave it out")
        return cls(**options, eta=0.0)

    @classmethod
    def off(cls) -> Speculation:
        """Plain decoding by the target, through the same code: the honest baseline."""
        return cls(enabled=False)

    @classmethod
    def retrieved_alone(cls) -> Speculation:
        """Plain decoding by the drafter on its passages: the paper's RAG baseline, and an answer without the wait."""
        return cls(enabled=False, answers="drafter")


@_options
class Retrieval:
    """How the drafter's passages are found (paper, section 4.1).

    encoder: a hub name, a local folder, or "demo". chunk_tokens: tokens of the target's
    tokenizer in a chunk, at the most. threshold: chunks whose cosine similarity is lower are
    dropped. floor_tokens, ratio: the retrieved length is input / ratio but no less than the
    floor, and never more than a quarter of the input.
    budget: "paper" is that length. "auto" ends before it where the similarities fall off, but reads
    the smaller of floor and input / ratio. A number means so many tokens, of a document and of a
    history each. What the drafter reads counts in its own tokens.
    again_tokens: passages are searched for anew, with the answer so far, at the first end of a
    sentence behind so many tokens of the answer, and so on; 0 is off. The drafter reads them where
    enough of them are new.
    """

    encoder: str = "BAAI/bge-m3"
    chunk_tokens: int = 512
    threshold: float = 0.3
    floor_tokens: int = 4096
    ratio: float = 24
    budget: Budget = "paper"
    again_tokens: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.encoder, str) or not self.encoder:
            raise OptionError(f"encoder must be a hub name, a folder or 'demo', got {self.encoder!r}")
        object.__setattr__(self, "chunk_tokens", _whole("chunk_tokens", self.chunk_tokens, 16))
        object.__setattr__(self, "threshold", _real("threshold", self.threshold, -1, 1))
        object.__setattr__(self, "floor_tokens", _whole("floor_tokens", self.floor_tokens, 1))
        object.__setattr__(self, "ratio", _real("ratio", self.ratio, 1))
        if isinstance(self.budget, str) and self.budget not in ("paper", "auto"):
            raise OptionError(f"budget must be a whole number, 'paper' or 'auto', got {self.budget!r}")
        if not isinstance(self.budget, str):
            object.__setattr__(self, "budget", _whole("budget", self.budget, 1))
        object.__setattr__(self, "again_tokens", _whole("again_tokens", self.again_tokens, 0))


def check_fit(fit: object) -> None:
    """Raise `OptionError` unless `fit` is a way to fit a document into the window."""
    check_choice("fit", fit, get_args(Fit))


def cache_bytes(cache_gib: object) -> int:
    """`cache_gib` in bytes; raises `OptionError` unless it is a number that is not negative."""
    return int(_real("cache_gib", cache_gib, 0) * 2**30)
