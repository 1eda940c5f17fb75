"""`create_rapid_documents_chain`: stands where `create_stuff_documents_chain` stood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel, LanguageModelLike
from langchain_core.output_parsers import BaseOutputParser, StrOutputParser
from langchain_core.prompt_values import PromptValue
from langchain_core.prompts import BasePromptTemplate, PromptTemplate, format_document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

from rapid_core import InputError
from rapid_integrations.langchain.chat_model import ChatRapid
from rapid_integrations.langchain.hooks import (
    DEFAULT_ID_KEY,
    DocumentLoader,
    LangChainHook,
    check_documents,
    make_hook,
)
from rapid_integrations.langchain.retrieval import RapidContext
from rapid_integrations.messages import PLACE
from rapid_integrations.search import OnRetrievalError, Resolved, Search, check_on_retrieval_error

_CONTENT_ONLY: BasePromptTemplate[str] = PromptTemplate.from_template("{page_content}")


def create_rapid_documents_chain(
    llm: LanguageModelLike,
    prompt: BasePromptTemplate[Any],
    *,
    output_parser: BaseOutputParser[Any] | None = None,
    document_prompt: BasePromptTemplate[str] | None = None,
    document_separator: str = "\n\n",
    document_variable_name: str = "context",
    docstore: Any = None,
    document_loader: DocumentLoader | None = None,
    retriever: BaseRetriever | None = None,
    id_key: str | None = None,
    query_key: str = "input",
    on_retrieval_error: OnRetrievalError | None = None,
) -> Runnable[dict[str, Any], Any]:
    """A chain that drops into `create_retrieval_chain`: chunks go to the drafter, whole documents to the target.

    llm: a ChatRapid, or one with keywords bound. prompt, output_parser, document_prompt,
    document_separator and document_variable_name are those of `create_stuff_documents_chain`.
    Whole documents come from `docstore` (with `mget(ids)`) or `document_loader` (id to text or
    Document) by the chunks' metadata key `id_key`, "source" unless given; or from `retriever`, a
    `ParentDocumentRetriever` or `MultiVectorRetriever`, which is then asked for its chunks with
    the input's `query_key`. document_prompt is for whole documents. on_retrieval_error: "plain"
    lets the target read the chunks, without a drafter and with a warning, where documents cannot
    be fetched. Raises `InputError`.
    """
    _check_model(llm)
    check_on_retrieval_error(on_retrieval_error)
    check_documents(docstore, document_loader)
    if document_variable_name not in prompt.input_variables:
        raise InputError(
            f"the prompt must have the variable {document_variable_name!r} for the documents, and it has "
            f"{', '.join(map(repr, prompt.input_variables)) or 'none'}; add it, or name another document_variable_name"
        )
    template = document_prompt or _CONTENT_ONLY

    def written(document: Document) -> str:
        return format_document(document, template)

    # What stands before a document is the document prompt's to say.
    if retriever is None:
        hook = LangChainHook(None, docstore, document_loader, id_key or DEFAULT_ID_KEY, written=written, heading=False)
    else:
        hook = make_hook(retriever, docstore, document_loader, id_key, written=written, heading=False)
    on_error = on_retrieval_error or _on_error_of(llm)

    def search(inputs: Mapping[str, Any]) -> Search:
        return Search(
            hook,
            query=_question(inputs, query_key, needed=retriever is not None),
            chunks=None if retriever is not None else _documents(inputs, document_variable_name),
            place=PLACE,
            separator=document_separator,
        )

    def answer(resolved: Resolved) -> Runnable[Any, Any]:
        # Where nothing was found, nothing stands in the place.
        place = PLACE if resolved.context is not None else ""
        placed = RunnablePassthrough.assign(**{document_variable_name: lambda _: place})
        bound: Runnable[Any, Any] = llm.bind(rapid_context=RapidContext.of(resolved))
        return placed | prompt | RunnableLambda(once) | bound | (output_parser or StrOutputParser())

    def once(value: PromptValue) -> PromptValue:
        times = value.to_string().count(PLACE)
        if times > 1:
            raise InputError(
                f"the prompt must have {document_variable_name!r} once, for the documents are whole, and it stands "
                f"there {times} times"
            )
        return value

    def run(inputs: dict[str, Any]) -> Runnable[Any, Any]:
        return answer(search(inputs).run([], on_error))

    async def arun(inputs: dict[str, Any]) -> Runnable[Any, Any]:
        return answer(await search(inputs).arun([], on_error))

    return RunnableLambda(run, arun).with_config(run_name="rapid_documents_chain")


def _on_error_of(llm: Any) -> OnRetrievalError:
    bound = getattr(llm, "bound", llm)
    return bound.on_retrieval_error if isinstance(bound, ChatRapid) else "raise"


def _check_model(llm: Any) -> None:
    """Another model would be sent a keyword that it does not know."""
    bound = getattr(llm, "bound", llm)
    if isinstance(bound, BaseChatModel) and not isinstance(bound, ChatRapid):
        raise InputError(f"create_rapid_documents_chain needs a ChatRapid, got {type(bound).__name__}")


def _documents(inputs: Mapping[str, Any], name: str) -> tuple[Document, ...]:
    documents = inputs.get(name)
    if not isinstance(documents, Sequence) or not all(isinstance(document, Document) for document in documents):
        raise InputError(f"the chain's input must have a list of Document under {name!r}, got {documents!r:.200}")
    return tuple(documents)


def _question(inputs: Mapping[str, Any], key: str, *, needed: bool) -> str:
    """What the documents were retrieved for; without it the engine takes the last human message."""
    asked = inputs.get(key)
    if isinstance(asked, str) and asked.strip():
        return asked
    if needed:
        raise InputError(
            f"the chain's input must have the question as text under {key!r}, got {asked!r}; name the key that holds "
            "it with query_key="
        )
    return ""
