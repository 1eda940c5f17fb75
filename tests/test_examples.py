"""The examples run as they stand, on the demo model and real stores, with short texts of our own."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from rapid_integrations.langchain import ChatRapid

EXAMPLES = Path(__file__).parent.parent / "examples"
FILES = sorted((*EXAMPLES.glob("langchain_*.py"), *EXAMPLES.glob("llama_index_*.py")))
# Long enough that there is something to retrieve.
TEXTS = {
    f"{name}.txt": "\n\n".join(
        f"On day {day} the ferry to {name} leaves at {day} o'clock from pier {day}." for day in range(1, 40)
    )
    for name in ("Oslo", "Lima", "Rome")
}


@pytest.fixture(scope="module")
def demo():
    """Holds the demo model, which the examples then share."""
    chat = ChatRapid(target="demo")
    chat.get_token_ids("warm")
    return chat


def test_there_is_an_example_for_each_thing_that_users_do():
    assert [file.stem for file in FILES] == [
        "langchain_agent",
        "langchain_chat_model",
        "langchain_other_stores",
        "langchain_rag_chain",
        "llama_index_agent",
        "llama_index_chat",
        "llama_index_query_engine",
        "llama_index_settings",
    ]
    assert all(len(file.read_text().splitlines()) < 60 for file in EXAMPLES.glob("*.py"))


@pytest.mark.xdist_group("demo")
@pytest.mark.filterwarnings("ignore:.*wide.*:UserWarning")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_example_runs_and_says_something(file, demo, tmp_path, monkeypatch, capsys):
    paths = []
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
        paths.append(str(tmp_path / name))
    question = "When does the ferry to Lima leave on day 7?"
    monkeypatch.setattr(sys, "argv", [file.name, "--demo", "--max-tokens", "12", "--question", question, *paths])
    monkeypatch.syspath_prepend(str(EXAMPLES))
    runpy.run_path(str(file), run_name="__main__")
    said = capsys.readouterr().out
    assert len(said.strip()) > 10
    if file.stem in ("langchain_agent", "langchain_chat_model", "llama_index_agent", "llama_index_chat"):
        # The second turn, or question, goes on in the cache.
        assert (
            max(
                int(count)
                for count in re.findall(r"(\d+)(?: of them from the turn before| tokens from the cache)", said)
            )
            > 300
        )
    if file.stem == "llama_index_query_engine":
        # Whole documents on one side, nodes on the other.
        target, drafter = map(int, re.search(r"target: (\d+) tokens; drafter: (\d+)", said).groups())
        assert target - 100 > drafter > 0
    if file.stem == "langchain_other_stores":
        answers = re.findall(r"^(?:in memory|Qdrant): (.*)$", said, flags=re.M)
        assert len(answers) == 2 and answers[0] == answers[1]
