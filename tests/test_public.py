"""The public names, and the doubles that others test with."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest
import torch
from helpers import ticks_while

import rapid_core
import rapid_integrations
from rapid_core import (
    EngineStateError,
    InputError,
    MissingDependencyError,
    OptionError,
    RapidEngine,
    RapidError,
    Result,
    Sampling,
    SavedDocumentError,
)
from rapid_core.extras import check_installed, require
from rapid_core.testing import ScriptedEngine, tiny_model

PUBLIC = """
Chunk CompilationError Constraint Delta Document DocumentError EngineStateError InputError LoadError LongContext
LongHistory Message MissingDependencyError ModelOutputError NotEnoughMemoryError OptionError PromptPair
PromptTooLongError RapidEngine RapidError Result Retrieval RetrievalError Sampling SavedDocumentError
SharedVocabulary Speculation Stats TokenEvent Tool ToolCall ToolUse UnknownOptionError UnsupportedModelError
Usage VocabularyError
""".split()


def test_the_public_names_are_these():
    assert rapid_core.__all__ == dir(rapid_core) == PUBLIC
    assert all(getattr(rapid_core, name).__module__.startswith("rapid_core.") for name in PUBLIC)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        rapid_core.Nothing  # noqa: B018


def test_the_integrations_use_public_names_alone():
    for file in Path(rapid_integrations.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rapid_core"):
                assert node.module == "rapid_core" and {alias.name for alias in node.names} <= set(PUBLIC), file
            assert not (isinstance(node, ast.Import) and any(a.name.startswith("rapid_core") for a in node.names)), file


def test_every_error_is_a_rapid_error_and_drawn_in_the_tree():
    errors = importlib.import_module("rapid_core.errors")
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert all(issubclass(error, RapidError) and error.__name__ in errors.__doc__ for error in classes)


def test_a_missing_package_names_the_pip_command():
    with pytest.raises(MissingDependencyError, match=r"pip install 'rapid-integrations\[retrieval\]'"):
        require("a_package_that_nobody_made", extra="retrieval")
    with pytest.raises(MissingDependencyError, match="'a_package_that_nobody_made'"):
        check_installed("json", "a_package_that_nobody_made", extra="retrieval")


def test_the_scripted_engine_has_the_real_ones_methods():
    public = {name for name in vars(RapidEngine) if not name.startswith("_")} - {"load", "prompts"}
    assert public <= set(dir(ScriptedEngine(["one"])))


def test_the_scripted_engine_says_what_it_is_told_and_notes_what_it_was_asked():
    engine = ScriptedEngine(["one two three", RuntimeError("broken")])
    result = engine.generate("Who?", context="A document", sampling=Sampling(max_new_tokens=2))
    assert (result.text, result.finish_reason, result.usage.completion_tokens) == ("one two", "length", 2)
    assert engine.requests[0].context.text == "A document"
    with pytest.raises(RuntimeError, match="broken"):
        engine.generate("Who?")
    with pytest.raises(InputError):
        engine.generate("")
    assert ScriptedEngine(["a STOP b"]).generate("Who?", sampling=Sampling(stop="STOP")).text == "a "
    assert ScriptedEngine(lambda asked: asked.messages[-1].content).generate("Who?").text == "Who?"


async def test_the_scripted_engine_streams_for_an_event_loop():
    deltas = [delta async for delta in ScriptedEngine(["one two"]).astream("Who?")]
    assert [delta.text for delta in deltas] == ["one", " two", ""]
    assert (await ScriptedEngine(["one two"]).agenerate("Who?")).text == "one two"


def test_a_stream_without_its_end_is_no_result():
    with pytest.raises(EngineStateError, match="read to its end"):
        Result.of(list(ScriptedEngine(["one two"]).stream("Who?"))[:1])


def test_tiny_models_are_the_same_every_time_and_leave_the_random_state_alone():
    before = torch.get_rng_state()
    left, right, other = tiny_model(), tiny_model(), tiny_model(seed=1)
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(left.model(ids).logits, right.model(ids).logits)
    assert not torch.equal(left.model(ids).logits, other.model(ids).logits)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_scripted_engine_takes_the_real_ones_arguments_and_no_others():
    for name in ("generate", "stream", "agenerate", "astream"):
        ours, theirs = (inspect.signature(getattr(cls, name)).parameters for cls in (ScriptedEngine, RapidEngine))
        assert list(ours) == list(theirs)
    with ScriptedEngine(["  "]) as engine:
        assert engine.generate("Who?").text == "  "
        with pytest.raises(OptionError):
            engine.generate("Who?", fit="squeeze")
    with pytest.raises(EngineStateError, match="closed"):
        engine.generate("Who?")
    with pytest.raises(OptionError, match="at least one answer"):
        ScriptedEngine([])


def test_the_scripted_engine_keeps_a_document_as_its_text(tmp_path):
    engine = ScriptedEngine(["one"])
    with pytest.raises(EngineStateError, match="there was none"):
        engine.save_document(tmp_path / "kept")
    engine.generate("Who?", context="A document\r\nof two lines")
    engine.save_document(tmp_path / "kept")
    assert ScriptedEngine(["two"]).load_document(tmp_path / "kept").text == "A document\r\nof two lines"
    with pytest.raises(SavedDocumentError, match="must be a file"):
        engine.load_document(tmp_path)


async def test_a_slow_scripted_engine_keeps_the_event_loop_free():
    _, ticks = await ticks_while(ScriptedEngine(["one two three"], delay_s=0.1).agenerate("Who?"))
    assert ticks > 10
