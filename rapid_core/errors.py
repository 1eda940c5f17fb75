"""What can go wrong: one class to catch, narrow leaves.

    RapidError
    ├── OptionError (ValueError)             an option breaks its rule
    │   └── UnknownOptionError (TypeError)   an option that does not exist
    ├── InputError (ValueError)              messages or a document that cannot be used
    │   ├── PromptTooLongError               a prompt that does not fit the model's window
    │   └── BadLineError                     a line of a data file that cannot be used
    ├── DocumentError (OSError)              a file or folder that cannot be read as a document
    ├── LoadError                            a model, tokenizer or encoder that cannot be loaded
    │   ├── UnsupportedModelError            an architecture whose cache cannot be rewound
    │   ├── VocabularyError                  target and drafter do not share a vocabulary
    │   └── SavedDocumentError               a saved document that cannot be written, read or used
    ├── MissingDependencyError (ImportError) an optional package that is not installed
    ├── NotEnoughMemoryError (MemoryError)   weights, a cache or a forward that memory does not hold
    ├── RetrievalError                       chunking, embedding or ranking failed
    ├── CompilationError (RuntimeError)       what compile=True asks of torch.compile failed
    ├── ModelOutputError (ArithmeticError)   a model returned NaN or infinity
    └── EngineStateError (RuntimeError)      the engine is closed, or waits for itself

Every message states the rule, the value and the remedy.
"""

from __future__ import annotations

from pathlib import Path


class RapidError(Exception):
    """The base of every error that this package raises on purpose."""


class OptionError(RapidError, ValueError):
    """An option breaks its rule."""


class UnknownOptionError(OptionError, TypeError):
    """An option that does not exist."""


class InputError(RapidError, ValueError):
    """Messages or a document that cannot be used."""


class PromptTooLongError(InputError):
    """A prompt that does not fit the model's window.

    `prompt_tokens` and `window` are counts of tokens.
    """

    def __init__(self, message: str, *, prompt_tokens: int, window: int) -> None:
        super().__init__(message)
        self.prompt_tokens = prompt_tokens
        self.window = window


class BadLineError(InputError):
    """A line of a data file that cannot be used.

    `path` and `line`, counted from 1, say where it stands, `problem` what is wrong with it. `unit` is "entry"
    where it is one of a list, and "line" else.
    """

    def __init__(self, path: Path, line: int, problem: str, unit: str = "line") -> None:
        super().__init__(f"{path}, {unit} {line}: {problem}; mend the {unit}, or leave it out with --skip-bad")
        self.path = path
        self.line = line
        self.unit = unit
        self.problem = problem


class DocumentError(RapidError, OSError):
    """A file or folder that cannot be read as a document."""


class LoadError(RapidError):
    """A model, tokenizer or encoder that cannot be loaded."""


class UnsupportedModelError(LoadError):
    """An architecture whose cache cannot be rewound, and so cannot verify drafts."""


class VocabularyError(LoadError):
    """Target and drafter do not share a vocabulary."""


class SavedDocumentError(LoadError):
    """A saved document that cannot be written or read, or that another model made."""


class MissingDependencyError(RapidError, ImportError):
    """An optional package that is not installed."""


class NotEnoughMemoryError(RapidError, MemoryError):
    """Weights, a cache or a forward that memory does not hold.

    `needed_bytes` and `there_bytes` are bytes, None where nothing tells.
    """

    def __init__(self, message: str, *, needed_bytes: int | None, there_bytes: int | None) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.there_bytes = there_bytes


class RetrievalError(RapidError):
    """Chunking, embedding or ranking failed."""


class CompilationError(RapidError, RuntimeError):
    """What compile=True asks of `torch.compile`, or of CUDA graphs, failed."""


class ModelOutputError(RapidError, ArithmeticError):
    """A model returned NaN or infinity."""


class EngineStateError(RapidError, RuntimeError):
    """The engine is closed, or a request waits for another one of its own thread."""
