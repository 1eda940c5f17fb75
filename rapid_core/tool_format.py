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
from typing import Any

from jinja2.exceptions import TemplateError

from rapid_core.datatypes import Message, ToolCall
from rapid_core.tool_use import Tool

# messages, tools, whether the answer begins, whether arguments are given as text
Render = Callable[[Sequence[Message], Sequence[Tool], bool, bool], str]

_PROBE = Tool("probe_tool", "Probes.", {"type": "object", "properties": {"probe_key": {"type": "string"}}})
_ARGUMENTS = ({"probe_key": "probe_value"}, {"probe_key": "other_value"})
_CALLS = tuple(ToolCall(_PROBE.name, json.dumps(_ARGUMENTS[i]), f"probecal{i}") for i in range(2))
_SAID = "probe_text"
_QUESTION = Message("user", "Probe?")
# Templates of Mistral take ids of this form only, and those that print ids print any.
_TEMPLATE_ID = re.compile("[A-Za-z0-9]{9}")


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """The text of an answer that calls tools: `opening`, calls with `between` among them, `closing`.

    A call is a JSON object of "name" and `arguments`, or, where there is a `middle`, the name,
    that text, and the arguments alone. between: None where an answer holds one call at the most.
    shows_tools, shows_calls, shows_results: what the template renders by itself, and shows_said
    the text beside a call; the rest is written into messages. arguments_as_text: the template
    wants them as JSON text and not as an object.
    """

    opening: str = "<tool_call>\n"
    between: str | None = "\n</tool_call>\n<tool_call>\n"
    closing: str = "\n</tool_call>"
    arguments: str = "arguments"
    middle: str | None = None
    shows_tools: bool = False
    shows_calls: bool = False
    shows_results: bool = False
    shows_said: bool = True
    arguments_as_text: bool = False

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

    def ended_by(self, ends: Sequence[str]) -> ToolFormat:
        """The format without the tokens that end an answer: nothing can stand behind them."""
        closing, between = self.closing, self.between
        for end in ends:
            closing = closing.partition(end)[0]
            between = None if between is None or end in between else between
        return replace(self, closing=closing, between=between)

    def write(self, calls: Sequence[ToolCall]) -> str:
        """Calls as the model would have written them."""
        apart = self.closing + "\n" + self.opening if self.marker else "; "
        between = apart if self.between is None else self.between
        return self.opening + between.join(self._write_call(call) for call in calls) + self.closing

    def as_text(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
        """The messages with all that the template does not show written into them."""
        written = [plain for message in _with_ids(messages) for plain in self._plain(message)]
        if tools and not self.shows_tools:
            if written and written[0].role == "system":
                written[0] = replace(written[0], content=written[0].content + "\n\n" + self._describe(tools))
            else:
                written.insert(0, Message("system", self._describe(tools)))
        return written

    def _plain(self, message: Message) -> list[Message]:
        if message.role == "tool" and not self.shows_results:
            return [Message("user", f"<tool_response>\n{message.content}\n</tool_response>")]
        too_many = self.between is None and len(message.tool_calls) > 1
        if message.tool_calls and (too_many or not self.shows_calls):
            said = [message.content] if message.content else []
            return [replace(message, content="\n".join([*said, self.write(message.tool_calls)]), tool_calls=())]
        if message.tool_calls and message.content.strip() and not self.shows_said:
            return [replace(message, tool_calls=()), replace(message, content="")]
        return [message]

    def _describe(self, tools: Sequence[Tool]) -> str:
        listed = "\n".join(json.dumps(tool.as_function()["function"], ensure_ascii=False) for tool in tools)
        return (
            "You may call these functions. Each is described by a JSON object:\n"
            f"{listed}\n"
            "To call one, answer with its name and its arguments, and nothing else:\n"
            + self.write([ToolCall("<name>", "{<arguments>}")])
        )

    def _write_call(self, call: ToolCall) -> str:
        if self.middle is not None:
            return call.name + self.middle + call.arguments
        return f'{{"name": {json.dumps(call.name)}, "{self.arguments}": {call.arguments}}}'


def read_format(render: Render) -> ToolFormat:
    """The format of the template behind `render`."""
    for as_text in (False, True):
        format_ = _around_calls(render, as_text)
        if format_ is None:
            continue
        call = Message("assistant", "", _CALLS[:1])
        result = Message("tool", _SAID, (), _CALLS[0].id)
        return replace(
            format_,
            shows_tools=_mentions(render, [_QUESTION], _PROBE.description, as_text, [_PROBE]),
            shows_calls=True,
            shows_results=_mentions(render, [_QUESTION, call, result], _SAID, as_text),
            shows_said=_mentions(render, [_QUESTION, replace(call, content=_SAID)], _SAID, as_text),
            arguments_as_text=as_text,
        )
    # What the model would write cannot be read back, so it is told how to write.
    said = [_QUESTION, Message("assistant", "…"), Message("tool", _SAID, (), _CALLS[0].id)]
    return ToolFormat(shows_results=_mentions(render, said, _SAID, False))


def template_id(id_: str) -> str:
    """An id that every template takes, the same for a call and for its result."""
    if not id_ or _TEMPLATE_ID.fullmatch(id_):
        return id_
    return hashlib.sha256(id_.encode()).hexdigest()[:9]


def _with_ids(messages: Sequence[Message]) -> list[Message]:
    """Calls and results all with ids, which some templates insist on; a result without one answers in turn."""
    named: list[Message] = []
    unanswered: list[str] = []
    for place, message in enumerate(messages):
        if message.tool_calls:
            calls = tuple(
                call if call.id else replace(call, id=f"call{place:03}x{number:01}")
                for number, call in enumerate(message.tool_calls)
            )
            unanswered = [call.id for call in calls]
            named.append(replace(message, tool_calls=calls))
        elif message.role == "tool":
            id_ = message.tool_call_id or next(iter(unanswered), f"call{place:03}x0")
            unanswered = [other for other in unanswered if other != id_]
            named.append(replace(message, tool_call_id=id_))
        else:
            named.append(message)
    return named


def _rendered(
    render: Render, messages: list[Message], tools: Sequence[Tool], *, begins: bool, as_text: bool
) -> str | None:
    """What a template makes of a probe; None where it refuses."""
    try:
        return render(messages, tools, begins, as_text)
    except (TemplateError, TypeError, KeyError, ValueError):
        return None


def _mentions(render: Render, messages: list[Message], text: str, as_text: bool, tools: Sequence[Tool] = ()) -> bool:
    return text in (_rendered(render, messages, tools, begins=False, as_text=as_text) or "")


def _around_calls(render: Render, as_text: bool) -> ToolFormat | None:
    """What stands around one call and between two; None where a call is not written as JSON."""
    start = _rendered(render, [_QUESTION], [_PROBE], begins=True, as_text=as_text)
    said = _rendered(render, [_QUESTION, Message("assistant", _SAID)], [_PROBE], begins=False, as_text=as_text)
    one, two = (
        _rendered(render, [_QUESTION, Message("assistant", "", calls)], [_PROBE], begins=False, as_text=as_text)
        for calls in (_CALLS[:1], _CALLS)
    )
    if start is None or said is None or one is None:
        return None
    # The end of a turn belongs to the template, not to the call.
    found = _split(_answer(start, one).removesuffix(said.rpartition(_SAID)[2]))
    if found is None or two is None:
        return found
    return replace(found, between=_between(_answer(start, two), found))


def _answer(start: str, whole: str) -> str:
    """What follows the beginning of an answer; a template may open with thoughts that are empty."""
    answer = whole[_shared(start, whole) :]
    return answer.rpartition("</think>")[2].lstrip() if "</think>" in answer else answer


def _shared(left: str, right: str) -> int:
    """How many characters two texts begin with alike."""
    differ = (at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b)
    return next(differ, min(len(left), len(right)))


def _split(answer: str) -> ToolFormat | None:
    """Cut an answer with one probing call at its JSON."""
    found = _json_at(answer, 0)
    if found is None:
        return None
    value, start, end = found
    opening, closing = answer[:start], answer[end:]
    if value == _ARGUMENTS[0] and _PROBE.name in opening:
        opening, _, middle = opening.rpartition(_PROBE.name)
        return ToolFormat(opening, None, closing, middle=middle) if opening.strip() and middle else None
    keys = [key for key, inside in value.items() if inside == _ARGUMENTS[0]]
    if value.get("name") != _PROBE.name or not keys:
        return None
    return ToolFormat(opening, None, closing, arguments=keys[0])


def _between(answer: str, format_: ToolFormat) -> str | None:
    """What stands between two calls; None where a template leaves the second one out."""
    first = _json_at(answer, 0)
    second = _json_at(answer, first[2]) if first is not None else None
    if first is None or second is None or _ARGUMENTS[1] not in (second[0], second[0].get(format_.arguments)):
        return None
    between = answer[first[2] : second[1]]
    return between if format_.middle is None else between.rpartition(_PROBE.name)[0]


def _json_at(text: str, start: int) -> tuple[dict[str, Any], int, int] | None:
    """The first JSON object from `start` on, where it begins and where it ends."""
    start = text.find("{", start)
    if start < 0:
        return None
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except ValueError:
        return None
    return value, start, end
