"""`ChatRapid`: a LangChain chat model over a `RapidEngine`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, ClassVar, Literal, Self, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.exceptions import ContextOverflowError
from langchain_core.language_models import BaseChatModel, LangSmithParams, LanguageModelInput, ModelProfile
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import SecretStr

from rapid_core import OptionError, PromptTooLongError, Tool
from rapid_integrations.calls import Words, read_choice, read_function
from rapid_integrations.langchain.messages import PROVIDER, to_chunk, to_message, to_messages
from rapid_integrations.langchain.profile import LazyProfile
from rapid_integrations.langchain.retrieval import RapidContext
from rapid_integrations.langchain.structured import (
    METHODS,
    answer_parser,
    call_parser,
    name_of,
    schema_of,
    with_raw,
)
from rapid_integrations.model import Piece, RapidModel
from rapid_integrations.schemas import as_pydantic_reads, response_format


class RapidContextOverflowError(PromptTooLongError, ContextOverflowError):
    """A prompt that does not fit the target's window, as LangChain and as this package know it."""


def _read_tool(tool: Any) -> Tool:
    function = convert_to_openai_tool(tool)
    # What is no description already was made one by Pydantic.
    return read_function(function if isinstance(tool, Mapping) else as_pydantic_reads(function))


class ChatRapid(RapidModel, BaseChatModel):
    """A chat model whose target reads the whole document and whose drafter reads what was retrieved.

    Its options are those of `RapidModel`. max_retries and api_key are taken for the sake of common
    code: a local model needs neither.
    """

    words: ClassVar[Words] = Words(
        "ChatRapid",
        _read_tool,
        RapidContext,
        frozenset({"stream", "stream_usage", "strict", "ls_structured_output_format"}),
    )

    max_retries: int | None = None
    api_key: SecretStr | None = None
    streaming: bool = False

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
        return self._identity()

    @property
    def model_name(self) -> str:
        """What the target is called."""
        return self._names()[0]

    def get_token_ids(self, text: str) -> list[int]:
        """The target's token ids of a text; loads the models where they are not yet loaded."""
        if self.custom_get_token_ids is not None:
            return self.custom_get_token_ids(text)
        return list(self._engine().token_ids(text))

    def get_num_tokens(self, text: str) -> int:
        """The target's tokens of a text."""
        return len(self.get_token_ids(text))

    def get_num_tokens_from_messages(
        self,
        messages: Sequence[BaseMessage],
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool] | None = None,
    ) -> int:
        """The target's tokens of messages and tools, with all that the chat template adds."""
        call = self._call(None, {"tools": list(tools or ())})
        return int(self._engine().count_tokens(to_messages(messages), tools=call.tools))

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
        shown = [_read_tool(tool).as_function() for tool in tools]
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
            form = response_format(schema_of(schema), told=method == "json_schema")
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
        with _overflow():
            for piece in self._answer(to_messages(messages), self._call(stop, kwargs)):
                yield to_chunk(piece)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        with _overflow():
            async with aclosing(self._aanswer(to_messages(messages), self._call(stop, kwargs))) as answer:
                async for piece in answer:
                    yield to_chunk(piece)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **kwargs: Any,
    ) -> ChatResult:
        with _overflow():
            return _add_up(list(self._answer(to_messages(messages), self._call(stop, kwargs))))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **kwargs: Any,
    ) -> ChatResult:
        with _overflow():
            async with aclosing(self._aanswer(to_messages(messages), self._call(stop, kwargs))) as answer:
                return _add_up([piece async for piece in answer])

    def _resolve_model_profile(self) -> ModelProfile | None:
        # What it asks must not keep the chat model, and with it the weights, in a circle.
        engine, options, held = self.engine, None, self._held
        if engine is None:
            options = self._load_options(None)

        def window() -> int:
            return int((engine if options is None else held.engine(options)).window)

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

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy that shares the engine, unless another one is given; its profile is its own."""
        made = super().model_copy(update=update, deep=deep)
        if isinstance(self.profile, LazyProfile) and "profile" not in (update or {}):
            made.profile = made._resolve_model_profile()
        return made

    def __getstate__(self) -> dict[Any, Any]:
        state = super().__getstate__()
        # It is filled in anew where it is read.
        state["__dict__"] = {name: value for name, value in state["__dict__"].items() if name != "profile"}
        return state

    def __setstate__(self, state: dict[Any, Any]) -> None:
        super().__setstate__(state)
        self.profile = self._resolve_model_profile()


def _add_up(pieces: Sequence[Piece]) -> ChatResult:
    """A whole answer from its pieces; the calls are those of the last one."""
    return ChatResult(generations=[ChatGeneration(message=to_message(pieces))])


@contextmanager
def _overflow() -> Iterator[None]:
    """Make a prompt over the window the error that LangChain's middleware acts on."""
    try:
        yield
    except PromptTooLongError as error:
        raise RapidContextOverflowError(str(error), prompt_tokens=error.prompt_tokens, window=error.window) from error
