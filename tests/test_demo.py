"""The demo model, end to end: a real model, a real encoder, a real store."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import jsonschema
import pytest
import torch

from rapid_core import Constraint, RapidEngine, Sampling, Speculation

pytestmark = pytest.mark.xdist_group("demo")

ARTICLE = """
The harbour clock of Varn was made by the watchmaker Ada Quill in 1841. Its face is made of blue slate, and it
loses four seconds a week. Every autumn the harbour board pays a diver to oil the lower wheel, which stands
below the water line.

Bread in Varn is baked from barley, because wheat does not ripen in the salt wind. The bakers start at two in
the morning and sell the first loaves to the night ferry. A loaf keeps for nine days, and a stale one is
soaked in buttermilk.

The lighthouse at Orrel is thirty-one metres high. Its keeper is Tomas Beck, who came to the island as a cook
and stayed because he liked the quiet. The lamp burned whale oil until 1902, when a cable was laid from the
mainland.

The island's only school has forty-two pupils. They learn to row before they learn to write, and in May the
lessons are held on the beach. The teacher, Mira Holt, has written a book about the seals that sleep on the
school's roof in winter.

A storm in January 1953 carried away the old wooden bridge. The new one is made of steel, was paid for by the
fishermen, and is painted green every second year. Lorries heavier than nine tonnes must take the ferry.

The museum keeps the skeleton of a whale, three hundred bottles with letters in them, and the only known map
of the tunnels under the church. The tunnels were dug by monks who wanted to reach the spring without getting
wet.

The Varn pony is a small grey horse with a white tail. About ninety of them are left. They eat seaweed at low
tide, and their keepers count them on the first Sunday in March, when the whole island takes part in a race
along the southern shore.

Mail reaches the island on Tuesdays and Fridays. The postman, Piet Dale, also repairs radios, and forecasts
the weather from the pain in his left knee. He has been wrong only twice, and both times he had forgotten to
take off his boots.
""".strip()
ARTICLE = "\n\n".join(" ".join(paragraph.split()) for paragraph in ARTICLE.split("\n\n"))
QUESTION, ANSWER = "What is the new bridge made of?", "steel"
OPEN_QUESTION = "Describe the Varn pony in your own words."


@pytest.fixture(scope="module")
def demo():
    with RapidEngine.load("demo") as engine:
        yield engine


@pytest.mark.parametrize("gamma", [2, 10])
@pytest.mark.parametrize("question", [QUESTION, OPEN_QUESTION])
def test_greedy_without_transfer_equals_transformers(demo, question, gamma):
    prompt_ids = demo.prompts(question, context=ARTICLE).target_ids
    out = demo.target.model.generate(torch.tensor([prompt_ids]), max_new_tokens=48, do_sample=False)
    result = demo.generate(
        question,
        context=ARTICLE,
        sampling=Sampling(max_new_tokens=48),
        speculation=Speculation.lossless(gamma=gamma),
    )
    assert result.token_ids == tuple(out[0, len(prompt_ids) :].tolist())
    assert result.stats.accepted > 0


def test_retrieval_finds_the_paragraph_and_the_answer_comes_from_it(demo):
    result = demo.generate(QUESTION, context=ARTICLE, sampling=Sampling(max_new_tokens=40))
    assert ANSWER in result.text
    assert any("new one is made of steel" in chunk.text for chunk in result.stats.retrieved)
    assert result.stats.drafter_prompt_tokens < result.usage.prompt_tokens / 2
    assert result.stats.transferred > 0


def test_it_gives_a_valid_object_every_time_at_temperature_one(demo):
    """Within a limit that this model would run over in almost every answer."""
    fields = {
        "title": {"type": "string"},
        "year": {"type": "integer", "minimum": 1800, "maximum": 2030},
        "kind": {"enum": ["report", "letter", "story"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "summary": {"type": "string"},
    }
    schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    sampling = Sampling(temperature=1.0, max_new_tokens=48, constraint=Constraint.json_schema(schema))
    for seed in range(10):
        result = demo.generate(
            "Describe the text as JSON.",
            context=ARTICLE[:600],
            sampling=replace(sampling, seed=seed),
            speculation=Speculation(gamma=4, eta=10.0 * (seed % 2)),
        )
        jsonschema.validate(json.loads(result.text), schema)
        assert result.finish_reason == "stop" and result.usage.completion_tokens <= 48


def test_rapid_ask_is_a_program_that_answers_in_json(tmp_path):
    (tmp_path / "varn.md").write_text(ARTICLE)
    command = [sys.executable, "-m", "rapid_core.cli", "ask", "varn.md", QUESTION, "--json", "--max-new-tokens", "40"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    found = json.loads(done.stdout)
    assert ANSWER in found["answer"]
    assert done.stderr == ""
