"""What the tests of the LangChain integration share: an engine that does as it is asked, and texts."""

from __future__ import annotations

import json
import re
import uuid

from langchain_chroma import Chroma
from langchain_core.embeddings import Embeddings

from rapid_core import ToolCall
from rapid_core.testing import Asked, ScriptedEngine, WordEncoder


def obedient(asked: Asked):
    """Calls the tool that it may call, writes the object that it has to write, or says a sentence."""
    last = asked.messages[-1]
    if asked.tools.shown and last.role == "user":
        tool = (asked.tools.forced or asked.tools.shown)[0]
        arguments = {name: _value(name, schema, last.content) for name, schema in _properties(tool.parameters)}
        return ToolCall(tool.name, json.dumps(arguments, ensure_ascii=False))
    if asked.sampling.constraint is not None:
        told = re.search(r"JSON schema:\n(\{.*\})", asked.messages[0].content)
        keys = [name for name, _ in _properties(json.loads(told.group(1)))] if told else ["setup", "punchline"]
        return json.dumps({key: f"a {key}" for key in keys})
    return f"You asked me: {last.content or 'nothing'}"


def obedient_engine(**options):
    return ScriptedEngine(obedient, **options)


def _properties(schema):
    return schema.get("properties", {}).items()


def _value(name, schema, question):
    if schema.get("type") == "integer":
        number = re.search(r"\d+", question)
        return int(number.group()) if number else 1
    quoted = re.search("'(.+?)'", question)
    return quoted.group(1) if quoted else f"some {name}"


class WordEmbeddings(Embeddings):
    """Texts are near each other if they share words."""

    def __init__(self):
        self._encoder = WordEncoder()

    def embed_documents(self, texts):
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text):
        return self._encoder.embed_query(text).tolist()


def chroma():
    """A real store of its own: collections of one process are shared by name."""
    return Chroma(f"t{uuid.uuid4().hex}", WordEmbeddings())


def roles(engine):
    """What target and drafter of a real engine last read, as text."""
    decode = engine.target.tokenizer.decode
    return tuple(decode(runner.sequence) for runner in (engine._target, engine._drafter))
