"""LangChain: a chat model, and hooks that read an application's own vector store.

The names are imported when first used: only the middleware needs the package langchain.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rapid_core import MissingDependencyError

if TYPE_CHECKING:
    from rapid_integrations.contexts import RapidWarning
    from rapid_integrations.langchain.agents import RapidHistoryMiddleware
    from rapid_integrations.langchain.chains import create_rapid_documents_chain
    from rapid_integrations.langchain.chat_model import ChatRapid
    from rapid_integrations.langchain.retrieval import RapidContext, from_retriever, from_vector_store

_HOMES = {
    "ChatRapid": "langchain.chat_model",
    "RapidContext": "langchain.retrieval",
    "RapidHistoryMiddleware": "langchain.agents",
    "RapidWarning": "contexts",
    "create_rapid_documents_chain": "langchain.chains",
    "from_retriever": "langchain.retrieval",
    "from_vector_store": "langchain.retrieval",
}

__all__ = [
    "ChatRapid",
    "RapidContext",
    "RapidHistoryMiddleware",
    "RapidWarning",
    "create_rapid_documents_chain",
    "from_retriever",
    "from_vector_store",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rapid_integrations.langchain' has no attribute {name!r}")
    try:
        module = import_module(f"rapid_integrations.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("langchain", "langchain_core"):
            raise
        raise MissingDependencyError(
            f"{name} needs the package {error.name!r}, which is not installed; "
            "install it with: pip install 'rapid-integrations[langchain]'"
        ) from error
    return getattr(module, name)
