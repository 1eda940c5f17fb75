"""Messages that tests of long histories are about."""

from __future__ import annotations

from rapid_core import Message, ToolCall

SYSTEM = Message("system", "Be brief.")
CITIES = ("Madrid", "Oslo", "Lima", "Tokyo", "Rome", "Paris", "Cairo", "Quito", "Berne", "Delhi", "Accra", "Hanoi")


def user(text):
    return Message("user", text)


def assistant(text):
    return Message("assistant", text)


def turn(city):
    question = user(f"What can you tell me of the harbour of {city}?")
    return [question, assistant(f"{city} has a harbour with many ships.")]


def chat(question, cities=CITIES):
    return [SYSTEM, *(message for city in cities for message in turn(city)), user(question)]


def call(tool, arguments="{}"):
    return Message("assistant", "", (ToolCall(tool, arguments, id=f"id-{tool}"),))


def result(text):
    return Message("tool", text, tool_call_id="id")
