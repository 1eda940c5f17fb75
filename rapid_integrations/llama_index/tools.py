"""Tools and their calls, between LlamaIndex and us."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from llama_index.core.base.llms.types import ToolCallBlock
from llama_index.core.tools import BaseTool

from rapid_core import Tool
from rapid_integrations.calls import read_function
from rapid_integrations.contexts import RapidWarning
from rapid_integrations.model import Piece
from rapid_integrations.schemas import as_pydantic_reads


def read_tool(tool: Any) -> Tool:
    """A tool of ours for one of LlamaIndex's, or for OpenAI's description of one."""
    if isinstance(tool, BaseTool):
        # Its description was made by Pydantic.
        return read_function(as_pydantic_reads(tool.metadata.to_openai_tool(skip_length_check=True)))
    return read_function(tool)


def one_call(kwargs: Mapping[str, Any]) -> Callable[[Piece], Piece]:
    """What keeps the first of several tool calls, where the caller allows one, and names the others."""

    def one(piece: Piece) -> Piece:
        calls = piece.delta.tool_calls
        if kwargs.get("parallel_tool_calls") is not False or len(calls) < 2:
            return piece
        left = ", ".join(call.name for call in calls[1:])
        note = f"one tool call was allowed, and the model made {len(calls)}; left out: {left}"
        warnings.warn(note, RapidWarning, stacklevel=2)
        return replace(piece, delta=replace(piece.delta, tool_calls=calls[:1]), notes=(*piece.notes, note))

    return one


def arguments_of(call: ToolCallBlock) -> dict[str, Any]:
    """The arguments of a call, which a block may hold as text; raises ValueError for what are none."""
    given = json.loads(call.tool_kwargs) if isinstance(call.tool_kwargs, str) else call.tool_kwargs
    if not isinstance(given, dict):
        raise ValueError(f"the arguments of a tool call must be a JSON object, got {given!r:.200}")
    return given
