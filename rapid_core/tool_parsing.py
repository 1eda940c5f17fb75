"""Tool calls in an answer: found while it streams, told from text, read as JSON."""

from __future__ import annotations

import json
import re
import secrets
import string
import sys
from collections.abc import Collection
from typing import Any

from rapid_core.datatypes import ToolCall
from rapid_core.tool_format import ToolFormat

_ALPHABET = string.ascii_letters + string.digits
# Some models say first that Python or JSON follows.
_PYTHON = "<|python_tag|>"
_BARE_STARTS = (_PYTHON, "{", "[")
# What may stand around calls that have no tags.
_BARE_BORDERS = " \n\t,;[]"
_NAME = re.compile(r'"name"\s*:\s*"((?:[^"\\]|\\.)*)"')


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON's")


def _finite(text: str) -> float:
    """A number beyond all floats is the largest of them: infinity could not be written again."""
    return max(min(float(text), sys.float_info.max), -sys.float_info.max)


# Line breaks in texts are a slip that does no harm.
_DECODER = json.JSONDecoder(strict=False, parse_constant=_no_number, parse_float=_finite)


class ToolCallStream:
    """Lets text pass, and holds back what is a call, or may become one.

    names: of the tools. Where calls begin with a tag, what stands before it passes as it comes. An
    answer that begins with JSON is held until its end: calls may begin so, and small models
    forget the tags.
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
        if marker and marker in self._held:
            return ""
        if not self._passed and self._may_be_bare():
            return ""
        self._passed = True
        if not marker:
            ready, self._held = self._held, ""
            return ready
        starts = range(min(len(marker) - 1, len(self._held)), 0, -1)
        keep = next((n for n in starts if self._held.endswith(marker[:n])), 0)
        cut = len(self._held) - keep
        ready, self._held = self._held[:cut], self._held[cut:]
        return ready

    def finish(self, piece: str) -> tuple[str, tuple[ToolCall, ...]]:
        """The rest of the text, and all calls, when the answer has ended with `piece`."""
        ready = self.push(piece)
        held, self._held = self._held, ""
        marker = self._format.marker
        said, calls = read_calls(held, self._format) if marker and marker in held else self._read_bare(held)
        return ready + said, calls

    def _may_be_bare(self) -> bool:
        """Whether the answer so far begins as JSON does, or as what stands before it."""
        begun = self._held.lstrip()
        return not begun or any(start.startswith(begun) or begun.startswith(start) for start in _BARE_STARTS)

    def _read_bare(self, held: str) -> tuple[str, tuple[ToolCall, ...]]:
        """JSON alone is a call only if it names a tool: any other object may be the answer itself."""
        rest = held.strip().removeprefix(_PYTHON).lstrip(_BARE_BORDERS)
        calls: list[ToolCall] = []
        while rest:
            value, end, error = _decode(rest)
            call = _invalid(rest, error) if error else _of_value(value, self._format, rest[:end])
            if call.name not in self._names or (self._format.marker and not _has_arguments(value)):
                return held, ()
            calls.append(call)
            rest = rest[end:].lstrip(_BARE_BORDERS)
        return ("", tuple(calls)) if calls else (held, ())


def _has_arguments(value: object) -> bool:
    """Whether it can be nothing but a call, where those have tags."""
    return isinstance(value, dict) and any(isinstance(value.get(key), dict) for key in ("arguments", "parameters"))


def read_calls(text: str, format_: ToolFormat) -> tuple[str, tuple[ToolCall, ...]]:
    """Split an answer into its text and its calls; what is no valid call has an `error`."""
    said: list[str] = []
    calls: list[ToolCall] = []
    while True:
        before, marker, text = text.partition(format_.marker)
        said.append(before)
        if not marker:
            break
        if _is_talk(text, format_):
            said.append(marker)
            continue
        found, text = _read_named(text, format_) if format_.middle is not None else _read_objects(text, format_)
        calls.extend(found)
    # White space between calls is no text.
    joined = "".join(said)
    return (joined.rstrip() if calls else joined), tuple(calls)


def _is_talk(text: str, format_: ToolFormat) -> bool:
    """Whether a tag is only talked about: no JSON follows, and nothing ends a call."""
    if format_.middle is not None:
        return format_.middle.strip() not in text
    begins = text.lstrip().startswith(("{", "["))
    return not begins and bool(format_.end) and format_.end not in text


def _read_objects(text: str, format_: ToolFormat) -> tuple[list[ToolCall], str]:
    """The calls behind a marker, and the text behind them."""
    calls: list[ToolCall] = []
    rest = text
    while True:
        rest = rest.lstrip(" \n\t,")
        if not rest.startswith(("{", "[")):
            break
        value, end, error = _decode(rest)
        if error:
            raw, rest = _until_end(rest, format_)
            return [*calls, _invalid(raw, f"the call is no valid JSON: {error}")], rest
        calls.extend(_of_value(each, format_, rest[:end]) for each in (value if isinstance(value, list) else [value]))
        rest = rest[end:]
    if not calls:
        raw, rest = _until_end(rest, format_)
        return [_invalid(raw, "the call is no JSON object")], rest
    return _closed(calls, rest, text, format_)


def _read_named(text: str, format_: ToolFormat) -> tuple[list[ToolCall], str]:
    """A name, the text between, and the arguments alone."""
    name, _, rest = text.partition(format_.middle or "")
    rest = rest.lstrip()
    value, end, error = _decode(rest)
    if error:
        raw, behind = _until_end(rest, format_)
        return [ToolCall(name.strip(), raw, new_id(), f"the arguments are no valid JSON: {error}")], behind
    call = _of_value({"name": name.strip(), format_.arguments: value}, format_, rest)
    return _closed([call], rest[end:], text, format_)


def _until_end(text: str, format_: ToolFormat) -> tuple[str, str]:
    """A call that cannot be read, up to what ends it, and the text behind that."""
    raw, _, rest = text.partition(format_.end) if format_.end else (text, "", "")
    return raw.strip(), rest


def _closed(calls: list[ToolCall], rest: str, whole: str, format_: ToolFormat) -> tuple[list[ToolCall], str]:
    """The calls, and the text behind what closes them; what stands before that spoils the last one."""
    stripped, between = rest.lstrip(), (format_.between or "").strip()
    if between and stripped.startswith(between):
        # Another call follows; its marker is a part of what stands between.
        return calls, format_.marker + stripped[len(between) :]
    if not format_.end:
        return calls, stripped.removeprefix("]")
    junk, end, behind = rest.partition(format_.end)
    if end and junk.strip():
        raw = whole[: len(whole) - len(rest) + len(junk)].strip()
        return [*calls[:-1], _invalid(raw, f"the call is followed by {junk.strip()!r}")], behind
    return calls, behind if end else stripped


def _decode(text: str) -> tuple[Any, int, str]:
    """The JSON value at the beginning of a text, where it ends, and why there is none."""
    try:
        value, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError) as error:
        return None, len(text), str(error)
    return value, end, ""


def _of_value(value: Any, format_: ToolFormat, raw: str) -> ToolCall:
    """A call from what its JSON says; models mix up the two usual keys of the arguments."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"].strip():
        return _invalid(raw.strip(), 'the call must be a JSON object with a "name"')
    name = value["name"]
    arguments: Any = {}
    for key in (format_.arguments, "arguments", "parameters"):
        if key in value:
            arguments = value[key]
            break
    if isinstance(arguments, str):
        text = arguments
        arguments, end, error = _decode(text)
        if error or text[end:].strip():
            return ToolCall(name, text, new_id(), "the arguments are no valid JSON")
    written = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    if not isinstance(arguments, dict | None):
        return ToolCall(name, written, new_id(), "the arguments must be a JSON object")
    if written != written.encode("utf-8", "replace").decode():
        return ToolCall(name, json.dumps(arguments), new_id(), "the arguments must be valid Unicode")
    return ToolCall(name, written, new_id())


def _invalid(raw: str, error: str) -> ToolCall:
    named = _NAME.search(raw)
    return ToolCall(named.group(1) if named else "", raw, new_id(), error)


def new_id() -> str:
    """Nine letters and digits, which every template takes."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(9))
