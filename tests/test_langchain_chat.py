"""ChatRapid by itself: messages, options, windows, tools, errors."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import weakref

import pytest
from integration_helpers import obedient_engine
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import (
    AIMessage,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from rapid_core import (
    InputError,
    Message,
    OptionError,
    PromptTooLongError,
    Sampling,
    Speculation,
    ToolCall,
    UnknownOptionError,
)
from rapid_core.testing import ScriptedEngine, save_tiny_model
from rapid_integrations.langchain import ChatRapid, RapidWarning


def chat_of(*answers, **options):
    return ChatRapid(engine=ScriptedEngine(list(answers)), **options)


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


# What is said


def test_only_new_text_comes_back_and_the_prompt_is_not_echoed(engine):
    chat = ChatRapid(engine=engine, max_tokens=12)
    answer = chat.invoke("hi")
    plain = engine.generate("hi", sampling=Sampling(max_new_tokens=12))
    assert (answer.content, answer.response_metadata["finish_reason"]) == (plain.text, "length")


def test_a_prompt_template_ends_up_in_the_models_own_chat_template():
    chat = chat_of("done")
    chain = ChatPromptTemplate.from_messages([("system", "Be {how}."), ("human", "{q}")]) | chat | StrOutputParser()
    assert chain.invoke({"how": "brief", "q": "Why?"}) == "done"
    assert chat.engine.requests[0].messages == (Message("system", "Be brief."), Message("user", "Why?"))


def test_a_document_and_a_question_in_two_blocks_are_two_paragraphs():
    chat = chat_of("done")
    blocks = [
        {"type": "text-plain", "text": "A document.", "mime_type": "text/plain"},
        {"type": "text", "text": "Who?"},
    ]
    chat.invoke([HumanMessage(blocks)])
    assert chat.engine.requests[0].messages[0].content == "A document.\n\nWho?"


def test_every_kind_of_message_becomes_one_of_ours():
    chat = chat_of("done")
    chat.invoke(
        [
            SystemMessage([{"type": "text", "text": "Be "}, "exact."]),
            ChatMessage(role="developer", content="Always."),
            HumanMessage("1 + 2?", name="ada"),
            AIMessage(
                [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Let me see."}],
                tool_calls=[{"name": "add", "args": {"a": 1}, "id": "c1"}],
                invalid_tool_calls=[{"name": "add", "args": "{a:", "id": "c2", "error": "broken"}],
            ),
            ToolMessage("3", tool_call_id="c1", name="add"),
            ToolMessage([{"type": "text", "text": ""}], tool_call_id="c2", status="error"),
            HumanMessage("Well?"),
        ]
    )
    assert chat.engine.requests[0].messages == (
        Message("system", "Be exact."),
        Message("system", "Always."),
        Message("user", "1 + 2?", name="ada"),
        Message(
            "assistant", "Let me see.", (ToolCall("add", '{"a": 1}', "c1"), ToolCall("add", "{a:", "c2", "broken"))
        ),
        Message("tool", "3", tool_call_id="c1", name="add"),
        Message("tool", "", tool_call_id="c2"),
        Message("user", "Well?"),
    )


@pytest.mark.parametrize(
    ("messages", "what"),
    [
        ([], "at least one message"),
        ([HumanMessage("")], "must not be empty"),
        ([HumanMessage([{"type": "image_url", "image_url": {"url": "x"}}])], "block of type 'image_url'"),
        ([HumanMessage([{"type": "audio", "base64": "x"}])], "'audio'"),
        ([ChatMessage(role="critic", content="x")], "'critic'"),
        ([RemoveMessage(id="1")], "'remove'"),
        ([HumanMessage("hi"), AIMessage("ho")], "must be from 'user' or 'tool'"),
    ],
)
def test_messages_that_cannot_be_read_are_an_error(messages, what):
    with pytest.raises(InputError, match=what):
        chat_of("done").invoke(messages)


def test_an_answer_after_a_tool_result_needs_no_human_message():
    answer = chat_of("3").invoke(
        [
            HumanMessage("1 + 2?"),
            AIMessage("", tool_calls=[{"name": "add", "args": {}, "id": "1"}]),
            ToolMessage("3", tool_call_id="1"),
        ]
    )
    assert answer.content == "3"


def test_an_answer_that_ends_at_once_is_one_chunk():
    chunks = list(chat_of("").stream("hi"))
    assert len(chunks) == 1 and chunks[0].chunk_position == "last" and chunks[0].content == ""


def test_usage_and_metadata_are_on_the_last_chunk_and_merge_to_what_invoke_gives():
    chat = chat_of("one two three")
    chunks = list(chat.stream("hi"))
    assert [bool(chunk.usage_metadata) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert all(not chunk.response_metadata for chunk in chunks[:-1])
    merged, whole = sum(chunks[1:], chunks[0]), chat.invoke("hi")
    assert (merged.content, merged.usage_metadata) == (whole.content, whole.usage_metadata)
    assert merged.response_metadata == whole.response_metadata
    assert whole.usage_metadata == {
        "input_tokens": 1, "output_tokens": 3, "total_tokens": 4, "input_token_details": {"cache_read": 0},
    }  # fmt: skip
    assert whole.response_metadata["model_name"] == "scripted" and whole.response_metadata["model_provider"] == "rapid"
    assert whole.response_metadata["finish_reason"] == "stop" and whole.response_metadata["rapid"]["rounds"] == 3
    json.dumps(whole.response_metadata)


def test_statistics_tell_how_the_drafts_fared(engine, document):
    answer = ChatRapid(engine=engine, max_tokens=16).bind(rapid_context=document).invoke("Who lives in Lima?")
    stats = answer.response_metadata["rapid"]
    assert stats["drafted"] >= stats["accepted"] and stats["retrieved"] and stats["notes"] is not None
    again = ChatRapid(engine=engine, max_tokens=16).bind(rapid_context=document).invoke("Who lives in Lima?")
    assert again.usage_metadata["input_token_details"]["cache_read"] == again.usage_metadata["input_tokens"] - 1


# Options


def test_options_of_a_call_overrule_those_of_the_constructor():
    chat = chat_of("a b c d", temperature=0.5, max_tokens=3, stop=["c"], top_p=0.9, speculation={"eta": 0})
    chat.invoke("hi")
    chat.invoke("hi", stop=["d"], temperature=0, max_tokens=9, top_k=5, seed=3, speculation=Speculation.off())
    first, second = (asked.sampling for asked in chat.engine.requests)
    assert (first.temperature, first.max_new_tokens, first.stop, first.top_p) == (0.5, 3, ("c",), 0.9)
    assert (second.temperature, second.max_new_tokens, second.stop, second.top_k, second.seed) == (0, 9, ("d",), 5, 3)
    assert [asked.speculation.enabled for asked in chat.engine.requests] == [True, False]
    assert chat.engine.requests[0].speculation.eta == 0


def test_eta_may_be_left_to_the_engine_and_the_statistics_say_what_it_chose(engine, document):
    chat = ChatRapid(engine=engine, max_tokens=4, speculation={"eta": "auto"})
    answer = chat.bind(rapid_context=document).invoke("Who lives in Lima?")
    found = json.loads(json.dumps(answer.response_metadata["rapid"]))
    assert found["eta"] >= 0 and isinstance(found["passages_gain"], float)
    plain = chat.bind(rapid_context=document).invoke("Who lives in Lima?", speculation=Speculation.off())
    assert plain.response_metadata["rapid"]["eta"] is None


def test_stop_cuts_the_answer_whole_and_streamed():
    chat = chat_of("one two\nObservation: three", stop=["\nObservation:"])
    assert chat.invoke("hi").content == "one two"
    assert "".join(chunk.content for chunk in chat.stream("hi")) == "one two"
    assert chat.invoke("hi", stop=["two"]).content == "one "
    assert chat.bind(stop=["one"]).invoke("hi").content == ""


def test_a_real_stream_never_shows_a_stop_string(engine):
    text = ChatRapid(engine=engine, max_tokens=40).invoke("hi").content
    stop = text[10:14]
    chunks = [chunk.content for chunk in ChatRapid(engine=engine, max_tokens=40, stop=[stop]).stream("hi")]
    assert "".join(chunks) == text[: text.index(stop)]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 0}, "max_new_tokens"),
        ({"top_p": 2}, "top_p"),
        ({"timeout": 0}, "timeout"),
        ({"speculation": {"gama": 3}}, "did you mean 'gamma'"),
        ({"speculation": 7}, "mapping"),
        ({"retrieval": {"threshold": 3}}, "threshold"),
    ],
)
def test_options_that_break_a_rule_are_refused_by_the_constructor(options, error):
    with pytest.raises((OptionError, ValueError), match=error):
        chat_of("x", **options)


def test_words_that_nobody_knows_are_not_passed_over_in_silence():
    with pytest.warns(RapidWarning, match="temprature"):
        chat_of("x", temprature=1)
    with pytest.raises(UnknownOptionError, match="did you mean 'max_tokens'"):
        chat_of("x").invoke("hi", max_token=3)
    with pytest.raises(OptionError, match="response_format"):
        chat_of("x").invoke("hi", response_format={"type": "xml"})
    with pytest.raises(OptionError, match="rapid_context"):
        chat_of("x").invoke("hi", rapid_context=7)


def test_an_engine_that_is_there_takes_no_options_of_loading():
    with pytest.raises((OptionError, ValueError), match="device, drafter cannot change it"):
        chat_of("x", drafter="y", device="cuda:3")


def test_what_is_traced_is_what_is_asked():
    chat = chat_of("x", temperature=0.7, max_tokens=None, stop="x")
    assert chat._get_ls_params()["ls_temperature"] == 0.7 and chat._get_ls_params()["ls_max_tokens"] == 1024
    assert chat._get_ls_params(temperature=0, max_tokens=3)["ls_temperature"] == 0
    assert chat._get_ls_params()["ls_stop"] == ["x"] and "ls_stop" not in chat._get_ls_params(stop=[])
    chat.invoke("hi")
    assert chat.engine.requests[0].sampling.max_new_tokens == 1024


def test_a_chat_model_needs_a_model(monkeypatch):
    monkeypatch.delenv("RAPID_TARGET", raising=False)
    with pytest.raises((OptionError, ValueError), match="needs target="):
        ChatRapid()


def test_a_call_over_time_ends_with_an_error():
    chat = ChatRapid(engine=ScriptedEngine(["a b c d e f"], delay_s=0.1), timeout=0.15)
    with pytest.raises(TimeoutError, match="timeout=0.15"):
        chat.invoke("hi")
    assert chat.invoke("hi", timeout=60).content == "a b c d e f"


# Windows, tokens, profiles


def test_a_prompt_over_the_window_is_langchains_error_and_ours():
    chat = ChatRapid(engine=ScriptedEngine(["x"], window=5))
    with pytest.raises(ContextOverflowError) as caught:
        chat.invoke("one two three four five six")
    assert isinstance(caught.value, PromptTooLongError)
    assert (caught.value.prompt_tokens, caught.value.window) == (6, 5)


async def test_a_prompt_over_the_window_of_a_real_engine_is_never_cut(engine):
    with pytest.raises(ContextOverflowError, match="window of 1,024"):
        await ChatRapid(engine=engine).ainvoke("word " * 400)


def test_tokens_are_counted_by_the_targets_own_tokenizer(engine):
    chat = ChatRapid(engine=engine)
    assert chat.get_token_ids("héllo") == list(engine.token_ids("héllo")) and chat.get_num_tokens("héllo") == 6
    messages = [SystemMessage("S"), HumanMessage("Who?")]
    count = chat.get_num_tokens_from_messages(messages)
    assert count == chat.invoke(messages, max_tokens=1).usage_metadata["input_tokens"]
    assert chat.get_num_tokens_from_messages(messages, tools=[add]) > count


def test_the_profile_asks_for_the_window_when_somebody_reads_it():
    asked = []

    class Engine(ScriptedEngine):
        @property
        def window(self):
            asked.append(1)
            return 77

        @window.setter
        def window(self, value):
            pass

    chat = ChatRapid(engine=Engine(["x"]))
    assert chat.profile["tool_calling"] and chat.profile["structured_output"] and not asked
    assert chat.profile["max_input_tokens"] == 77 == chat.profile.get("max_input_tokens")
    assert dict(chat.profile)["max_input_tokens"] == {**chat.profile}["max_input_tokens"] == 77
    assert asked == [1]


def test_a_model_without_a_chat_template_is_a_clear_error(tmp_path):
    folder = save_tiny_model(tmp_path / "m")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(InputError, match="needs a chat template"):
        ChatRapid(target=str(folder)).invoke("hi")


def test_langchains_summaries_begin_before_the_window_ends():
    """The middleware asks the profile for the window, and cuts a summary's own prompt that is over it."""
    engine = ScriptedEngine(
        lambda asked: "a summary" if "Summarise" in asked.messages[-1].content else "done", window=150
    )
    chat = ChatRapid(engine=engine, max_tokens=8)
    turns = [message for n in range(6) for message in (HumanMessage(f"one two {n} " * 6), AIMessage("three four"))]
    middleware = SummarizationMiddleware(
        chat,
        trigger=("fraction", 0.5),
        keep=("messages", 2),
        token_counter=chat.get_num_tokens_from_messages,
        summary_prompt="Summarise: {messages}",
        trim_tokens_to_summarize=None,
    )
    state = create_agent(chat, middleware=[middleware]).invoke({"messages": [*turns, HumanMessage("Well?")]})
    assert state["messages"][-1].content == "done"
    assert "a summary" in engine.requests[-1].messages[0].content


def test_a_profile_belongs_to_its_model_and_does_not_keep_it():
    chat = ChatRapid(engine=ScriptedEngine(["x"], window=50))
    assert chat.model_copy(update={"engine": ScriptedEngine(["x"], window=99)}).profile["max_input_tokens"] == 99
    assert pickle.loads(pickle.dumps(chat.profile))["max_input_tokens"] == 50
    engine = weakref.ref(chat.engine)
    del chat
    assert engine() is None


def test_a_missing_package_is_named_with_the_pip_command():
    code = (
        "import sys\n"
        "sys.modules['langchain'] = None\n"
        "import rapid_integrations.langchain as ours\n"
        "ours.ChatRapid\n"
        "try:\n    ours.RapidHistoryMiddleware\nexcept ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'rapid-integrations[langchain]'" in done.stdout


# Tools


def test_bound_tools_reach_the_model_and_calls_come_back_parsed():
    chat = ChatRapid(engine=obedient_engine()).bind_tools([add], tool_choice="any")
    answer = chat.invoke("2 + 3")
    assert answer.content == "" and answer.response_metadata["finish_reason"] == "tool_calls"
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("add", {"a": 2, "b": 2})]
    asked = chat.bound.engine.requests[0].tools
    assert (asked.tools[0].description, asked.choice) == ("Adds two numbers.", "any")


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        (None, "auto"), ("auto", "auto"), ("any", "any"), ("required", "any"), (True, "any"), ("add", "add"),
        ("none", "none"), (False, "none"), ({"type": "function", "function": {"name": "add"}}, "add"),
        ({"type": "tool", "name": "add"}, "add"), ({"type": "any"}, "any"),
    ],
)  # fmt: skip
def test_every_way_to_say_which_tool_must_be_called(given, choice):
    chat = ChatRapid(engine=obedient_engine())
    chat.bind_tools([add], tool_choice=given).invoke("2 + 3")
    assert chat.engine.requests[0].tools.choice == choice


def test_a_providers_own_tool_is_refused_at_once():
    with pytest.raises(OptionError, match="a local model has none of its own"):
        chat_of("x").bind_tools([{"type": "web_search_preview"}], tool_choice="any")


def test_a_choice_of_no_tool_is_an_error_at_once():
    for wrong in ("subtract", {"function": {}}, 7):
        with pytest.raises(OptionError, match="tool"):
            chat_of("x").bind_tools([add], tool_choice=wrong)


BROKEN = [
    '<tool_call>{"name": "add", "arguments": {"a": 1',
    '<tool_call>{"name": "add", "arguments": {a: 1}}</tool_call>',
    "<tool_call>add(1, 2)</tool_call>",
    '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
]


@pytest.mark.parametrize("text", BROKEN)
def test_a_malformed_call_is_an_invalid_one_whole_and_streamed(text):
    chat = chat_of(text).bind_tools([add])
    whole = chat.invoke("2 + 3")
    assert whole.tool_calls == [] and whole.content == ""
    assert len(whole.invalid_tool_calls) == 1 and whole.invalid_tool_calls[0]["error"]
    chunks = list(chat.stream("2 + 3"))
    merged = sum(chunks[1:], chunks[0])
    assert merged.tool_calls == [] and len(merged.invalid_tool_calls) == 1


def test_several_calls_and_text_before_them():
    calls = [f'<tool_call>{{"name": "add", "arguments": {arguments}}}</tool_call>' for arguments in ('{"a": 1}', "{}")]
    chat = chat_of("Let me see. " + "\n".join(calls)).bind_tools([add])
    chunks = list(chat.stream("q"))
    for answer in (chat.invoke("q"), sum(chunks[1:], chunks[0])):
        assert answer.content.strip() == "Let me see."
        assert [call["args"] for call in answer.tool_calls] == [{"a": 1}, {}]
        assert len({call["id"] for call in answer.tool_calls}) == 2


def test_parallel_calls_and_other_keywords_are_passed_on():
    chat = ChatRapid(engine=obedient_engine())
    chat.bind_tools([add], tool_choice="any", parallel_tool_calls=True, rapid_context="A document.").invoke("1")
    asked = chat.engine.requests[0]
    assert (
        asked.tools.parallel and asked.context.text + "".join(d.text for d in asked.context.documents) == "A document."
    )
