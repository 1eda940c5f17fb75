"""The engines of an evaluation: which models they have, and where their options go."""

from __future__ import annotations

import pytest
import torch
from run_helpers import options

import rapid_core.retrieval.searcher
from rapid_core.evaluation.engines import load_engines
from rapid_core.testing import WordEncoder, save_tiny_model


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A target, a drafter and a larger drafter."""
    return [
        str(save_tiny_model(tmp_path_factory.mktemp(f"model-{seed}"), seed=seed, num_hidden_layers=layers))
        for seed, layers in ((0, 2), (1, 1), (2, 3))
    ]


@pytest.fixture(autouse=True)
def words(monkeypatch):
    monkeypatch.setattr(rapid_core.retrieval.searcher, "load_encoder", lambda *_: WordEncoder())


def layers(loaded):
    return loaded.model.config.num_hidden_layers


def test_an_upward_drafter_has_an_engine_of_its_own_on_the_same_target(folders):
    target, drafter, larger = folders
    with load_engines(options(target=target, drafter=drafter, upward_drafter=larger, device="cpu")) as engines:
        assert list(engines) == ["drafter", "upward"]
        one, other = engines.values()
        assert one.target is other.target and layers(one.target) == 2
        assert (layers(one.drafter), layers(other.drafter)) == (1, 3)
        assert one.retrieval == other.retrieval
    for engine in engines.values():
        assert not hasattr(engine, "target")


def test_without_an_upward_drafter_there_is_one_engine_that_drafts_for_itself(folders):
    with load_engines(options(target=folders[0], device="cpu", encoder="own")) as engines:
        assert list(engines) == ["drafter"]
        assert engines["drafter"].drafter is engines["drafter"].target
        assert engines["drafter"].retrieval.encoder == "own"


def test_options_of_the_drafter_are_the_upward_drafters_too(folders):
    target, _, larger = folders
    given = options(target=target, upward_drafter=larger, device="cpu", dtype="float32", drafter_dtype="bfloat16")
    with load_engines(given) as engines:
        assert engines["drafter"].target.model.dtype == torch.float32
        assert engines["upward"].drafter.model.dtype == torch.bfloat16


def test_no_encoder_is_loaded_where_nobody_reads_passages(folders, monkeypatch):
    monkeypatch.setattr(rapid_core.retrieval.searcher, "load_encoder", None)
    with load_engines(options(target=folders[0], device="cpu", methods=("lc", "magicdec", "lookup"))):
        pass
