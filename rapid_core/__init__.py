"""RAPID: a target that reads the whole document, and a drafter that reads what was retrieved.

The public names are listed here and imported when first used, so that a command line or an
integration that only needs a few of them does not wait for torch.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rapid_core.config import Retrieval, Sampling, Speculation
    from rapid_core.constraint import Constraint
    from rapid_core.datatypes import (
        Chunk,
        Delta,
        Document,
        LongContext,
        LongHistory,
        Message,
        PromptPair,
        Result,
        SharedVocabulary,
        Stats,
        TokenEvent,
        ToolCall,
        Usage,
    )
    from rapid_core.engine import RapidEngine
    from rapid_core.errors import (
        CompilationError,
        DocumentError,
        EngineStateError,
        InputError,
        LoadError,
        MissingDependencyError,
        ModelOutputError,
        NotEnoughMemoryError,
        OptionError,
        PromptTooLongError,
        RapidError,
        RetrievalError,
        SavedDocumentError,
        UnknownOptionError,
        UnsupportedModelError,
        VocabularyError,
    )
    from rapid_core.tool_use import Tool, ToolUse

_HOMES = {
    "config": ("Retrieval", "Sampling", "Speculation"),
    "constraint": ("Constraint",),
    "datatypes": (
        "Chunk",
        "Delta",
        "Document",
        "LongContext",
        "LongHistory",
        "Message",
        "PromptPair",
        "Result",
        "SharedVocabulary",
        "Stats",
        "TokenEvent",
        "ToolCall",
        "Usage",
    ),
    "engine": ("RapidEngine",),
    "errors": (
        "CompilationError",
        "DocumentError",
        "EngineStateError",
        "InputError",
        "LoadError",
        "MissingDependencyError",
        "ModelOutputError",
        "NotEnoughMemoryError",
        "OptionError",
        "PromptTooLongError",
        "RapidError",
        "RetrievalError",
        "SavedDocumentError",
        "UnknownOptionError",
        "UnsupportedModelError",
        "VocabularyError",
    ),
    "tool_use": ("Tool", "ToolUse"),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Chunk",
    "CompilationError",
    "Constraint",
    "Delta",
    "Document",
    "DocumentError",
    "EngineStateError",
    "InputError",
    "LoadError",
    "LongContext",
    "LongHistory",
    "Message",
    "MissingDependencyError",
    "ModelOutputError",
    "NotEnoughMemoryError",
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
    "SharedVocabulary",
    "Speculation",
    "Stats",
    "TokenEvent",
    "Tool",
    "ToolCall",
    "ToolUse",
    "UnknownOptionError",
    "UnsupportedModelError",
    "Usage",
    "VocabularyError",
]


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Failed to load ") and "is an Enum subclass" not in record.getMessage()


# Where torchao and bitsandbytes are installed, transformers and encoders import them, also for models that are not
# quantised. They then warn of kernels that this machine has not, and torch of how torchao registers its enums.
for _name in ("torchao", "torch.utils._pytree", "bitsandbytes.backends.cpu.ops"):
    logging.getLogger(_name).addFilter(_is_news)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'rapid_core' has no attribute {name!r}")
    return getattr(import_module(f"rapid_core.{_MODULES[name]}"), name)
