"""A field of a record that is an option of the command line, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any


def option(
    default: object, words: str, *, names: tuple[str, ...] = (), read: Callable[[str], object] | None = None
) -> Any:
    """A field of a dataclass with a default, and what the command line says of it.

    names: of the option, where they are not the field's. read: makes the value of a text.
    """
    return field(default=default, metadata={"help": words, "names": names, "read": read})
