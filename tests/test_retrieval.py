"""Chunks, embeddings by FlagEmbedding, a real Chroma collection, and the choice among them."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, XLMRobertaConfig, XLMRobertaModel

from rapid_core import Chunk, LoadError, Retrieval, RetrievalError
from rapid_core.retrieval import (
    DocumentIndex,
    above,
    budget_tokens,
    chunk_size,
    fill,
    in_document_order,
    join,
    load_encoder,
    split_chunks,
)
from rapid_core.retrieval.embedding import demo_encoder_folder
from rapid_core.retrieval.store import Store
from rapid_core.testing import WordEncoder, tiny_tokenizer

TEXT = "\n\n".join(
    f"Section {i}. The harbour of town {i} was built in {1800 + i}. Ships of every kind call there. 東京 and Łódź too."
    for i in range(40)
)


def count(text):
    return len(text.split())


def silent(*_):
    pass


# -- chunks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [16, 30, 100])
def test_chunks_are_counted_placed_and_lose_nothing_but_white_space(size):
    chunks = split_chunks(TEXT, size, count)
    assert all(count(chunk.text) <= size for chunk in chunks)
    assert all(TEXT[chunk.start : chunk.end] == chunk.text for chunk in chunks)
    between = [TEXT[a.end : b.start] for a, b in pairwise(chunks)]
    assert not "".join(between).strip() and chunks[0].start == 0 and chunks[-1].end == len(TEXT)


def test_borders_are_paragraphs_where_they_fit_and_sentences_where_not():
    assert all(chunk.text.startswith("Section") for chunk in split_chunks(TEXT, 40, count))
    assert all(chunk.text[-1] == "." or chunk.text.endswith("too.") for chunk in split_chunks(TEXT, 16, count))


# -- the choice -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "budget"),
    [(8_000, 2_000), (16_384, 4_096), (32_000, 4_096), (98_304, 4_096), (120_000, 5_000), (1_000_000, 41_666)],
)
def test_the_budget_is_the_papers_and_at_most_a_quarter(document, budget):
    assert budget_tokens(document, Retrieval()) == budget


def test_a_chunk_is_smaller_in_a_short_document():
    assert [chunk_size(n, Retrieval()) for n in (100, 1_600, 8_192, 100_000)] == [16, 200, 512, 512]


def test_the_best_chunks_fill_the_budget_and_go_back_in_order():
    ranked = [
        Chunk("a b c", 50, 55, 0.9),
        Chunk("a b c d e", 90, 99, 0.8),
        Chunk("a b", 0, 3, 0.7),
        Chunk("a", 70, 71, 0.2),
    ]
    kept = fill(above(ranked, 0.3), 5, count)
    assert [chunk.start for chunk in kept] == [50, 0]
    assert join(in_document_order(kept)) == "a b\n\na b c"


# -- the index ------------------------------------------------------------------------------------


def test_the_ranking_is_by_cosine_and_complete(store):
    chunks, encoder, index = split_chunks(TEXT, 16, count), WordEncoder(), DocumentIndex(store)
    ranked = index.rank(TEXT, chunks, encoder, "the harbour of town 17", silent)
    vectors = encoder.embed_passages([chunk.text for chunk in chunks], silent)
    expected = sorted(vectors @ encoder.embed_query("the harbour of town 17"), reverse=True)
    assert np.allclose([chunk.score for chunk in ranked], expected, atol=1e-5)
    assert {chunk.start for chunk in ranked} == {chunk.start for chunk in chunks}
    assert "town 17" in ranked[0].text


def test_a_second_question_embeds_no_passage_again(store):
    chunks, encoder, index = split_chunks(TEXT, 16, count), WordEncoder(), DocumentIndex(store)
    index.rank(TEXT, chunks, encoder, "one", silent)
    embedded = encoder.embedded
    index.rank(TEXT, chunks, encoder, "two", silent)
    assert encoder.embedded == embedded == len(chunks)
    index.rank(TEXT + ".", chunks, encoder, "two", silent)
    assert encoder.embedded == 2 * embedded


def test_an_interrupted_index_is_made_again(store):
    chunks, encoder, index = split_chunks(TEXT, 16, count), WordEncoder(), DocumentIndex(store)

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index.rank(TEXT, chunks, encoder, "one", interrupt)
    assert len(index.rank(TEXT, chunks, encoder, "one", silent)) == len(chunks)


def test_a_failing_encoder_is_an_error_with_its_reason(store):
    encoder = WordEncoder()
    encoder.embed_query = lambda _: (_ for _ in ()).throw(RuntimeError("out of memory"))
    index = DocumentIndex(store)
    with pytest.raises(RetrievalError, match="out of memory.*LongContext.chunks"):
        index.rank(TEXT, split_chunks(TEXT, 16, count), encoder, "one", silent)


def test_a_store_shares_nothing_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = Store()
    store.open("rapid-x").upsert(ids=["1"], embeddings=np.ones((1, 3), dtype=np.float32))
    assert Store().open("rapid-x").count() == 0 and store.open("rapid-x").count() == 1
    store.close()
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_an_applications_own_chroma_opens_beside_a_store_whatever_its_settings():
    code = (
        "import chromadb\n"
        "from rapid_core.retrieval.store import Store\n"
        "first = Store()\n"
        "client = chromadb.EphemeralClient(settings=chromadb.config.Settings(allow_reset=True))\n"
        "client.create_collection('theirs')\n"
        "Store().open('ours')\n"
        "print([found.name for found in client.list_collections()])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['theirs']"


# -- the encoders ---------------------------------------------------------------------------------


def test_the_demo_encoder_knows_what_belongs_together(capfd):
    encoder = load_encoder("demo", "cpu")
    told = []
    passages = ["A cat sleeps on the sofa.", "The treaty was signed in 1648.", "Kittens like to nap."] * 12
    vectors = encoder.embed_passages(passages, told.append)
    scores = vectors @ encoder.embed_query("Where does the kitten sleep?")
    assert scores[0] > scores[1] and scores[2] > scores[1]
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)
    assert np.allclose(vectors[:3], vectors[3:6], atol=1e-5)
    assert told[-1] == len(passages)
    # FlagEmbedding's own progress bars would tear the command line's apart.
    assert "Inference Embeddings" not in capfd.readouterr().err


def test_a_question_longer_than_the_encoder_reads_loses_nothing():
    encoder = load_encoder("demo", "cpu")
    kitten, filler = encoder.embed_query("Where does the kitten sleep?"), "The treaty was signed. " * 300
    assert encoder.count_tokens(filler) > 2 * encoder.max_tokens
    at_the_start = encoder.embed_query("Where does the kitten sleep? " * 60 + filler)
    at_the_end = encoder.embed_query(filler + "Where does the kitten sleep? " * 60)
    assert min(kitten @ at_the_start, kitten @ at_the_end) > kitten @ encoder.embed_query(filler) + 0.05


def test_a_folder_with_the_heads_of_bge_m3_runs_its_own_code_path(tmp_path):
    AutoTokenizer.from_pretrained(demo_encoder_folder()).save_pretrained(tmp_path)
    config = XLMRobertaConfig(
        vocab_size=30522, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=130, pad_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        XLMRobertaModel(config).save_pretrained(tmp_path)
        torch.save(torch.nn.Linear(32, 32).state_dict(), tmp_path / "colbert_linear.pt")
        torch.save(torch.nn.Linear(32, 1).state_dict(), tmp_path / "sparse_linear.pt")
    encoder = load_encoder(str(tmp_path), "cpu")
    assert type(encoder._model).__name__ == "M3Embedder"
    assert encoder.max_tokens == 128
    vectors = encoder.embed_passages(["one", "two words"], silent)
    assert vectors.shape == (2, 32)
    assert encoder.embed_query("one") @ vectors[0] == pytest.approx(1, abs=1e-3)


def test_the_pooling_is_read_from_the_folder(tmp_path):
    from rapid_core.retrieval.embedding import _pooling

    assert _pooling(str(demo_encoder_folder())) == "mean"
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    assert _pooling(str(tmp_path)) == "cls"


def test_an_encoder_that_is_not_there_is_an_error_with_a_remedy(tmp_path):
    with pytest.raises(LoadError, match="no encoder folder at .*use the encoder 'demo'"):
        load_encoder(str(tmp_path / "missing"), "cpu")


def test_a_chunk_is_never_longer_than_the_encoder_reads():
    from rapid_core.prompts import ChatPrompter
    from rapid_core.retrieval import Searcher

    prompter, encoder = ChatPrompter(tiny_tokenizer()), WordEncoder()
    encoder.max_tokens = 12
    searcher = Searcher(Retrieval(chunk_tokens=200), prompter.count_tokens, 9999, encoder, "cpu")
    chunks = searcher.chunks(TEXT * 2, encoder)
    assert all(encoder.count_tokens(chunk.text) <= 12 for chunk in chunks)
    assert all(prompter.count_tokens(chunk.text) <= 200 for chunk in chunks)
