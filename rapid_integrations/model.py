"""What every chat model of ours is told: which models, how to sample, how to speculate; and its engine."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SkipValidation, model_validator

from rapid_core import Delta, LongHistory, Message, OptionError, Retrieval, Speculation
from rapid_integrations.calls import SAMPLING_WORDS, Call, Words, read_call, read_options
from rapid_integrations.contexts import RapidWarning
from rapid_integrations.deadline import Deadline
from rapid_integrations.engines import Held, Kept, LoadOptions, token_of
from rapid_integrations.schemas import tell_schema
from rapid_integrations.search import OnRetrievalError, Resolved, check_on_retrieval_error

# A whole answer fits; one that does not ends with finish_reason "length".
DEFAULT_MAX_TOKENS = 1024

# What is asked of `RapidEngine.load`, and cannot be asked of an engine that is there.
_LOADING = frozenset({each.name for each in fields(LoadOptions)})
# Those of them that are about the drafter, when it is another model or another copy.
_DRAFTERS = ("drafter_device", "drafter_device_map", "drafter_dtype", "drafter_quantization")


class RapidModel(BaseModel):
    """The options that both frameworks' chat models have, and the answers behind them.

    target (also called model): a hub name, a folder, a `.gguf` file or "demo", or the environment's
    RAPID_TARGET; drafter likewise, and RAPID_DRAFTER. Models are loaded when first needed, and
    chat models that name the same ones share them. device, device_map, dtype, quantization and what they are
    for the drafter: as for `RapidEngine.load`. Or engine: a `RapidEngine` that is already there.
    temperature 0 is greedy. max_tokens: of an answer. stop: holds unless a call gives one. timeout:
    seconds from the start of the work, then TimeoutError. speculation, retrieval: options of ours,
    or a mapping of them. fit: what to do with one document over the window. on_retrieval_error:
    "plain" answers without a drafter where a retriever fails.
    """

    model_config = ConfigDict(populate_by_name=True, arbitrary_types_allowed=True, protected_namespaces=())

    words: ClassVar[Words]

    target: str = Field(default_factory=lambda: os.environ.get("RAPID_TARGET", ""), alias="model")
    drafter: str | None = Field(default_factory=lambda: os.environ.get("RAPID_DRAFTER") or None)
    engine: Any = Field(default=None, exclude=True, repr=False)
    device: str = "auto"
    drafter_device: str | None = None
    device_map: SkipValidation[str | Mapping[str, Any] | None] = None
    drafter_device_map: SkipValidation[str | Mapping[str, Any] | None] = None
    dtype: str = "auto"
    drafter_dtype: str | None = None
    quantization: SkipValidation[Any] = None
    drafter_quantization: SkipValidation[Any] = None
    retrieval: SkipValidation[Retrieval | Mapping[str, Any] | None] = None
    trust_remote_code: bool = False
    cache_gib: float = 4.0
    compile: bool | str = False

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    seed: int | None = None
    stop: list[str] | str | None = Field(default=None, alias="stop_sequences")
    speculation: SkipValidation[Speculation | Mapping[str, Any] | None] = None
    fit: Literal["error", "retrieve", "middle"] = "error"
    timeout: float | None = None
    on_retrieval_error: OnRetrievalError = "raise"

    _held: Held = PrivateAttr(default_factory=Held)

    @model_validator(mode="before")
    @classmethod
    def _warn_of_unknown_words(cls, values: Any) -> Any:
        if isinstance(values, Mapping):
            known = {*cls.model_fields, *(field.alias for field in cls.model_fields.values())}
            unknown = sorted(name for name in values if name not in known)
            if unknown:
                warnings.warn(
                    f"{cls.__name__} has no option {', '.join(unknown)}, and ignores it", RapidWarning, stacklevel=3
                )
        return values

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.engine is None and not self.target:
            raise OptionError(
                f"{type(self).__name__} needs target= (or model=), engine=, or the environment's RAPID_TARGET, got none"
            )
        beside = sorted(_LOADING & self.model_fields_set) if self.engine is not None else []
        if beside:
            raise OptionError(
                f"an engine is already loaded, and {', '.join(beside)} cannot change it; leave out either"
            )
        check_on_retrieval_error(self.on_retrieval_error)
        # What breaks a rule is found here, and not by the first call.
        self._call(None, {})
        if self.retrieval is not None:
            read_options(Retrieval, self.retrieval)
        return self

    def _call(self, stop: list[str] | None, asked: Mapping[str, Any]) -> Call:
        """One call, checked, with the constructor's options where it asks for nothing else."""
        return read_call(self.words, self._defaults(), stop, asked)

    def _defaults(self) -> dict[str, Any]:
        words = (*SAMPLING_WORDS, "stop", "speculation", "fit", "timeout")
        defaults = {word: getattr(self, word) for word in words}
        return {**defaults, "max_tokens": DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens}

    def _answer(self, messages: list[Message], call: Call) -> Iterator[Piece]:
        """The answer piece by piece; the one path of whole answers and streams."""
        engine = self._engine(call.model)
        resolved = Resolved(None) if call.context is None else call.context.resolve(messages, self.on_retrieval_error)
        deadline = Deadline(call.timeout)
        with closing(engine.stream(_told(messages, call), **_options(call, resolved, deadline))) as deltas:
            for delta in deltas:
                deadline.check(delta)
                yield _piece(delta, engine, resolved)

    async def _aanswer(self, messages: list[Message], call: Call) -> AsyncGenerator[Piece]:
        """`_answer` for an event loop."""
        engine = await asyncio.to_thread(self._engine, call.model)
        resolved = Resolved(None)
        if call.context is not None:
            resolved = await call.context.aresolve(messages, self.on_retrieval_error)
        deadline = Deadline(call.timeout)
        async with aclosing(engine.astream(_told(messages, call), **_options(call, resolved, deadline))) as deltas:
            async for delta in deltas:
                deadline.check(delta)
                yield _piece(delta, engine, resolved)

    def _names(self) -> tuple[str, str]:
        """What target and drafter are called."""
        if self.engine is not None:
            return cast("tuple[str, str]", tuple(self.engine.names))
        return self.target, self.drafter or self.target

    def _engine(self, model: str | None = None) -> Any:
        """The engine that answers: the one that was given, or the one of these names, loaded now."""
        if self.engine is not None:
            if model not in (None, self.engine.names[0]):
                raise OptionError(
                    f"a call may name another model where the chat model loads by name, and this one was given an "
                    f"engine of {self.engine.names[0]!r}; got model={model!r}"
                )
            return self.engine
        return self._held.engine(self._load_options(model))

    def _loaded_engine(self) -> Any:
        """The engine where it is there without waiting, else None."""
        return self.engine if self.engine is not None else self._held.get(self._load_options(None))

    def _load_options(self, model: str | None) -> LoadOptions:
        # Another target than the drafter was chosen for drafts for itself.
        paired = model in (None, self.target)
        drafters = {name: Kept.of(getattr(self, name)) if paired else None for name in _DRAFTERS}
        # One that is both is named once, so that chat models that name it twice share it.
        both = self.drafter == self.target and not any(value is not None for value in drafters.values())
        retrieval = None if self.retrieval is None else read_options(Retrieval, self.retrieval)
        return LoadOptions(
            target=model or self.target,
            drafter=self.drafter if paired and not both else None,
            device=self.device,
            device_map=Kept.of(self.device_map),
            dtype=self.dtype,
            quantization=Kept.of(self.quantization),
            retrieval=None if retrieval == Retrieval() else retrieval,
            trust_remote_code=self.trust_remote_code,
            cache_gib=self.cache_gib,
            compile=self.compile,
            **drafters,
        )

    def _identity(self) -> dict[str, Any]:
        """What an answer depends on, for the keys of caches."""
        target, drafter = self._names()
        return {
            "target": target,
            "drafter": drafter,
            # Two engines may be called alike.
            "engine": None if self.engine is None else token_of(self.engine),
            "device": self.device,
            "drafter_device": self.drafter_device,
            "device_map": repr(Kept.of(self.device_map)),
            "drafter_device_map": repr(Kept.of(self.drafter_device_map)),
            "dtype": self.dtype,
            "drafter_dtype": self.drafter_dtype,
            "quantization": repr(Kept.of(self.quantization)),
            "drafter_quantization": repr(Kept.of(self.drafter_quantization)),
            "retrieval": repr(self.retrieval),
            "speculation": repr(self.speculation),
            "fit": self.fit,
            "stop": self.stop,
            **{word: getattr(self, word) for word in SAMPLING_WORDS},
        }

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:  # noqa: ARG002
        """A copy that shares the engine, unless another one is given."""
        return super().model_copy(update=update)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """A copy that shares the engine: weights and threads are not copied."""
        return self.model_copy()

    def __getstate__(self) -> dict[Any, Any]:
        if self.engine is not None:
            raise TypeError(
                f"a {type(self).__name__} that was given an engine cannot be pickled: weights and threads do not "
                "travel; make it with target= and drafter= instead"
            )
        return super().__getstate__()


@dataclass(frozen=True, slots=True)
class Piece:
    """A delta, the target's name, and what was decided before the engine was asked."""

    delta: Delta
    model: str
    notes: Sequence[str]


def _told(messages: list[Message], call: Call) -> list[Message]:
    return messages if call.schema is None else tell_schema(messages, call.schema)


def _options(call: Call, resolved: Resolved, deadline: Deadline) -> dict[str, Any]:
    return {
        "context": resolved.context,
        "sampling": call.sampling,
        "speculation": Speculation.off() if resolved.plain else call.speculation,
        # A history is never cut, whatever happens to documents.
        "fit": "error" if isinstance(resolved.context, LongHistory) else call.fit,
        "tools": call.tools,
        "progress": deadline.progress,
    }


def _piece(delta: Delta, engine: Any, resolved: Resolved) -> Piece:
    if delta.stats is not None and delta.stats.left_out:
        left = ", ".join(delta.stats.left_out)
        warnings.warn(f"the target's window does not hold all documents; left out: {left}", RapidWarning, stacklevel=2)
    return Piece(delta, engine.names[0], resolved.notes)
