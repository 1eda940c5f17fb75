"""Chats over documents: one that knows us, and LlamaIndex's own over a RapidLLM."""

from __future__ import annotations

import warnings

import pytest
from helpers import ticks_while
from integration_helpers import roles
from llama_index.core import Document, Settings, StorageContext, SummaryIndex, VectorStoreIndex
from llama_index.core.chat_engine import ContextChatEngine
from llama_index.core.llms import ChatMessage, MockLLM
from llama_index.core.memory import ChatMemoryBuffer, VectorMemory
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode
from llama_index_helpers import WordEmbedding, chroma_store
from pydantic import BaseModel

from rapid_core import InputError, LongHistory, OptionError, PromptTooLongError
from rapid_core.testing import ScriptedEngine, tiny_engine
from rapid_integrations.llama_index import RapidContextChatEngine, RapidLLM, RapidWarning

TOWNS = {
    town: "\n\n".join(f"On day {day} the ferry to {town} leaves at {day} from pier {day * 3}." for day in range(1, 30))
    for town in ("Oslo", "Lima", "Rome")
}


@pytest.fixture(scope="module")
def index():
    return VectorStoreIndex.from_documents(
        [Document(text=text, id_=town, metadata={"file_name": f"{town}.txt"}) for town, text in TOWNS.items()],
        storage_context=StorageContext.from_defaults(vector_store=chroma_store()),
        embed_model=WordEmbedding(),
        transformations=[SentenceSplitter(chunk_size=60, chunk_overlap=20)],
    )


@pytest.fixture
def wide():
    with tiny_engine(window=24576) as made:
        made.target.model.generation_config.eos_token_id = -1
        yield made


def chat_of(index, llm, **options):
    retriever = index if isinstance(index, BaseRetriever) else index.as_retriever(similarity_top_k=2)
    return RapidContextChatEngine.from_defaults(retriever, llm=llm, **{"system_prompt": "Be brief.", **options})


def llm_of(*answers, **options):
    return RapidLLM(engine=ScriptedEngine(list(answers) or ["At seven."], **options))


def asked(llm):
    return llm.engine.requests[-1]


def ferry(town, day=7):
    return f"When does the ferry to {town} leave on day {day}?"


# What is read


def test_a_turn_reads_whole_documents_and_the_drafter_what_was_found(index, wide):
    chat = chat_of(index, RapidLLM(engine=wide, max_tokens=6))
    response = chat.chat(ferry("Lima"))
    target, drafter = roles(wide)
    assert TOWNS["Lima"] in target and "Be brief." in target and "Be brief." in drafter
    assert "ferry to Lima leaves at 7" in drafter and len(drafter) < len(target) / 2
    assert {node.node.ref_doc_id for node in response.source_nodes} == {"Lima"}
    assert response.sources[0].tool_name == "retriever" and response.sources[0].raw_output == response.source_nodes
    assert response.metadata["rapid"]["usage"]["completion_tokens"] == 6
    assert [message.role.value for message in chat.chat_history] == ["user", "assistant"]
    # As LlamaIndex remembers the answer of a stream.
    assert chat.chat_history[-1].content == response.response.strip()


@pytest.mark.parametrize("streamed", [False, True])
def test_the_next_turn_goes_on_in_the_cache(streamed, index, wide):
    chat = chat_of(index, RapidLLM(engine=wide, max_tokens=6))
    before = 0
    for day in range(3, 8):
        if streamed:
            response = chat.stream_chat(ferry("Lima", day))
            assert "".join(response.response_gen)
        else:
            response = chat.chat(ferry("Lima", day))
        usage = response.metadata["rapid"]["usage"]
        # All of the last prompt but for where its answer began.
        assert usage["cached_tokens"] >= before - 2
        before = usage["prompt_tokens"]
    assert before > 1500 and usage["cached_tokens"] > 0.8 * before


def test_a_document_stays_where_it_came_in_when_others_follow(index, wide):
    chat = chat_of(index, RapidLLM(engine=wide, max_tokens=4))
    chat.chat(ferry("Lima"))
    first = chat.chat(ferry("Oslo")).metadata["rapid"]
    target, drafter = roles(wide)
    assert target.index(TOWNS["Lima"]) < target.index(TOWNS["Oslo"]) and "ferry to Oslo leaves at 7" in drafter
    # The first document was there already.
    assert first["usage"]["cached_tokens"] > len(TOWNS["Lima"])
    again = chat.chat(ferry("Lima", 9)).metadata["rapid"]
    target, drafter = roles(wide)
    assert target.index(TOWNS["Lima"]) < target.index(TOWNS["Oslo"]) and "ferry to Lima leaves at 9" in drafter
    assert again["usage"]["cached_tokens"] > len(TOWNS["Lima"]) + len(TOWNS["Oslo"])
    chat.reset()
    chat.chat(ferry("Rome"))
    target, _ = roles(wide)
    assert TOWNS["Lima"] not in target and chat.chat_history[0].content == ferry("Rome")


def test_of_a_long_history_the_drafter_reads_what_matters(index, wide):
    chat = chat_of(index, RapidLLM(engine=wide, max_tokens=4), newest=2)
    talk = []
    for n in range(12):
        talk += [
            ChatMessage(role="user", content=f"Remember: the harbour of bay {n} was built by mason number {n * 11}."),
            ChatMessage(role="assistant", content=f"I shall remember the mason of bay {n}. " + "All is well. " * 9),
        ]
    response = chat.chat("Which mason built the harbour of bay 5?", chat_history=talk)
    target, drafter = roles(wide)
    assert all(f"bay {n} was built" in target for n in range(12))
    assert "bay 5 was built by mason number 55" in drafter and "bay 11 was built" in drafter
    left_out = [n for n in range(10) if f"bay {n} was built" not in drafter]
    assert len(left_out) > 4 and response.metadata["rapid"]["drafter_prompt_tokens"] > 0
    assert (
        response.metadata["rapid"]["drafter_prompt_tokens"] < response.metadata["rapid"]["usage"]["prompt_tokens"] / 2
    )


def test_the_newest_turns_are_so_many_as_asked_for(index):
    llm = llm_of()
    chat_of(index, llm, newest=5).chat(ferry("Lima"))
    assert asked(llm).context.history == LongHistory(newest=5)
    with pytest.raises(OptionError, match="newest"):
        chat_of(index, llm, newest=0)


async def test_an_event_loop_stays_free_and_gets_the_same(index, wide):
    llm = RapidLLM(engine=wide, max_tokens=24)
    whole = chat_of(index, llm).chat(ferry("Lima")).response
    answer, ticks = await ticks_while(chat_of(index, llm).achat(ferry("Lima")))
    assert answer.response == whole and ticks > 2
    chat = chat_of(index, llm)

    async def read():
        response = await chat.astream_chat(ferry("Lima"))
        text = "".join([piece async for piece in response.async_response_gen()])
        return text, response.metadata["rapid"]

    (text, cost), ticks = await ticks_while(read())
    assert text == whole and cost["usage"]["completion_tokens"] == 24 and ticks > 2
    assert len(chat.chat_history) == 2


def test_the_words_of_llamaindexs_engine_mean_the_same(index):
    llm = llm_of()
    chat = chat_of(
        index,
        llm,
        system_prompt=None,
        prefix_messages=[
            ChatMessage(role="system", content="You know ferries."),
            ChatMessage(role="user", content="Do you?"),
            ChatMessage(role="assistant", content="I do."),
        ],
        context_template="By this:\n{context_str}\nso far. ",
        node_postprocessors=[SimilarityPostprocessor(similarity_cutoff=0.01)],
        memory=ChatMemoryBuffer.from_defaults(token_limit=1000, tokenizer_fn=str.split),
    )
    chat.chat(ferry("Lima"))
    system, *others = asked(llm).messages
    assert system.content == f"By this:\n{asked(llm).context.place}\nso far. You know ferries."
    assert [message.content for message in others] == ["Do you?", "I do.", ferry("Lima")]
    assert isinstance(chat, ContextChatEngine)


def test_braces_in_what_was_said_are_only_braces(index):
    llm = llm_of("{curly} {0}")
    chat = chat_of(index, llm)
    chat.chat('Is {"a": 1} JSON?')
    assert chat.chat("Is {x}?").response == "{curly} {0}"
    assert asked(llm).messages[-3].content == 'Is {"a": 1} JSON?'


# What may go wrong


class Answer(BaseModel):
    hour: int


class Broken(BaseRetriever):
    def _retrieve(self, query_bundle):
        raise ConnectionError("the store is away")


class Empty(BaseRetriever):
    def _retrieve(self, query_bundle):
        return []


async def test_a_retriever_that_fails_reaches_the_caller_or_is_done_without():
    llm = llm_of()
    chat = chat_of(Broken(), llm)
    for ask in (chat.chat, chat.stream_chat):
        with pytest.raises(ConnectionError, match="away"):
            ask("hi")
    with pytest.raises(ConnectionError, match="away"):
        await chat.achat("hi")
    assert chat.chat_history == [] and llm.engine.requests == []
    with pytest.warns(RapidWarning, match="without a drafter: ConnectionError: the store is away"):
        response = chat_of(Broken(), llm, on_retrieval_error="plain").chat("hi")
    assert response.response == "At seven." and "away" in response.metadata["rapid"]["notes"][-1]
    assert asked(llm).context is None and not asked(llm).speculation.enabled


def test_where_nothing_is_found_it_goes_on_with_the_documents_of_earlier_turns(index):
    llm = llm_of()
    with pytest.warns(RapidWarning, match="returned nothing"):
        response = chat_of(Empty(), llm).chat("hi")
    assert response.response == "At seven." and [m.content for m in asked(llm).messages] == ["Be brief.", "hi"]

    class Once(Empty):
        def _retrieve(self, query_bundle):
            return index.as_retriever(similarity_top_k=1).retrieve(query_bundle) if "ferry" in str(query_bundle) else []

    chat = RapidContextChatEngine.from_defaults(Once(), llm=llm, index=index)
    chat.chat(ferry("Lima"))
    with pytest.warns(RapidWarning, match="returned nothing"):
        chat.chat("Thanks!")
    assert TOWNS["Lima"] in asked(llm).context.documents[0].text
    found = index.as_retriever(similarity_top_k=1).retrieve(ferry("Rome"))
    chat.chat("Thanks!", prev_chunks=found)
    assert [document.name for document in asked(llm).context.documents] == ["Rome.txt", "Lima.txt"]


def test_nodes_without_documents_stay_in_the_talk(wide):
    class Notes(BaseRetriever):
        def _retrieve(self, query_bundle):
            return [
                NodeWithScore(node=TextNode(text=f"The mill of valley {n} has {n} wheels."), score=1.0)
                for n in range(9)
                if str(n) in str(query_bundle)
            ]

    llm = llm_of()
    chat = chat_of(Notes(), llm)
    for question in ("Mills 1 and 2?", "Mills 2 and 3?"):
        with pytest.warns(RapidWarning, match="no whole documents"):
            chat.chat(question)
    placed = {document.text[:20]: document.position for document in asked(llm).context.documents}
    assert placed == {f"The mill of valley {n}": n - 1 for n in (1, 2, 3)}


def test_what_a_turn_without_nodes_says_is_true_and_the_history_is_still_drafted_from(index, wide):
    llm = llm_of()

    class Once(Empty):
        def _retrieve(self, query_bundle):
            return index.as_retriever(similarity_top_k=1).retrieve(query_bundle) if "ferry" in str(query_bundle) else []

    chat = RapidContextChatEngine.from_defaults(Once(), llm=llm, index=index)
    chat.chat(ferry("Lima"))
    with pytest.warns(RapidWarning, match="the documents of earlier turns are read"):
        notes = chat.chat("Thanks!").metadata["rapid"]["notes"]
    assert notes == ["the retriever returned nothing: the documents of earlier turns are read"]
    assert asked(llm).speculation.enabled


def by_name(documents):
    """A retriever that finds what a question names, and a loader of the documents."""

    class ByName(BaseRetriever):
        def _retrieve(self, query_bundle):
            found = [name for name in documents if name in str(query_bundle)]
            return [NodeWithScore(node=node_of(documents[name][:40], name), score=1.0) for name in found]

    return ByName(), documents.get


def node_of(text, source):
    return TextNode(text=text, relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=source)})


def test_a_turn_that_fails_leaves_nothing_behind():
    with tiny_engine(window=2048) as engine:
        engine.target.model.generation_config.eos_token_id = -1
        retriever, load = by_name({"big": "big one " * 1000, "small": "small one. " * 20})
        llm = RapidLLM(engine=engine, max_tokens=4)
        chat = RapidContextChatEngine.from_defaults(retriever, llm=llm, document_loader=load)
        chat.chat("small?")
        with pytest.raises(PromptTooLongError):
            chat.chat("big?")
        with pytest.warns(RapidWarning, match="returned nothing"):
            chat.chat("Thanks!")
        chat.chat("small?")
        assert "small one. small one." in roles(engine)[0] and "big one" not in roles(engine)[0]
        assert len(chat.chat_history) == 6


def test_another_history_is_another_conversation(index):
    llm = llm_of()
    chat = chat_of(index, llm)
    names = lambda: [document.name for document in asked(llm).context.documents]  # noqa: E731
    chat.chat(ferry("Oslo"), chat_history=[])
    chat.chat(ferry("Rome"), chat_history=[])
    assert names() == ["Rome.txt"]
    # The same one, with all that was said.
    chat.chat(ferry("Lima"), chat_history=list(chat.chat_history))
    assert names() == ["Lima.txt", "Rome.txt"]
    chat.chat(ferry("Lima"), chat_history=[ChatMessage("Hello."), ChatMessage(role="assistant", content="Hello?")])
    assert names() == ["Lima.txt"]


async def test_a_chat_that_outgrows_the_window_goes_on_without_its_oldest_turns():
    with tiny_engine(window=3000) as engine:
        engine.target.model.generation_config.eos_token_id = -1
        text = " ".join(f"Clause {n} is kept." for n in range(80))
        retriever, load = by_name({"lease": text})
        llm = RapidLLM(engine=engine, max_tokens=20)
        chat = RapidContextChatEngine.from_defaults(retriever, llm=llm, document_loader=load)
        cached = []
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            for n in range(12):
                question = f"lease, clause {n}? " + "Tell me. " * 15
                response = await chat.achat(question) if n % 2 else chat.chat(question)
                cost = response.metadata["rapid"]
                cached.append(cost["usage"]["cached_tokens"])
                assert text in roles(engine)[0] and f"clause {n}?" in roles(engine)[0]
        gone = [str(w.message) for w in heard if "oldest messages are not read" in str(w.message)]
        assert gone and "oldest messages" in cost["notes"][-1] and len(chat.chat_history) == 24
        # The document is found in the cache by every turn, and most turns find others there, too.
        assert min(cached[1:]) > len(text) and sum(count > len(text) + 300 for count in cached) > 5


def test_memories_that_cannot_list_their_messages_will_do(index):
    llm = llm_of()
    memory = VectorMemory.from_defaults(embed_model=WordEmbedding(), retriever_kwargs={"similarity_top_k": 1})
    chat = chat_of(index, llm, memory=memory)
    assert chat.chat(ferry("Lima")).response == chat.chat(ferry("Lima")).response == "At seven."


def test_streams_and_whole_answers_are_remembered_alike(index):
    chats = [chat_of(index, llm_of("\n\nHello there ")) for _ in range(2)]
    assert chats[0].chat("hi").response == "\n\nHello there "
    assert "".join(chats[1].stream_chat("hi").response_gen) == "\n\nHello there "
    assert [chat.chat_history[-1].content for chat in chats] == ["Hello there"] * 2


def test_turns_that_a_memory_no_longer_gives_are_named(index):
    llm = llm_of()
    memory = ChatMemoryBuffer.from_defaults(token_limit=5, tokenizer_fn=str.split)
    chat = chat_of(index, llm, memory=memory)
    chat.chat("one two three four five six seven")
    with pytest.warns(RapidWarning, match=r"the memory gives no more than \d of 2 messages"):
        response = chat.chat("and eight nine ten eleven twelve thirteen?")
    assert any("the memory gives" in note for note in response.metadata["rapid"]["notes"])


def test_wrong_words_are_named(index, monkeypatch):
    with pytest.raises(InputError, match="RapidContextChatEngine needs a RapidLLM"):
        chat_of(index, MockLLM())
    with pytest.raises(InputError, match="system_prompt= or with prefix_messages="):
        chat_of(index, llm_of(), prefix_messages=[])
    with pytest.raises(InputError, match="chat_history= or with memory=, got both"):
        chat_of(index, llm_of(), chat_history=[], memory=ChatMemoryBuffer.from_defaults(tokenizer_fn=str.split))
    with pytest.raises(InputError, match="is a StructuredLLM"):
        chat_of(index, llm_of().as_structured_llm(Answer))
    with pytest.raises(InputError, match="context_refine_template"):
        chat_of(index, llm_of(), context_refine_template="{context_msg}")
    with pytest.raises(InputError, match="context_template must have {context_str} once"):
        chat_of(index, llm_of(), context_template="Be kind.").chat("hi")
    with pytest.raises(InputError, match="BaseRetriever"):
        RapidContextChatEngine.from_defaults(index, llm=llm_of())
    monkeypatch.setattr(Settings, "_llm", llm_of())
    assert RapidContextChatEngine.from_defaults(index.as_retriever()).chat(ferry("Lima")).response == "At seven."


# Applications that know nothing of us


@pytest.mark.parametrize("kind", ["compact", "tree_summarize", "refine"])
def test_a_query_engine_of_llamaindex_finds_its_context_by_itself(kind, wide):
    llm = RapidLLM(engine=wide, max_tokens=6)
    engine = SummaryIndex.from_documents([Document(text=TOWNS["Lima"])]).as_query_engine(llm=llm, response_mode=kind)
    assert str(engine.query(ferry("Lima", 21)))
    target, drafter = roles(wide)
    assert TOWNS["Lima"] in target and "ferry to Lima leaves at 21" in drafter
    assert ferry("Lima", 21) in drafter and len(drafter) < 0.6 * len(target)


def test_a_chat_engine_of_llamaindex_finds_its_context_in_the_system_message(index, wide):
    llm = RapidLLM(engine=wide, max_tokens=6)
    # Its own memory leaves a database open.
    memory = ChatMemoryBuffer.from_defaults(token_limit=20_000, tokenizer_fn=llm.token_ids)
    chat = index.as_chat_engine(
        chat_mode="context", llm=llm, similarity_top_k=20, system_prompt="Be brief.", memory=memory
    )
    assert chat.chat(ferry("Lima")).response
    target, drafter = roles(wide)
    assert "Be brief." in drafter and "ferry to Lima leaves at 7" in drafter and len(drafter) < 0.6 * len(target)
