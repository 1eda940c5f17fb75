"""The documents and dialogues that lines name, from a folder of data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rapid_core.datatypes import Message
from rapid_core.evaluation.tasks.lines import Line


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Turns of a dialogue: who speaks, and what they say."""

    turns: tuple[tuple[str, str], ...]

    @property
    def is_chat(self) -> bool:
        """Whether it is one of a user and an assistant, and no meeting."""
        return {speaker for speaker, _ in self.turns} <= {"user", "assistant"}

    def messages(self) -> tuple[Message, ...]:
        """The turns of a chat as messages."""
        return tuple(Message("user" if speaker == "user" else "assistant", said) for speaker, said in self.turns)

    def transcript(self) -> str:
        """The turns as a text, a line each, with who speaks."""
        return "\n".join(f"{speaker}: {said}" for speaker, said in self.turns)


def parse_dialogue(content: str) -> Dialogue:
    """The dialogue in the text of a file. Raises `ValueError` that says what the file is or must be."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is no JSON ({error})") from error
    turns = read_turns(value.get("turns")) if isinstance(value, dict) else None
    if turns is None:
        raise ValueError("must be an object with turns, and each turn one with texts as role and content")
    return Dialogue(turns)


def read_turns(value: Any) -> tuple[tuple[str, str], ...] | None:
    """Who speaks and what they say, in a list of turns; None where it is no such list, or empty."""
    if not isinstance(value, list) or not value or not all(_is_turn(turn) for turn in value):
        return None
    return tuple((turn["role"], turn["content"]) for turn in value)


class Folder:
    """Files beside the lines; each is read once. What cannot be used is a fault of the line that names it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._texts: dict[str, str] = {}
        self._dialogues: dict[str, Dialogue] = {}

    def document(self, line: Line, name: str) -> str:
        """The text of documents/NAME.txt, character by character."""
        if name not in self._texts:
            text = self._read(line, f"documents/{name}.txt", name)
            if not text.strip():
                raise line.bad(f"documents/{name}.txt is empty")
            self._texts[name] = text
        return self._texts[name]

    def dialogue(self, line: Line, name: str) -> Dialogue:
        """The turns of dialogues/NAME.json."""
        if name not in self._dialogues:
            file = f"dialogues/{name}.json"
            content = self._read(line, file, name)
            try:
                self._dialogues[name] = parse_dialogue(content)
            except ValueError as error:
                raise line.bad(f"{file} {error}") from error
        return self._dialogues[name]

    def _read(self, line: Line, file: str, name: str) -> str:
        if Path(name).name != name:
            raise line.bad(f"{name!r} must be the name of a file in the folder of data, and no path")
        try:
            # Offsets of evidence count line breaks as they are.
            return (self._path / file).read_bytes().decode("utf-8")
        except OSError as error:
            raise line.bad(f"{file} cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise line.bad(f"{file} is no UTF-8 text ({error})") from error


def _is_turn(turn: Any) -> bool:
    return isinstance(turn, dict) and isinstance(turn.get("role"), str) and isinstance(turn.get("content"), str)
