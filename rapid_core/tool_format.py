"""How a model writes tool calls, read off its own chat template.

Families differ in tags and keys. A conversation with a call is rendered, and what stands around
the call is the format: nothing has to be known about a family by name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from jinja2.exceptions import TemplateError

from rapid_core.datatypes import Message, ToolCall
from rapid_core.tool_use import Tool

Render = Callable[[Sequence[Message], Sequence[Tool], bool], str]

_PROBE = Tool("probe_tool", "Probes.", {"type": "object", "properties": {"probe_key": {"type": "string"}}})
_ARGUMENTS = {"probe_key": "probe_value"}
_CALLS = tuple(ToolCall(_PROBE.name, json.dumps(_ARGUMENTS), id_) for id_ in ("probecal1", "probecal2"))
_SAID = "probe_text"
_QUESTION = Message("user", "Probe?")
# Templates of Mistral take ids of this form only, and those that print ids print any.
_TEMPLATE_ID = re.compile("[A-Za-z0-9]{9}")


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """The text of an answer that calls tools: `opening`, calls with `between` among them, `closing`.

    A call is a JSON object of "name" and `arguments`, or, where there is a `middle`, the name,
    that text, and the arguments alone. between: None where an answer holds one call at the most.
    shows_tools, shows_calls, shows_results: what the template renders by itself; the rest is
    written into messages as plain text.
    """

    opening: str = "<tool_call>\n"
    between: str | None = "\n</tool_call>\n<tool_call>\n"
    closing: str = "\n</tool_call>"
    arguments: str = "arguments"
    middle: str | None = None
    shows_tools: bool = False
    shows_calls: bool = False
    shows_results: bool = False

    @property
    def marker(self) -> str:
        """The text that begins a call; empty where the JSON begins at once."""
        return self.opening.rstrip("[ \n") if self.middle is None else self.opening.strip()

    @property
    def end(self) -> str:
        """The text that ends a call, where it can be told from JSON."""
        closing = self.closing.strip()
        return "" if closing == "]" else closing

    @property
    def texts(self) -> tuple[str, ...]:
        """All that stands around calls."""
        return tuple(text for text in (self.opening, self.middle, self.between, self.closing) if text)

    def write(self, calls: Sequence[ToolCall]) -> str:
        """Calls as the model would have written them."""
        between = self.closing + "\n" + self.opening if self.between is None else self.between
        return self.opening + between.join(self._write_call(call) for call in calls) + self.closing

    def as_text(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
        """The messages with all that the template does not show written into them."""
        written = [self._plain(message) for message in messages]
        if tools and not self.shows_tools:
            if written and written[0].role == "system":
                written[0] = replace(written[0], content=written[0].content + "\n\n" + self._describe(tools))
            else:
                written.insert(0, Message("system", self._describe(tools)))
        return written

    def _plain(self, message: Message) -> Message:
        if message.role == "tool" and not self.shows_results:
            return Message("user", f"<tool_response>\n{message.content}\n</tool_response>")
        too_many = self.between is None and len(message.tool_calls) > 1
        if message.tool_calls and (too_many or not self.shows_calls):
            said = [message.content] if message.content else []
            return replace(message, content="\n".join([*said, self.write(message.tool_calls)]), tool_calls=())
        return message

    def _describe(self, tools: Sequence[Tool]) -> str:
        listed = "\n".join(json.dumps(tool.as_function()["function"], ensure_ascii=False) for tool in tools)
        return (
            "You may call these functions. Each is described by a JSON object:\n"
            f"{listed}\n"
            "To call one, answer with its name and its arguments, and nothing else:\n"
            + self.opening
            + '{"name": "<name>", "arguments": {<arguments>}}'
            + self.closing
        )

    def _write_call(self, call: ToolCall) -> str:
        if self.middle is not None:
            return call.name + self.middle + call.arguments
        return f'{{"name": {json.dumps(call.name)}, "{self.arguments}": {call.arguments}}}'


def read_format(render: Render) -> ToolFormat:
    """The format of the template behind `render(messages, tools, generation_prompt)`."""
    format_ = _around_calls(render)
    shows_results = _mentions(
        render, [_QUESTION, Message("assistant", "", _CALLS[:1]), Message("tool", _SAID, (), "probecal1")], _SAID
    )
    if format_ is None:
        # What the model would write cannot be read back, so it is told how to write.
        return ToolFormat(shows_results=shows_results)
    shows_tools = _mentions(render, [_QUESTION], _PROBE.description, [_PROBE])
    return replace(format_, shows_tools=shows_tools, shows_calls=True, shows_results=shows_results)


def template_id(id_: str) -> str:
    """An id that every template takes, the same for a call and for its result."""
    if not id_ or _TEMPLATE_ID.fullmatch(id_):
        return id_
    return hashlib.sha256(id_.encode()).hexdigest()[:9]


def _mentions(render: Render, messages: list[Message], text: str, tools: Sequence[Tool] = ()) -> bool:
    try:
        return text in render(messages, tools, False)
    except (TemplateError, TypeError, KeyError, ValueError):
        return False


def _around_calls(render: Render) -> ToolFormat | None:
    """What stands around one call and between two; None where a call is not written as JSON."""
    try:
        start = render([_QUESTION], [_PROBE], True)
        said = render([_QUESTION, Message("assistant", _SAID)], [_PROBE], False)
        one = render([_QUESTION, Message("assistant", "", _CALLS[:1])], [_PROBE], False)
    except (TemplateError, TypeError, KeyError, ValueError):
        return None
    answer = one[_shared(start, one) :]
    # The end of a turn belongs to the template, not to the call.
    ending = said.rpartition(_SAID)[2]
    answer = answer.removesuffix(ending)
    # A template may open with thoughts that are empty.
    answer = answer.rpartition("</think>")[2].lstrip() if "</think>" in answer else answer
    found = _split(answer)
    if found is None:
        return None
    try:
        two = render([_QUESTION, Message("assistant", "", _CALLS)], [_PROBE], False)
    except (TemplateError, TypeError, KeyError, ValueError):
        return replace(found, between=None)
    return replace(found, between=_between(two, found))


def _shared(left: str, right: str) -> int:
    """How many characters two texts begin with alike."""
    differ = (at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b)
    return next(differ, min(len(left), len(right)))


def _split(answer: str) -> ToolFormat | None:
    """Cut an answer with one probing call at its JSON."""
    start = answer.find("{")
    if start < 0:
        return None
    try:
        value, end = json.JSONDecoder().raw_decode(answer, start)
    except ValueError:
        return None
    opening, closing = answer[:start], answer[end:]
    if value == _ARGUMENTS and _PROBE.name in opening:
        opening, _, middle = opening.rpartition(_PROBE.name)
        return ToolFormat(opening, None, closing, middle=middle) if opening.strip() and middle else None
    keys = [key for key, found in value.items() if found == _ARGUMENTS]
    if value.get("name") != _PROBE.name or not keys:
        return None
    return ToolFormat(opening, None, closing, arguments=keys[0])


def _between(two: str, format_: ToolFormat) -> str | None:
    pieces = two.split(_PROBE.name)[-2:]
    if len(pieces) < 2:
        return None
    # From the end of the first call's JSON to the beginning of the second one's.
    first = two[: -len(pieces[1]) - len(_PROBE.name)]
    start = first.rfind("{") if format_.middle is None else len(first)
    before = first[:start]
    end = before.rfind("}") + 1
    return before[end:] if end else None
