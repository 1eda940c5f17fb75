"""Options that several commands share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from rapid_core.config import Speculation
from rapid_core.errors import OptionError

TargetOption = Annotated[str, typer.Option(help="Model that reads everything: hub name, folder, .gguf file or 'demo'.")]
DrafterOption = Annotated[str | None, typer.Option(help="Model that drafts; the target itself unless given.")]
EncoderOption = Annotated[str | None, typer.Option(help="Encoder for retrieval: hub name, folder or 'demo'.")]
DeviceOption = Annotated[str, typer.Option(help="Where the target runs: 'auto', 'cpu', 'cuda:0', …")]
DrafterDeviceOption = Annotated[
    str | None, typer.Option(help="Where the drafter runs; the target's device unless given.")
]
DtypeOption = Annotated[str, typer.Option(help="'auto', 'float32', 'bfloat16' or 'float16'.")]
DrafterDtypeOption = Annotated[str | None, typer.Option(help="The drafter's dtype; the target's unless given.")]
DeviceMapOption = Annotated[
    str | None,
    typer.Option(
        help="In place of a device: spread the target over the accelerators ('auto', 'balanced', 'balanced_low_0', "
        "'sequential'), or its modules over devices ('model.embed_tokens=0,model.layers=1,…')."
    ),
]
DrafterDeviceMapOption = Annotated[str | None, typer.Option(help="The same for the drafter.")]
QuantizationOption = Annotated[
    str | None,
    typer.Option(help="'bnb-8bit', 'bnb-4bit', 'torchao-int8', 'torchao-int4' or 'none': weights of fewer bits."),
]
DrafterQuantizationOption = Annotated[str | None, typer.Option(help="The drafter's; the target's unless given.")]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelChoice:
    """Both models, where they go and how they are loaded: the arguments of `RapidEngine.load`."""

    target: str
    drafter: str | None
    device: str
    drafter_device: str | None
    device_map: str | dict[str, str | int] | None
    drafter_device_map: str | dict[str, str | int] | None
    dtype: str
    drafter_dtype: str | None
    quantization: str | None
    drafter_quantization: str | None


def read_device_map(text: str | None) -> str | dict[str, str | int] | None:
    """A device map as it is written on the command line: a name, or modules with their devices.

    Raises `OptionError` for a part that is not module=device.
    """
    if text is None or "=" not in text:
        return text
    found: dict[str, str | int] = {}
    for part in text.split(","):
        module, equals, device = part.strip().rpartition("=")
        if not equals or not device:
            raise OptionError(f"a device map is a name, or module=device with commas between them, got {text!r}")
        found[module] = int(device) if device.isdecimal() else device
    return found


def words_of(listed: str) -> tuple[str, ...]:
    """The words of an option that takes several, with commas between them."""
    return tuple(word.strip() for word in listed.split(",") if word.strip())


def numbers_of(name: str, listed: str) -> tuple[int, ...]:
    """The whole numbers of an option that takes several. Raises `OptionError` for what is none."""
    try:
        return tuple(int(word) for word in words_of(listed))
    except ValueError as error:
        raise OptionError(f"{name} must be whole numbers separated by commas, got {listed!r}") from error


DEFAULT_ETA = f"{Speculation().eta:g}"


def number_or_word(text: str) -> int | float | str:
    """An option that is a number or a word, as the options of the library take it."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
