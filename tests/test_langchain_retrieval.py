"""The application's own stores and retrievers: chunks for the drafter, whole documents for the target."""

from __future__ import annotations

import json
import warnings

import pytest
from integration_helpers import roles
from langchain_classic.chains import create_retrieval_chain
from langchain_classic.retrievers import MultiVectorRetriever, ParentDocumentRetriever
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import HumanMessage
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.stores import InMemoryStore
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_helpers import WordEmbeddings, chroma
from langchain_qdrant import QdrantVectorStore
from langchain_text_splitters import RecursiveCharacterTextSplitter

from rapid_core import InputError, OptionError, RapidEngine, Retrieval
from rapid_core.testing import ScriptedEngine, tiny_pair
from rapid_integrations.langchain import (
    ChatRapid,
    RapidContext,
    RapidWarning,
    create_rapid_documents_chain,
    from_retriever,
    from_vector_store,
)

LEASE = "\n\n".join(f"Clause {n}. The tenant of house {n} pays {n}0 crowns on day {n}." for n in range(1, 9))
ROADS = "\n\n".join(f"Road {n} runs from gate {n} to the mill, {n} miles long." for n in range(1, 9))
DOCUMENTS = {"lease.txt": LEASE, "roads.txt": ROADS}
SPLITTER = RecursiveCharacterTextSplitter(chunk_size=140, chunk_overlap=70)
PROMPT = ChatPromptTemplate.from_messages(
    [("system", "Answer from this:\n\n{context}\n\nBe brief."), ("human", "{input}")]
)
QUESTION = "What does the tenant of house 3 pay?"


def chunks():
    whole = [Document(text, metadata={"source": name}) for name, text in DOCUMENTS.items()]
    return SPLITTER.split_documents(whole)


def filled(store):
    store.add_documents(chunks())
    return store


def documents_of(asked):
    return [(document.name, document.text) for document in asked.context.documents]


class Failing(BaseRetriever):
    def _get_relevant_documents(self, query, *, run_manager):
        raise ConnectionError("the store is away")


class Fixed(BaseRetriever):
    documents: list

    def _get_relevant_documents(self, query, *, run_manager):
        return self.documents


class Empty(BaseRetriever):
    def _get_relevant_documents(self, query, *, run_manager):
        return []


# The chain


def chain_of(chat, retriever, **options):
    return create_retrieval_chain(retriever, create_rapid_documents_chain(chat, PROMPT, **options))


def test_the_target_reads_whole_documents_where_the_prompt_wants_them_and_the_drafter_the_chunks(engine):
    retriever = filled(chroma()).as_retriever(search_kwargs={"k": 3})
    chain = chain_of(ChatRapid(engine=engine, max_tokens=4), retriever, document_loader=DOCUMENTS.__getitem__)
    output = chain.invoke({"input": QUESTION})
    assert isinstance(output["answer"], str) and [d.metadata["source"] for d in output["context"]] == ["lease.txt"] * 3
    target, drafter = roles(engine)
    assert f"Answer from this:\n\n{LEASE}\n\nBe brief." in target and "\ue000" not in target + drafter
    assert "Road 1" not in target
    read = drafter[drafter.index("Answer from this:\n\n") + 19 : drafter.index("\n\nBe brief.")]
    assert 0 < len(read) < len(LEASE) and "tenant of house 3 pays" in read
    # In the order of the document, and what overlaps stands there once.
    pieces = read.split("\n\n")
    assert sorted(pieces, key=LEASE.find) == pieces and len(set(pieces)) == len(pieces)


def test_the_chain_streams_and_works_on_an_event_loop(engine):
    retriever = filled(chroma()).as_retriever(search_kwargs={"k": 3})
    chain = chain_of(ChatRapid(engine=engine, max_tokens=12), retriever, document_loader=DOCUMENTS.__getitem__)
    whole = chain.invoke({"input": QUESTION})["answer"]
    pieces = [piece["answer"] for piece in chain.stream({"input": QUESTION}) if "answer" in piece]
    assert "".join(pieces) == whole and len(pieces) > 1


async def test_the_chain_on_an_event_loop(engine):
    retriever = filled(chroma()).as_retriever(search_kwargs={"k": 3})
    store = InMemoryStore()
    store.mset(list(DOCUMENTS.items()))
    chain = chain_of(ChatRapid(engine=engine, max_tokens=12), retriever, docstore=store)
    whole = (await chain.ainvoke({"input": QUESTION}))["answer"]
    assert whole == chain.invoke({"input": QUESTION})["answer"]
    assert (
        "".join([piece["answer"] async for piece in chain.astream({"input": QUESTION}) if "answer" in piece]) == whole
    )


def test_a_second_question_about_the_same_documents_reads_them_from_the_cache(engine):
    retriever = filled(chroma()).as_retriever(search_kwargs={"k": 6})
    chat = ChatRapid(engine=engine, max_tokens=4)
    chain = create_rapid_documents_chain(chat, PROMPT, document_loader=DOCUMENTS.__getitem__, output_parser=None)
    for question in ("Which road runs to the mill, tenant?", "tenant, which road runs to the mill of house 2?"):
        chain.invoke({"context": retriever.invoke(question), "input": question})
    target, _ = roles(engine)
    assert LEASE in target and ROADS in target
    assert engine._target.store is not None
    answer = chat.bind(
        rapid_context=RapidContext(documents=[Document(t, metadata={"source": n}) for n, t in DOCUMENTS.items()])
    ).invoke(QUESTION)
    again = chat.bind(
        rapid_context=RapidContext(
            documents=[Document(t, metadata={"source": n}) for n, t in reversed(DOCUMENTS.items())]
        )
    ).invoke("Which road is 2 miles long?")
    assert answer.content is not None
    assert again.usage_metadata["input_token_details"]["cache_read"] > len(LEASE) + len(ROADS)


@pytest.mark.parametrize("kind", [ParentDocumentRetriever, MultiVectorRetriever])
def test_a_retriever_with_both_sides_gives_both(kind):
    engine, docstore = ScriptedEngine(["done"]), InMemoryStore()
    if kind is ParentDocumentRetriever:
        retriever = kind(vectorstore=chroma(), docstore=docstore, child_splitter=SPLITTER, search_kwargs={"k": 2})
        retriever.add_documents([Document(text) for text in DOCUMENTS.values()], ids=list(DOCUMENTS))
    else:
        retriever = kind(vectorstore=chroma(), docstore=docstore, id_key="from", search_kwargs={"k": 2})
        retriever.vectorstore.add_documents(
            [Document(c.page_content, metadata={"from": c.metadata["source"]}) for c in chunks()]
        )
        docstore.mset([(name, Document(text)) for name, text in DOCUMENTS.items()])
    ChatRapid(engine=engine).bind(rapid_context=from_retriever(retriever)).invoke(QUESTION)
    chain = create_retrieval_chain(
        retriever, create_rapid_documents_chain(ChatRapid(engine=engine), PROMPT, retriever=retriever)
    )
    assert chain.invoke({"input": QUESTION})["answer"] == "done"
    for asked in engine.requests:
        assert documents_of(asked) == [("lease.txt", LEASE)]
        assert 0 < len(asked.context.chunks) <= 2 and all(chunk.text in LEASE for chunk in asked.context.chunks)


def test_parents_that_are_parts_are_said_to_be_parts():
    retriever = ParentDocumentRetriever(
        vectorstore=chroma(), docstore=InMemoryStore(), child_splitter=SPLITTER, parent_splitter=SPLITTER
    )
    retriever.add_documents([Document(LEASE)])
    chat = ChatRapid(engine=ScriptedEngine(["done"])).bind(rapid_context=from_retriever(retriever))
    with pytest.warns(RapidWarning, match="parent_splitter are parts"):
        answer = chat.invoke(QUESTION)
    assert "parts" in answer.response_metadata["rapid"]["notes"][0]


def test_documents_that_are_missing_are_named_and_their_chunks_still_read():
    engine = ScriptedEngine(["done"])
    retriever = filled(chroma()).as_retriever(search_kwargs={"k": 16})
    store = InMemoryStore()
    store.mset([("lease.txt", LEASE)])
    context = from_retriever(retriever, docstore=store)
    with pytest.warns(RapidWarning, match=r"no document was found for 'roads.txt'"):
        answer = ChatRapid(engine=engine).bind(rapid_context=context).invoke(QUESTION)
    assert any("roads.txt" in note for note in answer.response_metadata["rapid"]["notes"])
    assert documents_of(engine.requests[0]) == [("lease.txt", LEASE)]
    assert any("Road" in chunk.text for chunk in engine.requests[0].context.chunks)


def test_without_documents_the_target_reads_the_chunks_and_a_warning_says_so():
    engine = ScriptedEngine(["done"])
    retriever = filled(chroma()).as_retriever(search_kwargs={"k": 2})
    with pytest.warns(RapidWarning, match="give docstore= or document_loader="):
        chain_of(ChatRapid(engine=engine), retriever).invoke({"input": QUESTION})
    context = engine.requests[0].context
    assert context.text == "\n\n".join(dict.fromkeys(d.page_content for d in retriever.invoke(QUESTION)))
    assert [chunk.text for chunk in context.chunks] == [retriever.invoke(QUESTION)[0].page_content]
    strange = filled(chroma()).as_retriever()
    with pytest.warns(RapidWarning, match="name no document under the metadata key 'owner'"):
        chain_of(ChatRapid(engine=engine), strange, document_loader=DOCUMENTS.__getitem__, id_key="owner").invoke(
            {"input": QUESTION}
        )


def test_chunks_without_documents_need_no_encoder_of_the_engine():
    with RapidEngine(*tiny_pair(window=4096), retrieval=Retrieval(encoder="/nowhere")) as made:
        context = from_vector_store(filled(chroma()), k=8)
        with pytest.warns(RapidWarning, match="no whole documents"):
            answer = ChatRapid(engine=made, max_tokens=4).bind(rapid_context=context).invoke(QUESTION)
        target, drafter = roles(made)
        assert answer.response_metadata["rapid"]["drafted"] > 0 and len(drafter) < len(target) / 2
        assert json.dumps(answer.response_metadata, allow_nan=False)


def test_an_empty_document_is_missing_and_ids_may_be_anything():
    engine = ScriptedEngine(["done"])
    given = [Document("a", metadata={"source": 7}), Document("b", metadata={"source": "two\nlines"})]
    for documents in ({7: "the a", "two\nlines": "the b"}, {7: "the a", "two\nlines": " "}):
        context = from_retriever(Fixed(documents=given), document_loader=documents.get)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            ChatRapid(engine=engine).bind(rapid_context=context).invoke("q")
        read = documents_of(engine.requests[-1])
        if documents["two\nlines"].strip():
            assert read == [("7", "the a"), ("two lines", "the b")] and not said
        else:
            assert read == [("7", "the a")] and "no document was found for 'two" in str(said[0].message)


def test_document_prompts_and_variables_are_those_of_the_stock_chain():
    engine = ScriptedEngine(["done"])
    prompt = ChatPromptTemplate.from_messages([("human", "{question}\n\n{papers}")])
    chain = create_rapid_documents_chain(
        ChatRapid(engine=engine).bind(stop=["x"]),
        prompt,
        document_prompt=PromptTemplate.from_template("<{source}>\n{page_content}"),
        document_variable_name="papers",
        query_key="question",
        document_loader=lambda source: Document(DOCUMENTS[source], metadata={"source": source.upper()}),
    )
    chain.invoke({"papers": chunks()[:1], "question": QUESTION})
    asked = engine.requests[0]
    assert documents_of(asked) == [("lease.txt", f"<LEASE.TXT>\n{LEASE}")]
    assert (asked.context.query, asked.sampling.stop) == (QUESTION, ("x",))
    assert asked.context.place in asked.messages[0].content


def test_what_the_chain_cannot_work_with_is_refused():
    chat = ChatRapid(engine=ScriptedEngine(["x"]))
    with pytest.raises(InputError, match="must have the variable 'context'"):
        create_rapid_documents_chain(chat, ChatPromptTemplate.from_messages([("human", "{input}")]))
    with pytest.raises(InputError, match="needs a ChatRapid"):
        create_rapid_documents_chain(FakeListChatModel(responses=["x"]), PROMPT)
    with pytest.raises(InputError, match="got both"):
        create_rapid_documents_chain(chat, PROMPT, docstore=InMemoryStore(), document_loader=str)
    twice = ChatPromptTemplate.from_messages([("human", "{context} {context} {input}")])
    with pytest.raises(InputError, match="must have 'context' once.*2 times"):
        create_rapid_documents_chain(chat, twice, document_loader=DOCUMENTS.get).invoke(
            {"context": chunks()[:1], "input": "q"}
        )
    with pytest.raises(InputError, match="list of Document"):
        create_rapid_documents_chain(chat, PROMPT).invoke({"context": "text", "input": "q"})
    with pytest.raises(OptionError, match="on_retrieval_error"):
        create_rapid_documents_chain(chat, PROMPT, on_retrieval_error="ignore")
    retriever = ParentDocumentRetriever(vectorstore=chroma(), docstore=InMemoryStore(), child_splitter=SPLITTER)
    with pytest.raises(InputError, match="query_key="):
        create_rapid_documents_chain(chat, PROMPT, retriever=retriever).invoke({"context": [], "q": "Who?"})


# A chat model with a store


def stores():
    yield "chroma", chroma
    yield "in memory", lambda: InMemoryVectorStore(WordEmbeddings())
    yield "qdrant", lambda: QdrantVectorStore.from_texts(["nothing to see"], WordEmbeddings(), location=":memory:")


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in stores()])
def test_nothing_but_the_store_changes_with_another_store(make, engine):
    store = filled(make())
    context = from_vector_store(store, k=3, document_loader=DOCUMENTS.__getitem__)
    chat = ChatRapid(engine=engine, max_tokens=4).bind(rapid_context=context)
    answer = chat.invoke([HumanMessage(QUESTION)])
    target, drafter = roles(engine)
    assert LEASE in target and LEASE not in drafter and "tenant of house 3 pays" in drafter
    assert answer.response_metadata["rapid"]["drafted"] > 0 and "Road" not in target


async def test_a_store_on_an_event_loop(engine):
    context = from_vector_store(filled(chroma()), k=3, document_loader=DOCUMENTS.__getitem__)
    chat = ChatRapid(engine=engine, max_tokens=8).bind(rapid_context=context)
    assert (await chat.ainvoke(QUESTION)).content == chat.invoke(QUESTION).content


def test_a_document_at_hand_needs_a_retriever_for_its_chunks_only(engine):
    retriever = filled(chroma()).as_retriever(search_kwargs={"k": 2})
    ChatRapid(engine=engine, max_tokens=2).bind(rapid_context=RapidContext(LEASE, retriever=retriever)).invoke(QUESTION)
    target, drafter = roles(engine)
    assert LEASE in target and LEASE not in drafter and "house 3" in drafter
    chat = ChatRapid(engine=engine, max_tokens=2).bind(rapid_context=RapidContext(LEASE, chunks=["Clause 3."]))
    chat.invoke(QUESTION)
    assert "Clause 3.\n\nWhat does" in roles(engine)[1]


def test_whole_documents_that_do_not_fit_are_named(engine):
    texts = [Document("word " * 100, metadata={"source": f"paper {n}"}) for n in range(4)]
    chat = ChatRapid(engine=engine, max_tokens=4).bind(rapid_context=RapidContext(documents=texts))
    with pytest.warns(RapidWarning, match="left out: paper 1, paper 2, paper 3"):
        answer = chat.invoke("Which word?")
    assert answer.response_metadata["rapid"]["left_out"] == ["paper 1", "paper 2", "paper 3"]


def test_one_document_over_the_window_is_the_callers_choice(engine):
    context = RapidContext("The word is plum. " * 100)
    with pytest.raises(InputError, match="fit="):
        ChatRapid(engine=engine).bind(rapid_context=context).invoke("Which word?")
    answer = ChatRapid(engine=engine, fit="middle", max_tokens=4).bind(rapid_context=context).invoke("Which word?")
    assert "fit='middle'" in " ".join(answer.response_metadata["rapid"]["notes"])


# What goes wrong


def test_a_retriever_that_raises_is_heard(engine):
    chat = ChatRapid(engine=engine, max_tokens=4)
    for call in (
        lambda: chat.bind(rapid_context=from_retriever(Failing())).invoke(QUESTION),
        lambda: list(chat.bind(rapid_context=from_retriever(Failing())).stream(QUESTION)),
        lambda: chain_of(chat, Failing()).invoke({"input": QUESTION}),
    ):
        with pytest.raises(ConnectionError, match="the store is away"):
            call()


async def test_a_retriever_that_raises_is_heard_on_an_event_loop(engine):
    chat = ChatRapid(engine=engine, max_tokens=4).bind(rapid_context=from_retriever(Failing()))
    with pytest.raises(ConnectionError, match="the store is away"):
        await chat.ainvoke(QUESTION)


@pytest.mark.parametrize("where", ["chat", "hook"])
def test_the_answer_is_given_without_a_drafter_where_the_caller_says_so(where, engine):
    chat = ChatRapid(engine=engine, max_tokens=4, on_retrieval_error="plain" if where == "chat" else "raise")
    context = from_retriever(Failing(), on_retrieval_error="plain" if where == "hook" else None)
    with pytest.warns(RapidWarning, match="ConnectionError: the store is away"):
        answer = chat.bind(rapid_context=context).invoke(QUESTION)
    stats = answer.response_metadata["rapid"]
    assert stats["drafted"] == 0 and any("without a drafter" in note for note in stats["notes"])
    assert answer.content == chat.invoke(QUESTION).content


def test_a_loader_that_raises_leaves_the_chunks_where_the_caller_says_so():
    engine = ScriptedEngine(["done"])
    retriever = filled(chroma()).as_retriever(search_kwargs={"k": 2})

    def away(source):
        raise OSError("no such share")

    with pytest.raises(OSError, match="no such share"):
        chain_of(ChatRapid(engine=engine), retriever, document_loader=away).invoke({"input": QUESTION})
    chain = chain_of(ChatRapid(engine=engine), retriever, document_loader=away, on_retrieval_error="plain")
    with pytest.warns(RapidWarning, match="no such share"):
        chain.invoke({"input": QUESTION})
    assert not engine.requests[-1].speculation.enabled and "house 3" in engine.requests[-1].context.text


def test_a_retriever_that_returns_nothing_means_plain_decoding_and_the_statistics_say_so(engine):
    chat = ChatRapid(engine=engine, max_tokens=4)
    answer = chat.bind(rapid_context=from_retriever(Empty())).invoke(QUESTION)
    stats = answer.response_metadata["rapid"]
    assert stats["drafted"] == 0 and any("the retriever returned nothing" in note for note in stats["notes"])
    chain_of(chat, Empty()).invoke({"input": QUESTION})
    assert "Answer from this:\n\n\n\nBe brief." in roles(engine)[0]
    answer = chat.bind(rapid_context=RapidContext(LEASE, retriever=Empty())).invoke(QUESTION)
    assert any("no drafter" in note for note in answer.response_metadata["rapid"]["notes"])
    assert LEASE in roles(engine)[0]


def test_what_is_no_context_is_refused():
    for wrong, what in [
        (RapidContext, "needs text= or documents="),
        (lambda: RapidContext("a", documents=["b"]), "got both"),
        (lambda: RapidContext("a", chunks=["b"], retriever=Empty()), "got both"),
        (lambda: RapidContext(documents=[7]), "got int"),
        (lambda: RapidContext("a", chunks=[7]), "got int"),
        (lambda: from_retriever("store"), "BaseRetriever"),
        (lambda: from_vector_store(Empty()), "VectorStore"),
        (lambda: from_retriever(Empty(), docstore={}), "mget"),
        (lambda: from_retriever(Empty(), document_loader="x"), "callable"),
    ]:
        with pytest.raises(InputError, match=what):
            wrong()
    for k in (0, "3", -1):
        with pytest.raises(OptionError, match="k must be a whole number"):
            from_vector_store(chroma(), k=k)
    with pytest.raises(OptionError, match="on_retrieval_error"):
        from_retriever(Empty(), on_retrieval_error="ignore")
