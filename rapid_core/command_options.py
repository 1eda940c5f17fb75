"""How options of the command line become records and values of the library."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import Field, fields, is_dataclass
from functools import partial, wraps
from typing import Annotated, Any, get_type_hints

import typer

from rapid_core.config import Speculation
from rapid_core.errors import OptionError

DEFAULT_ETA = f"{Speculation().eta:g}"


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each field of those of its arguments that are records.

    A field says by `command_field.option` what its option is.
    """
    signature = inspect.signature(command, eval_str=True)
    records: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for name, given in signature.parameters.items():
        if is_dataclass(given.annotation):
            records[name] = given.annotation
            parameters += map(partial(_option, get_type_hints(given.annotation)), fields(given.annotation))
        else:
            parameters.append(given)

    @wraps(command)
    def with_records(**given: Any) -> None:
        for name, record in records.items():
            given[name] = record(**{own.name: _value(own, given.pop(own.name)) for own in fields(record)})
        command(**given)

    with_records.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_records.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_records


def _option(kinds: Mapping[str, Any], own: Field[Any]) -> inspect.Parameter:
    """The parameter that typer makes an option of."""
    option = typer.Option(*own.metadata["names"], help=own.metadata["help"])
    kind = kinds[own.name] if own.metadata["read"] is None else str | None
    return inspect.Parameter(
        own.name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=own.default,
        annotation=Annotated[kind, option],
    )


def _value(own: Field[Any], given: Any) -> Any:
    read = own.metadata["read"]
    return given if read is None or given is None else read(given)


def words_of(listed: str) -> tuple[str, ...]:
    """The words of an option that takes several, with commas between them."""
    return tuple(word.strip() for word in listed.split(",") if word.strip())


def numbers_of(name: str, listed: str) -> tuple[int, ...]:
    """The whole numbers of an option that takes several. Raises `OptionError` for what is none."""
    try:
        return tuple(int(word) for word in words_of(listed))
    except ValueError as error:
        raise OptionError(f"{name} must be whole numbers separated by commas, got {listed!r}") from error


def number_or_word(text: str) -> int | float | str:
    """An option that is a number or a word, as the options of the library take it."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
