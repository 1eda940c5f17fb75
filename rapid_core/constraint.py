"""What form an answer must have: a JSON schema, a regular expression or a grammar, as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from rapid_core.errors import OptionError

Kind = Literal["json_schema", "regex", "lark"]

# Of a long grammar the beginning says which one it is.
SHOWN = 40


@dataclass(frozen=True, repr=False)
class Constraint:
    """The form of an answer, made by one of `json_schema`, `json`, `regex` and `lark`.

    The target and the drafter draw only tokens that fit it, and the answer is whole within
    `max_new_tokens`. What the form may say is up to llguidance, and is checked before any work.
    """

    kind: Kind
    text: str

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise OptionError(f"a constraint is one of {', '.join(map(repr, get_args(Kind)))}, got {self.kind!r}")
        if not isinstance(self.text, str) or not self.text:
            raise OptionError(f"a {self.kind} constraint must be text that is not empty, got {self.text!r}")
        if self.text != self.text.encode("utf-8", "replace").decode():
            raise OptionError(f"a {self.kind} constraint must be text that UTF-8 can write, got {self!r}")

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any]) -> Self:
        """JSON that is valid by `schema`, its fields in the order of the schema.

        It is written as models write it, with ", " and ": " and no other white space. As in
        JSON Schema, an object may have fields that the schema does not name, unless it says
        "additionalProperties": false.
        """
        if not isinstance(schema, Mapping):
            raise OptionError(f"a JSON schema must be a mapping, got {type(schema).__name__}; pass model_json_schema()")
        try:
            return cls("json_schema", json.dumps(dict(schema), ensure_ascii=False, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise OptionError(f"a JSON schema must hold JSON values only, and this one does not: {error}") from error

    @classmethod
    def json(cls) -> Self:
        """Any JSON object."""
        return cls.json_schema({"type": "object"})

    @classmethod
    def regex(cls, pattern: str) -> Self:
        """Text that `pattern` matches as a whole; no look-around and no back-references."""
        return cls("regex", pattern)

    @classmethod
    def lark(cls, grammar: str) -> Self:
        """Text of a grammar in llguidance's dialect of Lark; the temperatures of its rules have no effect."""
        return cls("lark", grammar)

    def __repr__(self) -> str:
        shown = self.text if len(self.text) <= SHOWN else self.text[:SHOWN] + "…"
        return f"Constraint({self.kind}: {shown})"
