"""The command line, in process on a tiny model and once as a program."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from rich.console import Console

import rapid_core.retrieval.searcher
from rapid_core import cli
from rapid_core.datatypes import Delta, TokenEvent
from rapid_core.errors import OptionError
from rapid_core.terminal import print_delta
from rapid_core.testing import WordEncoder, save_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny"), window=2048))


@pytest.fixture
def rapid(folder, monkeypatch, capsys):
    """Run `rapid ...` on the tiny model; returns (status, stdout, stderr)."""
    monkeypatch.setattr(rapid_core.retrieval.searcher, "load_encoder", lambda *_: WordEncoder())

    def run(*words, typed=""):
        monkeypatch.setattr(sys, "argv", ["rapid", *words])
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return run


@pytest.fixture
def path(tmp_path, document):
    file = tmp_path / "register.txt"
    file.write_text(document)
    return str(file)


def test_ask_prints_the_answer_alone_on_standard_output_and_the_cost_beside_it(rapid, path, folder):
    words = ("ask", path, "Who lives in Lima?", "--target", folder, "--max-new-tokens", "12")
    status, out, err = rapid(*words)
    status_json, out_json, _ = rapid(*words, "--json")
    assert (status, status_json) == (0, 0)
    assert out.rstrip("\n") == json.loads(out_json)["answer"].rstrip("\n")
    for row in ("retrieved", "prompt tokens", "target", "drafter", "accepted", "tokens/s", "first token"):
        assert row in err


def test_the_shared_part_of_two_vocabularies_is_told_at_load(rapid, path, folder, tmp_path):
    other = str(save_tiny_model(tmp_path / "other", window=2048, words=(" lives in", " of Peru")))
    words = ("ask", path, "Who lives in Lima?", "--target", folder, "--max-new-tokens", "4", "--json")
    status, out, err = rapid(*words, "--drafter", other)
    assert status == 0 and "of two vocabularies 258 tokens are shared, 100.0% of the target's 258" in err
    assert any("another vocabulary" in note for note in json.loads(out)["stats"]["notes"])
    assert "vocabular" not in rapid(*words)[2]


def test_json_is_one_object_with_everything_in_it(rapid, path, folder, document):
    status, out, _ = rapid("ask", path, "Who lives in Lima?", "--target", folder, "--max-new-tokens", "12", "--json")
    found = json.loads(out)
    assert status == 0
    assert set(found) == {"answer", "finish_reason", "usage", "stats", "retrieved"}
    assert 0 < found["usage"]["completion_tokens"] <= 12
    assert found["finish_reason"] == ("length" if found["usage"]["completion_tokens"] == 12 else "stop")
    assert found["stats"]["rounds"] > 0 and 0 <= found["stats"]["acceptance_rate"] <= 1
    assert all(0 <= chunk["score"] <= 1 and chunk["start"] < chunk["end"] for chunk in found["retrieved"])
    assert any("Lima" in document[chunk["start"] : chunk["end"]] for chunk in found["retrieved"])


def test_a_budget_is_a_number_of_tokens_or_the_name_of_a_rule(rapid, path, folder):
    words = ("ask", path, "Who lives in Lima?", "--target", folder, "--json", "--max-new-tokens", "2", "--budget")
    tokens = {
        budget: sum(c["end"] - c["start"] for c in json.loads(rapid(*words, budget)[1])["retrieved"])
        for budget in ("150", "300")
    }
    assert 0 < tokens["150"] <= 150 < tokens["300"] <= 300
    notes = json.loads(rapid(*words, "auto")[1])["stats"]["notes"]
    assert [note for note in notes if note.startswith("budget='auto' for the document: ")]
    status, _, err = rapid(*words, "much")
    assert status == 1 and "budget must be a whole number, 'paper' or 'auto', got 'much'" in err


def test_every_option_reaches_the_engine(rapid, path, folder):
    base = ("ask", path, "Who lives in Lima?", "--target", folder, "--json", "--max-new-tokens", "12")
    sampled = ("--temperature", "1", "--top-p", "0.9", "--seed", "5")
    one, two, other = (json.loads(rapid(*base, *words)[1]) for words in (sampled, sampled, (*sampled[:-1], "6")))
    assert one["answer"] == two["answer"] != other["answer"] and one["stats"]["seed"] == 5
    plain = json.loads(rapid(*base, "--no-speculation")[1])
    assert plain["stats"]["drafted"] == 0 and plain["retrieved"] == []
    lossless = json.loads(rapid(*base, "--eta", "0", "--gamma", "3")[1])
    assert lossless["answer"] == plain["answer"] and lossless["stats"]["transferred"] == 0
    auto = json.loads(rapid(*base, "--eta", "auto")[1])["stats"]
    assert auto["eta"] >= 0 and isinstance(auto["passages_gain"], float) and isinstance(auto["document_gain"], float)
    assert any(note.startswith("eta='auto'") for note in auto["notes"])
    stop = plain["answer"][4:6]
    stopped = json.loads(rapid(*base, "--no-speculation", "--stop", stop)[1])
    assert stopped["answer"] == plain["answer"][: plain["answer"].find(stop)] and stopped["finish_reason"] == "stop"
    drafted = json.loads(
        rapid(*base, "--drafter", folder, "--device", "cpu", "--drafter-device", "cpu", "--show-drafts")[1]
    )
    assert drafted["stats"]["drafted"] > 0


def test_every_option_of_the_models_reaches_the_engine(rapid, path, folder, monkeypatch):
    from rapid_core import RapidEngine

    asked = {}

    def load(target, drafter, **options):
        asked.update(options, target=target, drafter=drafter)
        raise OptionError("that is all")

    monkeypatch.setattr(RapidEngine, "load", load)
    words = ["--target", "t", "--drafter", "d", "--device-map", "model=0, lm_head=cuda:1"]
    words += ["--drafter-device-map", "auto", "--dtype", "bfloat16", "--drafter-dtype", "float16"]
    words += ["--quantization", "bnb-4bit", "--drafter-quantization", "none", "--encoder", "e"]
    for command in (["ask", path, "Who?"], ["chat", path], ["bench", "--document", path]):
        asked.clear()
        assert rapid(*command, *words)[0] == 1
        assert asked.pop("retrieval").encoder == "e" and not asked.pop("compile", False)
        assert asked == {
            "target": "t", "drafter": "d", "device": "auto", "drafter_device": None, "dtype": "bfloat16",
            "device_map": {"model": 0, "lm_head": "cuda:1"}, "drafter_device_map": "auto", "drafter_dtype": "float16",
            "quantization": "bnb-4bit", "drafter_quantization": "none",
        }  # fmt: skip


def test_quantised_roles_answer_on_the_command_line(rapid, path, folder):
    words = ("--target", folder, "--drafter", folder, "--drafter-quantization", "torchao-int8", "--max-new-tokens", "4")
    status, out, _ = rapid("ask", path, "Who lives in Lima?", *words, "--json", "--gamma", "2")
    assert status == 0 and json.loads(out)["stats"]["drafted"] > 0


@pytest.mark.parametrize("text", ["model=", "model=0,lm_head", "=0,,lm_head=1"])
def test_a_device_map_that_cannot_be_read_is_an_error(rapid, path, folder, text):
    status, _, err = rapid("ask", path, "Who?", "--target", folder, "--device-map", text)
    assert status == 1 and "module=device with commas between them" in " ".join(err.split())


def test_a_document_too_long_names_both_numbers_and_the_choices(rapid, path, folder, tmp_path, document):
    long = tmp_path / "long.txt"
    long.write_text(document * 4)
    status, _, err = rapid("ask", str(long), "Who lives in Lima?", "--target", folder)
    assert status == 1 and "2,048" in err and "--fit retrieve" in err and "--fit middle" in err
    for fit in ("retrieve", "middle"):
        status, out, err = rapid(
            "ask", str(long), "Who?", "--target", folder, "--fit", fit, "--max-new-tokens", "4", "--json"
        )
        assert status == 0 and f"fit='{fit}'" in json.loads(out)["stats"]["notes"][0]


def test_the_python_reference_is_fitted_by_retrieval_and_says_so(rapid, folder):
    status, out, err = rapid(
        "ask", "python-reference", "What does the with statement do?", "--target", folder, "--max-new-tokens", "4"
    )
    assert status == 0
    assert "note: the document has" in err and "best passages" in " ".join(err.split())


def test_chat_remembers_its_turns_and_reuses_them(rapid, path, folder):
    status, out, err = rapid(
        "chat",
        path,
        "--target",
        folder,
        "--max-new-tokens",
        "6",
        typed="Who lives in Lima?\nAnd who lives in Oslo then?\n\n",
    )
    assert status == 0
    assert err.count("prompt tokens") == 2 and err.count("from the cache") == 1


def test_an_error_in_a_chat_does_not_end_it(rapid, path, folder):
    status, _, err = rapid(
        "chat", path, "--target", folder, "--max-new-tokens", "4", typed="x" * 3000 + "\nWho lives in Lima?\n"
    )
    assert status == 0 and err.count("error:") == 1 and err.count("prompt tokens") == 1


def test_a_question_that_was_stopped_is_not_part_of_the_talk(rapid, path, folder, monkeypatch):
    import rapid_core.answering as module

    original, asked = module.find_task, []

    def stop_the_first(messages, *others):
        asked.append(messages)
        if len(asked) == 1:
            raise KeyboardInterrupt
        return original(messages, *others)

    monkeypatch.setattr(module, "find_task", stop_the_first)
    status, _, err = rapid("chat", path, "--target", folder, "--max-new-tokens", "4", typed="One?\nTwo?\n")
    assert status == 0 and "stopped" in err
    assert [message.content for message in asked[1]] == ["Question: Two?\nAnswer:"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("missing.txt", "Who?"), "no document at 'missing.txt'"),
        (("", "Who?"), "no document at ''"),
        (("{path}", ""), "the question must not be empty"),
        (("{path}", "Who?", "--encoder", ""), "encoder must be a hub name"),
        (("{path}", "Who?", "--no-speculation", "--gamma", "0"), "gamma must be at least 1, got 0"),
        (("{path}", "Who?", "--temperature", "1e-300"), "temperature must be 0 or at least 0.0001"),
        (("{path}", "Who?", "--device", "toaster"), "device must exist on this machine, got 'toaster'"),
        (("{path}", "Who?", "--gamma", "0"), "gamma must be at least 1, got 0"),
        (("{path}", "Who?", "--eta", "-1"), "eta must be at least 0"),
        (("{path}", "Who?", "--eta", "nan"), "eta must be at least 0"),
        (("{path}", "Who?", "--eta", "much"), "eta must be a number or 'auto', got 'much'"),
        (("{path}", "Who?", "--temperature", "-1"), "temperature must be at least 0"),
        (("{path}", "Who?", "--target", "/no/model"), "no model folder at '/no/model'"),
    ],
)
def test_bad_input_is_one_line_and_status_1(rapid, path, words, message):
    status, out, err = rapid("ask", *(word.format(path=path) for word in words))
    assert (status, out) == (1, "")
    assert err.startswith("error: ") and message in err and "Traceback" not in err


def test_an_unknown_option_is_refused_with_status_2(rapid, path):
    status, _, err = rapid("ask", path, "Who?", "--temprature", "1")
    assert status == 2 and "No such option" in err


def test_the_answer_reaches_a_file_as_it_is_and_a_terminal_without_control_characters():
    delta = Delta("\ta\x1b]0;title\x07\r\n", (TokenEvent(1, True, 0),))
    plain, terminal = io.StringIO(), io.StringIO()
    print_delta(Console(file=plain), delta, show_drafts=True)
    print_delta(Console(file=terminal, force_terminal=True, color_system="standard"), delta, show_drafts=True)
    assert plain.getvalue() == delta.text
    assert "\x1b]" not in terminal.getvalue() and "\x07" not in terminal.getvalue()
    assert "\x1b[32m" in terminal.getvalue()


def test_the_program_starts_without_loading_a_model_library():
    code = "import sys, rapid_core.cli; print('torch' in sys.modules, 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
