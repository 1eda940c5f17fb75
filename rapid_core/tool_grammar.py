"""The grammar of an answer that calls tools: a model that has to call one cannot do anything else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from rapid_core.constraint import Constraint
from rapid_core.errors import OptionError
from rapid_core.tool_format import ToolFormat
from rapid_core.tool_use import Tool, ToolUse


def constraint_with_tools(
    use: ToolUse, format_: ToolFormat, own: Constraint | None, added_tokens: Mapping[str, int]
) -> Constraint | None:
    """What an answer may be: a call where there must be one, else text, or what `own` says, or a call.

    added_tokens: those that a grammar knows by their ids only. Without `own` an answer that may
    be text is left free. Raises `OptionError` where a call is wanted and another form, too.
    """
    if own is None and not use.forced:
        return None
    if own is not None and use.forced:
        raise OptionError(
            f"an answer that has to call a tool (choice {use.choice!r}) cannot have another form, got {own!r}; leave "
            "the constraint out, or the choice"
        )
    tools = use.forced or use.shown
    rules = ["start: calls" if own is None else "start: calls | own"]
    between = _literal(format_.between or "", added_tokens)
    more = f" ({between} call)*" if format_.between and use.parallel else ""
    opening, closing = (_literal(text, added_tokens) for text in (format_.opening, format_.closing))
    rules.append(f"calls: {opening} call{more} {closing}")
    rules.append("call: " + " | ".join(f"call_{number}" for number in range(len(tools))))
    for number, tool in enumerate(tools):
        name = "" if format_.middle is None else _literal(tool.name + format_.middle, added_tokens)
        rules.append(f"call_{number}: {name} {_json(function_schema(tool, format_))}")
    if own is not None:
        rules.append(f"own: {_own(own)}")
    return Constraint.lark("\n".join(rules))


def _literal(text: str, added_tokens: Mapping[str, int]) -> str:
    """A text as terminals; tokens that are read as a whole by their ids."""
    if not text:
        return ""
    inside = [re.escape(token) for token in added_tokens if token in text]
    pieces = re.split(f"({'|'.join(inside)})", text) if inside else [text]
    written = [
        f"<[{added_tokens[piece]}]>" if piece in added_tokens else json.dumps(piece) for piece in pieces if piece
    ]
    return " ".join(written)


def _json(schema: Mapping[str, Any]) -> str:
    return "%json " + Constraint.json_schema(schema).text_for_lark()


def _own(constraint: Constraint) -> str:
    if constraint.kind == "json_schema":
        return "%json " + constraint.text_for_lark()
    if constraint.kind == "regex":
        return "/" + re.sub(r"\\.|/", lambda found: found[0] if len(found[0]) > 1 else r"\/", constraint.text) + "/"
    raise OptionError(
        f"beside tools an answer may have the form of a JSON schema or a regular expression, got {constraint!r}"
    )


def function_schema(tool: Tool, format_: ToolFormat) -> dict[str, Any]:
    """The JSON schema of what the model writes to call `tool`."""
    if format_.middle is not None:
        return dict(tool.parameters)
    return {
        "type": "object",
        "properties": {
            "name": {"const": tool.name},
            format_.arguments: _moved(dict(tool.parameters), f"#/properties/{format_.arguments}"),
        },
        "required": ["name", format_.arguments],
        "additionalProperties": False,
    }


def _moved(schema: Any, to: str) -> Any:
    """A schema whose references still hold where it is a part of another one."""
    if isinstance(schema, list):
        return [_moved(part, to) for part in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(part, to) for key, part in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = to + reference[1:]
    return moved
