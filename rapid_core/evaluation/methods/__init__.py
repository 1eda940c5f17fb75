"""The methods of decoding that are compared, one a file: each file has its method as `METHOD`."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from rapid_core.evaluation.method import Method


def _methods() -> dict[str, Method]:
    modules = (import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__))
    found: list[Method] = [module.METHOD for module in modules]
    return {method.name: method for method in sorted(found, key=lambda method: method.place)}


# By name, in the order in which they are run and shown.
METHODS = _methods()
