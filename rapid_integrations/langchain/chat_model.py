"""`ChatRapid`: a LangChain chat model over a `RapidEngine`.

Longer than other files: its options are fields of one class, and what LangChain asks of a chat
model are methods of it.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, contextmanager
from dataclasses import fields
from typing import Any, Literal, Self, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.exceptions import ContextOverflowError
from langchain_core.language_models import BaseChatModel, LangSmithParams, LanguageModelInput, ModelProfile
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import ConfigDict, Field, PrivateAttr, SecretStr, SkipValidation, model_validator

from rapid_core import (
    Delta,
    LongHistory,
    Message,
    OptionError,
    PromptTooLongError,
    Retrieval,
    Speculation,
    Tool,
    ToolCall,
)
from rapid_integrations.contexts import RapidWarning
from rapid_integrations.langchain.deadline import Deadline
from rapid_integrations.langchain.engines import LoadOptions, engine_for, token_of
from rapid_integrations.langchain.messages import PROVIDER, to_chunk, to_message, to_messages
from rapid_integrations.langchain.options import SAMPLING_WORDS, Call, read_call, read_choice, read_options, read_tool
from rapid_integrations.langchain.profile import LazyProfile
from rapid_integrations.langchain.search import OnRetrievalError, Resolved, check_on_retrieval_error
from rapid_integrations.langchain.structured import (
    METHODS,
    answer_parser,
    call_parser,
    name_of,
    response_format,
    schema_of,
    tell_schema,
    with_raw,
)

# A whole answer fits; one that does not ends with finish_reason "length".
DEFAULT_MAX_TOKENS = 1024


# What is asked of `RapidEngine.load`, and cannot be asked of an engine that is there.
_LOADING = frozenset({each.name for each in fields(LoadOptions)})


class RapidContextOverflowError(PromptTooLongError, ContextOverflowError):
    """A prompt that does not fit the target's window, as LangChain and as this package know it."""


class ChatRapid(BaseChatModel):
    """A chat model whose target reads the whole document and whose drafter reads what was retrieved.

    target (also called model): a hub name, a folder, a `.gguf` file or "demo", or the environment's
    RAPID_TARGET; drafter likewise, and RAPID_DRAFTER. Models are loaded when first needed, and
    chat models that name the same ones share them. Or engine: a `RapidEngine` that is already there.
    temperature 0 is greedy. max_tokens: of an answer. stop: holds unless a call gives one. timeout:
    seconds from the start of the work, then TimeoutError. speculation, retrieval: options of ours,
    or a mapping of them. fit: what to do with one document over the window. on_retrieval_error:
    "plain" answers without a drafter where a retriever fails. max_retries and api_key are taken
    for the sake of common code: a local model needs neither.
    """

    model_config = ConfigDict(populate_by_name=True, arbitrary_types_allowed=True, protected_namespaces=())

    target: str = Field(default_factory=lambda: os.environ.get("RAPID_TARGET", ""), alias="model")
    drafter: str | None = Field(default_factory=lambda: os.environ.get("RAPID_DRAFTER") or None)
    engine: Any = Field(default=None, exclude=True, repr=False)
    device: str = "auto"
    drafter_device: str | None = None
    dtype: str = "auto"
    drafter_dtype: str | None = None
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

    max_retries: int | None = None
    api_key: SecretStr | None = None
    streaming: bool = False

    _held: dict[LoadOptions, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _warn_of_unknown_words(cls, values: Any) -> Any:
        if isinstance(values, Mapping):
            known = {*cls.model_fields, *(field.alias for field in cls.model_fields.values())}
            unknown = sorted(name for name in values if name not in known)
            if unknown:
                warnings.warn(
                    f"ChatRapid has no option {', '.join(unknown)}, and ignores it", RapidWarning, stacklevel=3
                )
        return values

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.engine is None and not self.target:
            raise OptionError(
                "ChatRapid needs target= (or model=), engine=, or the environment's RAPID_TARGET, got none"
            )
        beside = sorted(_LOADING & self.model_fields_set) if self.engine is not None else []
        if beside:
            raise OptionError(
                f"an engine is already loaded, and {', '.join(beside)} cannot change it; leave out either"
            )
        check_on_retrieval_error(self.on_retrieval_error)
        # What breaks a rule is found here, and not by the first call.
        read_call(self._defaults(), None, {})
        if self.retrieval is not None:
            read_options(Retrieval, self.retrieval)
        return self

    @property
    def _llm_type(self) -> str:
        return "rapid-chat"

    @classmethod
    def is_lc_serializable(cls) -> bool:
        """Names and options are kept; an engine that was given is not."""
        return True

    @property
    def lc_secrets(self) -> dict[str, str]:
        """No secret is needed; one that was given is not written."""
        return {"api_key": "RAPID_API_KEY"}

    @property
    def _identifying_params(self) -> dict[str, Any]:
        target, drafter = self._names()
        return {
            "target": target,
            "drafter": drafter,
            # Two engines may be called alike.
            "engine": None if self.engine is None else token_of(self.engine),
            "device": self.device,
            "dtype": self.dtype,
            "drafter_dtype": self.drafter_dtype,
            "retrieval": repr(self.retrieval),
            "speculation": repr(self.speculation),
            "fit": self.fit,
            "stop": self.stop,
            **{word: getattr(self, word) for word in SAMPLING_WORDS},
        }

    @property
    def model_name(self) -> str:
        """What the target is called."""
        return self._names()[0]

    def get_token_ids(self, text: str) -> list[int]:
        """The target's token ids of a text; loads the models where they are not yet loaded."""
        if self.custom_get_token_ids is not None:
            return self.custom_get_token_ids(text)
        return list(self._engine(None).token_ids(text))

    def get_num_tokens(self, text: str) -> int:
        """The target's tokens of a text."""
        return len(self.get_token_ids(text))

    def get_num_tokens_from_messages(
        self,
        messages: Sequence[BaseMessage],
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool] | None = None,
    ) -> int:
        """The target's tokens of messages and tools, with all that the chat template adds."""
        call = read_call(self._defaults(), None, {"tools": [convert_to_openai_tool(tool) for tool in tools or ()]})
        return int(self._engine(None).count_tokens(to_messages(messages), tools=call.tools))

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | bool | dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Let the model call tools; keywords beside are bound, too.

        tool_choice: "auto", "none", "any" or a tool's name. What has to be called is enforced, with
        arguments that fit the tool's schema; parallel_tool_calls=True then allows several calls.
        """
        shown = [read_tool(tool).as_function() for tool in tools]
        if tool_choice is not None:
            kwargs["tool_choice"] = read_choice(tool_choice, [tool["function"]["name"] for tool in shown])
        return self.bind(tools=shown, **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        include_raw: bool = False,
        method: Literal["json_schema", "function_calling", "json_mode"] = "json_schema",
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """Answers that are objects of a Pydantic class, a TypedDict or a JSON schema.

        All methods enforce the schema while decoding, so that strict changes nothing. method:
        "json_schema" tells the model the schema in the system message, "function_calling" as a
        tool, and "json_mode" does not: the prompt has to name the fields.
        """
        if method not in METHODS:
            raise OptionError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
        trace = {"kwargs": {"method": method, "strict": strict}, "schema": schema}
        if method == "function_calling":
            name, made = name_of(schema), schema_of(schema)
            tool = Tool(name, made.get("description") or "", {"type": "object", **made})
            llm = self.bind_tools([tool.as_function()], tool_choice=name, ls_structured_output_format=trace, **kwargs)
            parser = call_parser(schema, name)
        else:
            form = response_format(schema, told=method == "json_schema")
            llm = self.bind(response_format=form, ls_structured_output_format=trace, **kwargs)
            parser = answer_parser(schema)
        return with_raw(llm, parser) if include_raw else llm | parser

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002 - who streams reports the tokens
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for chunk, _ in self._answer(messages, stop, kwargs):
            yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        async with aclosing(self._aanswer(messages, stop, kwargs)) as answer:
            async for chunk, _ in answer:
                yield chunk

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **kwargs: Any,
    ) -> ChatResult:
        return _add_up(list(self._answer(messages, stop, kwargs)))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **kwargs: Any,
    ) -> ChatResult:
        async with aclosing(self._aanswer(messages, stop, kwargs)) as answer:
            return _add_up([item async for item in answer])

    def _answer(
        self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]
    ) -> Iterator[tuple[ChatGenerationChunk, Sequence[ToolCall]]]:
        call = read_call(self._defaults(), stop, kwargs)
        ours = self._messages(messages, call)
        engine = self._engine(call.model)
        resolved = Resolved(None) if call.context is None else call.context.resolve(messages, self.on_retrieval_error)
        deadline = Deadline(call.timeout)
        with _overflow(), closing(engine.stream(ours, **self._options(call, resolved, deadline))) as deltas:
            for delta in deltas:
                deadline.check(delta)
                yield self._chunk(delta, engine, resolved)

    async def _aanswer(
        self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]
    ) -> AsyncGenerator[tuple[ChatGenerationChunk, Sequence[ToolCall]]]:
        call = read_call(self._defaults(), stop, kwargs)
        ours = self._messages(messages, call)
        engine = await asyncio.to_thread(self._engine, call.model)
        resolved = Resolved(None)
        if call.context is not None:
            resolved = await call.context.aresolve(messages, self.on_retrieval_error)
        deadline = Deadline(call.timeout)
        with _overflow():
            async with aclosing(engine.astream(ours, **self._options(call, resolved, deadline))) as deltas:
                async for delta in deltas:
                    deadline.check(delta)
                    yield self._chunk(delta, engine, resolved)

    def _messages(self, messages: list[BaseMessage], call: Call) -> list[Message]:
        ours = to_messages(messages)
        return ours if call.schema is None else tell_schema(ours, call.schema)

    def _options(self, call: Call, resolved: Resolved, deadline: Deadline) -> dict[str, Any]:
        return {
            "context": resolved.context,
            "sampling": call.sampling,
            "speculation": Speculation.off() if resolved.plain else call.speculation,
            # A history is never cut, whatever happens to documents.
            "fit": "error" if isinstance(resolved.context, LongHistory) else call.fit,
            "tools": call.tools,
            "progress": deadline.progress,
        }

    def _chunk(self, delta: Delta, engine: Any, resolved: Resolved) -> tuple[ChatGenerationChunk, Sequence[ToolCall]]:
        if delta.stats is not None and delta.stats.left_out:
            left = ", ".join(delta.stats.left_out)
            warnings.warn(
                f"the target's window does not hold all documents; left out: {left}", RapidWarning, stacklevel=2
            )
        return to_chunk(delta, engine.names[0], resolved.notes), delta.tool_calls

    def _defaults(self) -> dict[str, Any]:
        """What a call gets that asks for nothing else."""
        words = (*SAMPLING_WORDS, "stop", "speculation", "fit", "timeout")
        defaults = {word: getattr(self, word) for word in words}
        return {**defaults, "max_tokens": DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens}

    def _names(self) -> tuple[str, str]:
        if self.engine is not None:
            return cast("tuple[str, str]", tuple(self.engine.names))
        return self.target, self.drafter or self.target

    def _engine(self, model: str | None) -> Any:
        """The engine that answers: the one that was given, or the one of these names, loaded now."""
        if self.engine is not None:
            if model not in (None, self.engine.names[0]):
                raise OptionError(
                    f"a call may name another model where the chat model loads by name, and this one was given an "
                    f"engine of {self.engine.names[0]!r}; got model={model!r}"
                )
            return self.engine
        return _hold(self._held, self._load_options(model))

    def _load_options(self, model: str | None) -> LoadOptions:
        # Another target than the drafter was chosen for drafts for itself, and so does one that is both.
        paired = model in (None, self.target) and self.drafter not in (None, self.target)
        retrieval = None if self.retrieval is None else read_options(Retrieval, self.retrieval)
        return LoadOptions(
            model or self.target,
            self.drafter if paired else None,
            self.device,
            self.drafter_device if paired else None,
            self.dtype,
            self.drafter_dtype if paired else None,
            None if retrieval == Retrieval() else retrieval,
            self.trust_remote_code,
            self.cache_gib,
            self.compile,
        )

    def _resolve_model_profile(self) -> ModelProfile | None:
        # What it asks must not keep the chat model, and with it the weights, in a circle.
        engine, options, held = self.engine, None, self._held
        if engine is None:
            options = self._load_options(None)

        def window() -> int:
            return int((engine if options is None else _hold(held, options)).window)

        return cast("ModelProfile", LazyProfile(window))

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = LangSmithParams(ls_provider=PROVIDER, ls_model_type="chat")
        chosen = {**self._defaults(), **{name: value for name, value in kwargs.items() if value is not None}}
        params["ls_model_name"] = chosen.get("model") or self.model_name
        params["ls_temperature"] = float(chosen["temperature"] or 0.0)
        params["ls_max_tokens"] = chosen["max_tokens"]
        stops = stop if stop is not None else chosen["stop"]
        if stops:
            params["ls_stop"] = [stops] if isinstance(stops, str) else list(stops)
        return params

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: Any) -> str:
        # LangChain's own key of a model that can be written leaves out an engine that was given.
        return repr(
            sorted({**self._identifying_params, **kwargs, "asked_stop": stop}.items(), key=lambda item: item[0])
        )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:  # noqa: ARG002
        """A copy that shares the engine, unless another one is given; its profile is its own."""
        made = super().model_copy(update=update)
        if isinstance(self.profile, LazyProfile) and "profile" not in (update or {}):
            made.profile = made._resolve_model_profile()
        return made

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """A copy that shares the engine: weights and threads are not copied."""
        return self.model_copy()

    def __getstate__(self) -> dict[Any, Any]:
        if self.engine is not None:
            raise TypeError(
                "a ChatRapid that was given an engine cannot be pickled: weights and threads do not travel; make it "
                "with target= and drafter= instead"
            )
        state = super().__getstate__()
        state["__pydantic_private__"] = {**(state["__pydantic_private__"] or {}), "_held": {}}
        # It is filled in anew where it is read.
        state["__dict__"] = {name: value for name, value in state["__dict__"].items() if name != "profile"}
        return state

    def __setstate__(self, state: dict[Any, Any]) -> None:
        super().__setstate__(state)
        self.profile = self._resolve_model_profile()


def _hold(held: dict[LoadOptions, Any], options: LoadOptions) -> Any:
    """The engine of these options, held as long as the chat model is there."""
    if options not in held:
        held[options] = engine_for(options)
    return held[options]


def _add_up(items: Sequence[tuple[ChatGenerationChunk, Sequence[ToolCall]]]) -> ChatResult:
    """A whole answer from its chunks; the calls are those of the last one."""
    message = to_message([chunk for chunk, _ in items], items[-1][1])
    return ChatResult(generations=[ChatGeneration(message=message)])


@contextmanager
def _overflow() -> Iterator[None]:
    """Make a prompt over the window the error that LangChain's middleware acts on."""
    try:
        yield
    except PromptTooLongError as error:
        raise RapidContextOverflowError(str(error), prompt_tokens=error.prompt_tokens, window=error.window) from error
