"""Which option of a multiple-choice question an answer in words names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from string import ascii_uppercase

from rapid_core.evaluation.metrics import normalize

MOST_CHOICES = len(ascii_uppercase)

_MARKUP = re.compile(r"[*_`$\"“”]+|\\(?:boxed|text)")
_FILLER = (
    r"(?:[\W_]|\b(?i:is|are|be|the|would|must|should|most|likely|correct|right|option|choice|letter|answer)\b){0,24}?"
)
# A small letter is one only where no word can follow it: "the answer is a dog". A and I are words by themselves.
_SMALL = r"[a-z](?=\s*(?:[.,:;)\]}]|$))"
_CAPITAL = r"[A-Z]\b(?!['’])"  # noqa: RUF001
_NO_WORD = r"(?![AI]\s+(?!because|since|and|but|not)[a-z])"
_LETTERS = re.compile(r"^\W*(?:(?i:both|either)\s+)?[A-Z](?:(?:\W|\b(?:and|or)\b)+[A-Z]\b)+\W*$")
_ALONE = re.compile(r"^[\W_]*([A-Za-z])[\W_]*$")
_FIRST = re.compile(r"^[\s(\[{]*([A-Z](?=\s*(?:$|[.,:;)\]}\n]|\s[-–—]))|[a-z](?=\s*[.:)\]}]))")  # noqa: RUF001
_FIRST_WORD = re.compile(r"^\s*([A-Z])\s+(.+)$", re.DOTALL)
_ANSWER = re.compile(r"(?i:\banswer\b)" + _FILLER + rf"\b({_NO_WORD}{_CAPITAL}|{_SMALL})")
_OPTION = re.compile(r"(?i:\b(?:option|choice|letter)\b)" + _FILLER + rf"\b({_CAPITAL}|{_SMALL})")
_IN_BRACKETS = re.compile(r"[(\[{]\s*([A-Za-z])\s*[)\]}]")
_AT_AN_END = re.compile(r"(?<!\S)(?<!not )(?<!n't )([A-Z])(?=\s*(?:$|[.,:;\n]))")
_BEGINNING = re.compile(r"^(?:(?:correct|right|best) )?(?:answer|option|choice) (?:is |would be )?")


def lettered(choices: Sequence[str]) -> str:
    """The options as a question shows them, a line each: "A. …"."""
    return "\n".join(f"{letter}. {choice}" for letter, choice in zip(ascii_uppercase, choices, strict=False))


def find_choice(text: str, choices: Sequence[str]) -> int | None:
    """The index of the option that `text` names, by its letter or its own words; None where that is none or several.

    It says "B", "B.", "(B)", "**B**", "B. He left", "The answer is B", or how the option itself reads,
    whole or cut off by the limit of tokens. Of several statements about the answer the last one counts.
    """
    text = _MARKUP.sub("", text).strip()
    words = _BEGINNING.sub("", normalize(text))
    options = [normalize(choice) for choice in choices]
    if _LETTERS.match(text):
        return _letter(re.findall(r"\b[A-Z]\b", text), options)
    for found in (
        _letter(_ALONE.findall(text), options),
        _only(index for index, option in enumerate(options) if option and option == words),
        _letter(_FIRST.findall(text), options),
        _letter_and_words(text, options),
        _letter(_ANSWER.findall(text)[-1:], options),
        _letter(_OPTION.findall(text), options),
        _letter(_IN_BRACKETS.findall(text), options),
        _named(words, options),
        _only(index for index, option in enumerate(options) if words and option.startswith(words)),
        _letter(_AT_AN_END.findall(text), options),
    ):
        if found is not None:
            return found
    return None


def _only(found: Iterable[int]) -> int | None:
    several = set(found)
    return several.pop() if len(several) == 1 else None


def _letter(letters: Sequence[str], options: Sequence[str]) -> int | None:
    indices = [ascii_uppercase.index(letter.upper()) for letter in letters]
    return _only(index for index in indices if index < len(options))


def _letter_and_words(text: str, options: Sequence[str]) -> int | None:
    """ "B He left": a letter that is a word, too, must be followed by its own option."""
    found = _FIRST_WORD.match(text)
    if found is None or _letter(found[1], options) is None:
        return None
    index = ascii_uppercase.index(found[1])
    behind = normalize(found[2])
    is_its_own = bool(behind and options[index]) and (
        behind.startswith(options[index]) or options[index].startswith(behind)
    )
    return index if found[1] not in "AI" or is_its_own else None


def _named(words: str, options: Sequence[str]) -> int | None:
    """The option whose words stand in the text; one that is part of another that stands there does not count."""
    there = [index for index, option in enumerate(options) if option and f" {option} " in f" {words} "]
    within = {
        index
        for index in there
        for other in there
        if options[index] != options[other] and f" {options[index]} " in f" {options[other]} "
    }
    return _only(index for index in there if index not in within)
