"""RAPID: a target that reads the whole document, and a drafter that reads what was retrieved.

The public names are listed here and imported when first used, so that a command line or an
integration that only needs a few of them does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rapid_core.config import Retrieval, Sampling, Speculation
    from rapid_core.constraint import Constraint
    from rapid_core.datatypes import Chunk, Delta, LongContext, Message, PromptPair, Result, Stats, TokenEvent, Usage
    from rapid_core.engine import RapidEngine
    from rapid_core.errors import (
        CompilationError,
        DocumentError,
        EngineStateError,
        InputError,
        LoadError,
        MissingDependencyError,
        ModelOutputError,
        OptionError,
        PromptTooLongError,
        RapidError,
        RetrievalError,
        SavedDocumentError,
        UnknownOptionError,
        UnsupportedModelError,
        VocabularyError,
    )

_HOMES = {
    "config": ("Retrieval", "Sampling", "Speculation"),
    "constraint": ("Constraint",),
    "datatypes": ("Chunk", "Delta", "LongContext", "Message", "PromptPair", "Result", "Stats", "TokenEvent", "Usage"),
    "engine": ("RapidEngine",),
    "errors": (
        "CompilationError",
        "DocumentError",
        "EngineStateError",
        "InputError",
        "LoadError",
        "MissingDependencyError",
        "ModelOutputError",
        "OptionError",
        "PromptTooLongError",
        "RapidError",
        "RetrievalError",
        "SavedDocumentError",
        "UnknownOptionError",
        "UnsupportedModelError",
        "VocabularyError",
    ),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Chunk",
    "CompilationError",
    "Constraint",
    "Delta",
    "DocumentError",
    "EngineStateError",
    "InputError",
    "LoadError",
    "LongContext",
    "Message",
    "MissingDependencyError",
    "ModelOutputError",
    "OptionError",
    "PromptPair",
    "PromptTooLongError",
    "RapidEngine",
    "RapidError",
    "Result",
    "Retrieval",
    "RetrievalError",
    "Sampling",
    "SavedDocumentError",
    "Speculation",
    "Stats",
    "TokenEvent",
    "UnknownOptionError",
    "UnsupportedModelError",
    "Usage",
    "VocabularyError",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'rapid_core' has no attribute {name!r}")
    return getattr(import_module(f"rapid_core.{_MODULES[name]}"), name)
