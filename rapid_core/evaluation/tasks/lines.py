"""Data files with a JSON object a line, or a list of objects, whose faults are named with the number of the line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rapid_core.errors import BadLineError, DocumentError, InputError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Line:
    """A line with its fields. What it is asked for and does not have raises `BadLineError`.

    unit: what errors call it, "entry" in a list.
    """

    path: Path
    number: int
    fields: Mapping[str, Any]
    unit: str = "line"

    def bad(self, problem: str) -> BadLineError:
        """The error that names this line."""
        return BadLineError(self.path, self.number, problem, self.unit)

    def text(self, name: str) -> str:
        """A field of text that is not empty."""
        value = self._field(name)
        if not isinstance(value, str) or not value.strip():
            raise self.bad(f"{name!r} must be text, got {_shown(value)}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A field of one or more texts that are not empty."""
        values = self._field(name)
        if not isinstance(values, list) or not values or not all(isinstance(v, str) and v.strip() for v in values):
            raise self.bad(f"{name!r} must be a list of texts, got {_shown(values)}")
        return tuple(values)

    def one_of(self, name: str, known: Iterable[str]) -> str:
        """A field of text that is one of `known`."""
        value = self.text(name)
        if value not in known:
            raise self.bad(f"{name!r} must be one of {', '.join(known)}, got {_shown(value)}")
        return value

    def index(self, name: str, count: int) -> int:
        """A field that counts from 0 and stays below `count`."""
        value = self._field(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < count:
            raise self.bad(f"{name!r} must be a whole number from 0 to {count - 1}, got {_shown(value)}")
        return value

    def span(self, name: str, length: int) -> tuple[int, int] | None:
        """A field of two offsets into a text of `length` characters; None where the line has no such field."""
        if name not in self.fields:
            return None
        value = self.fields[name]
        if (
            not isinstance(value, list)
            or len(value) != 2
            or not all(isinstance(end, int) and not isinstance(end, bool) for end in value)
            or not 0 <= value[0] < value[1] <= length
        ):
            raise self.bad(
                f"{name!r} must be two offsets, the first one smaller, into a text of {length:,} characters, "
                f"got {_shown(value)}"
            )
        return value[0], value[1]

    def _field(self, name: str) -> Any:
        if name not in self.fields:
            raise self.bad(f"the field {name!r} is missing")
        return self.fields[name]


def _id(line: Line) -> str:
    return line.text("id")


def read_lines(
    path: Path, read: Callable[[Line], Iterable[T]], *, skip_bad: bool, key: Callable[[Line], str] = _id
) -> tuple[list[T], list[str]]:
    """What `read` makes of each line of a file, and a sentence about each line that is left out.

    A file that ends in .json is a list, whose entries stand for lines. key: what each line calls itself; no two
    lines the same. Empty lines count and are no fault. Raises `BadLineError` for the first line that cannot be used,
    unless `skip_bad`, and `DocumentError` for a file that cannot be read.
    """
    made: list[T] = []
    notes: list[str] = []
    numbers: dict[str, int] = {}
    for checked in _lines(path):
        try:
            line = checked()
            first = numbers.setdefault(key(line), line.number)
            if first != line.number:
                raise line.bad(f"the id {key(line)!r} is that of {line.unit} {first}, and ids must differ")
            made += read(line)
        except BadLineError as error:
            if not skip_bad:
                raise
            notes.append(f"{path.name}, {error.unit} {error.line}, is left out: {error.problem}.")
    return made, notes


def data_file(data: Path | None, name: str, task: str) -> Path:
    """The path of a file in the folder of data. Raises `InputError` where there is no such file."""
    if data is None or not (data / name).is_file():
        raise InputError(
            f"the task {task!r} reads {name} from a folder of data, and "
            f"{'no folder is given' if data is None else f'{data} has none'}; name one with --data"
        )
    return data / name


def _lines(path: Path) -> Iterable[Callable[[], Line]]:
    """What makes each line of a file, or raises `BadLineError`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DocumentError(f"cannot read {path}: {error.strerror or error}") from error
    if path.suffix != ".json":
        lines = content.split(b"\n")
        return [partial(_line, path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DocumentError(
            f"a .json file must be JSON as a whole, {path} is not ({error}); one with an object a line ends in .jsonl"
        ) from error
    if not isinstance(values, list):
        raise DocumentError(f"a .json file must be a list of objects, {path} holds {_shown(values)}")
    return [partial(_entry, path, number, value) for number, value in enumerate(values, 1)]


def _line(path: Path, number: int, content: bytes) -> Line:
    try:
        value = json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadLineError(path, number, f"it is no UTF-8 ({error.reason} at byte {error.start})") from error
    except (ValueError, RecursionError) as error:
        raise BadLineError(path, number, f"it is no JSON ({error})") from error
    return _entry(path, number, value, "line")


def _entry(path: Path, number: int, value: Any, unit: str = "entry") -> Line:
    if not isinstance(value, dict):
        raise BadLineError(path, number, f"it must be a JSON object, got {_shown(value)}", unit)
    try:
        # An escape may stand for half a character, which no tokenizer takes.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except ValueError as error:
        raise BadLineError(path, number, f"it is no Unicode text ({error})", unit) from error
    return Line(path, number, value, unit)


def _shown(value: Any) -> str:
    written = json.dumps(value)
    return written if len(written) <= 60 else written[:60] + "…"
