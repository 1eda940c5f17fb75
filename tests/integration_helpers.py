"""What the tests of both integrations share: an engine that does as it is asked, and what a real one read."""

from __future__ import annotations

import json
import re

from rapid_core import ToolCall
from rapid_core.testing import Asked, ScriptedEngine


def obedient(asked: Asked):
    """Calls the tool that it may call, writes the object that it has to write, or says a sentence."""
    last = asked.messages[-1]
    if asked.tools.shown and last.role == "user":
        tool = (asked.tools.forced or asked.tools.shown)[0]
        arguments = {name: _value(name, schema, last.content) for name, schema in _properties(tool.parameters)}
        return ToolCall(tool.name, json.dumps(arguments, ensure_ascii=False))
    if asked.sampling.constraint is not None:
        told = re.search(r"JSON schema:\n(\{.*\})", asked.messages[0].content)
        schema = json.loads(told.group(1)) if told else {"properties": {"setup": {}, "punchline": {}}}
        return json.dumps(_instance("answer", schema, schema.get("$defs", {})))
    return f"You asked me: {last.content or 'nothing'}"


def obedient_engine(**options):
    return ScriptedEngine(obedient, **options)


def _properties(schema):
    return schema.get("properties", {}).items()


def _instance(name, schema, known):
    """An object of a JSON schema, or a part of one."""
    schema = known[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    if "properties" in schema:
        return {key: _instance(key, part, known) for key, part in _properties(schema)}
    if schema.get("type") == "array":
        return [_instance(name, schema["items"], known)]
    return 1 if schema.get("type") == "integer" else f"a {name}"


def _value(name, schema, question):
    if schema.get("type") == "integer":
        number = re.search(r"\d+", question)
        return int(number.group()) if number else 1
    quoted = re.search("'(.+?)'", question)
    return quoted.group(1) if quoted else f"some {name}"


def roles(engine):
    """What target and drafter of a real engine last read, as text."""
    decode = engine.target.tokenizer.decode
    return tuple(decode(runner.sequence) for runner in (engine._target, engine._drafter))
