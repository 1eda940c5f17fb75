"""LangChain: a chat model, and hooks that read an application's own vector store.

The names are imported when first used: only the middleware needs the package langchain.
"""

from typing import TYPE_CHECKING, Any

from rapid_integrations.exports import exported

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
    return exported(name, _HOMES, integration="langchain", packages=("langchain", "langchain_core"), extra="langchain")
