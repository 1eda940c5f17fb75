"""The methods of an evaluation, and the grid of settings that options make of them."""

from __future__ import annotations

import json

import pytest
from run_helpers import options

from rapid_core import OptionError, Speculation
from rapid_core.evaluation import methods, shares
from rapid_core.evaluation.methods import METHODS
from rapid_core.evaluation.options import EvalOptions
from rapid_core.evaluation.records import Setting

RAPID = {"eta": 7.0, "gamma": 4}


@pytest.mark.parametrize(
    ("setting", "speculation"),
    [
        (Setting(method="lc"), Speculation.off()),
        (Setting(method="rag"), Speculation.retrieved_alone()),
        (Setting(method="sd", gamma=4), Speculation(eta=0, gamma=4)),
        (Setting(method="lookup", gamma=4), Speculation(eta=0, gamma=4, drafter="lookup")),
        (Setting(method="rapid", **RAPID), Speculation(**RAPID)),
        (Setting(method="rapid", eta="auto", gamma="auto"), Speculation(eta="auto", gamma="auto")),
        (Setting(method="rapid-upward", **RAPID), Speculation(**RAPID)),
    ],
)
def test_each_method_decodes_as_it_is_described(setting, speculation):
    assert METHODS[setting.method].speculation(setting, 8000) == speculation


def test_the_report_knows_from_the_methods_which_of_them_are_rapid_and_which_are_lossless():
    assert shares.RAPID_METHODS == ("rapid", "rapid-upward")
    assert shares.LOSSLESS_METHODS == ("sd", "magicdec", "lookup")


@pytest.mark.parametrize(("document_tokens", "window"), [(131_072, 4096), (16_384, 512), (8192, 256), (100, 256)])
def test_the_window_of_magicdec_is_the_papers_part_of_the_document_and_never_tiny(document_tokens, window):
    found = METHODS["magicdec"].speculation(Setting(method="magicdec", gamma=4), document_tokens)
    assert found == Speculation(eta=0, gamma=4, drafter="streaming", sinks=4, sliding_window=window)


def test_methods_stand_in_the_papers_order_and_only_upward_speculation_wants_a_larger_drafter():
    assert list(METHODS) == ["lc", "rag", "sd", "magicdec", "lookup", "rapid", "rapid-upward"]
    assert [name for name, method in METHODS.items() if method.engine == "upward"] == ["rapid-upward"]
    assert len({method.place for method in METHODS.values()}) == len(METHODS)


def test_a_method_is_added_by_one_file(tmp_path, monkeypatch):
    (tmp_path / "doubled.py").write_text(
        "from rapid_core.evaluation.methods.rapid import Rapid\n"
        "class Doubled(Rapid):\n    name, place = 'doubled', 9\n"
        "METHOD = Doubled()\n"
    )
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    assert list(methods._methods()) == [*METHODS, "doubled"]


def labels(**given):
    return [setting.label for setting in options(**given).settings]


def test_all_methods_that_can_run_are_compared_unless_some_are_named():
    assert EvalOptions().methods == ("lc", "rag", "sd", "magicdec", "lookup", "rapid")
    assert EvalOptions(upward_drafter="larger").methods == tuple(METHODS)
    assert labels() == [
        "lc",
        "rag",
        "sd, gamma 10",
        "magicdec, gamma 10",
        "lookup, gamma 10",
        "rapid, eta 10, gamma 10",
    ]


def test_options_multiply_only_the_methods_that_have_a_use_for_them():
    asked = options(eta=(5, "auto"), gamma=(2, 4), retrieved_tokens=(512, 1024), unrelated=True)
    count = {}
    for setting in asked.settings:
        count[setting.method] = count.get(setting.method, 0) + 1
        assert (setting.eta is None) == (setting.method != "rapid")
        assert (setting.gamma is None) == (setting.method in ("lc", "rag"))
        assert (setting.retrieved_tokens is None) == (setting.method in ("lc", "magicdec", "lookup"))
    assert count == {"lc": 1, "rag": 4, "sd": 8, "magicdec": 2, "lookup": 2, "rapid": 16}
    assert len(set(asked.settings)) == len(asked.settings)


def test_the_length_of_the_document_multiplies_all_methods_and_is_the_outermost():
    assert labels(methods=("lc", "sd"), context_tokens=(1000, 2000)) == [
        "lc, 1,000 in context",
        "sd, gamma 10, 1,000 in context",
        "lc, 2,000 in context",
        "sd, gamma 10, 2,000 in context",
    ]


def test_rapid_without_transfer_is_sd_and_is_asked_once():
    assert labels(methods=("sd", "rapid"), eta=(0, 5)) == ["sd, gamma 10", "rapid, eta 5, gamma 10"]
    assert labels(methods="rapid", eta=(0, 5)) == ["sd, gamma 10", "rapid, eta 5, gamma 10"]


def test_unrelated_passages_are_compared_at_each_eta_beside_the_related_ones():
    found = labels(methods=("lc", "rag", "sd", "rapid"), eta=(0, 5, 10), unrelated=True)
    assert found == [
        "lc",
        "rag",
        "rag, unrelated passages",
        "sd, gamma 10",
        "sd, gamma 10, unrelated passages",
        "rapid, eta 5, gamma 10",
        "rapid, eta 10, gamma 10",
        "rapid, eta 5, gamma 10, unrelated passages",
        "rapid, eta 10, gamma 10, unrelated passages",
    ]


def test_the_order_in_which_methods_are_named_changes_nothing():
    assert options(methods=("rapid", "lc")).settings == options(methods=("lc", "rapid")).settings


def test_the_same_numbers_are_the_same_options():
    assert options(eta=(5, 0)) == options(eta=(5.0, 0.0))
    assert options(eta=5).as_object() == json.loads(json.dumps(options(eta=5.0).as_object()))
    assert EvalOptions(**{**options(eta=5).as_object(), **_tuples(options(eta=5))}) == options(eta=5)


def _tuples(given):
    return {name: tuple(value) for name, value in given.as_object().items() if isinstance(value, list)}


def test_a_gamma_that_follows_the_clock_is_noted():
    assert options(gamma=10).notes == []
    [note] = options(gamma=(10, "auto")).notes
    assert "follows the clock" in note and "can differ from run to run" in note


def test_lengths_that_hold_no_passage_are_noted():
    assert options(retrieved_tokens=(512, 4096)).notes == []
    [note] = options(retrieved_tokens=(128, 256, 512)).notes
    assert note.startswith("passages have up to 512 tokens and are not cut: where 128, 256 are retrieved")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"methods": ("lc", "magic")}, "methods must be some of lc, rag, sd, magicdec, lookup, rapid, rapid-upward"),
        ({"methods": ("lc", "lc")}, "each once, got lc, lc"),
        ({"methods": ("lc", "rapid-upward")}, "needs a drafter larger than the target, got none; name it"),
        ({"methods": ("lc", "rapid"), "upward_drafter": "big"}, "an upward drafter is for rapid-upward, got 'big'"),
        ({"tasks": ()}, "tasks must name at least one, got none"),
        ({"tasks": ("a", "a")}, "tasks must be different ones, got a, a"),
        ({"eta": ()}, "eta must name at least one, got none"),
        ({"eta": (5, 5.0)}, "eta must be different ones, got 5.0, 5.0"),
        ({"eta": (-1,)}, "eta must be at least 0"),
        ({"eta": ("much",)}, "eta must be a number or 'auto', got 'much'"),
        ({"gamma": (0,)}, "gamma must be at least 1, got 0"),
        ({"gamma": (2.5,)}, "gamma must be a whole number, got 2.5"),
        ({"retrieved_tokens": (0,)}, "retrieved_tokens must be at least 1, got 0"),
        ({"context_tokens": (0,)}, "context_tokens must be at least 1, got 0"),
        ({"limit": 0}, "limit must be at least 1, got 0"),
        ({"documents": 0}, "documents must be at least 1, got 0"),
        ({"max_document_tokens": 0}, "max_document_tokens must be at least 1, got 0"),
        ({"fit": "retrieve"}, "fit must be one of error, middle, got 'retrieve'"),
        ({"temperature": -1.0}, "temperature must be at least 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"methods": ("lc", "sd"), "eta": (5,)}, "eta is for the methods rapid, rapid-upward, got it for lc, sd"),
        ({"methods": ("lc", "rag"), "gamma": (5,)}, "gamma is for the methods sd, magicdec, lookup, rapid"),
        ({"methods": ("lc", "lookup"), "retrieved_tokens": (5,)}, "retrieved_tokens is for the methods rag, sd, rapid"),
        ({"methods": ("lc",), "unrelated": True}, "unrelated is for the methods rag, sd, rapid, rapid-upward"),
        ({"judge_url": "http://localhost:1/v1"}, "a judge needs an address and the name of a model"),
    ],
)
def test_bad_options_are_refused_with_rule_value_and_remedy(given, message):
    with pytest.raises(OptionError) as error:
        EvalOptions(**given)
    assert message in str(error.value)
