"""LlamaIndex: an LLM, and hooks that read an application's own index.

The names are imported when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rapid_core import MissingDependencyError

if TYPE_CHECKING:
    from rapid_integrations.contexts import RapidWarning
    from rapid_integrations.llama_index.chat_engine import RapidContextChatEngine
    from rapid_integrations.llama_index.llm import RapidLLM
    from rapid_integrations.llama_index.retrieval import RapidContext, from_retriever
    from rapid_integrations.llama_index.synthesizer import RapidSynthesizer

_HOMES = {
    "RapidContext": "llama_index.retrieval",
    "RapidContextChatEngine": "llama_index.chat_engine",
    "RapidLLM": "llama_index.llm",
    "RapidSynthesizer": "llama_index.synthesizer",
    "RapidWarning": "contexts",
    "from_retriever": "llama_index.retrieval",
}

__all__ = [
    "RapidContext",
    "RapidContextChatEngine",
    "RapidLLM",
    "RapidSynthesizer",
    "RapidWarning",
    "from_retriever",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rapid_integrations.llama_index' has no attribute {name!r}")
    try:
        module = import_module(f"rapid_integrations.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "llama_index":
            raise
        raise MissingDependencyError(
            f"{name} needs the package 'llama-index-core', which is not installed; "
            "install it with: pip install 'rapid-integrations[llama-index]'"
        ) from error
    return getattr(module, name)
