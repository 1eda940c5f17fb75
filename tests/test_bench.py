"""`rapid bench`, end to end on a tiny model, and its arithmetic on made-up figures."""

from __future__ import annotations

import io
import json
import sys

import pytest
import torch

import rapid_core.retrieval.searcher
from rapid_core import LongContext, OptionError, Retrieval, Speculation, cli
from rapid_core.bench import machine
from rapid_core.bench.baselines import Baselines
from rapid_core.bench.engine import MeasuredEngine
from rapid_core.bench.options import METHODS, BenchOptions
from rapid_core.bench.summary import spread
from rapid_core.testing import WordEncoder, save_tiny_model, tiny_model, tiny_pair

LENGTHS = (300, 500)
KINDS = ("quoting", "free")
# What is measured once is measured in one worker.
pytestmark = pytest.mark.xdist_group("bench")
# The smallest benchmark that has something of everything.
SMALL = (
    "--lengths",
    "300,500",
    "--kinds",
    "quoting,free",
    "--max-new-tokens",
    "16",
    "--repeats",
    "2",
    "--gamma",
    "2",
    "--device",
    "cpu",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), window=2048)


@pytest.fixture(scope="module")
def text(document, tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "register.txt"
    file.write_text("\n\n".join(f"Page {page}. {document}" for page in range(5)))
    return file


def run_bench(*words):
    """Run `rapid bench ...`; returns (status, stdout, stderr)."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rapid_core.retrieval.searcher, "load_encoder", lambda *_: WordEncoder())
        patch.setitem(machine.PROBE_BYTES, "cpu", 2**24)
        patch.setattr(sys, "argv", ["rapid", "bench", *map(str, words)])
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        with pytest.raises(SystemExit) as end:
            cli.main()
    return end.value.code or 0, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def measured(folder, text, tmp_path_factory):
    """One whole benchmark of the tiny model: (status, stdout, the JSON file, the plot file)."""
    files = tmp_path_factory.mktemp("out")
    found, plot = files / "bench.json", files / "bench.png"
    status, out, _ = run_bench(*SMALL, "--target", folder, "--document", text, "--json", found, "--plot", plot)
    return status, out, json.loads(found.read_text()), plot


@pytest.fixture(scope="module")
def simulated(folder, text, tmp_path_factory):
    """One benchmark of random weights: (status, stdout, the JSON file)."""
    found = tmp_path_factory.mktemp("out") / "bench.json"
    words = (*SMALL, "--lengths", "300", "--kinds", "free", "--random-weights", folder / "config.json")
    status, out, _ = run_bench(*words, "--acceptance", "1", "--document", text, "--json", found)
    return status, out, json.loads(found.read_text())


def test_the_json_file_has_every_method_at_every_length_and_every_run(measured):
    status, _, found, _ = measured
    assert status == 0 and found["complete"] is True and found["simulated_acceptance"] is None
    assert [entry["length"] for entry in found["lengths"]] == list(LENGTHS)
    for entry in found["lengths"]:
        assert list(entry["methods"]) == list(METHODS) and list(entry["kinds"]) == list(KINDS)
        assert all(list(methods) == list(METHODS) for methods in entry["kinds"].values())
        assert entry["cold"]["cached_tokens"] < 64 < entry["length"] - 64 < entry["warm"]["cached_tokens"]
        assert entry["memory"]["caches"] > 0 and set(entry["forward_s"]) == {"1", "8"}
        assert set(entry["other_share"]) == {"lossless", "transfer"}
        assert all(0 < share < 1 for share in entry["other_share"].values())
    assert len(found["runs"]) == len(LENGTHS) * len(KINDS) * 2 * len(METHODS)
    assert found["machine"]["bandwidth_bytes_per_s"] > 0 and found["options"]["gamma"] == 2
    assert set(found["versions"]) == {"rapid-integrations", "python", "torch", "transformers"}


def test_the_last_line_is_the_summary_of_the_file_and_holds_its_medians(measured):
    _, out, found, _ = measured
    summary = json.loads(out.splitlines()[-1])
    assert summary == found["summary"] and list(summary["lengths"]) == [str(length) for length in LENGTHS]
    for entry in found["lengths"]:
        for name, figures in entry["methods"].items():
            own = [r for r in found["runs"] if (r["length"], r["method"]) == (entry["length"], name)]
            median = spread(run["tokens_per_s"] for run in own).median
            assert figures["tokens_per_s"]["median"] == median
            assert summary["lengths"][str(entry["length"])][name]["tokens_per_s"] == round(median, 3)


def test_the_tables_show_all_methods_and_what_is_measured_once(measured):
    _, out, _, _ = measured
    names = [name for name in METHODS.values() if name != "RAPID, eta > 0"] + ["RAPID, eta = 10"]
    for name in names:
        assert sum(line.startswith(name) for line in out.splitlines()) == 3 * len(LENGTHS)
    for words in ("300 tokens", "500 tokens", "first token, ours", "peak memory", "outside the models", "limit"):
        assert words in out
    assert not any("simulated" in line.lower() for line in out.splitlines()[:-1])


def test_the_plot_is_a_png_file(measured):
    assert measured[3].read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_all_methods_without_transfer_give_the_same_tokens_and_answers_of_full_length(measured):
    for entry in measured[2]["lengths"]:
        for name in ("generate", "prompt-lookup", "assisted", "plain", "lossless"):
            assert entry["methods"][name]["differing"] == 0
            assert entry["methods"][name]["compared"] == 16 * len(KINDS)
    assert all(len(run["answer"]["ids"]) == 16 for run in measured[2]["runs"])
    assert any(run["answer"]["transferred"] > 0 for run in measured[2]["runs"] if run["method"] == "transfer")


def test_another_method_is_first_in_each_repeat(measured):
    first = [run["method"] for run in measured[2]["runs"]][:: len(METHODS)]
    assert first[:2] == ["generate", "prompt-lookup"]


@pytest.mark.parametrize("same_weights", [True, False])
def test_transformers_methods_read_a_prompt_once_and_say_what_generate_says_alone(same_weights):
    target, drafter = tiny_pair()
    drafter = target if same_weights else drafter
    prompt = tuple(torch.randint(3, 250, (200,), generator=torch.Generator().manual_seed(0)).tolist())
    target.model.generation_config.eos_token_id = None
    alone = target.model.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0, 200:].tolist()
    target.model.generation_config.eos_token_id = 2
    baselines = Baselines(target, drafter)
    baselines.read(prompt)
    longest = []
    target.model.register_forward_pre_hook(
        lambda _, __, options: longest.append(options["input_ids"].shape[1]), with_kwargs=True
    )
    for method in ("generate", "prompt-lookup", "assisted", "generate"):
        answer = baselines.answer(method, prompt, 24)
        assert list(answer.ids) == alone
        assert 0 < answer.first_token_s < answer.total_s
        if method == "generate":
            assert (answer.rounds, answer.first_burst, answer.drafted) == (24, 1, None)
        else:
            # Each round gives its accepted drafts and one token more.
            assert answer.accepted == 24 - answer.rounds <= answer.drafted
    assert max(longest) <= 24
    assert target.model.generation_config.eos_token_id == 2 and "generate" not in vars(target.model)


def test_a_second_prompt_is_read_from_where_it_differs():
    target = tiny_model()
    baselines = Baselines(target, target)
    read = []
    target.model.register_forward_pre_hook(
        lambda _, __, options: read.append(options["input_ids"].shape[1]), with_kwargs=True
    )
    baselines.read((*range(10, 110), 1, 2, 3))
    baselines.read((*range(10, 110), 4, 5, 6))
    assert read == [102, 2]


def test_a_simulated_run_is_labelled_wherever_it_shows(simulated):
    status, out, found = simulated
    assert status == 0 and "ACCEPTANCE SIMULATED at 1" in out
    assert "* simulated: a draft stands with probability 1" in out and "RAPID, eta = 0*" in out
    assert "plain decoding, ours*" not in out
    assert found["simulated_acceptance"] == found["summary"]["simulated_acceptance"] == 1
    for method in ("prompt-lookup", "assisted"):
        assert f"left out: {METHODS[method]}" in out
        assert method in found["options"]["left_out"] and method not in found["lengths"][0]["methods"]


def test_simulated_drafts_stand_at_the_given_rate_and_the_models_do_all_their_work(simulated):
    # gamma = 2 and every draft accepted: 3 + 3 + 3 + 3 + 3 + 1 tokens, the last without a draft or cut.
    for name in ("lossless", "transfer"):
        runs = [run for run in simulated[2]["runs"] if run["method"] == name]
        assert all(run["answer"]["rounds"] == 6 and len(run["answer"]["ids"]) == 16 for run in runs)
    engine = MeasuredEngine(*tiny_pair(), retrieval=Retrieval(floor_tokens=64), encoder=WordEncoder())
    context = LongContext("The judge lives in Lima. " * 20, chunks=("The judge lives in Lima.",))
    engine.prepare(0.0)
    answer, _ = engine.answer("Who?", context, Speculation.lossless(gamma=3), 20)
    assert (answer.rounds, answer.accepted, answer.drafted) == (20, 0, 54)
    engine.prepare(0.5)
    answer, _ = engine.answer("Who?", context, Speculation.lossless(gamma=1), 400)
    # Of 250 to 300 drafts half stand: 0.35 to 0.65 is five standard deviations.
    assert 0.35 < answer.accepted / answer.drafted < 0.65


def test_an_interrupted_benchmark_reports_what_it_has(folder, text, tmp_path, monkeypatch):
    original, calls = Baselines.answer, []

    def interrupt(*arguments):
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(Baselines, "answer", interrupt)
    found, plot = tmp_path / "bench.json", tmp_path / "bench.png"
    words = (*SMALL, "--target", folder, "--document", text, "--json", found, "--plot", plot)
    status, out, _ = run_bench(*words, "--methods", "generate,plain", "--kinds", "free")
    assert status == 130 and "stopped early" in out and plot.is_file()
    kept = json.loads(found.read_text())
    assert kept["complete"] is json.loads(out.splitlines()[-1])["complete"] is False
    # One cold answer and two measured ones at the first length, then the cold one of the second.
    assert [(run["length"], run["method"]) for run in kept["runs"]] == [
        (300, "generate"),
        (300, "plain"),
        (300, "plain"),
        (300, "generate"),
    ]
    assert [entry["length"] for entry in kept["lengths"]] == [300, 500]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--lengths", "2k"), "lengths must be whole numbers separated by commas, got '2k'"),
        (("--lengths", ""), "lengths must be different numbers of tokens, at least 1, got ()"),
        (("--lengths", "300,300"), "lengths must be different numbers"),
        (("--lengths", "99999999"), "name a longer one (CLI: --document) or shorter lengths"),
        (("--lengths", "1900"), "must fit the target's window of 2,048 tokens"),
        (("--methods", "magic"), "methods must be some of generate, prompt-lookup"),
        (("--kinds", "quoting,quoting"), "kinds must be some of quoting, explaining, free, each once"),
        (("--repeats", "0"), "repeats must be at least 1, got 0"),
        (("--prompts", "0"), "prompts must be at least 1, got 0"),
        (("--max-new-tokens", "15"), "max_new_tokens must be at least 16, got 15"),
        (("--gamma", "0"), "gamma must be at least 1, got 0"),
        (("--eta", "0"), "eta = 0 is the method 'lossless'"),
        (("--eta", "-1"), "eta must be at least 0"),
        (("--eta", "much"), "eta must be a number or 'auto', got 'much'"),
        (("--acceptance", "0.5"), "acceptance is measured where weights are real, got 0.5; leave it out"),
        (("--plot", "curves.pdf"), "the plot is a PNG file, got 'curves.pdf'"),
        (("--json", "no/such/folder/bench.json"), "make the folder first"),
        (("--document", "missing.txt"), "no document at 'missing.txt'"),
    ],
)
def test_bad_options_are_refused_with_rule_value_and_remedy(folder, text, words, message):
    given = ("--target", folder, *(() if "--document" in words else ("--document", text)))
    status, out, err = run_bench(*given, *words)
    assert (status, out) == (1, "") and err.startswith("error: ") and message in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"acceptance": 1.5}, "acceptance must be at least 0 and at most 1, got 1.5"),
        ({"target": "other"}, "random weights take the place of a target"),
        ({"quantization": "bnb-4bit"}, "random weights are built whole on one device, got quantization"),
        ({"encoder": "demo"}, "random weights have nothing to search for, got the encoder 'demo'"),
        ({"methods": ("assisted",)}, "methods must name one that random weights can show, got assisted"),
    ],
)
def test_random_weights_refuse_what_they_cannot_use(options, message):
    with pytest.raises(OptionError) as error:
        BenchOptions(random_weights="some/config", **options)
    assert message in str(error.value)


def test_a_configuration_that_is_none_is_refused_by_name(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "nothing"}')
    status, _, err = run_bench("--random-weights", tmp_path)
    assert (
        status == 1
        and "no model could be built from the configuration" in err
        and str(tmp_path) in err.replace("\n", "")
    )


def test_files_that_cannot_be_written_are_found_before_anything_is_measured(tmp_path):
    for words, reason in (
        (("--json", "/dev/full/x"), "a folder that exists"),
        (("--json", tmp_path / "a.png", "--plot", tmp_path / "a.png"), "must be two files"),
    ):
        status, out, err = run_bench(*words)
        assert status == 1 and reason in " ".join(err.split()) and out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_timed_run_leaves_the_engine_as_it_was():
    engine = MeasuredEngine(*tiny_pair(), encoder=WordEncoder())
    engine.prepare(None)
    context = LongContext("The judge lives in Lima. " * 20, chunks=("The judge lives in Lima.",))
    before, _ = engine.answer("Who?", context, Speculation.lossless(gamma=3), 20)
    assert 0 < engine.other_share("Who?", context, Speculation.lossless(gamma=3), 20) < 1
    assert "_run" not in vars(engine._target) and "_run" not in vars(engine._drafter)
    assert all(seconds > 0 for seconds in engine.forward_seconds((1, 8)).values())
    after, _ = engine.answer("Who?", context, Speculation.lossless(gamma=3), 20)
    assert before.ids == after.ids and len(after.ids) == 20
