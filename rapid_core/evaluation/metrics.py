"""What an answer is worth, by the public definitions: 0 to 1."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from rapid_core.extras import require
from rapid_core.sentences import sentence_ends

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> str:
    """Small letters, no ASCII punctuation, no articles, single spaces.

    Source: the evaluation script of SQuAD 1.1.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def token_f1(text: str, references: Sequence[str]) -> float:
    """F1 of the normalized words, against the reference that fits best.

    Source: the evaluation script of SQuAD 1.1.
    """
    return _best(_f1, text, references)


def exact_match(text: str, references: Sequence[str]) -> float:
    """1 where the normalized text is one of the normalized references, else 0.

    Source: the evaluation script of SQuAD 1.1.
    """
    return _best(lambda mine, gold: float(mine == gold), text, references)


def rouge_l_sum(text: str, references: Sequence[str], *, by_sentence: bool = True) -> float:
    """F-measure of ROUGE-L-Sum without stemming, against the reference that fits best.

    Both sides are split into sentences, which the library compares as lines; without `by_sentence`
    their own lines are compared. Raises `MissingDependencyError` without the package rouge_score.
    """
    lines = _sentence_lines if by_sentence else str
    scores = _rouge().score_multi([lines(reference) for reference in references], lines(text))
    return float(scores["rougeLsum"].fmeasure)


def most_likely(likelihoods: Sequence[float], right: int) -> float:
    """1 where option `right` is more likely than every other one, else 0."""
    others = [value for index, value in enumerate(likelihoods) if index != right]
    return float(all(likelihoods[right] > value for value in others))


def _best(score: Callable[[str, str], float], text: str, references: Sequence[str]) -> float:
    mine = normalize(text)
    return max(score(mine, normalize(reference)) for reference in references)


def _f1(mine: str, gold: str) -> float:
    mine_words, gold_words = mine.split(), gold.split()
    common = (Counter(mine_words) & Counter(gold_words)).total()
    if not common:
        return 0.0
    precision, recall = common / len(mine_words), common / len(gold_words)
    return 2 * precision * recall / (precision + recall)


@cache
def _rouge() -> Any:
    return require("rouge_score.rouge_scorer", extra="eval").RougeScorer(["rougeLsum"])


def _sentence_lines(text: str) -> str:
    ends = [0, *sentence_ends(text), len(text)]
    sentences = (text[start:end].split() for start, end in pairwise(ends))
    return "\n".join(" ".join(words) for words in sentences if words)
