"""Tools: how templates show them, how answers call them, on any family's format."""

from __future__ import annotations

import json

import pytest

from rapid_core import (
    Constraint,
    InputError,
    Message,
    OptionError,
    RapidEngine,
    Sampling,
    TokenEvent,
    Tool,
    ToolCall,
    ToolUse,
)
from rapid_core.constrained import Grammars
from rapid_core.loading import LoadedModel
from rapid_core.prompts import ChatPrompter
from rapid_core.streaming import TextStream
from rapid_core.testing import ScriptedEngine, tiny_engine, tiny_model, tiny_tokenizer
from rapid_core.tool_format import ToolFormat, template_id
from rapid_core.tool_grammar import constraint_with_tools, function_schema
from rapid_core.tool_parsing import ToolCallStream, read_calls

ADD = Tool("add", "Adds two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}})

# One short template of each known kind: tags around JSON, a list of JSON behind one tag with ids, bare
# JSON, name and arguments apart, XML, and two that know nothing of tools, one of them strict.
TAGS = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}\n{{ m.content }}"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}{% if m.content or not loop.first %}{{ '\n' }}{% endif %}"
    '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LIST = (
    "{% if tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}{% for m in messages %}"
    "{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% elif m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}"
    "{% if c.id | length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}"
    '{{ (c.function | tojson)[:-1] }}, "id": "{{ c.id }}"}{% if not loop.last %}, {% endif %}{% endfor %}]<|im_end|>'
    "{% elif m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('ids') }}{% endif %}"
    "[RESULT]{{ m.tool_call_id }} {{ m.content }}[/RESULT]{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
)
BARE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
    '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
    "{% else %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
APART = (
    "{% if tools %}{% for t in tools %}{{ t.function.name }}: {{ t.function.description }}\n{% endfor %}{% endif %}"
    "{% for m in messages %}{% if m.tool_calls %}<A>{{ m.content }}<calls>{% for c in m.tool_calls %}"
    "{% if not loop.first %}{{ '\n' }}{% endif %}<call>function<sep>{{ c.function.name }}\n```json\n"
    "{{ c.function.arguments | tojson }}\n```<end>{% endfor %}</calls><|im_end|>"
    "{% elif m.role == 'assistant' %}<A>{{ m.content }}<|im_end|>{% else %}<{{ m.role }}>{{ m.content }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<A>{% endif %}"
)
XML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}{% for c in m.tool_calls %}"
    "<tool_call><function={{ c.function.name }}>{% for k, v in c.function.arguments | items %}<{{ k }}>{{ v }}"
    "{% endfor %}</tool_call>{% endfor %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRICT = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
)
# Only the first call is shown; arguments are wanted as text.
FIRST = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    '{% if m.tool_calls %}<call>{"name": "{{ m.tool_calls[0].function.name }}", '
    '"arguments": {{ m.tool_calls[0].function.arguments | tojson }}}</call>{% endif %}<|im_end|>\n{% endfor %}'
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ 'CALL ' + c.function.name + ' WITH ' + c.function.arguments }}{% endfor %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
THINKING = TAGS.replace(
    "{{ m.content }}", "{% if m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}"
)

HISTORY = [
    Message("system", "Be exact."),
    Message("user", "What is 1 + 2?"),
    Message("assistant", "", (ToolCall("add", '{"a": 1}', "call_00000000017"),)),
    Message("tool", "three", (), "call_00000000017", "add"),
    Message("assistant", "It is 3."),
    Message("user", "And 3 + 4?"),
]


def prompter(template):
    return ChatPrompter(tiny_tokenizer(template))


def rendered(template, messages, tools=()):
    made = prompter(template)
    return made.tokenizer.decode(made.encode(messages, tools))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (TAGS, ToolFormat(shows_tools=True, shows_calls=True, shows_results=True)),
        (THINKING, ToolFormat(shows_tools=True, shows_calls=True, shows_results=True)),
        (LIST, ToolFormat("[TOOL_CALLS][", ", ", "]", "arguments", None, True, True, True, shows_said=False)),
        (BARE, ToolFormat("", None, "", "parameters", None, True, True, True, shows_said=False)),
        (
            APART,
            ToolFormat(
                "<calls><call>function<sep>",
                "\n```<end>\n<call>function<sep>",
                "\n```<end></calls>",
                "arguments",
                "\n```json\n",
                True,
                True,
                True,
            ),
        ),
        (XML, ToolFormat(shows_results=True)),
        (STRICT, ToolFormat()),
        (FIRST, ToolFormat("<call>", None, "</call>", shows_tools=True, shows_calls=True, shows_results=True)),
        (TEXT, ToolFormat("CALL ", "CALL ", "", "arguments", " WITH ", False, True, True, True, True)),
    ],
)
def test_the_format_of_calls_is_read_off_the_template(template, expected):
    assert prompter(template).tool_format == expected


@pytest.mark.parametrize("template", [TAGS, THINKING, LIST, BARE, APART, XML, STRICT, FIRST, TEXT])
def test_tools_calls_and_results_reach_the_prompt_of_every_template(template):
    text = rendered(template, HISTORY, [ADD])
    places = [text.index(part) for part in ("What is 1 + 2?", '"a": 1', "three", "It is 3.", "And 3 + 4?")]
    assert places == sorted(places)
    assert "Adds two numbers." in text
    # And where only the history has calls, since the tools are no longer offered.
    assert '"a": 1' in rendered(template, HISTORY) and "Adds two" not in rendered(template, HISTORY)


@pytest.mark.parametrize("template", [TAGS, THINKING, LIST, BARE, APART, XML, STRICT, FIRST, TEXT])
def test_what_a_format_writes_it_reads_again(template):
    format_ = prompter(template).tool_format
    calls = [ToolCall("add", '{"a": 1}'), ToolCall("add", '{"a": 2, "b": "<|im_end|> é"}')]
    for wanted in (calls[:1], calls[: 1 if format_.between is None else 2]):
        stream = ToolCallStream(format_, ["add"])
        said = "".join(stream.push(piece) for piece in format_.write(wanted))
        rest, found = stream.finish("")
        assert said + rest == ""
        assert [(c.name, json.loads(c.arguments), c.error) for c in found] == [
            (c.name, json.loads(c.arguments), "") for c in wanted
        ]
        assert len({c.id for c in found}) == len(found) and all(len(c.id) == 9 for c in found)


def test_several_calls_are_written_into_a_template_that_takes_one():
    two = [
        Message("user", "Q"),
        Message("assistant", "", (ToolCall("add", '{"a": 1}'), ToolCall("add", '{"a": 2}'))),
        Message("tool", "R", (), ""),
    ]
    assert '{"a": 1}' in rendered(BARE, two, [ADD]) and '{"a": 2}' in rendered(BARE, two, [ADD])


def test_text_before_a_call_streams_and_a_tag_that_was_none_is_text():
    stream = ToolCallStream(ToolFormat(), ["add"])
    assert stream.push("Let me see. <tool") == "Let me see. "
    assert stream.push("box> is no call <") == "<toolbox> is no call "
    assert stream.finish('tool_call>{"name": "add"}</tool_call>')[1][0].name == "add"
    stream = ToolCallStream(ToolFormat(), ["add"])
    assert stream.push("a <tool_") + stream.finish("")[0] == "a <tool_"


@pytest.mark.parametrize(
    ("text", "name", "reason"),
    [
        ('<tool_call>{"name": "add", "arguments": {"a": 1}', "add", "no valid JSON"),
        ('<tool_call>{"name": "add", "arguments": {a: 1}}</tool_call>', "add", "no valid JSON"),
        ("<tool_call>add(1)</tool_call>", "", "no JSON object"),
        ('<tool_call>{"function": "add"}</tool_call>', "", 'a "name"'),
        ('<tool_call>{"name": "add", "arguments": [1]}</tool_call>', "add", "must be a JSON object"),
        ('<tool_call>{"name": "add", "arguments": "1,"}</tool_call>', "add", "no valid JSON"),
    ],
)
def test_a_call_that_cannot_be_read_is_kept_with_the_reason(text, name, reason):
    said, (call,) = read_calls("Well. " + text + " Done.", ToolFormat())
    assert call.name == name and reason in call.error and call.arguments
    assert said.startswith("Well.")
    if "</tool_call>" in text:
        assert said == "Well.  Done."


def test_both_usual_keys_and_arguments_as_text_are_read():
    _, calls = read_calls(
        '<tool_call>{"name": "add", "parameters": {"a": "</tool_call>"}}</tool_call>'
        '<tool_call>{"name": "add", "arguments": "{\\"a\\": 2}"}</tool_call><tool_call>{"name": "add"}</tool_call>',
        ToolFormat(),
    )
    assert [json.loads(call.arguments) for call in calls] == [{"a": "</tool_call>"}, {"a": 2}, {}]


def test_bare_json_is_a_call_only_if_it_names_a_tool():
    bare = prompter(BARE).tool_format
    for answer in ('{"name": "Ada", "age": 36}', '{"broken"', "{}", "[1]"):
        stream = ToolCallStream(bare, ["add"])
        assert stream.push(answer) == ""
        assert stream.finish("") == (answer, ())
    stream = ToolCallStream(bare, ["add"])
    assert stream.push("It is 3. {") == "It is 3. {"
    two = '{"name": "add", "parameters": {}}; {"name": "add", "parameters": {"a": "if (a) { b }; { c }"}}'
    for written in (f"<|python_tag|>{two}", f"[{two.replace('}; {', '}, {', 1)}]", two):
        stream = ToolCallStream(bare, ["add"])
        stream.push(written)
        assert [call.arguments for call in stream.finish("")[1]] == ["{}", '{"a": "if (a) { b }; { c }"}']
    for broken in (
        '{"name": "add", "parameters": {"a": 1,}}',
        '{"name": "add", "param',
        '{"name": "add", "parameters": [1]}',
    ):
        stream = ToolCallStream(bare, ["add"])
        stream.push(broken)
        said, (call,) = stream.finish("")
        assert said == "" and call.name == "add" and call.error


def test_a_call_without_its_tags_is_a_call_and_other_json_is_text():
    """Qwen2.5-0.5B, quantised, leaves them out."""
    written = '{"name": "add", "arguments": {"a": 1}}'
    stream = ToolCallStream(ToolFormat(), ["add"])
    assert [stream.push(piece) for piece in (written[:9], written[9:])] == ["", ""]
    said, (call,) = stream.finish("\n")
    assert (said, call.name, call.arguments, call.error) == ("", "add", '{"a": 1}', "")
    two = ToolCallStream(ToolFormat(), ["add"]).finish(f"{written}\n{written}")
    assert two[0] == "" and len(two[1]) == 2
    for text in (
        '{"name": "sub", "arguments": {}}',
        '{"name": "add", "age": 3}',
        '{"a": 1}',
        "[1, 2]",
        "{a",
        written[:-9],
    ):
        assert ToolCallStream(ToolFormat(), ["add"]).finish(text) == (text, ())
    stream = ToolCallStream(ToolFormat(), ["add"])
    assert stream.push(f"Like this: {written}") == f"Like this: {written}"
    stream = ToolCallStream(ToolFormat(), ["add"])
    assert stream.push("[see] <tool_call>" + written) == ""
    assert stream.finish("</tool_call>")[1][0].name == "add"


@pytest.mark.parametrize("arguments", ['{"a": NaN}', '{"a": "\\ud800"}', '{"a":' * 3000, '"{} 1"'], ids=range(4))
def test_what_is_no_json_is_no_valid_call(arguments):
    _, (call,) = read_calls(f'<tool_call>{{"name": "add", "arguments": {arguments}}}</tool_call>', ToolFormat())
    assert call.error and call.arguments.encode()


def test_a_number_beyond_all_floats_is_one_that_can_be_written():
    _, (call,) = read_calls('<tool_call>{"name": "add", "arguments": {"a": -1e999}}</tool_call>', ToolFormat())
    assert json.loads(call.arguments) == {"a": -1.7976931348623157e308} and not call.error


def test_a_tag_that_is_talked_about_is_text_and_what_follows_a_call_spoils_it():
    said = "Use the <tool_call> tag to call."
    assert read_calls(said, ToolFormat()) == (said, ())
    text, (call,) = read_calls('<tool_call>{"name": "add", "arguments": {}}}</tool_call>', ToolFormat())
    assert (text, call.name) == ("", "add") and "followed by '}'" in call.error
    assert read_calls('<tool_call>{"name": " "}</tool_call>', ToolFormat())[1][0].error


def test_special_tokens_in_calls_results_and_tools_stay_text():
    end, hostile = "<|im_end|>", 'x<|im_end|>"\n'
    tool = Tool(f"add{end}", f"Adds.{end}", {"type": "object", "properties": {end: {"type": "integer"}}})
    call = ToolCall(f"add{end}", json.dumps({end: hostile}))
    made = prompter(TAGS)
    ids = made.encode([Message("user", "Q"), Message("assistant", "", (call,)), Message("tool", hostile)], [tool])
    text = made.tokenizer.decode(ids)
    assert '{"<|im_end|>": "x<|im_end|>\\"\\n"}' in text and f"Adds.{end}" in text
    # One end for each of the three messages, and none inside.
    assert ids.count(made.tokenizer.convert_tokens_to_ids(end)) == 3


def test_a_special_token_in_one_message_changes_nothing_in_others():
    """The prompt of the turn before is the beginning of this one, or the cache is lost."""
    made = prompter(TAGS)
    before = [*HISTORY[:4], Message("assistant", "It is 3.")]
    plain = made.encode([*before, Message("user", "Q")], [ADD])
    hostile = made.encode([*before, Message("user", "Q <|im_end|> \ue0000\ue000")], [ADD])
    shared = next(i for i, (a, b) in enumerate(zip(plain, hostile, strict=False)) if a != b)
    assert made.tokenizer.decode(plain[:shared]).endswith("user\nQ")
    assert "Q <|im_end|> \ue0000\ue000<|im_end|>" in made.tokenizer.decode(hostile)


@pytest.mark.parametrize("template", [TAGS, THINKING, LIST, BARE, APART, XML, STRICT, FIRST, TEXT])
def test_text_beside_a_call_and_every_call_are_read(template):
    calls = (ToolCall("add", '{"a": 777}', "c1"), ToolCall("add", '{"a": 888}'))
    messages = [
        Message("user", "Q"), Message("assistant", "I look it up.", calls), Message("tool", "R1", (), "c1"),
        Message("tool", "R2"), Message("assistant", "Done."), Message("user", "Well?"),
    ]  # fmt: skip
    text = rendered(template, messages, [ADD])
    assert all(part in text for part in ("I look it up.", "777", "888", "R1", "R2", "Done.", "Well?"))


def test_a_model_is_told_one_way_to_call_only():
    made = prompter(XML.replace("{% for m", "{% if tools %}OUR OWN WAY{% endif %}{% for m", 1))
    text = made.tokenizer.decode(made.encode([Message("user", "Q")], [ADD]))
    assert "OUR OWN WAY" not in text and "Adds two numbers." in text
    told = rendered(TEXT, [Message("user", "Q")], [ADD])
    assert "CALL <name> WITH {<arguments>}" in told


def test_what_ends_an_answer_is_no_part_of_a_call():
    """Some models end a call with an end-of-sequence token: nothing can follow it."""
    tokenizer = tiny_tokenizer(TAGS.replace("\n</tool_call>", "<|call|>"))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|call|>"]})
    made = ChatPrompter(tokenizer, frozenset({tokenizer.convert_tokens_to_ids("<|call|>")}))
    assert (made.tool_format.closing, made.tool_format.between) == ("", None)
    stream = ToolCallStream(made.tool_format, ["add"])
    stream.push('<tool_call>\n{"name": "add", "arguments": {}}')
    assert stream.finish("")[1][0].error == ""


def test_special_tokens_around_calls_are_not_lost_from_an_answer():
    tokenizer = tiny_tokenizer(LIST)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[TOOL_CALLS]", "[OTHER]"]})
    made = ChatPrompter(tokenizer)
    assert made.tool_tokens == {tokenizer.convert_tokens_to_ids("[TOOL_CALLS]")}


def test_ids_fit_every_template_and_stay_paired():
    assert template_id("abcdefgh1") == "abcdefgh1" and template_id("") == ""
    assert template_id("call_1") == template_id("call_1") != template_id("call_2")
    assert len(template_id("call_1")) == 9


def test_references_in_a_tools_schema_hold_inside_a_call():
    schema = {
        "type": "object",
        "properties": {"p": {"$ref": "#/$defs/P"}, "again": {"$ref": "#"}},
        "$defs": {"P": {"type": "integer"}},
    }
    inside = function_schema(Tool("t", "", schema), ToolFormat())["properties"]["arguments"]
    assert inside["properties"]["p"]["$ref"] == "#/properties/arguments/$defs/P"
    assert inside["properties"]["again"]["$ref"] == "#/properties/arguments"


def test_tools_that_break_a_rule_are_refused():
    for broken, what in [
        (lambda: Tool(""), "not empty"),
        (lambda: Tool("t", None), "description"),
        (lambda: Tool("t", "", {"type": "array"}), "schema of an object"),
        (lambda: ToolUse((ADD, ADD)), "several are called add"),
        (lambda: ToolUse((ADD,), "subtract"), "'add', got 'subtract'"),
        (lambda: ToolUse((), "any"), "got none"),
        (lambda: ToolUse(("add",)), "holds a str"),
        (lambda: ToolUse(ADD), "list of Tool"),
        (lambda: ToolUse((ADD,), parallel=1), "parallel"),
    ]:
        with pytest.raises(OptionError, match=what):
            broken()


def test_messages_with_calls_are_checked():
    engine = ScriptedEngine(["."])
    with pytest.raises(InputError, match="only an assistant"):
        engine.generate([Message("user", "Q", (ToolCall("add"),))])
    with pytest.raises(InputError, match="tuple of ToolCall"):
        engine.generate([Message("assistant", "", [{"name": "add"}]), Message("user", "Q")])
    # A tool may have nothing to say.
    engine.generate([Message("user", "Q"), Message("assistant", "", (ToolCall("add"),)), Message("tool", "")])


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3_text"])
def test_an_engine_says_whether_its_template_shows_tools(architecture):
    loaded = tiny_model(architecture)
    for template, shows in ((TAGS, True), (LIST, True), (FIRST, True), (XML, False), (STRICT, False), (TEXT, False)):
        with RapidEngine(LoadedModel(loaded.model, tiny_tokenizer(template), "tiny")) as engine:
            assert engine.tools_in_template is shows
    assert ScriptedEngine(["."]).tools_in_template is True
    assert ScriptedEngine(["."], tools_in_template=False).tools_in_template is False


def test_the_engine_shows_tools_and_hides_them():
    with tiny_engine() as engine:
        shown, hidden = (
            engine.target.tokenizer.decode(engine.prompts("Q", tools=tools).target_ids)
            for tools in ([ADD], ToolUse((ADD,), "none"))
        )
        assert "Adds two" in shown and "Adds two" not in hidden
        messages = [Message("user", "Q")]
        assert engine.count_tokens(messages, tools=[ADD]) == len(engine.prompts("Q", tools=[ADD]).target_ids)
        assert engine.count_tokens("Q") == len(engine.token_ids("Q")) == 1
        assert engine.generate("Q", tools=[ADD], sampling=Sampling(max_new_tokens=4)).tool_calls == ()


def test_a_scripted_engine_calls_tools():
    engine = ScriptedEngine(['Well. <tool_call>{"name": "add"}</tool_call>', ToolCall("add", '{"a": 1}', "x"), []])
    first = engine.generate("Q", tools=[ADD])
    assert (first.text, first.tool_calls[0].name) == ("Well.", "add")
    assert engine.generate("Q").tool_calls == (ToolCall("add", '{"a": 1}', "x"),)
    assert engine.generate("Q").tool_calls == ()
    assert "<tool_call>" in ScriptedEngine(['<tool_call>{"name": "add"}</tool_call>']).generate("Q").text


# Calls that must be


def test_a_form_beside_tools_needs_no_room_for_a_call():
    grammars = Grammars(tiny_tokenizer(), 259)
    for own in (Constraint.regex("yes|no"), Constraint.regex(r"a\/b|c/d")):
        both = constraint_with_tools(ToolUse((ADD,)), ToolFormat(), own, {})
        assert grammars.matcher(both, frozenset({2}), 20, shorter=own).shortest <= 4
    with pytest.raises(OptionError, match="cannot have another form"):
        constraint_with_tools(ToolUse((ADD,), "any"), ToolFormat(), own, {})
    assert constraint_with_tools(ToolUse((ADD,)), ToolFormat(), None, {}) is None


def test_several_calls_between_special_tokens_end_in_time():
    tokenizer = tiny_tokenizer(APART)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<calls>", "<call>", "<sep>", "<end>", "</calls>"]})
    made = ChatPrompter(tokenizer)
    constraint = constraint_with_tools(ToolUse((ADD,), "any", parallel=True), made.tool_format, None, made.added_tokens)
    matcher = Grammars(tokenizer, len(tokenizer)).matcher(constraint, frozenset({2}), 200)
    assert 0 < matcher.shortest < 80


def test_stop_strings_do_not_cut_calls():
    answer = 'Well.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    tokenizer = tiny_tokenizer(TAGS)
    for stop, text, calls in (("\n{", "Well.", 1), ("ell", "W", 0)):
        stream = TextStream(tokenizer, [stop], calls=ToolCallStream(ToolFormat(), ["add"]))
        said = []
        for position, id_ in enumerate(tokenizer.encode(answer, add_special_tokens=False)):
            delta = stream.push(TokenEvent(id_, False, position))
            said.append(delta.text if delta else "")
            if stream.stopped:
                break
        last = stream.finish()
        assert ("".join(said) + last.text).strip() == text and len(last.tool_calls) == calls
