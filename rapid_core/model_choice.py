"""Which models a command works with: one record from the command line to `RapidEngine.load`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from rapid_core.command_field import option
from rapid_core.config import Retrieval
from rapid_core.errors import OptionError


def read_device_map(text: str) -> str | dict[str, str | int]:
    """A device map as it is written on the command line: a name, or modules with their devices.

    Raises `OptionError` for a part that is not module=device.
    """
    if "=" not in text:
        return text
    found: dict[str, str | int] = {}
    for part in text.split(","):
        module, equals, device = part.strip().rpartition("=")
        if not equals or not device:
            raise OptionError(f"a device map is a name, or module=device with commas between them, got {text!r}")
        found[module] = int(device) if device.isdecimal() else device
    return found


@dataclass(frozen=True, kw_only=True)
class ModelChoice:
    """Both models, where they go and how they are loaded, each as for `RapidEngine.load`, and the encoder."""

    target: str = option("demo", "Model that reads everything: hub name, folder, .gguf file or 'demo'.")
    drafter: str | None = option(None, "Model that drafts; the target itself unless given.")
    encoder: str | None = option(None, "Encoder for retrieval: hub name, folder or 'demo'.")
    device: str = option("auto", "Where the target runs: 'auto', 'cpu', 'cuda:0', …")
    drafter_device: str | None = option(None, "Where the drafter runs; the target's device unless given.")
    device_map: str | dict[str, str | int] | None = option(
        None,
        "In place of a device: spread the target over the accelerators ('auto', 'balanced', 'balanced_low_0', "
        "'sequential'), or its modules over devices ('model.embed_tokens=0,model.layers=1,…').",
        read=read_device_map,
    )
    drafter_device_map: str | dict[str, str | int] | None = option(
        None, "The same for the drafter.", read=read_device_map
    )
    dtype: str = option("auto", "'auto', 'float32', 'bfloat16' or 'float16'.")
    drafter_dtype: str | None = option(None, "The drafter's dtype; the target's unless given.")
    quantization: str | None = option(
        None, "'bnb-8bit', 'bnb-4bit', 'torchao-int8', 'torchao-int4' or 'none': weights of fewer bits."
    )
    drafter_quantization: str | None = option(None, "The drafter's; the target's unless given.")

    def to_load(self) -> dict[str, Any]:
        """The arguments of `RapidEngine.load` that say which models, and how."""
        return {own.name: getattr(self, own.name) for own in fields(ModelChoice) if own.name != "encoder"}

    def retrieval(self, **options: Any) -> Retrieval:
        """How passages are found, with the encoder or the default one. Raises `OptionError`."""
        return Retrieval(**options) if self.encoder is None else Retrieval(encoder=self.encoder, **options)
