"""A target and a drafter loaded together: whose options are whose, and when one set of weights is both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rapid_core.errors import OptionError
from rapid_core.loading import LoadedModel, ModelOptions, check_room, check_source, plan_model, read_model
from rapid_core.placement import DeviceMap
from rapid_core.vocabulary import pair_vocabularies


def load_roles(
    target: str,
    drafter: str | None,
    *,
    device: str | None,
    device_map: DeviceMap | None,
    dtype: str,
    quantization: str | Any | None,
    drafter_device: str | None,
    drafter_device_map: DeviceMap | None,
    drafter_dtype: str | None,
    drafter_quantization: str | Any | None,
    trust_remote_code: bool,
) -> tuple[LoadedModel, LoadedModel | None]:
    """Load a target, and a drafter unless it is the same model with the same options.

    Options of the drafter that are None are the target's. What can be wrong with either is found before
    weights are read, and that both fit into memory and share a vocabulary. Raises `LoadError`,
    `OptionError` and `NotEnoughMemoryError`.
    """
    given = {
        "drafter_device": drafter_device,
        "drafter_device_map": drafter_device_map,
        "drafter_dtype": drafter_dtype,
        "drafter_quantization": drafter_quantization,
    }
    alone = [name for name, value in given.items() if value is not None]
    if drafter is None and alone:
        raise OptionError(f"options of a drafter need one, got {', '.join(alone)}; name a drafter, or leave them out")
    options = ModelOptions.of(device=device, device_map=device_map, dtype=dtype, quantization=quantization)
    check_source(target)
    if drafter is None:
        planned = plan_model(target, options, role="target", trust_remote_code=trust_remote_code)
        check_room([planned])
        return read_model(planned), None
    check_source(drafter)
    same = same_model(target, drafter)
    if drafter_device is None and drafter_device_map is None:
        drafter_device, drafter_device_map = device, device_map
        if isinstance(device_map, Mapping) and set(device_map) != {""} and not same:
            raise OptionError(
                f"a device_map of modules is one model's, and the drafter {drafter!r} is another than the target "
                f"{target!r}; give drafter_device_map or drafter_device"
            )
    drafter_options = ModelOptions.of(
        device=drafter_device,
        device_map=drafter_device_map,
        dtype=drafter_dtype or dtype,
        quantization=quantization if drafter_quantization is None else drafter_quantization,
        prefix="drafter_",
    )
    planned = plan_model(target, options, role="target", trust_remote_code=trust_remote_code)
    if same and drafter_options == options:
        check_room([planned])
        return read_model(planned), None
    beside = plan_model(
        drafter, drafter_options, role="drafter", trust_remote_code=trust_remote_code, taken=planned.needs
    )
    check_room([planned, beside])
    pair_vocabularies(planned, beside)
    return read_model(planned), read_model(beside)


def same_model(target: str, drafter: str) -> bool:
    """Whether two names mean the same weights, which are then loaded once."""
    if target == drafter:
        return True
    left, right = Path(target).expanduser(), Path(drafter).expanduser()
    return left.exists() and right.exists() and left.resolve() == right.resolve()
