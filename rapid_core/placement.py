"""Where a model's weights go: one device, or several by a map of modules, which accelerate serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rapid_core.errors import NotEnoughMemoryError, OptionError
from rapid_core.extras import require
from rapid_core.memory import available_bytes, gib

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Ways to spread a model that accelerate knows by name.
SPREADS = ("auto", "balanced", "balanced_low_0", "sequential")
# Weights may take this part of what is free on an accelerator; keys, values and the work need the rest.
WEIGHTS_SHARE = 0.85

DeviceMap = str | Mapping[str, str | int | torch.device]


@dataclass(frozen=True, slots=True)
class Placement:
    """One device, or a way to spread a model: a name of `SPREADS`, or devices of modules.

    device: the one, or the first of several.
    """

    device: str
    spread: str | tuple[tuple[str, str], ...] = ""

    @property
    def device_type(self) -> str:
        """ "cpu", "cuda", …; a model's devices are of one type."""
        return torch.device(self.device).type


def resolve_placement(
    device: str | None, device_map: DeviceMap | None, *, prefix: str = "", default: str = "auto"
) -> Placement:
    """Check where a model is to go; prefix: of the names of both options.

    device of None is `default` where there is no map. A spread by name is over accelerators, and is the CPU
    where there is none. Raises `OptionError`.
    """
    if device_map is None:
        return Placement(resolve_device(default if device is None else device, f"{prefix}device"))
    option = f"{prefix}device_map"
    if device not in (None, "auto"):
        raise OptionError(
            f"{prefix}device and {option} both say where the weights go, got {device!r} and {device_map!r}; "
            "leave one of them out"
        )
    if isinstance(device_map, str):
        return _by_name(device_map, option)
    if not isinstance(device_map, Mapping) or not device_map or not all(isinstance(name, str) for name in device_map):
        raise OptionError(
            f"{option} must be {', '.join(map(repr, SPREADS))}, a device, or a mapping of modules to devices, "
            f"got {device_map!r}"
        )
    places = {name: _device_of_module(where, option) for name, where in device_map.items()}
    types = {torch.device(place).type for place in places.values()}
    if len(types) > 1:
        raise OptionError(
            f"{option} must name devices of one type, got {', '.join(sorted(types))}: weights on a CPU would be copied "
            "to the accelerator for every token; name accelerators only, or quantise the model so that it fits"
        )
    if set(places) == {""}:
        return Placement(places[""])
    return Placement(next(iter(places.values())), tuple(places.items()))


def resolve_device(device: str, option: str = "device") -> str:
    """Check a device name; "auto" becomes the first accelerator, else "cpu"."""
    if device == "auto":
        device = next(iter(accelerators()), "cpu")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ImportError) as error:
        raise _no_such_device(device, option) from error
    if place.type == "meta" or (place.type == "cpu" and place.index):
        raise _no_such_device(device, option)
    if place.type == "cpu":
        return "cpu"
    if device == "cuda":
        return f"cuda:{torch.cuda.current_device()}"
    return str(place)


def resolve_dtype(dtype: str, device: str, option: str = "dtype") -> torch.dtype | None:
    """Check a dtype name; None is the checkpoint's own."""
    if dtype == "auto":
        return torch.float32 if torch.device(device).type == "cpu" else None
    if dtype not in tuple(DTYPES):
        raise OptionError(f"{option} must be 'auto', {', '.join(map(repr, DTYPES))}, got {dtype!r}")
    return DTYPES[dtype]


def accelerators() -> list[str]:
    """The accelerators of this machine; the current CUDA device is the first."""
    if torch.cuda.is_available():
        current = torch.cuda.current_device()
        return [f"cuda:{i}" for i in sorted(range(torch.cuda.device_count()), key=lambda i: i != current)]
    return ["mps"] if torch.backends.mps.is_available() else []


def module_devices(
    placement: Placement, model: Any, sizes: Mapping[str, int], *, what: str, taken: Mapping[str, int]
) -> dict[str, str]:
    """The device of each module of a model that has no weights yet; "" stands for all of it.

    sizes: bytes of each parameter by its name. what: the model in words. taken: bytes of devices that
    another model is to have. Raises `OptionError` for a map that does not fit the model, and
    `NotEnoughMemoryError` for a spread that the accelerators do not hold: nothing is left to the CPU or a
    disk.
    """
    if not placement.spread:
        return {"": placement.device}
    if isinstance(placement.spread, str):
        return _spread(placement.spread, model, sizes, what, taken)
    found = dict(placement.spread)
    modules = {name for name, _ in model.named_modules()} | set(sizes)
    unknown = [name for name in found if name not in modules]
    if unknown:
        raise OptionError(f"a device_map must name modules of the model, and {what} has no {', '.join(unknown)}")
    missing = [name for name in sizes if device_of(name, found) is None]
    if missing:
        raise OptionError(
            f"a device_map must say where all of a model goes, and for {what} it leaves out {missing[0]}"
            + (f" and {len(missing) - 1} more weights" if len(missing) > 1 else "")
        )
    return found


def device_of(name: str, devices: Mapping[str, str]) -> str | None:
    """The device of a parameter by the map of modules: that of the longest name which it is in."""
    while name not in devices and name:
        name = name.rpartition(".")[0]
    return devices.get(name)


def _by_name(name: str, option: str) -> Placement:
    if name not in SPREADS:
        return Placement(resolve_device(name, option))
    there = accelerators()
    return Placement(there[0], name) if len(there) > 1 else Placement(there[0] if there else "cpu")


def _device_of_module(where: object, option: str) -> str:
    # The commonest way to write a map has numbers of GPUs in it.
    name = f"cuda:{where}" if isinstance(where, int) and not isinstance(where, bool) else str(where)
    if name == "disk":
        raise OptionError(
            f"{option} must name devices, got 'disk': weights on a disk would be read for every token; quantise the "
            "model so that it fits"
        )
    return resolve_device(name, option)


def _spread(name: str, model: Any, sizes: Mapping[str, int], what: str, taken: Mapping[str, int]) -> dict[str, str]:
    """What accelerate makes of a named way, with room on the accelerators alone."""
    accelerate = require("accelerate", extra="devices")
    places = {int(place.rpartition(":")[2]): place for place in sorted(accelerators())}
    free = {i: (available_bytes(torch.device(place)) or 0) - taken.get(place, 0) for i, place in places.items()}
    room = {i: max(int(count * WEIGHTS_SHARE), 0) for i, count in free.items()}
    # The model that stands in for the quantised one has whole weights.
    reduced = {
        path: torch.int8 if sizes[path] >= weight.numel() else accelerate.utils.CustomDtype.INT4
        for path, weight in model.named_parameters()
        if sizes[path] < weight.nbytes
    }
    options = {"no_split_module_classes": list(model._no_split_modules or ()), "special_dtypes": reduced}
    limits = room
    if name != "sequential":
        low_zero = name == "balanced_low_0"
        limits = accelerate.utils.get_balanced_memory(model, max_memory=dict(room), low_zero=low_zero, **options)
    found = accelerate.infer_auto_device_map(model, max_memory=dict(limits), **options)
    if not set(found.values()) <= set(room):
        needed, there = sum(sizes.values()), sum(room.values())
        raise NotEnoughMemoryError(
            f"memory must hold all weights of a model: {what} needs {gib(needed)}, and {', '.join(places.values())} "
            f"have {gib(there)} for weights, to be filled by whole layers; choose a quantization, a smaller model, or "
            "free memory there",
            needed_bytes=needed,
            there_bytes=there,
        )
    return {module: places[i] for module, i in found.items()}


def _no_such_device(device: object, option: str) -> OptionError:
    there = ["'cpu'", *(f"'cuda:{i}'" for i in range(torch.cuda.device_count()))]
    there += ["'mps'"] if torch.backends.mps.is_available() else []
    return OptionError(
        f"{option} must exist on this machine, got {device!r}; there is {', '.join(there)}, and 'auto' takes the best"
    )
