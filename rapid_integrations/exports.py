"""Names of an integration, imported when first used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from rapid_core import MissingDependencyError


def exported(name: str, homes: Mapping[str, str], *, integration: str, packages: Sequence[str], extra: str) -> Any:
    """The value of a public name of `rapid_integrations.<integration>`, from the module that `homes` says.

    packages: those of the framework; where one is missing, `MissingDependencyError` names the
    command that installs `extra`. Raises `AttributeError` for a name that is none.
    """
    if name not in homes:
        raise AttributeError(f"module 'rapid_integrations.{integration}' has no attribute {name!r}")
    try:
        module = import_module(f"rapid_integrations.{homes[name]}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in packages:
            raise
        raise MissingDependencyError(
            f"{name} needs the package {error.name!r}, which is not installed; "
            f"install it with: pip install 'rapid-integrations[{extra}]'"
        ) from error
    return getattr(module, name)
