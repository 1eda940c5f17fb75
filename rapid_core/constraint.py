"""What form an answer must have: a JSON schema, a regular expression or a grammar, as text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, cast, get_args

from rapid_core.errors import OptionError

Kind = Literal["json_schema", "regex", "lark"]

# No free white space: a model could write it for ever. Nothing that is not enforced is passed over.
JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": False}
# Where JSON Schema keeps schemas by name, in lists, and alone.
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
LISTED = ("allOf", "anyOf", "oneOf", "prefixItems")
ALONE = ("items", "additionalProperties", "contains", "if", "then", "else", "not")
# What says more about the object that "properties" is about.
JOINING = frozenset({"$ref", "allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas"})
# Those that JSON Schema defines; all other formats are annotations.
FORMATS = {
    *("date-time", "time", "date", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6", "uri"),
    *("uri-reference", "iri", "iri-reference", "uuid", "uri-template", "json-pointer", "relative-json-pointer"),
    "regex",
}
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
        "additionalProperties" or is described by several schemas at once; JSON Schema itself
        allows any, which a model would make up. A format that JSON Schema does not define is an
        annotation and asks for nothing.
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


def _closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema whose objects have the fields that they name, unless they say otherwise.

    Where several schemas hold for one object, each names only some of its fields: those are left
    as they are, also where they are referred to.
    """
    open_: set[str] = set()
    before = -1
    # What an open definition refers to is open, too.
    while len(open_) != before:
        before = len(open_)
        made = _close(schema, open_, "#", joined=False)
    return cast("dict[str, Any]", made)


def _close(schema: Any, open_: set[str], path: str, *, joined: bool) -> Any:
    """One schema at `path`; joined: others hold for the same object. Adds what is open by reference to `open_`."""
    if not isinstance(schema, Mapping):
        return schema
    made = dict(schema)
    several = len(JOINING & made.keys()) + ("properties" in made)
    joined = joined or path in open_
    beside = joined or several > 1 or "allOf" in made
    if beside and isinstance(made.get("$ref"), str):
        open_.add(made["$ref"])
    for key in NAMED:
        if isinstance(made.get(key), Mapping):
            made[key] = {
                name: _close(part, open_, f"{path}/{key}/{name}", joined=False) for name, part in made[key].items()
            }
    for key in LISTED:
        if isinstance(made.get(key), list):
            together = key != "prefixItems" and beside
            made[key] = [
                _close(part, open_, f"{path}/{key}/{place}", joined=together) for place, part in enumerate(made[key])
            ]
    for key in ALONE:
        if key in made:
            made[key] = _close(made[key], open_, f"{path}/{key}", joined=key in JOINING)
    if "properties" in made and not beside and not {"additionalProperties", "patternProperties"} & made.keys():
        made["additionalProperties"] = False
    return _without_annotations(made)


def _without_annotations(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema less what asks for nothing: formats that JSON Schema does not define, and uniqueItems of false."""
    if isinstance(schema.get("format"), str) and schema["format"] not in FORMATS:
        del schema["format"]
    if schema.get("uniqueItems") is False:
        del schema["uniqueItems"]
    return schema
