"""Optional packages, imported where they are first needed."""

from __future__ import annotations

import importlib
from typing import Any

from rapid_core.errors import MissingDependencyError


def require(module: str, *, extra: str) -> Any:
    """Import `module`, or raise `MissingDependencyError` that names the pip command."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A package that is there but broken must not look like one that is missing.
        if error.name != module.partition(".")[0]:
            raise
        raise MissingDependencyError(
            f"this needs the package {module!r}, which is not installed; "
            f"install it with: pip install 'rapid-integrations[{extra}]'"
        ) from error
