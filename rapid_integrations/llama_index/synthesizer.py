"""`RapidSynthesizer`: stands where a query engine's response synthesizer stood."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ChatResponseAsyncGen, ChatResponseGen
from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    PydanticResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.indices.prompt_helper import ChatPromptHelper, PromptHelper
from llama_index.core.instrumentation.events.synthesis import SynthesizeEndEvent, SynthesizeStartEvent
from llama_index.core.llms.structured_llm import StructuredLLM
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate
from llama_index.core.prompts.default_prompt_selectors import DEFAULT_TEXT_QA_PROMPT_SEL
from llama_index.core.prompts.mixin import PromptDictType
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, QueryType
from llama_index.core.settings import Settings
from llama_index.core.types import RESPONSE_TEXT_TYPE
from llama_index_instrumentation import get_dispatcher
from pydantic import BaseModel

from rapid_core import InputError
from rapid_integrations.contexts import Passage, RapidWarning, long_context
from rapid_integrations.llama_index.documents import DocumentLoader, Documents
from rapid_integrations.llama_index.llm import RapidLLM
from rapid_integrations.llama_index.retrieval import NodeHook, RapidContext
from rapid_integrations.llama_index.structured import as_object, call_options
from rapid_integrations.llama_index.watching import retriever_of, watch_retrievers
from rapid_integrations.messages import PLACE
from rapid_integrations.search import OnRetrievalError, Resolved, Search, check_on_retrieval_error

_NO_NODES = "the retriever returned nothing, and no model was asked"

dispatcher = get_dispatcher(__name__)


class RapidSynthesizer(BaseSynthesizer):
    """For `index.as_query_engine(response_synthesizer=…)`: nodes go to the drafter, whole documents to the target.

    llm: a RapidLLM, or a StructuredLLM over one; `Settings.llm` unless given. Whole documents come
    from `document_loader` (id to text or Document), from `docstore`, or are rebuilt from the nodes
    of `vector_store`; unless given, these are those of `index`, or of the retriever that found the
    nodes. id_key: a key of a node's metadata that names its document, such as "file_path" where
    every page was a document of its own. metadata_mode: which metadata the target reads at the top
    of a document, and drafter_metadata_mode the drafter before a node. text_qa_template,
    streaming, output_cls, empty_response, callback_manager: as of every synthesizer.
    on_retrieval_error: "plain" lets the target read the nodes, without a drafter and with a
    warning, where documents cannot be fetched; the LLM's unless given. Raises `InputError`.
    Where LlamaIndex has no default LLM, this one becomes it: `as_query_engine` asks for one, also
    where its synthesizer brings its own.
    """

    def __init__(
        self,
        llm: RapidLLM | StructuredLLM | None = None,
        *,
        index: Any = None,
        docstore: Any = None,
        vector_store: Any = None,
        document_loader: DocumentLoader | None = None,
        id_key: str | None = None,
        metadata_mode: MetadataMode = MetadataMode.LLM,
        drafter_metadata_mode: MetadataMode = MetadataMode.LLM,
        text_qa_template: BasePromptTemplate | str | None = None,
        streaming: bool = False,
        output_cls: type[BaseModel] | None = None,
        empty_response: str | None = None,
        callback_manager: CallbackManager | None = None,
        on_retrieval_error: OnRetrievalError | None = None,
    ) -> None:
        check_on_retrieval_error(on_retrieval_error)
        self._rapid, asked_cls = rapid_llm(llm, "RapidSynthesizer")
        super().__init__(
            llm=llm,
            callback_manager=callback_manager,
            # What would cut the nodes is not asked, and must not ask for the model's window.
            prompt_helper=PromptHelper(),
            chat_prompt_helper=ChatPromptHelper(),
            streaming=streaming,
            output_cls=output_cls or asked_cls,
            empty_response=empty_response,
        )
        self._template = _read_template(text_qa_template) or DEFAULT_TEXT_QA_PROMPT_SEL
        self._drafter_mode, self._on_error = drafter_metadata_mode, on_retrieval_error
        self._documents = Documents(
            index=index,
            docstore=docstore,
            vector_store=vector_store,
            document_loader=document_loader,
            id_key=id_key,
            metadata_mode=metadata_mode,
        )
        watch_retrievers()
        _stand_in(self._rapid)

    def _get_prompts(self) -> PromptDictType:
        return {"text_qa_template": self._template}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        self._template = _read_template(prompts.get("text_qa_template")) or self._template

    def synthesize(
        self,
        query: QueryType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TYPE:
        """The answer to a query, with its nodes as sources, and statistics in `metadata["rapid"]`.

        response_kwargs fill in other variables of the template.
        """
        with self._events(query) as heard:
            if not nodes:
                return heard(self._nothing(StreamingResponse(_once(self._empty_response))))
            question = _text(query)
            resolved = self._search(question, nodes).run([], self._on_error_of())
            messages = self._messages(question, resolved, response_kwargs)
            metadata = _metadata(nodes, additional_source_nodes)
            options = self._options(resolved)
            sources = [*nodes, *(additional_source_nodes or ())]
            if self._streaming:
                tokens = _tokens(self._rapid.stream_chat(messages, **options), metadata)
                return heard(StreamingResponse(tokens, sources, metadata))
            return heard(self._made(self._rapid.chat(messages, **options), sources, metadata))

    async def asynthesize(
        self,
        query: QueryType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TYPE:
        """`synthesize` for an event loop."""
        with self._events(query) as heard:
            if not nodes:
                return heard(self._nothing(AsyncStreamingResponse(_aonce(self._empty_response))))
            question = _text(query)
            resolved = await self._search(question, nodes).arun([], self._on_error_of())
            # A template is chosen by what the model can, for which it may have to be loaded.
            messages = await asyncio.to_thread(self._messages, question, resolved, response_kwargs)
            metadata = _metadata(nodes, additional_source_nodes)
            options = self._options(resolved)
            sources = [*nodes, *(additional_source_nodes or ())]
            if self._streaming:
                tokens = _atokens(await self._rapid.astream_chat(messages, **options), metadata)
                return heard(AsyncStreamingResponse(tokens, sources, metadata))
            return heard(self._made(await self._rapid.achat(messages, **options), sources, metadata))

    def get_response(self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any) -> RESPONSE_TEXT_TYPE:
        """The answer from texts alone: the target reads all of them, the drafter the best ones, a quarter."""
        resolved = _of_texts(query_str, text_chunks)
        messages = self._messages(query_str, resolved, response_kwargs)
        options = self._options(resolved)
        if self._streaming:
            return _tokens(self._rapid.stream_chat(messages, **options), {})
        return self._read(self._rapid.chat(messages, **options))

    async def aget_response(
        self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any
    ) -> RESPONSE_TEXT_TYPE:
        """`get_response` for an event loop."""
        resolved = _of_texts(query_str, text_chunks)
        messages = await asyncio.to_thread(self._messages, query_str, resolved, response_kwargs)
        options = self._options(resolved)
        if self._streaming:
            return _atokens(await self._rapid.astream_chat(messages, **options), {})
        return self._read(await self._rapid.achat(messages, **options))

    @contextmanager
    def _events(self, query: QueryType) -> Iterator[Callable[[RESPONSE_TYPE], RESPONSE_TYPE]]:
        """The events of a synthesis; what it yields hears the response and hands it on."""
        dispatcher.event(SynthesizeStartEvent(query=query))
        payload: dict[str, Any] = {EventPayload.QUERY_STR: _text(query)}
        with self._callback_manager.event(CBEventType.SYNTHESIZE, payload=payload) as event:

            def heard(response: RESPONSE_TYPE) -> RESPONSE_TYPE:
                event.on_end(payload={EventPayload.RESPONSE: response})
                dispatcher.event(SynthesizeEndEvent(query=query, response=response))
                return response

            yield heard

    def _search(self, question: str, nodes: Sequence[NodeWithScore]) -> Search:
        documents = self._documents.of(retriever_of(nodes))
        hook = NodeHook(documents, drafter_metadata_mode=self._drafter_mode)
        return Search(hook, query=question, chunks=tuple(nodes), place=PLACE)

    def _on_error_of(self) -> OnRetrievalError:
        return self._on_error or self._rapid.on_retrieval_error

    def _messages(self, question: str, resolved: Resolved, more: dict[str, Any]) -> list[ChatMessage]:
        # Where nothing was found, nothing stands in the place.
        place = PLACE if resolved.context is not None else ""
        messages = self._rapid.messages_of(self._template, context_str=place, query_str=question, **more)
        times = sum((message.content or "").count(PLACE) for message in messages)
        if place and times != 1:
            raise InputError(
                "text_qa_template must have {context_str} once, as it is, for the whole documents, and it stands there "
                f"{times} times"
            )
        return messages

    def _options(self, resolved: Resolved) -> dict[str, Any]:
        form = {} if self._output_cls is None else call_options(self._output_cls, None)
        return {"rapid_context": RapidContext.of(resolved), **form}

    def _read(self, response: ChatResponse) -> str | BaseModel:
        if self._output_cls is not None:
            return as_object(self._output_cls, response)
        return self._rapid.parsed(response.message.content or "")

    def _made(
        self, response: ChatResponse, sources: list[NodeWithScore], metadata: dict[str, Any]
    ) -> Response | PydanticResponse:
        metadata["rapid"] = cost_of(response)
        answer = self._read(response)
        if isinstance(answer, str):
            return Response(answer, sources, metadata)
        return PydanticResponse(answer, sources, metadata)

    def _nothing(self, streamed: RESPONSE_TYPE) -> RESPONSE_TYPE:
        """What LlamaIndex answers without nodes, and a word about it."""
        warnings.warn(_NO_NODES, RapidWarning, stacklevel=2)
        response = streamed if self._streaming else Response(self._empty_response)
        response.metadata = {"rapid": {"notes": [_NO_NODES]}}
        return response


def rapid_llm(llm: Any, owner: str) -> tuple[RapidLLM, type[BaseModel] | None]:
    """A RapidLLM, and the class of its answers where it is a structured one; raises `InputError` for all else."""
    llm = Settings.llm if llm is None else llm
    inner, output_cls = (llm.llm, llm.output_cls) if isinstance(llm, StructuredLLM) else (llm, None)
    if not isinstance(inner, RapidLLM):
        raise InputError(f"{owner} needs a RapidLLM, as llm= or as Settings.llm, got {type(inner).__name__}")
    return inner, output_cls


def _read_template(template: object) -> BasePromptTemplate | None:
    """A prompt template, or the text of one."""
    if isinstance(template, str):
        return PromptTemplate(template)
    if template is not None and not isinstance(template, BasePromptTemplate):
        raise InputError(f"text_qa_template must be a LlamaIndex prompt template, got {type(template).__name__}")
    return template


def _stand_in(llm: RapidLLM) -> None:
    """Be LlamaIndex's default where it would fail to make one, without OpenAI's package or key."""
    try:
        Settings.llm  # noqa: B018 - it is made when it is read
    except (ImportError, ValueError):
        Settings.llm = llm


def cost_of(response: ChatResponse) -> dict[str, Any]:
    """Statistics, usage and the reason of the end, for the metadata of a response."""
    raw: dict[str, Any] = response.raw or {}
    return {**raw.get("rapid", {}), "usage": raw.get("usage"), "finish_reason": raw.get("finish_reason")}


def _text(query: QueryType) -> str:
    return query.query_str if isinstance(query, QueryBundle) else query


def _of_texts(query: str, texts: Sequence[str]) -> Resolved:
    passages = [Passage(text) for text in texts if text.strip()]
    return Resolved(long_context(passages, [], query=query, place=PLACE) if passages else None)


def _metadata(nodes: Sequence[NodeWithScore], more: Sequence[NodeWithScore] | None) -> dict[str, Any]:
    return {scored.node.node_id: scored.node.metadata for scored in (*nodes, *(more or ()))}


def _once(text: str) -> Generator[str, None, None]:
    yield text


async def _aonce(text: str) -> AsyncGenerator[str, None]:
    yield text


def _tokens(responses: ChatResponseGen, metadata: dict[str, Any]) -> Generator[str, None, None]:
    """The pieces of a stream; the statistics are in the metadata when it has ended."""
    for response in responses:
        if response.raw is not None:
            metadata["rapid"] = cost_of(response)
        yield response.delta or ""


async def _atokens(responses: ChatResponseAsyncGen, metadata: dict[str, Any]) -> AsyncGenerator[str, None]:
    async for response in responses:
        if response.raw is not None:
            metadata["rapid"] = cost_of(response)
        yield response.delta or ""
