"""Optional packages, imported where they are first needed."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

from rapid_core.errors import MissingDependencyError


def check_installed(*modules: str, extra: str) -> None:
    """Raise `MissingDependencyError` unless all modules can be found; imports none of them."""
    for module in modules:
        if find_spec(module) is None:
            raise _missing(module, extra)


def require(module: str, *, extra: str) -> Any:
    """Import `module`, or raise `MissingDependencyError` that names the pip command."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A package that is there but broken must not look like one that is missing.
        if error.name != module.partition(".")[0]:
            raise
        raise _missing(module, extra) from error


def _missing(module: str, extra: str) -> MissingDependencyError:
    return MissingDependencyError(
        f"this needs the package {module!r}, which is not installed; "
        f"install it with: pip install 'rapid-integrations[{extra}]'"
    )
