"""Documents of a given length and questions of three kinds about them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from rapid_core.errors import InputError

# Quoting repeats the document, explaining uses its words, free leaves it behind.
WORDING = {
    "quoting": 'Copy the passage that begins with the following words, word for word, to its end: "{words}"',
    "explaining": 'What does the passage that begins with "{words}" say? Explain it in your own words.',
    "free": 'Write a short story about somebody who finds a page that says: "{words}"',
}
QUOTED_WORDS = 12
LEAST_WORDS = 24


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a document. `number` counts those of one kind from 0."""

    kind: str
    number: int
    text: str


def cut(document: str, tokens: int, tokenizer: Any) -> str:
    """The first `tokens` tokens of a document, under a title.

    The title differs from length to length, so that no cache of a shorter one is reused.
    Raises `InputError` where the document is shorter.
    """
    titled = f"The first {tokens:,} tokens of a text.\n\n{document}"
    offsets = tokenizer(titled, add_special_tokens=False, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    if len(offsets) < tokens:
        raise InputError(
            f"the document must have as many tokens as the longest context, {tokens:,}, and it has {len(offsets):,}; "
            "name a longer one (CLI: --document) or shorter lengths (--lengths)"
        )
    return titled[: offsets[tokens - 1][1]]


def questions(document: str, kinds: tuple[str, ...], count: int) -> list[Question]:
    """`count` questions of each kind and one more, each about another passage; they lie evenly in the document.

    The questions beyond `count` are for what must not be about a measured passage.
    Raises `InputError` where the document has not so many passages.
    """
    wanted = count + 1
    passages = [text for text in re.split(r"\n\s*\n", document) if len(text.split()) >= LEAST_WORDS]
    if len(passages) < wanted:
        # Source code and logs have no paragraphs.
        words = document.split()
        step = max(1, len(words) // wanted)
        passages = [" ".join(words[start : start + step]) for start in range(0, step * wanted, step)]
    beginnings = [
        " ".join(passages[len(passages) * (2 * number + 1) // (2 * wanted)].split()[:QUOTED_WORDS])
        for number in range(wanted)
    ]
    if len(set(beginnings)) < wanted:
        raise InputError(
            f"a document must have a passage for each of {count:,} prompts and one more, and several of its passages "
            "begin alike or are missing; name another document (CLI: --document) or fewer prompts (--prompts)"
        )
    return [
        Question(kind, number, WORDING[kind].format(words=words))
        for number, words in enumerate(beginnings)
        for kind in kinds
    ]
