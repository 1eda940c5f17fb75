"""Ids to text: characters of several tokens, stop strings across tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rapid_core.datatypes import TokenEvent
from rapid_core.streaming import Detokenizer, TextStream
from rapid_core.testing import tiny_tokenizer

BYTES = tiny_tokenizer()


def spaced_tokenizer():
    """Words that carry their space in front of them, dropped at the start of a text, like Llama 2's."""
    words = {"<unk>": 0, "▁the": 1, "▁king": 2, "s": 3, "▁": 4, "<0xF0>": 5, "<0x9F>": 6, "<0xA6>": 7, "<0x8A>": 8}
    backend = Tokenizer(models.BPE(vocab=words, merges=[], byte_fallback=True, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", clean_up_tokenization_spaces=False)


SPACED = spaced_tokenizer()


def run(tokenizer, ids, stop=()):
    stream = TextStream(tokenizer, stop)
    deltas = []
    for position, id_ in enumerate(ids):
        deltas.append(stream.push(TokenEvent(id_, False, position)))
        if stream.stopped:
            break
    deltas.append(stream.finish())
    return [delta for delta in deltas if delta is not None], stream


def ids_of(text):
    return BYTES.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("text", ["plain", "名前 🦊🇵🇪 ñ", "a\n\nb  c ", "👩‍👩‍👧", "\ufffd is a character too"])
def test_pieces_add_up_and_characters_come_whole(text):
    deltas, _ = run(BYTES, ids_of(text))
    assert "".join(delta.text for delta in deltas) == text
    assert "\ufffd" in text or not any("\ufffd" in delta.text for delta in deltas)
    assert [id_ for delta in deltas for id_ in delta.token_ids] == ids_of(text)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 258), max_size=60))
def test_pieces_of_any_bytes_add_up_to_the_tokenizers_text(ids):
    deltas, stream = run(BYTES, ids)
    assert "".join(delta.text for delta in deltas) == BYTES.decode(ids, skip_special_tokens=True)
    assert [id_ for delta in deltas for id_ in delta.token_ids] == ids
    assert stream.tokens == len(ids)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([[1], [2], [3], [4], [5, 6, 7, 8]]), max_size=20))
def test_spaces_in_front_of_words_survive(words):
    ids = [id_ for word in words for id_ in word]
    deltas, _ = run(SPACED, ids)
    assert "".join(delta.text for delta in deltas) == SPACED.decode(ids, skip_special_tokens=True)


def test_a_character_cut_off_at_the_end_is_what_the_tokenizer_makes_of_it():
    ids = ids_of("fox 🦊")[:-1]
    deltas, _ = run(BYTES, ids)
    assert "".join(delta.text for delta in deltas) == BYTES.decode(ids) == "fox \ufffd"


@settings(max_examples=200, deadline=None)
@given(st.text("ab\n🦊", max_size=30), st.lists(st.text("ab\n🦊", min_size=1, max_size=4), min_size=1, max_size=3))
def test_text_ends_before_the_stop_string_that_is_complete_first(text, stops):
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    expected = text[: min(ends)[1]] if ends else text
    deltas, stream = run(BYTES, ids_of(text), stops)
    assert "".join(delta.text for delta in deltas) == expected
    assert stream.stopped == bool(ends)


def test_what_may_begin_a_stop_string_is_held_back_and_nothing_more():
    stream = TextStream(BYTES, ["\nObservation:"])
    shown = []
    for position, id_ in enumerate(ids_of("yes\nObserve")):
        delta = stream.push(TokenEvent(id_, False, position))
        shown.append(delta.text if delta else "")
    # Held from the line break on, until the 'e' shows that it is no stop string.
    assert shown == ["y", "e", "s", "", "", "", "", "", "", "", "\nObserve"]


def test_the_tokens_after_a_stop_string_are_not_asked_for():
    _, stream = run(BYTES, ids_of("one two three"), ["two"])
    assert stream.tokens == len("one two")


def test_special_tokens_have_no_text_and_still_count():
    detokenizer = Detokenizer(BYTES)
    assert [detokenizer.push(id_) for id_ in (*ids_of("a"), BYTES.eos_token_id, *ids_of("b"))] == ["a", "", "b"]
