"""`RapidLLM`: a LlamaIndex LLM over a `RapidEngine`.

Longer than other files: what LlamaIndex asks of an LLM are methods of one class, most of them twice.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, ClassVar, cast

from llama_index.core.base.llms.generic_utils import messages_to_prompt as generic_messages_to_prompt
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
    MessageRole,
    ToolCallBlock,
)
from llama_index.core.chat_engine.types import AgentChatResponse
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection, default_completion_to_prompt
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate
from llama_index.core.tools import BaseTool
from llama_index.core.types import PydanticProgramMode, TokenAsyncGen
from pydantic import BaseModel, SerializationInfo, SerializerFunctionWrapHandler, model_serializer, model_validator

from rapid_core import OptionError
from rapid_integrations.calls import Words, read_choice
from rapid_integrations.contexts import RapidWarning
from rapid_integrations.engines import token_of
from rapid_integrations.llama_index.messages import (
    astream_chat,
    astream_completion,
    stream_chat,
    stream_completion,
    to_chat_response,
    to_completion,
    to_messages,
)
from rapid_integrations.llama_index.retrieval import RapidContext
from rapid_integrations.llama_index.structured import as_object, astream_objects, call_options, stream_objects
from rapid_integrations.llama_index.tools import arguments_of, one_call, read_tool
from rapid_integrations.model import DEFAULT_MAX_TOKENS, Piece, RapidModel

# An answer never has more than this part of the window reserved for it.
LARGEST_RESERVE = 4
# What the base class knows for models that have no chat template.
_FOR_PLAIN_MODELS = {
    "messages_to_prompt": generic_messages_to_prompt,
    "completion_to_prompt": default_completion_to_prompt,
    "query_wrapper_prompt": None,
}


class RapidLLM(RapidModel, FunctionCallingLLM):
    """An LLM whose target reads the whole document and whose drafter reads what was retrieved.

    Its options are those of `RapidModel`, and system_prompt, output_parser, callback_manager and
    pydantic_program_mode as every LLM has them. function_calling: whether agents may give it tools;
    None asks the chat template, and True describes them in the system message where it has none.
    A call may have all options of sampling, stop, speculation, fit, timeout, model, tools,
    tool_choice, response_format, and rapid_context: the long context, a text or a `RapidContext`.
    """

    words: ClassVar[Words] = Words("RapidLLM", read_tool, RapidContext)

    function_calling: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _warn_of_prompts(cls, values: Any) -> Any:
        asked = values if isinstance(values, Mapping) else {}
        given = [name for name, own in _FOR_PLAIN_MODELS.items() if asked.get(name) not in (None, own)]
        if given:
            warnings.warn(
                f"RapidLLM writes prompts with the model's chat template, and ignores {', '.join(given)}",
                RapidWarning,
                stacklevel=3,
            )
        return values

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex writes it down."""
        return "RapidLLM"

    @property
    def metadata(self) -> LLMMetadata:
        """The target's real window, and what it can do; loads the models where they are not yet loaded."""
        engine = self._engine()
        calls = self.function_calling
        return LLMMetadata(
            context_window=engine.window,
            num_output=min(self.max_tokens or DEFAULT_MAX_TOKENS, engine.window // LARGEST_RESERVE),
            is_chat_model=True,
            is_function_calling_model=engine.tools_in_template if calls is None else calls,
            model_name=engine.names[0],
        )

    def load(self) -> None:
        """Load the models now, and not with the first call: in an application that starts, or beside an event loop."""
        self._engine().warm_up()

    def token_ids(self, text: str) -> list[int]:
        """The target's token ids of a text, for `Settings.tokenizer`."""
        return list(self._engine().token_ids(text))

    def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """The target's tokens of messages, with all that the chat template adds; 0 of none."""
        return int(self._engine().count_tokens(to_messages(messages))) if messages else 0

    @model_serializer(mode="wrap")
    def custom_model_dump(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        """As of every component; LlamaIndex takes it for the key of caches, and two engines differ."""
        written: dict[str, Any] = super().custom_model_dump(handler, info)
        return written if self.engine is None else {**written, "engine_token": token_of(self.engine)}

    def to_payload(self) -> dict[str, Any]:
        """What tracing is told of this LLM; the window only where the models are there already."""
        if self._loaded_engine() is None:
            # This is asked on the event loop, which must not wait for weights.
            return {"class_name": self.class_name(), "model_name": self.target, "is_chat_model": True}
        return super().to_payload()

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """The answer to a conversation; `raw` holds usage, and statistics under "rapid"."""
        return to_chat_response(list(self._pieces(messages, kwargs)))

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """`chat` piece by piece; usage and statistics come with the last item."""
        return stream_chat(self._pieces(messages, kwargs))

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """`chat` for an event loop."""
        async with aclosing(self._apieces(messages, kwargs)) as pieces:
            return to_chat_response([piece async for piece in pieces])

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        """`stream_chat` for an event loop."""
        return astream_chat(self._apieces(messages, kwargs))

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:  # noqa: ARG002
        """The answer to one user message: the model's chat template formats it in any case."""
        return to_completion(to_chat_response(list(self._pieces(*_completion(prompt, kwargs)))))

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:  # noqa: ARG002
        """`complete` piece by piece."""
        return stream_completion(self._pieces(*_completion(prompt, kwargs)))

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:  # noqa: ARG002
        """`complete` for an event loop."""
        async with aclosing(self._apieces(*_completion(prompt, kwargs))) as pieces:
            return to_completion(to_chat_response([piece async for piece in pieces]))

    @llm_completion_callback()
    async def astream_complete(
        self,
        prompt: str,
        formatted: bool = False,  # noqa: ARG002
        **kwargs: Any,
    ) -> CompletionResponseAsyncGen:
        """`stream_complete` for an event loop."""
        return astream_completion(self._apieces(*_completion(prompt, kwargs)))

    async def apredict(self, prompt: BasePromptTemplate, **prompt_args: Any) -> str:
        """`predict` for an event loop."""
        await self._aready()
        return await super().apredict(prompt, **prompt_args)

    async def astream(self, prompt: BasePromptTemplate, **prompt_args: Any) -> TokenAsyncGen:
        """`stream` for an event loop."""
        await self._aready()
        return await super().astream(prompt, **prompt_args)

    async def apredict_and_call(self, tools: Sequence[BaseTool], *args: Any, **kwargs: Any) -> AgentChatResponse:
        """`predict_and_call` for an event loop."""
        await self._aready()
        return await super().apredict_and_call(tools, *args, **kwargs)

    async def _aready(self) -> None:
        """Load the models in a thread, where the base class would ask for them on the event loop."""
        await asyncio.to_thread(self._engine)

    def _pieces(self, messages: Sequence[ChatMessage], kwargs: Mapping[str, Any]) -> Generator[Piece, None, None]:
        """The answer piece by piece; what is wrong with the question is raised at once."""
        ours, call, one = to_messages(messages), self._call(None, kwargs), one_call(kwargs)
        return (one(piece) for piece in self._answer(ours, call))

    def _apieces(self, messages: Sequence[ChatMessage], kwargs: Mapping[str, Any]) -> AsyncGenerator[Piece, None]:
        """`_pieces` for an event loop."""
        ours, call, one = to_messages(messages), self._call(None, kwargs), one_call(kwargs)

        async def pieces() -> AsyncGenerator[Piece, None]:
            async with aclosing(self._aanswer(ours, call)) as answer:
                async for piece in answer:
                    yield one(piece)

        return pieces()

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,  # noqa: ARG002 - the base class prints
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        tool_choice: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The words of a call with tools; one that must call a tool is held to its schema while it decodes."""
        messages = list(chat_history or ())
        if user_msg is not None:
            messages += [user_msg] if isinstance(user_msg, ChatMessage) else _asked(user_msg)
        shown = [read_tool(tool) for tool in tools]
        choice = "any" if tool_choice is None and tool_required and shown else tool_choice
        return {
            "messages": messages,
            "tools": [tool.as_function() for tool in shown],
            "tool_choice": read_choice(choice, [tool.name for tool in shown]),
            "parallel_tool_calls": allow_parallel_tool_calls,
            **kwargs,
        }

    def get_tool_calls_from_response(
        self,
        response: ChatResponse,
        error_on_no_tool_call: bool = True,
        **kwargs: Any,  # noqa: ARG002
    ) -> list[ToolSelection]:
        """The calls of a response; raises ValueError where there are none, if told to."""
        calls = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        if not calls and error_on_no_tool_call:
            raise ValueError(
                f"a tool call was expected, and the model wrote {response.message.content!r:.200}; pass "
                "tool_required=True to make it call one"
            )
        return [
            ToolSelection(
                tool_id=call.tool_call_id or "",
                tool_name=call.tool_name,
                tool_kwargs=arguments_of(call),
            )
            for call in calls
        ]

    def structured_predict(
        self,
        output_cls: type[BaseModel],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> BaseModel:
        """An object of `output_cls`, whose schema is enforced while decoding."""
        if self.pydantic_program_mode != PydanticProgramMode.DEFAULT:
            return cast("BaseModel", super().structured_predict(output_cls, prompt, llm_kwargs, **prompt_args))
        messages = self._form_messages(prompt, prompt_args)
        return as_object(output_cls, self.chat(messages, **call_options(output_cls, llm_kwargs)))

    async def astructured_predict(
        self,
        output_cls: type[BaseModel],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> BaseModel:
        """`structured_predict` for an event loop."""
        if self.pydantic_program_mode != PydanticProgramMode.DEFAULT:
            return cast("BaseModel", await super().astructured_predict(output_cls, prompt, llm_kwargs, **prompt_args))
        messages = self._form_messages(prompt, prompt_args)
        return as_object(output_cls, await self.achat(messages, **call_options(output_cls, llm_kwargs)))

    def _structured_stream_call(
        self,
        output_cls: type[BaseModel],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Generator[Any, None, None]:
        """Objects that grow, the last one whole."""
        if self.pydantic_program_mode != PydanticProgramMode.DEFAULT:
            return super()._structured_stream_call(output_cls, prompt, llm_kwargs, **prompt_args)
        messages = self._form_messages(prompt, prompt_args)
        return stream_objects(output_cls, self.stream_chat(messages, **call_options(output_cls, llm_kwargs)))

    async def _structured_astream_call(
        self,
        output_cls: type[BaseModel],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> AsyncGenerator[Any, None]:
        """`_structured_stream_call` for an event loop."""
        if self.pydantic_program_mode != PydanticProgramMode.DEFAULT:
            return await super()._structured_astream_call(output_cls, prompt, llm_kwargs, **prompt_args)
        messages = self._form_messages(prompt, prompt_args)
        responses = await self.astream_chat(messages, **call_options(output_cls, llm_kwargs))
        return astream_objects(output_cls, responses)

    def messages_of(self, prompt: Any, **prompt_args: Any) -> list[ChatMessage]:
        """A prompt template filled in, with the LLM's own system prompt and output parser."""
        return self._get_messages(prompt, **prompt_args)

    def parsed(self, text: str) -> str:
        """A text as the LLM's own output parser reads it."""
        return self._parse_output(text)

    def _form_messages(self, prompt: Any, prompt_args: dict[str, Any]) -> list[ChatMessage]:
        """As `messages_of`; the form of the answer is the schema's, and not the output parser's."""
        return self._extend_messages(prompt.format_messages(llm=self, **prompt_args))


def _completion(prompt: str, kwargs: Mapping[str, Any]) -> tuple[list[ChatMessage], Mapping[str, Any]]:
    """A completion as a conversation; raises `OptionError` for tools, whose calls it could not give back."""
    if kwargs.get("tools"):
        raise OptionError("a completion is text and has no place for tool calls, got tools=; ask with chat")
    return _asked(prompt), kwargs


def _asked(prompt: str) -> list[ChatMessage]:
    return [ChatMessage(role=MessageRole.USER, content=prompt)]
