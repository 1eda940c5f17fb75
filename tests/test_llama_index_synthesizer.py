"""Query engines over real stores: whole documents for the target, nodes for the drafter."""

from __future__ import annotations

import asyncio

import pytest
from helpers import ticks_while
from integration_helpers import roles
from llama_index.core import Document, PromptTemplate, Settings, StorageContext, VectorStoreIndex
from llama_index.core.base.response.schema import PydanticResponse
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.synthesis import SynthesizeEndEvent, SynthesizeStartEvent
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index_helpers import WordEmbedding, chroma_store
from pydantic import BaseModel, Field

from rapid_core import InputError, RapidEngine
from rapid_core.testing import ScriptedEngine, WordEncoder, tiny_engine, tiny_model
from rapid_integrations.llama_index import RapidLLM, RapidSynthesizer, RapidWarning, from_retriever

TOWNS = {
    town: "\n\n".join(f"On day {day} the ferry to {town} leaves at {day} from pier {day * 3}." for day in range(1, 40))
    for town in ("Oslo", "Lima", "Rome")
}
QUESTION = "When does the ferry to Lima leave on day 7?"
SPLITTER = SentenceSplitter(chunk_size=60, chunk_overlap=20)


def documents(**more):
    return [
        Document(text=text, id_=town, metadata={"file_name": f"{town}.txt", "path": "/a/long/path", **more}, **HIDDEN)
        for town, text in TOWNS.items()
    ]


# Metadata that readers keep from the model.
HIDDEN = {"excluded_llm_metadata_keys": ["path"]}


def index_of(store=None, given=None, **options):
    return VectorStoreIndex.from_documents(
        given or documents(),
        storage_context=StorageContext.from_defaults(vector_store=store or chroma_store()),
        **{"embed_model": WordEmbedding(), "transformations": [SPLITTER], **options},
    )


@pytest.fixture(scope="module")
def index():
    """Chroma with three documents, and nothing in the docstore."""
    return index_of()


def llm_of(*answers, **options):
    return RapidLLM(engine=ScriptedEngine(list(answers) or ["At seven."], **options))


def engine_of(index, synthesizer, **options):
    return index.as_query_engine(response_synthesizer=synthesizer, similarity_top_k=3, **options)


def asked(llm):
    return llm.engine.requests[-1]


@pytest.fixture
def wide():
    with tiny_engine(window=16384) as made:
        made.target.model.generation_config.eos_token_id = -1
        yield made


# What target and drafter read


def test_the_target_reads_the_whole_document_and_the_drafter_what_was_retrieved(index, wide):
    llm = RapidLLM(engine=wide, max_tokens=6)
    response = engine_of(index, RapidSynthesizer(llm=llm)).query(QUESTION)
    target, drafter = roles(wide)
    assert TOWNS["Lima"] in target and target.count(QUESTION) == drafter.count(QUESTION) == 1
    assert "ferry to Lima leaves at 7" in drafter and len(drafter) < len(target) / 2
    assert all(node.node.get_content(MetadataMode.NONE).split("\n\n")[0] in drafter for node in response.source_nodes)
    cost = response.metadata["rapid"]
    assert cost["usage"]["completion_tokens"] == 6 and cost["drafter_prompt_tokens"] > 0 and cost["notes"] == []
    assert len(response.source_nodes) == 3 and set(response.metadata) > {n.node.node_id for n in response.source_nodes}


def test_a_synthesizer_finds_the_index_of_the_engine_that_it_is_in(monkeypatch):
    """As the documentation of LlamaIndex puts one in: no word about where documents are."""
    monkeypatch.setattr(Settings, "_llm", None)
    llm = llm_of()
    index_of().as_query_engine(response_synthesizer=RapidSynthesizer(llm=llm)).query(QUESTION)
    assert TOWNS["Lima"] in asked(llm).context.documents[0].text
    # Nobody had a default, and this one was asked for.
    assert Settings.llm is llm
    other = llm_of()
    RapidSynthesizer(llm=other)
    assert Settings.llm is llm
    assert RapidSynthesizer()._rapid is llm


def test_each_engine_of_a_process_reads_its_own_index():
    others = {town: text.replace("ferry", "coach") for town, text in TOWNS.items()}
    left, right = (llm_of() for _ in range(2))
    one = engine_of(index_of(), RapidSynthesizer(llm=left))
    two = engine_of(
        index_of(given=[Document(text=text, id_=town) for town, text in others.items()]), RapidSynthesizer(right)
    )
    for engine in (one, two, one):
        engine.query(QUESTION)
    assert "ferry" in asked(left).context.documents[0].text and "coach" in asked(right).context.documents[0].text


def test_metadata_is_read_once_and_what_is_hidden_from_models_is_not(index):
    llm = llm_of()
    engine_of(index, RapidSynthesizer(llm=llm)).query(QUESTION)
    context = asked(llm).context
    (document,) = context.documents
    assert document.text.startswith("file_name: Lima.txt\n\nOn day 1 ") and "/a/long/path" not in document.text
    read = "\n".join(chunk.text for chunk in context.chunks)
    assert read.count("file_name: Lima.txt") == 1 and "/a/long/path" not in read
    plain = RapidSynthesizer(llm=llm, metadata_mode=MetadataMode.NONE, drafter_metadata_mode=MetadataMode.NONE)
    engine_of(index, plain).query(QUESTION)
    context = asked(llm).context
    assert context.documents[0].text == TOWNS["Lima"] and "file_name" not in str(context.chunks)
    engine_of(index, RapidSynthesizer(llm=llm, drafter_metadata_mode=MetadataMode.ALL)).query(QUESTION)
    assert "/a/long/path" in asked(llm).context.chunks[0].text


@pytest.mark.parametrize("place", ["document_loader", "docstore", "vector_store", "index"])
def test_documents_come_from_where_the_caller_says(place):
    index, llm = index_of(), llm_of()
    other = "Another edition. " + TOWNS["Lima"]
    docstore = SimpleDocumentStore()
    docstore.add_documents([Document(text=other, id_="Lima")])
    given = {
        "document_loader": {"Lima": other}.get,
        "docstore": docstore,
        "vector_store": index.vector_store,
        "index": index,
    }[place]
    engine_of(index, RapidSynthesizer(llm=llm, **{place: given})).query(QUESTION)
    text = asked(llm).context.documents[0].text
    assert TOWNS["Lima"] in text and text.startswith("Another") == (place in ("document_loader", "docstore"))


def test_a_document_of_20000_words_costs_one_call():
    words = " ".join(f"word{n}" for n in range(20_000))
    llm = llm_of("yes", window=50_000)
    synthesizer = RapidSynthesizer(llm=llm, document_loader=lambda _: words)
    node = TextNode(text=words)
    with pytest.warns(RapidWarning, match="name no document"):
        response = synthesizer.synthesize("Which word?", [NodeWithScore(node=node, score=1.0)])
    assert len(llm.engine.requests) == 1 and str(response) == "yes"
    assert words in str(asked(llm).context)
    assert response.metadata["rapid"]["usage"]["prompt_tokens"] > 20_000


def test_nodes_that_are_the_whole_document_are_told_of(index):
    whole = index_of(given=documents()[:1], transformations=[SentenceSplitter(chunk_size=4000)])
    llm = llm_of()
    response = engine_of(whole, RapidSynthesizer(llm=llm)).query(QUESTION)
    assert any("nearly all of the documents" in note for note in response.metadata["rapid"]["notes"])
    assert TOWNS["Oslo"] in asked(llm).context.chunks[0].text


def test_several_documents_over_the_window_are_left_out_by_name_with_a_warning(index):
    with tiny_engine(window=6000) as engine:
        engine.target.model.generation_config.eos_token_id = -1
        llm = RapidLLM(engine=engine, max_tokens=4)
        nodes = index.as_retriever(similarity_top_k=40).retrieve("the ferry")
        assert {node.node.ref_doc_id for node in nodes} == set(TOWNS)
        with pytest.warns(RapidWarning, match=r"left out: \w+\.txt"):
            response = RapidSynthesizer(llm=llm, index=index).synthesize("the ferry", nodes)
    left = response.metadata["rapid"]["left_out"]
    assert left and all(name.endswith(".txt") for name in left)


def test_a_prompt_is_plain_text_where_a_simple_summary_has_the_repr_of_a_list(index, wide):
    """LlamaIndex's own synthesizer of the name hands its template a list, and cuts it to its window (issue 22392)."""
    engine = engine_of(
        index, RapidSynthesizer(llm=RapidLLM(engine=wide, max_tokens=2)), response_mode="simple_summarize"
    )
    engine.query(QUESTION)
    for prompt in roles(wide):
        assert "['" not in prompt and "\\n" not in prompt
    assert TOWNS["Lima"] in roles(wide)[0]


# Ways to ask


def test_a_stream_gives_the_same_text_and_its_statistics_at_the_end(index, wide):
    llm = RapidLLM(engine=wide, max_tokens=8)
    whole = engine_of(index, RapidSynthesizer(llm=llm)).query(QUESTION)
    streamed = engine_of(index, RapidSynthesizer(llm=llm, streaming=True)).query(QUESTION)
    assert "rapid" not in streamed.metadata
    assert "".join(streamed.response_gen) == str(whole)
    assert streamed.metadata["rapid"]["usage"]["completion_tokens"] == 8
    assert [n.node.node_id for n in streamed.source_nodes] == [n.node.node_id for n in whole.source_nodes]


async def test_the_event_loop_stays_free(index, wide):
    llm = RapidLLM(engine=wide, max_tokens=24)
    whole = engine_of(index, RapidSynthesizer(llm=llm)).query(QUESTION)
    answer, ticks = await ticks_while(engine_of(index, RapidSynthesizer(llm=llm)).aquery(QUESTION))
    assert str(answer) == str(whole) and ticks > 2

    async def read():
        response = await engine_of(index, RapidSynthesizer(llm=llm, streaming=True)).aquery(QUESTION)
        return "".join([piece async for piece in response.async_response_gen()]), response.metadata["rapid"]

    (text, cost), ticks = await ticks_while(read())
    assert text == str(whole) and cost["usage"]["completion_tokens"] == 24 and ticks > 2


async def test_questions_at_once_are_answered_as_one_by_one(index, wide):
    llm = RapidLLM(engine=wide, max_tokens=4)
    engine = engine_of(index, RapidSynthesizer(llm=llm))
    questions = [f"When does the ferry to {town} leave on day 9?" for town in TOWNS]
    alone = [str(engine.query(question)) for question in questions]
    together = await asyncio.gather(*(engine.aquery(question) for question in questions))
    assert [str(answer) for answer in together] == alone


def test_the_prompt_is_the_applications_own(index):
    llm = llm_of()
    template = PromptTemplate("By {tone} reading of {context_str}, say: {query_str}")
    engine = engine_of(index, RapidSynthesizer(llm=llm, text_qa_template=template))
    node = index.as_retriever(similarity_top_k=1).retrieve(QUESTION)
    engine._response_synthesizer.synthesize(QUESTION, node, tone="slow")
    assert (
        asked(llm).messages[0].content.startswith("By slow reading of ") and QUESTION in asked(llm).messages[0].content
    )
    changed = PromptTemplate("{context_str}\n\nNow: {query_str}")
    engine.update_prompts({"response_synthesizer:text_qa_template": changed})
    assert engine.get_prompts()["response_synthesizer:text_qa_template"].template == changed.template
    engine.query(QUESTION)
    assert asked(llm).messages[0].content.endswith(f"Now: {QUESTION}")
    engine.update_prompts({"response_synthesizer:text_qa_template": PromptTemplate("Just {query_str}")})
    for template, times in (("Just {query_str}", 0), ("{context_str}\n{query_str}\n{context_str}", 2)):
        with pytest.raises(InputError, match=f"must have {{context_str}} once, .* stands there {times} times"):
            RapidSynthesizer(llm=llm, text_qa_template=template).synthesize(QUESTION, node)
    with pytest.raises(InputError, match="must be a LlamaIndex prompt template, got int"):
        RapidSynthesizer(llm=llm, text_qa_template=7)


class Departure(BaseModel):
    hour: int = Field(ge=0, le=24)
    town: str = Field(max_length=8)


@pytest.mark.parametrize("how", ["output_cls", "structured llm"])
def test_an_answer_may_be_an_object(how, index):
    with tiny_engine(window=16384) as engine:
        llm = RapidLLM(engine=engine, max_tokens=80, temperature=1.0)
        if how == "output_cls":
            synthesizer = RapidSynthesizer(llm=llm, output_cls=Departure)
        else:
            synthesizer = RapidSynthesizer(llm=llm.as_structured_llm(Departure))
        response = engine_of(index, synthesizer).query(QUESTION)
        assert isinstance(response, PydanticResponse) and isinstance(response.response, Departure)
        assert response.metadata["rapid"]["drafter_prompt_tokens"] > 0


class Hearing(BaseEventHandler):
    heard: list = Field(default_factory=list)

    def handle(self, event, **_):
        self.heard.append(event)


async def test_the_events_of_a_synthesis_are_fired_once_each(index):
    hearing, debug = Hearing(heard=[]), LlamaDebugHandler(print_trace_on_end=False)
    dispatcher = get_dispatcher()
    dispatcher.add_event_handler(hearing)
    try:
        manager = CallbackManager([debug])
        synthesizer = RapidSynthesizer(llm=llm_of(), callback_manager=manager, index=index)
        nodes = index.as_retriever(similarity_top_k=1).retrieve(QUESTION)
        first = synthesizer.synthesize(QUESTION, nodes)
        second = await synthesizer.asynthesize(QueryBundle(QUESTION), nodes)
    finally:
        dispatcher.event_handlers.remove(hearing)
    ours = [e for e in hearing.heard if isinstance(e, (SynthesizeStartEvent, SynthesizeEndEvent))]
    assert [type(e) for e in ours] == [SynthesizeStartEvent, SynthesizeEndEvent] * 2
    assert [e.response for e in ours[1::2]] == [first, second]
    assert len(debug.get_event_pairs(CBEventType.SYNTHESIZE)) == 2
    assert len(debug.get_event_pairs(CBEventType.LLM)) == 2


# What may go wrong


def test_without_nodes_the_answer_is_llamaindexs_own_and_a_warning_says_why():
    llm = llm_of()
    for streaming in (False, True):
        synthesizer = RapidSynthesizer(llm=llm, streaming=streaming, empty_response="Nothing here.")
        with pytest.warns(RapidWarning, match="returned nothing"):
            response = synthesizer.synthesize(QUESTION, [])
        assert str(response) == "Nothing here." and "returned nothing" in response.metadata["rapid"]["notes"][0]
    assert llm.engine.requests == []


async def test_without_nodes_an_event_loop_gets_the_same():
    for streaming in (False, True):
        with pytest.warns(RapidWarning, match="returned nothing"):
            response = await RapidSynthesizer(llm=llm_of(), streaming=streaming).asynthesize(QUESTION, [])
        text = "".join([t async for t in response.async_response_gen()]) if streaming else str(response)
        assert text == "Empty Response"


def nodes_of(*texts, source=None):
    return [NodeWithScore(node=TextNode(text=text, metadata={"page": n}), score=1.0) for n, text in enumerate(texts)]


def test_nodes_without_a_document_are_read_alone_with_a_warning(index):
    texts = [f"The mill of valley {n} has {n} wheels." for n in range(8)]
    llm = llm_of()
    with pytest.warns(RapidWarning, match="8 of 8 chunks name no document"):
        response = RapidSynthesizer(llm=llm, index=index).synthesize("Which mill?", nodes_of(*texts))
    context = asked(llm).context
    assert all(text in context.text for text in texts) and len(context.chunks) == 2
    assert "page: 3\n\nThe mill of valley 3" in context.text
    assert any("name no document" in note for note in response.metadata["rapid"]["notes"])
    with pytest.warns(RapidWarning, match="pass index=, docstore=, vector_store= or document_loader="):
        RapidSynthesizer(llm=llm).synthesize("Which mill?", nodes_of(*texts))


def test_of_some_nodes_with_a_document_and_some_without_all_are_read(index):
    llm = llm_of()
    found = index.as_retriever(similarity_top_k=1).retrieve(QUESTION)
    with pytest.warns(RapidWarning, match="1 of 2 chunks name no document"):
        RapidSynthesizer(llm=llm, index=index).synthesize(QUESTION, [*found, *nodes_of("A mill stands alone.")])
    context = asked(llm).context
    assert TOWNS["Lima"] in context.documents[0].text and "A mill stands alone." in context.documents[1].text
    assert "A mill stands alone." in context.chunks[-1].text


def test_text_that_a_document_does_not_hold_is_read_beside_it(index):
    docstore = SimpleDocumentStore()
    docstore.add_documents([Document(text="Another edition of the timetable.", id_="Lima")])
    llm = llm_of()
    found = index.as_retriever(similarity_top_k=2).retrieve(QUESTION)
    with pytest.warns(RapidWarning, match="2 of 2 chunks hold text that their document does not hold"):
        RapidSynthesizer(llm=llm, docstore=docstore).synthesize(QUESTION, found)
    texts = [document.text for document in asked(llm).context.documents]
    assert texts[0] == "Another edition of the timetable." and len(texts) == 3
    assert all(any(node.node.get_content(MetadataMode.NONE) in text for text in texts) for node in found)


def test_nodes_without_text_are_no_empty_prompt():
    llm = llm_of()
    with pytest.warns(RapidWarning, match="none of 1 .*chunks holds text: plain decoding"):
        RapidSynthesizer(llm=llm).synthesize("Which mill?", nodes_of(" "))
    assert asked(llm).context is None


def test_a_drafter_with_a_small_window_reads_the_best_nodes():
    with RapidEngine(tiny_model(window=16384), tiny_model(window=6000, seed=1), encoder=WordEncoder()) as engine:
        llm = RapidLLM(engine=engine, max_tokens=6)
        index = index_of()
        nodes = index.as_retriever(similarity_top_k=100).retrieve(QUESTION)
        response = RapidSynthesizer(llm=llm, index=index).synthesize(QUESTION, nodes)
        target, drafter = roles(engine)
        assert all(text in target for text in TOWNS.values()) and "ferry to Lima leaves at 7" in drafter
        cost = response.metadata["rapid"]
        assert any("has no room for" in note for note in cost["notes"]) and 0 < cost["drafter_prompt_tokens"] < 6000
        assert "worst-ranked" in str(cost["notes"])


def test_a_source_that_is_stored_as_the_word_none_is_none():
    store = chroma_store()
    index = VectorStoreIndex(
        [TextNode(text="The mill of the valley has nine wheels.")],
        storage_context=StorageContext.from_defaults(vector_store=store),
        embed_model=WordEmbedding(),
    )
    llm = llm_of()
    with pytest.warns(RapidWarning, match="1 of 1 chunks name no document"):
        engine_of(index, RapidSynthesizer(llm=llm)).query("How many wheels has the mill?")
    assert asked(llm).context.text == "The mill of the valley has nine wheels."


def test_a_docstore_that_lost_its_documents_is_a_warning_that_names_them(index):
    llm = llm_of()
    found = index.as_retriever(similarity_top_k=2).retrieve(QUESTION)
    with pytest.warns(RapidWarning, match="no document was found for 'Lima'"):
        response = RapidSynthesizer(llm=llm, docstore=SimpleDocumentStore()).synthesize(QUESTION, found)
    assert any("'Lima'" in note for note in response.metadata["rapid"]["notes"])
    context = asked(llm).context
    assert all(node.node.get_content(MetadataMode.NONE) in context.text for node in found)


class Away(SimpleDocumentStore):
    def get_document(self, *_, **__):
        raise ConnectionError("the docstore is away")


async def test_a_docstore_that_fails_reaches_the_caller_or_is_passed_over_with_a_warning(index):
    found = index.as_retriever(similarity_top_k=2).retrieve(QUESTION)
    for options, llm in (({}, llm_of()), ({"on_retrieval_error": "plain"}, llm_of())):
        synthesizer = RapidSynthesizer(llm=llm, docstore=Away(), **options)
        if not options:
            with pytest.raises(ConnectionError, match="away"):
                synthesizer.synthesize(QUESTION, found)
            with pytest.raises(ConnectionError, match="away"):
                await synthesizer.asynthesize(QUESTION, found)
            continue
        with pytest.warns(RapidWarning, match="without a drafter: ConnectionError: the docstore is away"):
            response = await synthesizer.asynthesize(QUESTION, found)
        assert not asked(llm).speculation.enabled and found[0].node.get_content() in asked(llm).context.text
        assert "the docstore is away" in response.metadata["rapid"]["notes"][-1]


class Broken(BaseRetriever):
    def _retrieve(self, query_bundle):
        raise ConnectionError("the store is away")


def test_a_retriever_that_fails_reaches_the_caller_and_may_be_done_without():
    llm = llm_of()
    with pytest.raises(ConnectionError, match="away"):
        RetrieverQueryEngine(Broken(), RapidSynthesizer(llm=llm)).query(QUESTION)
    with pytest.raises(ConnectionError, match="away"):
        llm.complete(QUESTION, rapid_context=from_retriever(Broken()))
    with pytest.warns(RapidWarning, match="without a drafter"):
        answer = llm.complete(QUESTION, rapid_context=from_retriever(Broken(), on_retrieval_error="plain"))
    assert answer.text == "At seven." and "away" in answer.raw["rapid"]["notes"][-1]


def test_other_models_are_refused(monkeypatch):
    with pytest.raises(InputError, match="RapidSynthesizer needs a RapidLLM, as llm= or as Settings.llm, got MockLLM"):
        RapidSynthesizer(llm=MockLLM())
    monkeypatch.setattr(Settings, "_llm", MockLLM())
    with pytest.raises(InputError, match="got MockLLM"):
        RapidSynthesizer()
    with pytest.raises(InputError, match="docstore must be"):
        RapidSynthesizer(llm=llm_of(), docstore="chroma")


# from_retriever


async def test_a_retriever_is_asked_at_each_call_and_its_documents_are_read(index, wide):
    llm = RapidLLM(engine=wide, max_tokens=4)
    context = from_retriever(index.as_retriever(similarity_top_k=2))
    llm.complete(QUESTION, rapid_context=context)
    target, drafter = roles(wide)
    assert TOWNS["Lima"] in target and TOWNS["Rome"] not in target and len(drafter) < len(target) / 2
    await llm.acomplete("When does the ferry to Rome leave on day 7?", rapid_context=context)
    target, drafter = roles(wide)
    assert TOWNS["Rome"] in target and "ferry to Rome leaves at 7" in drafter
    assert "ferry" not in repr(context)
    with pytest.raises(InputError, match="as_retriever"):
        from_retriever(index)


def test_a_retriever_that_finds_nothing_is_a_warning():
    class Empty(BaseRetriever):
        def _retrieve(self, query_bundle):
            return []

    llm = llm_of()
    with pytest.warns(RapidWarning, match="returned nothing"):
        llm.complete(QUESTION, rapid_context=from_retriever(Empty()))
    assert asked(llm).context is None and not asked(llm).speculation.enabled
