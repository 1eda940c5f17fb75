"""What a call may ask for: words of the chat model's constructor and of the call, checked, as ours."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rapid_core import Constraint, OptionError, Sampling, Speculation, Tool, ToolUse, UnknownOptionError
from rapid_integrations.rapid_context import BaseContext

T = TypeVar("T")

# The frameworks' word and ours.
_SAMPLING = {"max_tokens": "max_new_tokens"}
SAMPLING_WORDS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "max_tokens",
    "seed",
)
CALL_WORDS = (
    *SAMPLING_WORDS,
    "stop",
    "model",
    "speculation",
    "fit",
    "timeout",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "rapid_context",
)


@dataclass(frozen=True, slots=True)
class Words:
    """How a framework's calls are read.

    owner: the class that is called, for errors. read_tool: a tool of ours for what the framework
    takes for one. context: the framework's kind of context. ignored: words that the framework
    itself adds, and that ask nothing of a local model.
    """

    owner: str
    read_tool: Callable[[Any], Tool]
    context: type[BaseContext]
    ignored: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Call:
    """One call, checked."""

    sampling: Sampling
    speculation: Speculation
    tools: ToolUse
    fit: Any
    timeout: float | None
    model: str | None
    context: BaseContext | None
    schema: Mapping[str, Any] | None = None


def read_call(words: Words, defaults: Mapping[str, Any], stop: Sequence[str] | None, asked: Mapping[str, Any]) -> Call:
    """Options of the constructor, overruled by those of the call; raises `OptionError` for unknown words."""
    for name in asked:
        if name not in CALL_WORDS and name not in words.ignored:
            near = difflib.get_close_matches(name, CALL_WORDS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UnknownOptionError(
                f"a call of {words.owner} has no option {name!r}{hint} It knows: {', '.join(CALL_WORDS)}"
            )
    chosen = {**defaults, **{name: value for name, value in asked.items() if value is not None}}
    constraint, schema = _constraint(chosen.get("response_format"))
    asked_stop = stop if stop is not None else asked.get("stop")
    if constraint is not None and asked_stop:
        raise OptionError(
            f"an answer that must have a form cannot be cut by stop, got stop={asked_stop!r}; leave one of the two out"
        )
    # The constructor's is for answers that are free.
    stops = None if constraint is not None else asked_stop if asked_stop is not None else chosen.get("stop")
    sampling = Sampling(
        **{_SAMPLING.get(word, word): chosen[word] for word in SAMPLING_WORDS if chosen.get(word) is not None},
        stop=stops or (),
        constraint=constraint,
    )
    context = chosen.get("rapid_context")
    return Call(
        sampling,
        read_options(Speculation, chosen.get("speculation")),
        _tools(words, chosen),
        chosen.get("fit") or "error",
        _timeout(chosen.get("timeout")),
        chosen.get("model"),
        None if context is None else words.context.read(context),
        schema,
    )


def read_options(kind: type[T], given: T | Mapping[str, Any] | None) -> T:
    """Options of ours, as they are or as a mapping."""
    if given is None:
        return kind()
    if isinstance(given, kind):
        return given
    if isinstance(given, Mapping):
        return kind(**given)
    raise OptionError(f"{kind.__name__.lower()} must be a {kind.__name__} or a mapping, got {type(given).__name__}")


def _tools(words: Words, chosen: Mapping[str, Any]) -> ToolUse:
    tools: list[Tool] = []
    for given in chosen.get("tools") or ():
        tool = words.read_tool(given)
        # One that is bound twice is still one.
        if tool not in tools:
            tools.append(tool)
    parallel = bool(chosen.get("parallel_tool_calls") or False)
    return ToolUse(tuple(tools), read_choice(chosen.get("tool_choice")), parallel)


def read_function(function: object) -> Tool:
    """A tool of ours for OpenAI's description of one; raises `OptionError` for what a provider would run."""
    inner = function.get("function") if isinstance(function, Mapping) else None
    if not isinstance(inner, Mapping):
        raise OptionError(
            "a tool must be a function that the application runs, and a local model has none of its own, got "
            f"{function!r}"
        )
    parameters = inner.get("parameters") or {"type": "object", "properties": {}}
    return Tool(inner["name"], inner.get("description") or "", parameters)


def read_choice(choice: object, names: Sequence[str] | None = None) -> str:
    """The words that providers have for it, as ours; raises `OptionError` for a tool that is not among `names`."""
    if isinstance(choice, Mapping):
        function = choice.get("function")
        named = function.get("name") if isinstance(function, Mapping) else choice.get("name") or choice.get("type")
        choice = named if isinstance(named, str) else choice
    words = {None: "auto", True: "any", "required": "any", False: "none"}
    word = words.get(choice, choice) if isinstance(choice, str | bool | None) else choice
    if not isinstance(word, str) or (names is not None and word not in ("auto", "any", "none", *names)):
        known = ", ".join(map(repr, ("auto", "any", "none", *(names or ()))))
        raise OptionError(f"tool_choice must be one of {known}, got {choice!r}")
    return word


def _constraint(response_format: object) -> tuple[Constraint | None, Mapping[str, Any] | None]:
    """OpenAI's word for the form of an answer, and the schema that the model is told."""
    if response_format is None:
        return None, None
    if isinstance(response_format, Mapping):
        kind, inner = response_format.get("type"), response_format.get("json_schema")
        if kind == "text":
            return None, None
        if kind == "json_object":
            return Constraint.json(), None
        if kind == "json_schema" and isinstance(inner, Mapping) and isinstance(inner.get("schema"), Mapping):
            return Constraint.json_schema(inner["schema"]), inner["schema"] if inner.get("told", True) else None
    raise OptionError(
        "response_format must be {'type': 'json_schema', 'json_schema': {'name': …, 'schema': …}}, "
        f"{{'type': 'json_object'}} or {{'type': 'text'}}, got {response_format!r}"
    )


def _timeout(timeout: object) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or timeout <= 0:
        raise OptionError(f"timeout must be seconds above 0, got {timeout!r}")
    return float(timeout)
