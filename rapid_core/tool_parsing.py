"""Tool calls in an answer: found while it streams, told from text, read as JSON."""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Collection
from typing import Any

from rapid_core.datatypes import ToolCall
from rapid_core.tool_format import ToolFormat

_ALPHABET = string.ascii_letters + string.digits
# Some models say first that Python or JSON follows.
_BARE_START = ("<|python_tag|>", "{")
_NAME = re.compile(r'"name"\s*:\s*"((?:[^"\\]|\\.)*)"')
_DECODER = json.JSONDecoder(strict=False)


class ToolCallStream:
    """Lets text pass, and holds back what is a call, or may become one.

    names: of the tools. Where calls begin with a tag, what stands before it passes as it comes;
    where they begin with JSON at once, an answer that begins so is held until its end.
    """

    def __init__(self, format_: ToolFormat, names: Collection[str]) -> None:
        self._format = format_
        self._names = frozenset(names)
        self._held = ""
        self._passed = False

    def push(self, piece: str) -> str:
        """The text that is certain not to belong to a call."""
        self._held += piece
        marker = self._format.marker
        if not marker:
            return self._push_bare()
        if marker in self._held:
            return ""
        starts = range(min(len(marker) - 1, len(self._held)), 0, -1)
        keep = next((n for n in starts if self._held.endswith(marker[:n])), 0)
        cut = len(self._held) - keep
        ready, self._held = self._held[:cut], self._held[cut:]
        return ready

    def finish(self, piece: str) -> tuple[str, tuple[ToolCall, ...]]:
        """The rest of the text, and all calls, when the answer has ended with `piece`."""
        ready = self.push(piece)
        held, self._held = self._held, ""
        said, calls = read_calls(held, self._format) if self._format.marker else self._read_bare(held)
        return ready + said, calls

    def _push_bare(self) -> str:
        begun = self._held.lstrip()
        undecided = not begun or any(start.startswith(begun) or begun.startswith(start) for start in _BARE_START)
        if not self._passed and undecided:
            return ""
        self._passed = True
        ready, self._held = self._held, ""
        return ready

    def _read_bare(self, held: str) -> tuple[str, tuple[ToolCall, ...]]:
        """JSON alone is a call only if it names a tool: any other object may be the answer itself."""
        body = held.strip().removeprefix(_BARE_START[0])
        if not body:
            return held, ()
        calls = []
        for part in re.split(r"(?<=\})\s*;\s*(?=\{)", body):
            call = _read_object(part.strip(), self._format)
            if call is None or call.name not in self._names:
                return held, ()
            calls.append(call)
        return "", tuple(calls)


def read_calls(text: str, format_: ToolFormat) -> tuple[str, tuple[ToolCall, ...]]:
    """Split an answer into its text and its calls; what is no valid call has an `error`."""
    said: list[str] = []
    calls: list[ToolCall] = []
    while True:
        before, marker, text = text.partition(format_.marker)
        said.append(before)
        if not marker:
            break
        found, text = _read_region(text, format_)
        calls.extend(found)
    # White space between calls is no text.
    joined = "".join(said)
    return (joined.rstrip() if calls else joined), tuple(calls)


def _read_region(text: str, format_: ToolFormat) -> tuple[list[ToolCall], str]:
    """The calls behind a marker, and the text behind them."""
    if format_.middle is not None:
        return _read_named(text, format_)
    calls: list[ToolCall] = []
    rest = text
    while True:
        rest = rest.lstrip(" \n\t,")
        if not rest.startswith(("{", "[")):
            break
        try:
            value, end = _DECODER.raw_decode(rest)
        except ValueError as error:
            raw, _, rest = rest.partition(format_.end) if format_.end else (rest, "", "")
            return [*calls, _invalid(raw.strip(), f"the call is no valid JSON: {error}")], rest
        calls.extend(_of_value(each, format_, rest[:end]) for each in (value if isinstance(value, list) else [value]))
        rest = rest[end:]
    if not calls:
        raw, _, rest = rest.partition(format_.end) if format_.end else (rest, "", "")
        return [_invalid(raw.strip(), "the call is no JSON object")], rest
    return calls, _behind_end(rest, format_)


def _read_named(text: str, format_: ToolFormat) -> tuple[list[ToolCall], str]:
    """A name, the text between, and the arguments alone."""
    name, middle, rest = text.partition(format_.middle or "")
    if not middle:
        return [_invalid(text.strip(), f"the call lacks {format_.middle!r} behind its name")], ""
    try:
        value, end = _DECODER.raw_decode(rest.lstrip())
    except ValueError as error:
        raw, _, behind = rest.partition(format_.end) if format_.end else (rest, "", "")
        return [ToolCall(name.strip(), raw.strip(), new_id(), f"the arguments are no valid JSON: {error}")], behind
    call = _of_value({"name": name.strip(), format_.arguments: value}, format_, rest)
    return [call], _behind_end(rest.lstrip()[end:], format_)


def _behind_end(text: str, format_: ToolFormat) -> str:
    """The text behind what closes a call; a tag of it that stands alone is dropped with it."""
    stripped = text.lstrip()
    if format_.end and stripped.startswith(format_.end):
        return stripped[len(format_.end) :]
    between = (format_.between or "").strip()
    if between and stripped.startswith(between):
        # Another call follows; its marker is a part of what stands between.
        return format_.marker + stripped[len(between) :]
    return stripped.removeprefix("]")


def _read_object(text: str, format_: ToolFormat) -> ToolCall | None:
    try:
        value = _DECODER.decode(text)
    except ValueError:
        return None
    call = _of_value(value, format_, text)
    return None if call.error else call


def _of_value(value: Any, format_: ToolFormat, raw: str) -> ToolCall:
    """A call from what its JSON says; models mix up the two usual keys of the arguments."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return _invalid(raw.strip(), 'the call must be a JSON object with a "name"')
    arguments: Any = {}
    for key in (format_.arguments, "arguments", "parameters"):
        if key in value:
            arguments = value[key]
            break
    if isinstance(arguments, str):
        try:
            arguments = _DECODER.decode(arguments)
        except ValueError:
            return ToolCall(value["name"], arguments, new_id(), "the arguments are no valid JSON")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        written = json.dumps(arguments, ensure_ascii=False)
        return ToolCall(value["name"], written, new_id(), "the arguments must be a JSON object")
    return ToolCall(value["name"], json.dumps(arguments, ensure_ascii=False), new_id())


def _invalid(raw: str, error: str) -> ToolCall:
    named = _NAME.search(raw)
    return ToolCall(named.group(1) if named else "", raw, new_id(), error)


def new_id() -> str:
    """Nine letters and digits, which every template takes."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(9))
