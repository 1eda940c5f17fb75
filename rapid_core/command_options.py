"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from rapid_core.config import Speculation

TargetOption = Annotated[str, typer.Option(help="Model that reads everything: hub name, folder, .gguf file or 'demo'.")]
DrafterOption = Annotated[str | None, typer.Option(help="Model that drafts; the target itself unless given.")]
EncoderOption = Annotated[str | None, typer.Option(help="Encoder for retrieval: hub name, folder or 'demo'.")]
DeviceOption = Annotated[str, typer.Option(help="Where the target runs: 'auto', 'cpu', 'cuda:0', …")]
DrafterDeviceOption = Annotated[
    str | None, typer.Option(help="Where the drafter runs; the target's device unless given.")
]
DtypeOption = Annotated[str, typer.Option(help="'auto', 'float32', 'bfloat16' or 'float16'.")]

DEFAULT_ETA = f"{Speculation().eta:g}"


def number_or_word(text: str) -> float | str:
    """An option that is a number or a word, as the options of the library take it."""
    try:
        return float(text)
    except ValueError:
        return text
