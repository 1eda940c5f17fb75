"""RAPID: a target that reads the whole document, and a drafter that reads what was retrieved."""

from rapid_core.config import Retrieval, Sampling, Speculation
from rapid_core.datatypes import Chunk, Delta, LongContext, Message, PromptPair, Result, Stats, TokenEvent, Usage
from rapid_core.engine import RapidEngine
from rapid_core.errors import (
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
    UnknownOptionError,
    UnsupportedModelError,
    VocabularyError,
)

__all__ = [
    "Chunk",
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
    "Speculation",
    "Stats",
    "TokenEvent",
    "UnknownOptionError",
    "UnsupportedModelError",
    "Usage",
    "VocabularyError",
]
