"""What an evaluation compares: options and the grid of settings, checked before any model is loaded."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Literal, get_args

from rapid_core.config import Sampling, Speculation, check_several
from rapid_core.errors import OptionError
from rapid_core.evaluation.judge import Judge, judge_of
from rapid_core.evaluation.methods import METHODS
from rapid_core.evaluation.records import Setting
from rapid_core.model_choice import ModelChoice

# What to do with a document that does not fit the target's window: both roles must be asked about the same text.
FitChoice = Literal["error", "middle"]
LOCAL_TASKS = ("short-answer", "multiple-choice", "summary", "dialogue")
# The paper's, and fixed: a gamma that follows the clock can change answers by rounding, and drawn ones altogether.
PAPER_GAMMA = 10
PAPER_ETA = 10.0


@dataclass(frozen=True, kw_only=True)
class EvalOptions(ModelChoice):
    """What to compare on what. Raises `OptionError` for values that break their rule.

    methods: names of `METHODS`; empty for all that can run. eta, gamma, retrieved_tokens, context_tokens: values
    to compare, of which each method takes those that it has a use for; empty for the engine's own length and for
    documents as they are. unrelated: compare passages of another document too. temperature of None is
    that of the task. fit: "middle" cuts the middle out of a document that is too long for the target.
    judge_url, judge_model: who judges answers that have no one right form.
    limit, documents: questions and documents of each task. seed: of what is drawn, the choice of questions included.
    """

    upward_drafter: str | None = None
    tasks: tuple[str, ...] = LOCAL_TASKS
    methods: tuple[str, ...] = ()
    data: str | None = None
    limit: int | None = None
    documents: int | None = None
    max_document_tokens: int | None = None
    eta: tuple[float | Literal["auto"], ...] = (PAPER_ETA,)
    gamma: tuple[int | Literal["auto"], ...] = (PAPER_GAMMA,)
    retrieved_tokens: tuple[int, ...] = ()
    context_tokens: tuple[int, ...] = ()
    unrelated: bool = False
    temperature: float | None = None
    fit: FitChoice = "error"
    chain_of_thought: bool = False
    judge_url: str | None = None
    judge_model: str | None = None
    skip_bad: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.methods:
            can_run = tuple(name for name, method in METHODS.items() if self._has_drafter_of(method.engine))
            object.__setattr__(self, "methods", can_run)
        check_several("methods", self.methods, tuple(METHODS))
        # They are asked in their own order whatever it was here; a run that goes on must not differ by that.
        object.__setattr__(self, "methods", tuple(name for name in METHODS if name in self.methods))
        self._check_upward()
        for name in ("tasks", "eta", "gamma"):
            if not getattr(self, name):
                raise OptionError(f"{name} must name at least one, got none")
        # They check their own rules, and 10 is the same eta as 10.0.
        object.__setattr__(self, "eta", tuple(Speculation(eta=value).eta for value in self.eta))
        object.__setattr__(self, "gamma", tuple(Speculation(gamma=value).gamma for value in self.gamma))
        Sampling(temperature=self.temperature or 0.0, seed=self.seed)
        for name in ("tasks", "eta", "gamma", "retrieved_tokens", "context_tokens"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise OptionError(f"{name} must be different ones, got {', '.join(map(str, values))}")
        for name in ("limit", "documents", "max_document_tokens"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name))
        for name in ("retrieved_tokens", "context_tokens"):
            for value in getattr(self, name):
                _check_count(name, value)
        if self.fit not in get_args(FitChoice):
            raise OptionError(f"fit must be one of {', '.join(get_args(FitChoice))}, got {self.fit!r}")
        self._check_sweeps()
        # It checks its own rules, and must do so before anything is answered.
        _ = self.judge

    @property
    def judge(self) -> Judge | None:
        """Who judges answers, with the key in the environment, which is no part of the options; None for nobody."""
        return judge_of(self.judge_url, self.judge_model)

    @property
    def settings(self) -> tuple[Setting, ...]:
        """What is compared, in the order in which it is asked: by the length of the document, then by method."""
        found = []
        for tokens in self.context_tokens or (None,):
            for name in (name for name in METHODS if name in self.methods):
                found += [_setting(name, tokens, **values) for values in self._grid(name)]
        return tuple(dict.fromkeys(found))

    @property
    def notes(self) -> list[str]:
        """What a reader of the results must know of the options."""
        found = []
        if "auto" in self.gamma:
            found.append(
                "gamma 'auto' follows the clock: answers of models in bfloat16 or float16, and drawn ones, can differ "
                "from run to run; a fixed gamma gives the same answers each time"
            )
        whole = self.retrieval().chunk_tokens
        if short := [tokens for tokens in self.retrieved_tokens if tokens < whole]:
            found.append(
                f"passages have up to {whole:,} tokens and are not cut: where {', '.join(map(str, short))} are "
                "retrieved, few of them fit, or none"
            )
        return found

    def as_object(self) -> dict[str, Any]:
        """For JSON; what `json` makes of it is the same again."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def _grid(self, name: str) -> list[dict[str, Any]]:
        values: dict[str, tuple[Any, ...]] = {
            "retrieved_tokens": self.retrieved_tokens or (None,),
            "unrelated": (False, True) if self.unrelated else (False,),
            "eta": self.eta,
            "gamma": self.gamma,
        }
        used = {option: values[option] for option in values if option in METHODS[name].uses}
        return [dict(zip(used, found, strict=True)) for found in product(*used.values())]

    def _has_drafter_of(self, engine: str) -> bool:
        return engine == "drafter" or self.upward_drafter is not None

    def _check_upward(self) -> None:
        upward = [name for name in self.methods if METHODS[name].engine == "upward"]
        if upward and self.upward_drafter is None:
            raise OptionError(
                f"{upward[0]} needs a drafter larger than the target, got none; name it as upward_drafter "
                "(CLI: --upward-drafter), or leave the method out"
            )
        if self.upward_drafter is not None and not upward:
            raise OptionError(
                f"an upward drafter is for rapid-upward, got {self.upward_drafter!r} for {', '.join(self.methods)}; "
                "add the method, or leave the drafter out"
            )

    def _check_sweeps(self) -> None:
        """An option that no method has a use for would change nothing."""
        used = frozenset[str]().union(*(METHODS[name].uses for name in self.methods))
        asked = {
            "eta": self.eta != (PAPER_ETA,),
            "gamma": self.gamma != (PAPER_GAMMA,),
            "retrieved_tokens": bool(self.retrieved_tokens),
            "unrelated": self.unrelated,
        }
        for name in (name for name, given in asked.items() if given and name not in used):
            users = ", ".join(method for method in METHODS if name in METHODS[method].uses)
            raise OptionError(
                f"{name} is for the methods {users}, got it for {', '.join(self.methods)}; add one of them, or leave "
                "the option out"
            )


def _setting(method: str, context_tokens: int | None, **values: Any) -> Setting:
    if method == "rapid" and values["eta"] == 0:
        # The same by another name; it must not be asked twice.
        method, values = "sd", values | {"eta": None}
    return Setting(method=method, context_tokens=context_tokens, **values)


def _check_count(name: str, value: int) -> None:
    if value < 1:
        raise OptionError(f"{name} must be at least 1, got {value}")
