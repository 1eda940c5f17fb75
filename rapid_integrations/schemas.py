"""The schema of an answer: as a grammar can hold it, as the model is told it, and the answer read."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, cast

from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from rapid_core import Message

# What Pydantic takes for the formats of its own types.
PATTERNS = {
    "time": r"^([01]\d|2[0-3]):[0-5]\d:[0-5]\d$",
    "date-time": r"^(19|20)\d\d-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])T([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ$",
    "duration": r"^P(\d{1,4}D|T\d{1,4}[HMS])$",
    "uri": r"^https?://[a-z0-9]{1,30}(\.[a-z]{2,12}){1,3}(/[A-Za-z0-9_.-]{1,40}){0,6}$",
}


def pydantic_schema(model: Any) -> dict[str, Any]:
    """The JSON schema of a Pydantic class (1 or 2), as Pydantic reads it."""
    if hasattr(model, "model_json_schema"):
        made = model.model_json_schema(schema_generator=_NumbersForDecimals)
    else:
        made = model.schema()
    return cast("dict[str, Any]", as_pydantic_reads(made))


class _NumbersForDecimals(GenerateJsonSchema):
    """Pydantic describes a Decimal as a number or any text, and takes only texts that are numbers."""

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> dict[str, Any]:
        made = super().decimal_schema(schema)
        return next((part for part in made.get("anyOf", ()) if part.get("type") == "number"), made)


def as_pydantic_reads(schema: Any) -> Any:
    """A schema of Pydantic's, with what Pydantic demands beyond it, and less what it does not.

    It takes a list with equal items for a set. Of times, durations and addresses it refuses many
    that their formats allow.
    """
    if isinstance(schema, list):
        return [as_pydantic_reads(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: as_pydantic_reads(part) for key, part in schema.items() if (key, part) != ("uniqueItems", True)}
    if made.get("type") == "string" and "pattern" not in made and made.get("format") in PATTERNS:
        made["pattern"] = PATTERNS[made.pop("format")]
    return made


def response_format(schema: Mapping[str, Any], *, told: bool) -> dict[str, Any]:
    """A JSON schema as a call takes it in response_format=; told: whether the model reads it."""
    inner = {"name": schema.get("title") or "answer", "schema": schema, "told": told}
    return {"type": "json_schema", "json_schema": inner}


def tell_schema(messages: list[Message], schema: Mapping[str, Any]) -> list[Message]:
    """The messages with the schema in the system message: the grammar holds its form, and this its meaning.

    It stands at the beginning, where the turns of a conversation leave it as it is.
    """
    text = "Answer with one JSON object that fits this JSON schema:\n" + json.dumps(schema, ensure_ascii=False)
    if messages and messages[0].role == "system":
        return [Message("system", messages[0].content + "\n\n" + text, name=messages[0].name), *messages[1:]]
    return [Message("system", text), *messages]


def read_json(text: str) -> Any:
    """The value of a text that is JSON and nothing else; raises `ValueError`.

    A number beyond all floats is the largest of them.
    """
    return json.loads(text, parse_float=_finite)


def _finite(text: str) -> float:
    return max(min(float(text), sys.float_info.max), -sys.float_info.max)
