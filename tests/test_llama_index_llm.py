"""RapidLLM by itself: what it reads, and what it is told."""

from __future__ import annotations

import pytest
from integration_helpers import roles
from llama_index.core import PromptTemplate
from llama_index.core.base.llms.types import CachePoint, CitableBlock, ImageBlock, ThinkingBlock, ToolCallBlock
from llama_index.core.llms import ChatMessage, TextBlock
from llama_index_helpers import llm_of

from rapid_core import (
    InputError,
    LongContext,
    LongHistory,
    OptionError,
    PromptTooLongError,
    Speculation,
    ToolCall,
    UnknownOptionError,
)
from rapid_core.testing import ScriptedEngine, tiny_engine
from rapid_integrations.llama_index import RapidContext, RapidLLM, RapidWarning

DOCUMENT = "\n\n".join(f"The bridge of town {n} is {n * 7} feet wide and painted {n}." for n in range(60))
PIXEL = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def wide():
    """A real engine with random weights, whose answers end at their limit."""
    with tiny_engine(window=16384) as made:
        made.target.model.generation_config.eos_token_id = -1
        yield made


# What it reads


def test_a_long_message_finds_its_context_by_itself(wide):
    llm = RapidLLM(engine=wide, max_tokens=8)
    answer = llm.complete(f"{DOCUMENT}\n\nHow wide is the bridge of town 31?")
    target, drafter = roles(wide)
    assert DOCUMENT in target and "town 31 is 217 feet" in drafter and len(drafter) < len(target) / 2
    assert answer.raw["rapid"]["drafter_prompt_tokens"] > 0 and answer.raw["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize(
    "context", [DOCUMENT, RapidContext(DOCUMENT), LongContext(DOCUMENT)], ids=["text", "RapidContext", "LongContext"]
)
def test_a_call_takes_its_long_context_as_a_keyword(context, wide):
    llm = RapidLLM(engine=wide, max_tokens=4)
    llm.chat([ChatMessage("How wide is the bridge of town 31?")], rapid_context=context)
    target, drafter = roles(wide)
    assert DOCUMENT in target and "town 31 is 217 feet" in drafter and "town 2 is" not in drafter


def test_a_history_may_say_how_many_turns_stay():
    engine = ScriptedEngine(["yes"])
    RapidLLM(engine=engine).chat([ChatMessage("hi")], rapid_context=LongHistory(newest=4))
    assert engine.requests[0].context == LongHistory(newest=4)
    with pytest.raises(OptionError, match="rapid_context must be text"):
        llm_of("x").chat([ChatMessage("hi")], rapid_context=7)


def test_messages_are_read_role_by_role_and_block_by_block():
    engine = ScriptedEngine(["done"])
    RapidLLM(engine=engine).chat(
        [
            ChatMessage(role="developer", content="Be brief."),
            ChatMessage(role="user", content=[TextBlock(text="A document."), TextBlock(text="A question?")]),
            ChatMessage(
                role="assistant",
                content=[ThinkingBlock(content="hm"), TextBlock(text="Let me "), TextBlock(text="see.")],
            ),
            ChatMessage(role="user", content=[CitableBlock(title="t", source="s", content=[TextBlock(text="cited")])]),
            ChatMessage(
                role="assistant",
                content=[ToolCallBlock(tool_call_id="i1", tool_name="look", tool_kwargs={"at": "ü"})],
            ),
            ChatMessage(role="tool", content="seen", additional_kwargs={"tool_call_id": "i1"}),
            ChatMessage(
                role="assistant",
                additional_kwargs={"tool_calls": [{"id": "i2", "function": {"name": "look", "arguments": "{}"}}]},
            ),
            ChatMessage(role="function", content="seen again", additional_kwargs={"name": "look"}),
            ChatMessage(role="chatbot", content="Good."),
            ChatMessage(role="user", content=[TextBlock(text="And now?"), CachePoint(cache_control={"type": "x"})]),
        ]
    )
    messages = engine.requests[0].messages
    assert [message.role for message in messages] == (
        "system user assistant user assistant tool assistant tool assistant user".split()
    )
    assert messages[1].content == "A document.\n\nA question?" and messages[2].content == "Let me see."
    assert messages[3].content == "cited" and messages[4].content == messages[6].content == ""
    assert messages[4].tool_calls == (ToolCall("look", '{"at": "ü"}', "i1"),)
    assert messages[5].tool_call_id == "i1" and messages[6].tool_calls == (ToolCall("look", "{}", "i2"),)
    assert messages[7].name == "look" and messages[9].content == "And now?"


def test_a_system_message_at_the_end_is_a_question():
    """LlamaIndex's agents end with one where they have to come to an end."""
    engine = ScriptedEngine(["done"])
    RapidLLM(engine=engine).chat([ChatMessage("hi"), ChatMessage(role="system", content="Sum it up.")])
    assert [message.role for message in engine.requests[0].messages] == ["user", "user"]


def test_what_is_not_text_is_an_error_and_not_left_out():
    with pytest.raises(InputError, match="holds a ImageBlock; turn images"):
        llm_of("x").chat([ChatMessage(role="user", content=[TextBlock(text="see"), ImageBlock(image=PIXEL)])])
    with pytest.raises(InputError, match="at least one message"):
        llm_of("x").chat([])
    with pytest.raises(InputError, match="last message"):
        llm_of("x").chat([ChatMessage("hi"), ChatMessage(role="assistant", content="so")])


def test_a_prompt_over_the_window_is_an_error_with_both_numbers(wide):
    with pytest.raises(PromptTooLongError, match="16,384") as raised:
        RapidLLM(engine=wide).complete("word " * 20000)
    assert raised.value.window == 16384 and raised.value.prompt_tokens > 16384


# Options


def test_the_window_is_the_targets_own(wide):
    metadata = RapidLLM(engine=wide, max_tokens=100_000).metadata
    assert (metadata.context_window, metadata.is_chat_model) == (16384, True)
    # Who packs prompts leaves the answer this much.
    assert metadata.num_output == 4096
    assert RapidLLM(engine=wide, max_tokens=16).metadata.num_output == 16


@pytest.mark.parametrize("shown", [True, False])
def test_a_model_is_said_to_call_functions_only_where_its_template_shows_them(shown):
    engine = ScriptedEngine(["x"], tools_in_template=shown)
    assert RapidLLM(engine=engine).metadata.is_function_calling_model is shown
    assert RapidLLM(engine=engine, function_calling=not shown).metadata.is_function_calling_model is not shown


def test_unknown_words_are_named():
    with pytest.warns(RapidWarning, match="RapidLLM has no option context_window"):
        RapidLLM(target="demo", context_window=3900)
    with pytest.warns(RapidWarning, match="ignores messages_to_prompt"):
        RapidLLM(target="demo", messages_to_prompt=str)
    with pytest.raises(UnknownOptionError, match="a call of RapidLLM has no option 'temprature'; did you mean"):
        llm_of("x").chat([ChatMessage("hi")], temprature=1)
    with pytest.raises(UnknownOptionError, match="num_beams"):
        llm_of("x").stream_complete("hi", num_beams=2)
    with pytest.raises(ValueError, match="needs target="):
        RapidLLM(target="")
    with pytest.raises(ValueError, match="device cannot change it"):
        RapidLLM(engine=ScriptedEngine(["x"]), device="cpu")
    with pytest.raises(ValueError, match="temperature"):
        RapidLLM(target="demo", temperature=-1)


def test_a_call_overrules_the_constructor():
    engine = ScriptedEngine(["one two three STOP four"])
    llm = RapidLLM(engine=engine, temperature=0.5, max_tokens=7, stop=["STOP"], speculation={"gamma": 3})
    assert llm.complete("hi").text == "one two three "
    assert llm.complete("hi", stop=["two"], temperature=0, max_tokens=9, speculation=Speculation.off()).text == "one "
    first, second = engine.requests
    assert (first.sampling.temperature, first.sampling.max_new_tokens, first.speculation.gamma) == (0.5, 7, 3)
    assert (second.sampling.temperature, second.sampling.max_new_tokens) == (0, 9) and not second.speculation.enabled
    cut = llm.complete("hi", stop=[], max_tokens=2)
    assert (cut.text, cut.raw["finish_reason"]) == ("one two", "length")


def test_eta_may_be_left_to_the_engine_and_the_statistics_say_what_it_chose(engine, document):
    llm = RapidLLM(engine=engine, max_tokens=4, speculation={"eta": "auto"})
    found = llm.complete("Who lives in Lima?", rapid_context=document).raw["rapid"]
    assert found["eta"] >= 0 and isinstance(found["passages_gain"], float)


def test_a_stop_string_never_shows_in_a_stream():
    llm = llm_of("one two\nObservation: three", stop=["\nObservation:"])
    assert "".join(item.delta for item in llm.stream_complete("hi")) == "one two"


def test_a_timeout_ends_a_call():
    llm = RapidLLM(engine=ScriptedEngine(["a b c d e f g h"], delay_s=0.1), timeout=0.15)
    with pytest.raises(TimeoutError, match="timeout=0.15"):
        llm.complete("hi")


def test_the_system_prompt_of_the_llm_stands_first_where_templates_are_filled_in():
    engine = ScriptedEngine(["fine"])
    llm = RapidLLM(engine=engine, system_prompt="Be kind.")
    assert llm.predict(PromptTemplate("How is {name}?"), name="Ann") == "fine"
    assert [message.content for message in engine.requests[0].messages] == ["Be kind.", "How is Ann?"]
