"""Answers of a form: valid whoever drafts, whole within their limit, and refused before any work where none can be."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest
import torch
from helpers import ask, count_forwards

from rapid_core import Constraint, ModelOutputError, OptionError, PromptTooLongError, RapidEngine, Sampling, Speculation
from rapid_core.constrained import Grammars
from rapid_core.runner import ModelRunner
from rapid_core.testing import WordEncoder, tiny_engine, tiny_model, tiny_pair, tiny_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"who": {"type": "string"}, "age": {"type": "integer", "minimum": 3, "maximum": 90}},
    "required": ["who", "age"],
    "additionalProperties": False,
}
FORM = Constraint.json_schema(SCHEMA)
SHORTEST = len('{"who": "", "age": 3}') + 1

# What Pydantic writes for nested models, lists, unions, literals, enums, dates, dicts and fields with defaults.
PYDANTIC = {
    "$defs": {
        "Cat": {
            "properties": {
                "kind": {"const": "cat", "title": "Kind", "type": "string"},
                "lives": {"maximum": 9, "minimum": 0, "title": "Lives", "type": "integer"},
            },
            "required": ["kind", "lives"],
            "title": "Cat",
            "type": "object",
        },
        "Colour": {"enum": ["red", "green"], "title": "Colour", "type": "string"},
        "Dog": {
            "properties": {
                "kind": {"const": "dog", "title": "Kind", "type": "string"},
                "friends": {"items": {"$ref": "#/$defs/Dog"}, "title": "Friends", "type": "array"},
            },
            "required": ["kind", "friends"],
            "title": "Dog",
            "type": "object",
        },
    },
    "properties": {
        "pet": {"anyOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}], "title": "Pet"},
        "next": {
            "discriminator": {
                "mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"},
                "propertyName": "kind",
            },
            "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
            "title": "Next",
        },
        "colours": {"items": {"$ref": "#/$defs/Colour"}, "maxItems": 3, "title": "Colours", "type": "array"},
        "born": {"format": "date", "title": "Born", "type": "string"},
        "seen": {"format": "date-time", "title": "Seen", "type": "string"},
        "counts": {"additionalProperties": {"type": "integer"}, "title": "Counts", "type": "object"},
        "size": {"exclusiveMinimum": 0, "title": "Size", "type": "number"},
        "code": {"maxLength": 5, "minLength": 2, "pattern": "^[a-z]+$", "title": "Code", "type": "string"},
        "grade": {"enum": ["x", 3, None], "title": "Grade"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Note"},
    },
    "required": ["pet", "next", "colours", "born", "seen", "counts", "size", "code", "grade"],
    "title": "Everything",
    "type": "object",
}


@pytest.fixture(scope="module")
def engine():
    """A tiny pair whose answers may end."""
    with tiny_engine() as made:
        yield made


def is_valid(text, schema=SCHEMA):
    jsonschema.validate(json.loads(text), schema)
    return True


@pytest.mark.parametrize("gamma", [1, 2, 5, 10, "auto"])
@pytest.mark.parametrize("eta", [0.0, 10.0, 40.0])
@pytest.mark.parametrize("tail", ["reference", "paper"])
def test_every_answer_is_whole_and_valid(engine, document, gamma, eta, tail):
    for seed, temperature in ((0, 0.0), (1, 1.0), (2, 1.5)):
        speculation = Speculation(gamma=gamma, eta=eta, tail=tail)
        options = {"temperature": temperature, "seed": seed, "constraint": FORM, "max_new_tokens": 40}
        result = ask(engine, document, speculation=speculation, **options)
        assert is_valid(result.text)
        assert result.finish_reason == "stop"
        assert result.usage.completion_tokens <= 40


@pytest.mark.parametrize(
    "options", [{}, {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.5}]
)
def test_without_transfer_the_greedy_answer_is_that_of_plain_decoding(engine, document, options):
    options = {"constraint": FORM, "max_new_tokens": 60, **options}
    plain = ask(engine, document, speculation=Speculation.off(), **options)
    assert is_valid(plain.text)
    for gamma in (1, 2, 5, 10, "auto"):
        assert (
            ask(engine, document, speculation=Speculation.lossless(gamma=gamma), **options).token_ids == plain.token_ids
        )


@pytest.mark.parametrize("architecture", ["gemma3_text", "qwen3"])
def test_two_seeds_alike_give_two_answers_alike(architecture, document):
    with tiny_engine(architecture) as engine:
        options = {"temperature": 1.0, "seed": 5, "constraint": FORM, "max_new_tokens": 50}
        first, second = (ask(engine, document, **options) for _ in range(2))
    assert first.token_ids == second.token_ids and is_valid(first.text)


@pytest.mark.parametrize("options", [{"top_k": 3}, {"top_p": 0.2}, {"min_p": 0.5}, {"repetition_penalty": 1.5}])
def test_filters_choose_among_what_fits(engine, document, options):
    result = ask(engine, document, temperature=1.0, seed=3, constraint=FORM, **options)
    assert is_valid(result.text)


def test_a_schema_as_pydantic_writes_it_is_enforced(engine, document):
    form = Constraint.json_schema(PYDANTIC)
    for seed in range(6):
        # From no room to some: the shortest answer that is found takes 199 tokens of one byte.
        options = {"temperature": 1.0, "seed": seed, "constraint": form, "max_new_tokens": 199 + 20 * seed}
        result = ask(engine, document[:200], **options)
        assert is_valid(result.text, PYDANTIC)
        assert result.finish_reason == "stop"


def test_any_json_object(engine, document):
    for seed in range(5):
        result = ask(engine, document, temperature=1.0, seed=seed, constraint=Constraint.json(), max_new_tokens=30)
        assert isinstance(json.loads(result.text), dict)


@pytest.mark.parametrize("limit", [6, 7, 20])
def test_a_regular_expression_is_matched_as_a_whole(engine, document, limit):
    pattern = r"[A-Z]{2}-(\d|é)+"
    for seed in range(5):
        form = Constraint.regex(pattern)
        result = ask(engine, document, temperature=1.0, seed=seed, constraint=form, max_new_tokens=limit)
        assert re.fullmatch(pattern, result.text)


def test_a_grammar_is_followed(engine, document):
    form = Constraint.lark('start: "(" start* ")" | "x"')
    for seed in range(5):
        text = ask(engine, document, temperature=1.0, seed=seed, constraint=form, max_new_tokens=30).text
        assert set(text) <= set("(x)") and text.count("(") == text.count(")")


def test_the_shortest_answer_is_what_the_limit_must_leave_room_for(engine, document):
    result = ask(engine, document, constraint=FORM, max_new_tokens=SHORTEST)
    assert is_valid(result.text) and result.finish_reason == "stop"
    # The end-of-sequence id counts.
    assert result.usage.completion_tokens == SHORTEST
    engine.prompts("Warm?")
    calls = count_forwards(engine)
    with pytest.raises(OptionError, match=f"got {SHORTEST - 1}: the shortest one that was found takes {SHORTEST},"):
        ask(engine, document, "Another question?", constraint=FORM, max_new_tokens=SHORTEST - 1)
    assert calls[0] == 0


def test_a_window_that_leaves_too_little_room_is_an_error_with_both_numbers():
    with RapidEngine(*tiny_pair(window=40), encoder=WordEncoder()) as engine:
        prompt = len(engine.prompts("Who?").target_ids)
        message = f"takes {SHORTEST}, and the prompt of {prompt} leaves {40 - prompt};"
        with pytest.raises(PromptTooLongError, match=message) as caught:
            engine.generate("Who?", sampling=Sampling(constraint=FORM))
        assert (caught.value.prompt_tokens, caught.value.window) == (prompt, 40)
    with RapidEngine(*tiny_pair(window=prompt + SHORTEST + 4), encoder=WordEncoder()) as engine:
        # The window ends the answer long before max_new_tokens.
        result = engine.generate("Who?", sampling=Sampling(constraint=FORM, temperature=1.0, seed=1))
        assert is_valid(result.text) and result.finish_reason == "stop"


def test_what_ends_an_answer_takes_no_forward(document):
    """A string that the model would go on with: behind the last free token all is known."""
    target = tiny_model()
    form = Constraint.json_schema({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})
    with RapidEngine(target, encoder=WordEncoder()) as engine:
        options = {"constraint": form, "speculation": Speculation.off()}
        ask(engine, document, max_new_tokens=1, speculation=Speculation.off())
        calls = count_forwards(engine)
        result = ask(engine, document, max_new_tokens=30, **options)
        closing = len('"}') + 1
        assert result.text.endswith('"}') and result.finish_reason == "stop"
        # One round a token, the last of which found no room any more; none for the end.
        assert calls[0] == result.stats.rounds == result.usage.completion_tokens - closing + 1


def test_a_stop_string_ends_the_answer_before_its_form_does(engine, document):
    result = ask(engine, document, constraint=FORM, stop=', "age"')
    assert result.finish_reason == "stop"
    assert result.text.startswith('{"who": "') and "age" not in result.text


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (Constraint.json_schema({"type": "array", "uniqueItems": True}), 'Unimplemented keys: ["uniqueItems"]'),
        (Constraint.json_schema({"type": "string", "format": "idn-email"}), "Unknown format: idn-email"),
        (Constraint.json_schema({"$ref": "#/$defs/x"}), "Pointer '/$defs/x' does not exist"),
        (Constraint.json_schema({"not": {}, "x-guidance": {"lenient": True}}), 'Unimplemented keys: ["not"]'),
        (
            Constraint.json_schema({"type": "integer", "minimum": 5, "maximum": 3}),
            "minimum (5) is greater than maximum",
        ),
        (Constraint.json_schema({"$ref": "#"}), "must have a way on"),
        (Constraint.regex("(?=a)b"), "look-around"),
        (Constraint.regex("("), "unclosed group"),
        (Constraint.lark("start: nothing"), 'unknown name: "nothing"'),
        (Constraint.lark("start: A\nA: /b/ & /c/"), "must have a way on"),
    ],
)
def test_what_cannot_be_enforced_is_named_before_any_work(engine, document, constraint, message):
    before = ask(engine, document, constraint=FORM)
    calls = count_forwards(engine)
    with pytest.raises(OptionError) as caught:
        ask(engine, document, "Another question?", constraint=constraint)
    assert message in str(caught.value)
    assert calls[0] == 0
    # The engine goes on as if it had not been asked.
    assert ask(engine, document, constraint=FORM).token_ids == before.token_ids


def test_a_model_that_cannot_end_an_answer_is_refused(document):
    with tiny_engine() as engine:
        engine.target.model.generation_config.eos_token_id = -1
        with pytest.raises(OptionError, match=r"the model has \[-1\]; set eos_token_id"):
            ask(engine, document, constraint=FORM)


def test_a_tokenizer_whose_bytes_are_unknown_is_refused(document):
    with tiny_engine() as engine:
        engine._answerer._grammars._tokenizer = object()
        with pytest.raises(OptionError, match="object is none: .*; use a fast tokenizer"):
            ask(engine, document, constraint=FORM)


def test_a_model_that_rules_out_all_that_fits_is_an_error_and_no_other_text(document):
    with tiny_engine() as engine:
        bias = engine.target.tokenizer.convert_tokens_to_ids("{")

        def rule_out(module, inputs, output):
            output.logits[..., bias] = -float("inf")
            return output

        handles = [loaded.model.register_forward_hook(rule_out) for loaded in (engine.target, engine.drafter)]
        with pytest.raises(ModelOutputError, match="must fit the constraint"):
            ask(engine, document, constraint=FORM, speculation=Speculation.off())
        for handle in handles:
            handle.remove()
        assert is_valid(ask(engine, document, constraint=FORM).text)


def test_several_end_ids_all_end_an_answer(document):
    """A hook makes each of them in turn what the target wants most."""
    with tiny_engine() as engine:
        engine.target.model.generation_config.eos_token_id = [2, 0]
        wanted = [2]

        def prefer(module, inputs, output):
            output.logits[..., wanted[0]] += 1e4
            return output

        engine.target.model.register_forward_hook(prefer)
        for id_ in (2, 0):
            wanted[0] = id_
            result = ask(engine, document, constraint=Constraint.regex("x|y+"), speculation=Speculation.off())
            assert result.token_ids[1:] == (id_,) and result.text in ("x", "y")


def test_a_padded_vocabulary_leaves_the_answer_valid(document):
    with tiny_engine(padded_to=320) as engine:
        for seed in range(3):
            result = ask(engine, document, temperature=2.0, seed=seed, constraint=FORM)
            assert is_valid(result.text) and max(result.token_ids) < 259


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constraint.json_schema("{}"), "a JSON schema must be a mapping, got str"),
        (lambda: Constraint.json_schema({"const": {1, 2}}), "must hold JSON values only"),
        (lambda: Constraint.json_schema({"const": float("nan")}), "must hold JSON values only"),
        (lambda: Constraint.regex(""), "a regex constraint must be text that is not empty, got ''"),
        (lambda: Constraint.lark(5), "a lark constraint must be text that is not empty, got 5"),
        (lambda: Constraint.regex("\ud800"), "text that UTF-8 can write"),
        (lambda: Constraint("yaml", "a: b"), "a constraint is one of 'json_schema', 'regex', 'lark', got 'yaml'"),
        (lambda: Sampling(constraint=SCHEMA), "constraint must be a Constraint or None, got dict"),
    ],
)
def test_a_constraint_that_is_none_says_so_when_it_is_made(make, message):
    with pytest.raises(OptionError) as caught:
        make()
    assert message in str(caught.value)


def test_constraints_compare_by_value_and_keep_the_order_of_fields():
    assert Sampling(constraint=FORM) == Sampling(constraint=Constraint.json_schema(json.loads(json.dumps(SCHEMA))))
    assert hash(Sampling(constraint=FORM)) != hash(Sampling())
    turned = {**SCHEMA, "properties": dict(reversed(SCHEMA["properties"].items()))}
    assert Constraint.json_schema(turned) != FORM
    assert repr(Constraint.regex("[a-z]+")) == "Constraint(regex: [a-z]+)"
    assert len(repr(FORM)) < 90


WHOLE, BYTES = {"type": "integer"}, tiny_tokenizer()
BASE = {"type": "object", "properties": {"a": WHOLE}, "required": ["a"]}
MORE = {"properties": {"b": WHOLE}, "required": ["b"]}


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (BASE, {"a": 1}, {"a": 1, "b": 2}),
        ({"type": "array", "items": BASE, "minItems": 1}, [{"a": 1}], [{"a": 1, "b": 2}]),
        (
            {
                "$defs": {"Base": BASE},
                "allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"b": WHOLE}, "required": ["b"]}],
            },
            {"a": 1, "b": 2},
            {"a": 1},
        ),
        ({**BASE, "anyOf": [MORE]}, {"a": 1, "b": 2}, {"a": 1}),
        (
            {"$defs": {"B": BASE}, "$ref": "#/$defs/B", **MORE},
            {"a": 1, "b": 2},
            {"b": 2},
        ),
        (
            {"anyOf": [BASE, {"type": "object", **MORE}]},
            {"b": 1},
            {"b": 1, "c": 2},
        ),
        ({**BASE, "additionalProperties": True}, {"a": 1, "x": 2}, {"x": 2}),
        ({"type": "object", "properties": {"p": {"type": "string", "format": "path"}}}, {"p": "x"}, {"q": "x"}),
    ],
)
def test_objects_have_the_fields_that_their_schema_names(schema, valid, invalid):
    def fits(value):
        matcher = Grammars(BYTES, 259).matcher(Constraint.json_schema(schema), frozenset({2}), 1000)
        ids = [*BYTES.encode(json.dumps(value), add_special_tokens=False), 2]
        return matcher._read(ids)

    assert fits(valid) and not fits(invalid)


@pytest.mark.parametrize("gamma", [6, "auto"])
def test_what_ends_an_answer_in_time_leaves_no_key_of_a_draft_behind(document, gamma):
    # The drafts that the end took the place of were read: a later turn goes on behind the end, in the same cache.
    with tiny_engine() as engine:
        for most in range(14, 22):
            constraint = Constraint.json_schema({"type": "array", "items": {"type": "string"}, "minItems": 1})
            asked = {"constraint": constraint, "max_new_tokens": most, "temperature": 1.0, "seed": most}
            ask(engine, document, speculation=Speculation(gamma=gamma, eta=0.0), **asked)
            for runner in (engine._target, engine._drafter):
                read = runner.sequence[: runner.length]
                fresh = ModelRunner(runner.model, role="fresh")
                fresh.prefill([*read, 0], reserve=1)
                ids = torch.tensor([5])
                assert torch.allclose(runner.forward(ids, 1), fresh.forward(ids, 1), atol=1e-4)
                runner.rewind(len(read))


def test_ids_beyond_the_tokenizer_stay_forbidden_behind_a_draft_that_does_not_fit():
    target = tiny_model(padded_to=400)
    matcher = Grammars(target.tokenizer, 400).matcher(Constraint.regex("[a-z]{3,9}"), target.eos_ids, 20)
    a, b = target.tokenizer.encode("aB", add_special_tokens=False)
    before = matcher.forbidden([a], 2)
    matcher.forbidden([b], 2)
    assert torch.equal(matcher.forbidden([a], 2), before)
    assert bool(before[:, len(target.tokenizer) :].all())
