"""Prefilled documents on disk: what comes back, and what is refused."""

from __future__ import annotations

import json
import struct

import pytest
import torch
from helpers import TINY, ask
from safetensors import safe_open
from safetensors.torch import save_file

from rapid_core import (
    EngineStateError,
    LongContext,
    Message,
    OptionError,
    RapidEngine,
    Retrieval,
    Sampling,
    SavedDocumentError,
    document_file,
)
from rapid_core.errors import LoadError
from rapid_core.fingerprint import fingerprint
from rapid_core.loading import LoadedModel
from rapid_core.testing import WordEncoder, tiny_engine, tiny_model

QUESTION = "What number is the queen of Japan?"
SHORT = Sampling(max_new_tokens=12)


def engine_of(loaded=None, **options):
    return RapidEngine(loaded or tiny_model(), retrieval=TINY, encoder=WordEncoder(), **options)


def model_of(dtype, seed=0):
    loaded = tiny_model(seed=seed)
    return LoadedModel(loaded.model.to(dtype), loaded.tokenizer, loaded.name)


@pytest.fixture(scope="module")
def saved(tmp_path_factory, document):
    path = tmp_path_factory.mktemp("saved") / "document.safetensors"
    with engine_of() as engine:
        ask(engine, document, max_new_tokens=4)
        engine.save_document(path)
    return path


@pytest.fixture
def copy(saved, tmp_path):
    path = tmp_path / "copy.safetensors"
    path.write_bytes(saved.read_bytes())
    return path


def edit_metadata(path, **changes):
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] |= changes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loaded_document_is_not_read_again_and_answers_like_one_that_was(tmp_path, document, dtype):
    path = tmp_path / "document"
    with engine_of(model_of(dtype)) as engine:
        ask(engine, document, "?", max_new_tokens=12)
        engine.save_document(path)
        expected = ask(engine, document, QUESTION, max_new_tokens=12)
        states = engine._target.store.current.cache.states(expected.usage.cached_tokens)
        with engine_of(model_of(dtype)) as other:
            context = other.load_document(path)
            assert context == LongContext(document)
            result = other.generate(QUESTION, context=context, sampling=SHORT)
            # Nothing but the document is shared, so that both read the same ids behind the same keys.
            assert result.usage.cached_tokens == expected.usage.cached_tokens > len(document.encode())
            assert result.token_ids == expected.token_ids
            loaded = other._target.store.current.cache.states(expected.usage.cached_tokens)
            pairs = [(states[layer][i], loaded[layer][i]) for layer in states for i in (0, 1)]
            assert len(pairs) == 8 and all(a.dtype == dtype and torch.equal(a, b) for a, b in pairs)
    if dtype == torch.float32:
        with engine_of(model_of(dtype)) as fresh:
            assert ask(fresh, document, QUESTION, max_new_tokens=12).token_ids == expected.token_ids


def test_the_file_is_safetensors_up_to_where_the_question_begins(saved, document):
    with engine_of() as engine:
        ask(engine, document, max_new_tokens=1)
        prompt = engine.prompts("Who lives in Lima?", context=document).target_ids
        other = engine.prompts("Xenon?", context=document).target_ids
        layers = engine._target.store.current.cache.layers
        with safe_open(saved, framework="pt") as file:
            ids = file.get_tensor("ids").tolist()
            assert tuple(ids) == prompt[: len(ids)] == other[: len(ids)] and prompt[len(ids)] != other[len(ids)]
            assert bytes(file.get_tensor("text").numpy()).decode() == document
            for number, layer in enumerate(layers):
                assert torch.equal(file.get_tensor(f"keys.{number}"), layer.keys[:, :, : len(ids)])
                assert torch.equal(file.get_tensor(f"values.{number}"), layer.values[:, :, : len(ids)])


@pytest.mark.parametrize("question", ["Who?", "1?", "Why?", "1 or 2?", "?"])
def test_the_border_is_the_same_for_every_question(saved, document, tmp_path, question):
    with engine_of() as engine:
        ask(engine, document, question, max_new_tokens=1)
        engine.save_document(tmp_path / "other")
    with safe_open(saved, framework="pt") as one, safe_open(tmp_path / "other", framework="pt") as two:
        assert one.get_tensor("ids").tolist() == two.get_tensor("ids").tolist()


def test_an_index_comes_back_without_the_document_being_embedded_again(saved, document):
    encoder = WordEncoder()
    with RapidEngine(tiny_model(), retrieval=TINY, encoder=encoder) as engine:
        result = ask(engine, engine.load_document(saved), QUESTION, max_new_tokens=2)
        assert encoder.embedded == 0
        # What was restored can be saved again, before and after it was searched.
        engine.save_document(saved.with_name("again"))
    with engine_of() as engine:
        ask(engine, engine.load_document(saved.with_name("again")), max_new_tokens=2)
    with engine_of() as fresh:
        assert ask(fresh, document, QUESTION, max_new_tokens=2).stats.retrieved == result.stats.retrieved


@pytest.mark.parametrize(
    ("name", "retrieval"),
    [("other words", TINY), ("words", Retrieval(chunk_tokens=32, threshold=0.0, floor_tokens=128))],
)
def test_an_index_of_another_encoder_or_chunk_size_is_made_anew(saved, name, retrieval):
    encoder = WordEncoder()
    encoder.name = name
    with RapidEngine(tiny_model(), retrieval=retrieval, encoder=encoder) as engine:
        result = ask(engine, engine.load_document(saved), QUESTION, max_new_tokens=2)
    assert encoder.embedded > 0 and result.usage.cached_tokens > 800


def test_a_document_that_nobody_searched_is_saved_without_an_index(tmp_path, document):
    encoder = WordEncoder()
    with RapidEngine(tiny_model(), retrieval=TINY, encoder=encoder) as engine:
        ask(engine, LongContext(document, ("The judge of Peru lives in Lima.",)), max_new_tokens=2)
        engine.save_document(tmp_path / "document")
    with RapidEngine(tiny_model(), retrieval=TINY, encoder=encoder) as engine:
        context = engine.load_document(tmp_path / "document")
        assert context.chunks is None and encoder.embedded == 0
        assert ask(engine, context, max_new_tokens=2).stats.retrieved


def test_a_dialogue_saves_its_document_and_a_system_message_but_none_of_its_turns(tmp_path, document):
    turns = [
        Message("system", "Be brief."),
        Message("user", "Who?"),
        Message("assistant", "Nobody."),
        Message("user", "Why?"),
    ]
    with engine_of() as engine:
        engine.generate(turns, context=document, sampling=SHORT)
        engine.save_document(tmp_path / "document")
        decode = engine.target.tokenizer.decode
    with safe_open(tmp_path / "document", framework="pt") as file:
        text = decode(file.get_tensor("ids").tolist())
    assert text.startswith("<|im_start|>system\nBe brief.") and text.endswith(document + "\n\n")


def test_a_long_message_that_found_its_own_document_can_be_saved(tmp_path, document):
    long = "\n\n".join([document] * 3)
    with engine_of(tiny_model(window=8192)) as engine:
        engine.generate(f"{long}\n\nWho lives in Lima?", sampling=SHORT)
        engine.save_document(tmp_path / "document")
    with engine_of(tiny_model(window=8192)) as engine:
        context = engine.load_document(tmp_path / "document")
        assert context.text == long
        assert engine.generate(QUESTION, context=context, sampling=SHORT).usage.cached_tokens > len(long)
        engine.generate(f"Read this and say who lives in Lima:\n\n{long}", sampling=SHORT)
        with pytest.raises(EngineStateError, match="it stood behind it; pass it as context="):
            engine.save_document(tmp_path / "other")


def test_without_a_document_there_is_nothing_to_save(tmp_path, document):
    path = tmp_path / "document"
    with engine_of() as engine:
        with pytest.raises(EngineStateError, match="ask a question about it first, with context="):
            engine.save_document(path)
        engine.generate("Who are you?", sampling=SHORT)
        with pytest.raises(EngineStateError, match="there was none"):
            engine.save_document(path)
        engine.generate("Who?", context=document * 2, sampling=SHORT, fit="middle")
        with pytest.raises(EngineStateError, match="was cut to fit the window"):
            engine.save_document(path)
        ask(engine, document, max_new_tokens=2)
        engine._target.clear()
        with pytest.raises(EngineStateError, match="no longer in the cache"):
            engine.save_document(path)
    with pytest.raises(EngineStateError, match="closed"):
        engine.save_document(path)
    with pytest.raises(EngineStateError, match="closed"):
        engine.load_document(path)
    assert list(tmp_path.iterdir()) == []


def test_saving_waits_for_its_turn(tmp_path, document):
    with engine_of() as engine:
        stream = engine.stream("Who?", context=document)
        next(stream)
        with pytest.raises(EngineStateError, match="still has a stream of it open"):
            engine.save_document(tmp_path / "document")
        stream.close()
        engine.save_document(tmp_path / "document")


# -- what is refused ------------------------------------------------------------------------------


def refuse(engine, path, match):
    """Loading fails for a reason, and changes nothing."""
    before = [(slot, list(slot.sequence), slot.cache.length) for slot in engine._target.store.slots]
    with pytest.raises(SavedDocumentError, match=match) as error:
        engine.load_document(path)
    assert isinstance(error.value, LoadError)
    assert [(slot, slot.sequence, slot.cache.length) for slot in engine._target.store.slots] == before


def test_what_is_no_saved_document_is_refused(tmp_path, document):
    with engine_of() as engine:
        ask(engine, document[:300], max_new_tokens=2)
        refuse(engine, tmp_path / "missing", "must be a file")
        refuse(engine, tmp_path, "must be a file")
        for content in (b"", b"text", b"\xff" * 100, document.encode()):
            (tmp_path / "text").write_bytes(content)
            refuse(engine, tmp_path / "text", "no safetensors file, or was cut short")
        save_file({"weight": torch.zeros(2)}, tmp_path / "model")
        refuse(engine, tmp_path / "model", "a safetensors file of another kind")
        with pytest.raises(OptionError, match="named by a path, got 5"):
            engine.load_document(5)
        for name in ("a\0b", "\udcff.safetensors"):
            with pytest.raises(OptionError, match="must be text without null characters"):
                engine.save_document(name)
        with pytest.raises(OptionError, match="named by a path, got ''"):
            engine.save_document("")


@pytest.mark.parametrize("part", [0.001, 0.1, 0.5, 0.999999])
def test_a_file_that_was_cut_short_is_refused(copy, part):
    data = copy.read_bytes()
    copy.write_bytes(data[: int(len(data) * part)])
    with engine_of() as engine:
        refuse(engine, copy, "cut short")


@pytest.mark.parametrize("name", ["ids", "text", "chunks", "vectors", "keys.0", "values.3"])
def test_one_changed_byte_anywhere_is_noticed(copy, name):
    data = bytearray(copy.read_bytes())
    (size,) = struct.unpack("<Q", data[:8])
    start, end = json.loads(data[8 : 8 + size])[name]["data_offsets"]
    data[8 + size + (start + end) // 2] ^= 1
    copy.write_bytes(data)
    with engine_of() as engine:
        refuse(engine, copy, "its checksum must be '[0-9a-f]{64}', and it is '[0-9a-f]{64}': the file is damaged")


@pytest.mark.parametrize("changes", [{"beyond_border": "True"}, {"encoder": "other"}, {"checksum": ""}])
def test_a_changed_header_is_noticed(copy, changes):
    edit_metadata(copy, **changes)
    with engine_of() as engine:
        refuse(engine, copy, "its checksum must be")


def test_another_version_of_the_format_is_refused(copy):
    edit_metadata(copy, version="2")
    with engine_of() as engine:
        refuse(engine, copy, "format must be version 1, and it is '2'")


def test_other_models_are_refused_by_what_differs(saved):
    with engine_of(tiny_model("qwen2")) as engine:
        refuse(engine, saved, "made by another model, 'tiny-llama-0', and this one is 'tiny-qwen2-0'")
    with engine_of(tiny_model(seed=1)) as engine:
        refuse(engine, saved, "made by 'tiny-llama-0', which has other weights than 'tiny-llama-1'")
    with engine_of(model_of(torch.bfloat16)) as engine:
        refuse(
            engine, saved, "made in float32, and 'tiny-llama-0' runs in bfloat16; load the model with dtype='float32'"
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_fine_tuned_number_makes_another_model(dtype):
    loaded = model_of(dtype)
    before = fingerprint(loaded.model)
    assert fingerprint(model_of(dtype).model) == before
    for weight in (loaded.model.model.layers[2].mlp.down_proj.weight, loaded.model.model.norm.weight):
        kept = weight.detach().clone()
        with torch.no_grad():
            weight.view(-1)[-1] += 0.125
        assert fingerprint(loaded.model).weights != before.weights
        with torch.no_grad():
            weight.copy_(kept)
    assert fingerprint(loaded.model) == before


def test_a_document_over_the_window_is_refused(saved, monkeypatch):
    with engine_of() as engine:
        monkeypatch.setattr(engine._target, "window", 512)
        refuse(engine, saved, "shorter than the target's window of 512 tokens, and it has 832")


def test_a_crash_while_writing_leaves_what_was_there(tmp_path, document, monkeypatch):
    path = tmp_path / "document"
    path.write_text("mine")
    with engine_of() as engine:
        ask(engine, document, max_new_tokens=2)

        def crash(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(document_file.os, "fsync", crash)
        with pytest.raises(KeyboardInterrupt):
            engine.save_document(path)
        assert [file.name for file in tmp_path.iterdir()] == ["document"] and path.read_text() == "mine"
        monkeypatch.undo()
        engine.save_document(path)
        assert engine.load_document(path).text == document
        assert [file.name for file in tmp_path.iterdir()] == ["document"]


def test_a_place_that_takes_no_file_is_an_error_with_a_remedy(tmp_path, document):
    with engine_of() as engine:
        ask(engine, document, max_new_tokens=2)
        for path in (tmp_path / "no" / "folder", tmp_path):
            with pytest.raises(SavedDocumentError, match="could not be written to .*name a file in a folder"):
                engine.save_document(path)
    assert list(tmp_path.iterdir()) == []


# -- in the cache ---------------------------------------------------------------------------------


def test_a_loaded_document_leaves_others_their_caches_within_the_budget(saved, document):
    other = document.replace("lives in", "was seen near")
    with engine_of() as engine:
        ask(engine, other, max_new_tokens=2)
        context = engine.load_document(saved)
        assert ask(engine, other, max_new_tokens=2).usage.cached_tokens > 800
        assert ask(engine, context, QUESTION, max_new_tokens=2).usage.cached_tokens > 800
    with engine_of(cache_gib=0) as engine:
        ask(engine, other, max_new_tokens=2)
        context = engine.load_document(saved)
        assert len(engine._target.store.slots) == 1
        assert ask(engine, context, QUESTION, max_new_tokens=2).usage.cached_tokens > 800


def test_a_document_that_is_in_the_cache_is_not_loaded_twice(saved, document):
    with engine_of() as engine:
        ask(engine, document, max_new_tokens=2)
        before = engine._target.store.current
        engine.load_document(saved)
        assert engine._target.store.slots == [before]
        assert engine._target.sequence[: engine._target.length] == before.sequence[: before.cache.length]


def test_a_longrope_text_beyond_the_border_is_known_as_such(tmp_path):
    rope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 256,
        "short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "factor": 4.0,
    }  # fmt: skip
    model = tiny_model("phi3", rope_parameters=rope, original_max_position_embeddings=256)
    texts = {"long": "x" * 400, "short": "y" * 100}
    for name, text in texts.items():
        with RapidEngine(model) as engine:
            expected = ask(engine, LongContext(text, ()), QUESTION, max_new_tokens=8)
            engine.save_document(tmp_path / name)
            assert engine._target.store.current.beyond_border == (name == "long")
        with RapidEngine(tiny_model("phi3", rope_parameters=rope, original_max_position_embeddings=256)) as engine:
            engine.load_document(tmp_path / name)
            result = ask(engine, LongContext(text, ()), QUESTION, max_new_tokens=8)
            assert result.token_ids == expected.token_ids and result.usage.cached_tokens >= len(text)


def test_two_roles_load_what_the_target_saved(tmp_path, document):
    with tiny_engine() as engine:
        expected = ask(engine, document, QUESTION, max_new_tokens=12)
        engine.save_document(tmp_path / "document")
    with tiny_engine() as engine:
        result = ask(engine, engine.load_document(tmp_path / "document"), QUESTION, max_new_tokens=12)
    assert result.token_ids == expected.token_ids and result.stats.accepted == expected.stats.accepted
