"""Made-up records of an evaluation, whose figures are known."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from rapid_core.evaluation.records import Answer, Measurement, Setting

LC, RAG, SD = Setting(method="lc"), Setting(method="rag"), Setting(method="sd", gamma=10)
RAPID = Setting(method="rapid", eta=10, gamma=10)
DEFAULTS = (
    LC,
    RAG,
    SD,
    Setting(method="magicdec", gamma=10),
    Setting(method="lookup", gamma=10),
    RAPID,
)
METRICS = {"short-answer": {"f1": "token F1", "exact_match": "exact match"}}


def answer_of(question, setting, f1=None, *, task="short-answer", document="lease", text=None, **fields):
    """An answer with one score, or none; its text tells the score unless given."""
    scores = {} if f1 is None else {"f1": f1}
    fields = {"source": "contracts", "groups": (), "scores": scores} | fields
    return Answer(
        question=question,
        task=task,
        document=document,
        setting=setting,
        text=f"{f1}" if text is None else text,
        **fields,
    )


def made_up(
    settings: Sequence[Setting] = DEFAULTS,
    *,
    task: str = "short-answer",
    documents: int = 10,
    questions: int = 4,
    seed: int = 0,
) -> tuple[list[Answer], list[Measurement]]:
    """A run in which every setting answers all questions; RAPID is better and twice as fast."""
    random = Random(seed)
    answers, measurements = [], []
    for number in range(documents * questions):
        document = f"document-{number % documents:02}"
        hard = random.random() * 0.5
        common = {
            "task": task,
            "document": document,
            "source": ("books", "papers")[number % 2],
            "groups": (("easy", "hard")[hard > 0.25], ("short", "long")[number % documents > 4]),
        }
        for setting in settings:
            helped = setting.method.startswith("rapid") and not setting.unrelated
            f1 = min(1.0, max(0.0, 1 - hard - random.random() * 0.5 + 0.1 * helped))
            text = (
                f"text {number}" if setting.method in {"lc", "sd", "magicdec", "lookup"} else f"text {random.random()}"
            )
            scores = {"f1": f1, "exact_match": float(f1 > 0.7)}
            answers.append(answer_of(f"q{number:03}", setting, text=text, **common | {"scores": scores}))
            tokens = random.randint(4, 20)
            drafts = setting.method not in {"lc", "rag"}
            seconds = tokens * (0.05 + 0.01 * random.random()) / (1 + helped)
            measurements.append(
                Measurement(
                    question=f"q{number:03}",
                    setting=setting,
                    retrieval_s=0.1 * drafts,
                    prefill_s=0.0 if setting.method == "rag" else 20.0,
                    draft_prefill_s=2.0 * (setting.method != "lc"),
                    decode_s=seconds,
                    tokens=tokens,
                    rounds=max(1, tokens // 3) if drafts else tokens,
                    drafted=10 * (tokens // 3) if drafts else 0,
                    accepted=7 * (tokens // 3) if drafts else 0,
                )
            )
    return answers, measurements
