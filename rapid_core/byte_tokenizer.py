"""A tokenizer with one token a byte, for models that were trained on nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def tiny_tokenizer(chat_template: str | None = CHAT_TEMPLATE, *, words: Sequence[str] = ()) -> Any:
    """A tokenizer with one token a byte and three special ones: any text, emoji in four tokens each.

    words: texts that are tokens too, and so are their beginnings from the second letter on. They
    stand before the bytes, so that the vocabularies of other words have other ids.
    """
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    merges: dict[tuple[str, str], None] = {}
    for word in words:
        letters = split.pre_tokenize_str(word)[0][0]
        merges |= {(letters[:end], letters[end]): None for end in range(1, len(letters))}
    joined = dict.fromkeys(first + second for first, second in merges)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: id_ for id_, token in enumerate([*SPECIAL_TOKENS, *joined, *alphabet])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    backend.pre_tokenizer = split
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = chat_template
    return tokenizer
