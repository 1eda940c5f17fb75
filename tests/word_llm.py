"""A correct LlamaIndex model without weights, which tests make faulty in one thing each."""

from __future__ import annotations

import asyncio
import time
from zlib import crc32

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LLMMetadata,
    TextBlock,
    ToolCallBlock,
)
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection

_DONE = object()


class WordLLM(FunctionCallingLLM):
    """Answers a sentence word by word, and calls the first tool that it is given with values of its schema."""

    delay: float = 0.0

    @classmethod
    def class_name(cls):
        return cls.__name__

    @property
    def metadata(self):
        return LLMMetadata(model_name="words", context_window=65536, is_chat_model=True, is_function_calling_model=True)

    def items(self, messages, *, stop=(), max_tokens=None, tools=(), tool_required=False):
        """The stream that all eight methods give."""
        self.check(messages)
        if tools and (tool_required or messages[-1].role == "user"):
            yield self.call(tools[0], self.usage(messages, 1))
            return
        words = self.answer(messages)[:max_tokens]
        said = " ".join(words)
        for stopped in stop:
            said = said.partition(stopped)[0]
        pieces = said.split(" ")
        text = ""
        for number, piece in enumerate(pieces, 1):
            time.sleep(self.delay)
            delta = piece if number == 1 else f" {piece}"
            text += delta
            raw = self.usage(messages, number) if number == len(pieces) else None
            yield ChatResponse(message=ChatMessage(role="assistant", content=text), delta=delta, raw=raw)

    def check(self, messages):
        if not messages:
            raise ValueError("messages must hold at least one message, got none")
        for block in (block for message in messages for block in message.blocks):
            if not isinstance(block, TextBlock | ToolCallBlock):
                raise ValueError(f"this model reads text, got {block.block_type}")

    def answer(self, messages):
        number = crc32((messages[-1].content or "").encode()) % 1000
        return f"The sea is calm today and {number} boats are out.".split()

    def usage(self, messages, completion):
        text = " ".join(message.model_dump_json() for message in messages)
        return {"usage": {"prompt_tokens": len(text.split()), "completion_tokens": completion}}

    def call(self, tool, raw):
        schema = tool.metadata.get_parameters_dict()
        arguments = _value(schema, schema.get("$defs", {}))
        block = ToolCallBlock(tool_call_id="call_1", tool_name=tool.metadata.name, tool_kwargs=arguments)
        # LlamaIndex streams objects of models only that name their calls here, too.
        message = ChatMessage(role="assistant", blocks=[block], additional_kwargs={"tool_calls": [block]})
        return ChatResponse(message=message, delta="", raw=raw)

    def _prepare_chat_with_tools(
        self,
        tools,
        user_msg=None,
        chat_history=None,
        verbose=False,
        allow_parallel_tool_calls=False,
        tool_required=False,
        tool_choice=None,
        **words,
    ):
        messages = [*(chat_history or []), *([user(user_msg)] if user_msg else [])]
        return {"messages": messages, "tools": tools, "tool_required": tool_required, **words}

    def get_tool_calls_from_response(self, response, error_on_no_tool_call=True, **_):
        blocks = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        if error_on_no_tool_call and not blocks:
            raise ValueError("the answer has no tool call")
        return [
            ToolSelection(tool_id=block.tool_call_id, tool_name=block.tool_name, tool_kwargs=block.tool_kwargs)
            for block in blocks
        ]

    @llm_chat_callback()
    def chat(self, messages, **words):
        return list(self.items(messages, **words))[-1]

    @llm_chat_callback()
    def stream_chat(self, messages, **words):
        return self.items(messages, **words)

    @llm_chat_callback()
    async def achat(self, messages, **words):
        return (await asyncio.to_thread(list, self.items(messages, **words)))[-1]

    @llm_chat_callback()
    async def astream_chat(self, messages, **words):
        return _in_thread(self.items(messages, **words))

    @llm_completion_callback()
    def complete(self, prompt, formatted=False, **words):
        return [completion_of(item) for item in self.items([user(prompt)], **words)][-1]

    @llm_completion_callback()
    def stream_complete(self, prompt, formatted=False, **words):
        return (completion_of(item) for item in self.items([user(prompt)], **words))

    @llm_completion_callback()
    async def acomplete(self, prompt, formatted=False, **words):
        items = await asyncio.to_thread(list, self.items([user(prompt)], **words))
        return completion_of(items[-1])

    @llm_completion_callback()
    async def astream_complete(self, prompt, formatted=False, **words):
        return _in_thread(completion_of(item) for item in self.items([user(prompt)], **words))


async def _in_thread(items):
    while (item := await asyncio.to_thread(next, items, _DONE)) is not _DONE:
        yield item


def user(text):
    return text if isinstance(text, ChatMessage) else ChatMessage(role="user", content=text)


def completion_of(item):
    return CompletionResponse(text=item.message.content, delta=item.delta, raw=item.raw)


def _value(schema, definitions):
    schema = definitions.get(schema.get("$ref", "").rpartition("/")[2], schema)
    if "properties" in schema:
        return {name: _value(field, definitions) for name, field in schema["properties"].items()}
    return 7 if schema["type"] == "integer" else "Ada"
