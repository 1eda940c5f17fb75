"""LlamaIndex: an LLM, and hooks that read an application's own index.

The names are imported when first used.
"""

from typing import TYPE_CHECKING, Any

from rapid_integrations.exports import exported

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
    return exported(name, _HOMES, integration="llama_index", packages=("llama_index",), extra="llama-index")
