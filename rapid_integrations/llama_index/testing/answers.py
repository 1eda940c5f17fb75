"""Tests of a model's class, of its metadata, and of its answers' text."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle

import pytest
from llama_index.core.llms import LLM
from llama_index.core.prompts import PromptTemplate

from rapid_integrations.llama_index.testing.asking import ASYNC, SYNC, WHOLE, Refused, aread, read, text_of, usage_of
from rapid_integrations.llama_index.testing.properties import SuiteProperties


class AnswerTests(SuiteProperties):
    """What every model must do, and the words that a call takes."""

    def test_class_hierarchy(self) -> None:
        """Other packages ask for base classes by name, so that the names must be among the bases."""
        names = {base.__name__ for base in self.llm_class.__mro__}
        expected = {"BaseLLM", "LLM"} | ({"FunctionCallingLLM"} if self.supports_tools else set())
        assert expected <= names, f"the bases of an LLM must include {sorted(expected)}, got {sorted(names)}"

    def test_class_name_is_its_own(self) -> None:
        """`class_name` is what serialised models are told apart by."""
        name = self.llm_class.class_name()
        taken = {base.class_name() for base in self.llm_class.__mro__[1:] if hasattr(base, "class_name")}
        assert name not in taken | {""}, f"class_name must be the class's own, got {name!r}, which a base has too"

    def test_metadata(self, llm: LLM) -> None:
        """The window is a positive number, and tools are claimed where they are."""
        metadata = llm.metadata
        assert metadata.context_window > 0, f"context_window must be at least 1 token, got {metadata.context_window}"
        assert metadata.is_function_calling_model == self.supports_tools, (
            f"is_function_calling_model must be {self.supports_tools}, as supports_tools says, "
            f"got {metadata.is_function_calling_model}"
        )

    def test_metadata_names_the_model(self, llm: LLM) -> None:
        """Traces and prices go by the model's name."""
        name = llm.metadata.model_name
        assert name.strip() not in ("", "unknown"), f"model_name must name the model, got {name!r}"

    def test_to_dict(self, llm: LLM) -> None:
        """A model is serialised with its class name, and as JSON."""
        name = json.loads(llm.to_json()).get("class_name")
        assert llm.to_dict().get("class_name") == name == self.llm_class.class_name(), (
            f"to_dict and to_json must say class_name {self.llm_class.class_name()!r}, got {name!r}"
        )

    def test_answers_are_new_text_only(self, llm: LLM) -> None:
        """An answer does not begin with the prompt, nor repeat it."""
        for method in WHOLE:
            text = text_of(read(llm, method, self.prompt)[-1])
            assert text.strip(), f"{method} must answer, got {text!r}"
            assert self.prompt not in text, f"{method} must give new text only, got the prompt again: {text!r}"

    @pytest.mark.asyncio
    async def test_eight_methods_agree(self, llm: LLM) -> None:
        """chat, complete, their streams and their async twins give one text."""
        self.needs("is_deterministic")
        texts = {method: text_of((await asyncio.to_thread(read, llm, method, self.prompt))[-1]) for method in SYNC}
        texts |= {method: text_of((await aread(llm, method, self.prompt))[-1]) for method in ASYNC}
        kinds = (texts,) if llm.metadata.is_chat_model else (_only(texts, "chat"), _only(texts, "complete"))
        for kind in kinds:
            assert len(set(kind.values())) == 1, f"all methods must give the same text, got {kind}"

    @pytest.mark.asyncio
    async def test_predict_in_four_ways(self, llm: LLM) -> None:
        """predict, stream and their async twins, which synthesizers use, give one text."""
        self.needs("is_deterministic")
        prompt = PromptTemplate("{question}")
        texts = {
            "predict": await asyncio.to_thread(llm.predict, prompt, question=self.prompt),
            "stream": await asyncio.to_thread(lambda: "".join(llm.stream(prompt, question=self.prompt))),
            "apredict": await llm.apredict(prompt, question=self.prompt),
            "astream": "".join([token async for token in await llm.astream(prompt, question=self.prompt)]),
        }
        assert len(set(texts.values())) == 1, f"predict and stream must give the same text, got {texts}"

    def test_deepcopy(self, llm: LLM) -> None:
        """Frameworks copy models; a copy answers as the model does."""
        self._answers_like(copy.deepcopy(llm), llm, "a deep copy")

    def test_pickle(self, llm: LLM) -> None:
        """A pickled model comes back whole, or pickling is a TypeError that says why."""
        try:
            data = pickle.dumps(llm)
        except TypeError as error:
            reason = str(error)
        else:
            self._answers_like(pickle.loads(data), llm, "a pickled model")
            return
        assert reason.strip(), "a TypeError of pickling must say why, got one without a message"

    def _answers_like(self, twin: LLM, llm: LLM, what: str) -> None:
        try:
            text = text_of(read(twin, "complete", self.prompt)[-1])
        except (AttributeError, TypeError) as error:
            raise AssertionError(f"{what} must answer, got {error!r}: it has lost a part of its state") from error
        if self.is_deterministic:
            expected = text_of(read(llm, "complete", self.prompt)[-1])
            assert text == expected, f"{what} must answer as the model does, {expected!r}, got {text!r}"

    def test_unknown_words_are_errors(self, llm: LLM) -> None:
        """A keyword that is dropped in silence hides a mistake."""
        self.needs("rejects_unknown_words")
        for method in SYNC:
            with Refused(f"{method} must refuse a keyword that it does not know, and dropped no_such_word=1"):
                read(llm, method, self.prompt, no_such_word=1)

    def test_stop_cuts_answers(self, llm: LLM) -> None:
        """A stop string ends the answer and is not in it, whole or streamed."""
        self.needs("supports_stop")
        for method in SYNC:
            text = text_of(read(llm, method, self.prompt)[-1])
            assert len(text) >= 8, f"prompt must have an answer of at least 8 characters to be cut, got {text!r}"
            # Out of the middle, where it seldom is a token of its own.
            stop = text[len(text) // 2 :][:3]
            items = read(llm, method, self.prompt, **{self.stop_word: [stop]})
            cut = text_of(items[-1])
            assert stop not in cut, f"{method} must end in front of the stop string {stop!r}, got {cut!r}"
            if self.is_deterministic:
                expected = text[: text.index(stop)]
                assert cut.rstrip() == expected.rstrip(), (
                    f"{method} with the stop string {stop!r} must give {expected!r}, got {cut!r}"
                )

    def test_limit_of_tokens(self, llm: LLM) -> None:
        """A limit of two tokens is kept, whole or streamed."""
        self.needs("limits_tokens")
        for method in SYNC:
            full, short = (read(llm, method, self.prompt, **words)[-1] for words in ({}, {self.limit_word: 2}))
            assert len(text_of(short)) < len(text_of(full)), (
                f"{method} with {self.limit_word}=2 must be shorter than {text_of(full)!r}, got {text_of(short)!r}"
            )
            if self.reports_usage:
                tokens = usage_of(short)[1]
                assert tokens <= 2, f"{method} with {self.limit_word}=2 must give at most 2 tokens, got {tokens}"


def _only(texts: dict[str, str], word: str) -> dict[str, str]:
    return {method: text for method, text in texts.items() if word in method}
