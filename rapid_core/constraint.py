"""What form an answer must have: a JSON schema, a regular expression or a grammar, as text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from rapid_core.errors import OptionError

Kind = Literal["json_schema", "regex", "lark"]

# No free white space: a model could write it for ever. Nothing that is not enforced is passed over.
JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": False}
# Where JSON Schema keeps schemas by name, in lists, and alone.
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
LISTED = ("anyOf", "oneOf", "prefixItems")
ALONE = ("items", "additionalProperties", "contains", "if", "then", "else")
# Of a long grammar the beginning says what it is about.
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
    def json_schema(cls, schema: Mapping[str, Any], *, closed: bool = True) -> Self:
        """JSON that is valid by `schema`, its fields in the order of the schema.

        It is written as models write it, with ", " and ": " and no other white space. closed: an
        object has no fields but those that the schema names, unless it says otherwise by
        "additionalProperties"; JSON Schema itself allows any, which a model would make up.
        """
        if not isinstance(schema, Mapping):
            raise OptionError(f"a JSON schema must be a mapping, got {type(schema).__name__}; pass model_json_schema()")
        try:
            text = json.dumps(_closed(schema) if closed else dict(schema), ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise OptionError(f"a JSON schema must hold JSON values only, and this one does not: {error}") from error
        return cls("json_schema", text)

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
        if len(self.text) <= SHOWN:
            return f"Constraint({self.kind}: {self.text})"
        # The hash tells constraints apart in the keys of caches.
        digest = hashlib.sha256(self.text.encode()).hexdigest()[:12]
        return f"Constraint({self.kind}: {self.text[:SHOWN]}… {digest})"

    def text_for_lark(self) -> str:
        """A JSON schema as it stands behind %json in a larger grammar, written as it would be alone."""
        return json.dumps({**json.loads(self.text), "x-guidance": JSON_OPTIONS}, ensure_ascii=False)


def _closed(schema: Any) -> Any:
    """A schema whose objects have the fields that they name, unless they say otherwise.

    Parts of an `allOf` are left as they are: each names only some of the fields.
    """
    if not isinstance(schema, Mapping):
        return schema
    made = dict(schema)
    for key in NAMED:
        if isinstance(made.get(key), Mapping):
            made[key] = {name: _closed(part) for name, part in made[key].items()}
    for key in LISTED:
        if isinstance(made.get(key), list):
            made[key] = [_closed(part) for part in made[key]]
    for key in ALONE:
        if key in made:
            made[key] = _closed(made[key])
    if "properties" in made and not {"additionalProperties", "patternProperties", "allOf"} & made.keys():
        made["additionalProperties"] = False
    return made
