"""Agents with long histories: the whole of it for the target, what matters for the drafter."""

from __future__ import annotations

import pytest
from integration_helpers import roles
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_helpers import WordEmbeddings, chroma

from rapid_core import InputError, LongHistory, OptionError, RapidEngine, Retrieval, ToolCall
from rapid_core.testing import ScriptedEngine, tiny_engine, tiny_pair
from rapid_integrations.langchain import ChatRapid, RapidContext, RapidHistoryMiddleware, RapidWarning
from rapid_integrations.langchain.agents import HistoryStore

TOWNS = "Lima Oslo Rome Cusco Arica Tacna Bern Riga Turin Ghent Delft Basel".split()
ROWS = {
    n: "\n\n".join(f"{kind} bridge of {town} is {n}{row} feet wide." for row, kind in enumerate(("The old", "The new")))
    for n, town in enumerate(TOWNS)
}


def read_table(number: int) -> str:
    """Reads a table of bridges."""
    return ROWS[number]


def history(turns):
    """Turns in which a tool was called, each with its result and an answer."""
    messages = []
    for n in range(turns):
        messages += [
            HumanMessage(f"Read table {n}."),
            AIMessage("", tool_calls=[{"name": "read_table", "args": {"number": n}, "id": f"callnum{n:02}"}]),
            ToolMessage(ROWS[n], tool_call_id=f"callnum{n:02}", name="read_table"),
            AIMessage(f"Table {n} is read."),
        ]
    return messages


@pytest.fixture
def wide():
    """An engine with a window for long histories, whose answers end at their limit."""
    with tiny_engine(window=16384) as made:
        made.target.model.generation_config.eos_token_id = -1
        yield made


@pytest.mark.parametrize("store", [None, chroma, lambda: InMemoryVectorStore(WordEmbeddings())])
def test_the_target_sees_everything_and_the_drafter_what_was_retrieved_and_what_is_new(store, wide):
    middleware = RapidHistoryMiddleware(store and store(), newest=2, k=3)
    agent = create_agent(
        ChatRapid(engine=wide, max_tokens=4), [read_table], system_prompt="Be exact.", middleware=[middleware]
    )
    agent.invoke({"messages": [*history(10), HumanMessage("How wide is the old bridge of Cusco?")]})
    target, drafter = roles(wide)
    assert all(rows in target for n, rows in ROWS.items() if n < 10)
    assert "Be exact." in drafter and "Reads a table of bridges." in drafter
    assert "old bridge of Cusco is 30 feet" in drafter and "How wide is the old" in drafter and ROWS[9] in drafter
    assert len(drafter) < len(target) / 2
    # A result is never without its call.
    assert drafter.count('"number": 3') == 1 and drafter.index('"number": 3') < drafter.index("old bridge of Cusco")


def test_turn_after_turn_only_what_is_new_is_read(wide):
    agent = create_agent(ChatRapid(engine=wide, max_tokens=6), [read_table], middleware=[RapidHistoryMiddleware()])
    messages, before = history(6), 0
    for n in range(4):
        messages.append(HumanMessage(f"And the new bridge of {TOWNS[n]}?"))
        messages = agent.invoke({"messages": messages})["messages"]
        usage = messages[-1].usage_metadata
        read = usage["input_token_details"]["cache_read"]
        if before:
            # All of the last prompt but for where its answer began.
            assert read >= before - 2
        before = usage["input_tokens"]
    assert read > 1500


async def test_an_agent_on_an_event_loop_calls_its_tools():
    engine = ScriptedEngine([ToolCall("read_table", '{"number": 2}'), "Two feet."])
    agent = create_agent(ChatRapid(engine=engine), [read_table], middleware=[RapidHistoryMiddleware(chroma())])
    messages = (await agent.ainvoke({"messages": [*history(3), HumanMessage("Table 2?")]}))["messages"]
    assert (messages[-2].content, messages[-1].content) == (ROWS[2], "Two feet.")
    assert engine.requests[0].tools.tools[0].name == "read_table" and engine.requests[1].messages[-1].content == ROWS[2]


def test_a_store_keeps_each_passage_once():
    store = chroma()
    rank = HistoryStore(store, 2).rank
    assert rank("the mill", ["a road", "the mill", "a gate"])[0] == 1
    assert rank("a gate", ["a road", "the mill", "a gate", "the mill"])[0] == 2
    assert store._collection.count() == 3
    # Another run over the same store.
    assert HistoryStore(store, 1).rank("the mill", ["the mill", "a road"]) == [0]
    assert store._collection.count() == 3


def test_what_else_is_in_the_store_does_not_crowd_the_history_out():
    store = InMemoryVectorStore(WordEmbeddings())
    store.add_texts(["the mill by the road"] * 40)
    assert HistoryStore(store, 2).rank("the mill by the road", ["a gate", "the mill"]) == [1, 0]


@pytest.mark.parametrize("make", [chroma, lambda: InMemoryVectorStore(WordEmbeddings())])
def test_a_store_that_was_emptied_is_filled_again(make):
    store, passages = make(), ["a road", "the mill"]
    kept = HistoryStore(store, 2)
    assert kept.rank("the mill", passages) == [1, 0]
    store.delete(store.get()["ids"] if hasattr(store, "get") else list(store.store))
    assert kept.rank("the mill", passages) == [1, 0]


class Away(InMemoryVectorStore):
    def similarity_search(self, *args, **options):
        raise ConnectionError("the store is away")


@pytest.mark.parametrize("where", ["middleware", "chat"])
def test_a_store_that_fails_is_heard_or_passed_over_with_a_warning(where, wide):
    messages = {"messages": [*history(8), HumanMessage("Table 2?")]}
    for mode in ("raise", "plain"):
        modes = {"chat": mode, "middleware": None} if where == "chat" else {"chat": "raise", "middleware": mode}
        middleware = RapidHistoryMiddleware(Away(WordEmbeddings()), on_retrieval_error=modes["middleware"])
        chat = ChatRapid(engine=wide, max_tokens=4, on_retrieval_error=modes["chat"])
        agent = create_agent(chat, [read_table], middleware=[middleware])
        if mode == "raise":
            with pytest.raises(ConnectionError, match="away"):
                agent.invoke(messages)
            continue
        with pytest.warns(RapidWarning, match="without a drafter: the store is away"):
            answer = agent.invoke(messages)["messages"][-1]
        stats = answer.response_metadata["rapid"]
        assert stats["drafter_prompt_tokens"] == 0 and any("the store is away" in note for note in stats["notes"])


def test_a_short_history_needs_no_encoder():
    """The first turns of an agent must not wait for a model that nobody asks anything."""
    with RapidEngine(*tiny_pair(window=4096), retrieval=Retrieval(encoder="/nowhere")) as engine:
        agent = create_agent(ChatRapid(engine=engine, max_tokens=4), middleware=[RapidHistoryMiddleware()])
        assert agent.invoke({"messages": [HumanMessage("hi")]})["messages"][-1].usage_metadata["output_tokens"] == 4


def test_documents_may_be_cut_where_histories_are_not_and_a_context_that_is_set_stays():
    class Law(AgentMiddleware):
        def wrap_model_call(self, request, handler):
            return handler(request.override(model_settings={"rapid_context": RapidContext("the law")}))

    engine = ScriptedEngine(["done"])
    chat = ChatRapid(engine=engine, fit="middle")
    create_agent(chat, middleware=[RapidHistoryMiddleware()]).invoke({"messages": [HumanMessage("hi")]})
    assert isinstance(engine.requests[-1].context, LongHistory)
    with pytest.warns(RapidWarning, match="already set"):
        create_agent(chat, middleware=[Law(), RapidHistoryMiddleware()]).invoke({"messages": [HumanMessage("hi")]})
    assert engine.requests[-1].context.documents[0].text == "the law"


def test_other_models_and_wrong_options_are_named():
    agent = create_agent(FakeListChatModel(responses=["hi"]), [], middleware=[RapidHistoryMiddleware()])
    with pytest.warns(RapidWarning, match="does nothing for a FakeListChatModel"):
        assert agent.invoke({"messages": [HumanMessage("hi")]})["messages"][-1].content == "hi"
    with pytest.raises(InputError, match="VectorStore"):
        RapidHistoryMiddleware("chroma")
    for options in ({"k": 0}, {"k": True}, {"newest": 0}, {"newest": 1.5}, {"on_retrieval_error": "x"}):
        with pytest.raises(OptionError):
            RapidHistoryMiddleware(**options)
