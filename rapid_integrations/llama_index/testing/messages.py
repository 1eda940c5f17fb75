"""Tests of conversations: roles, blocks, and messages that cannot be read."""

from __future__ import annotations

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ImageBlock, TextBlock
from llama_index.core.llms import LLM

from rapid_integrations.llama_index.testing.asking import Refused, text_of, usage_of, user
from rapid_integrations.llama_index.testing.properties import SuiteProperties

_PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000a49444154789c6300010000050001"
    "0d0a2db40000000049454e44ae426082"
)


class MessageTests(SuiteProperties):
    """Every message is read, or refused; none is dropped."""

    def test_system_message_is_read(self, llm: LLM) -> None:
        """A conversation may begin with a system message, which reaches the model."""
        # A template may have one of its own, so that a short one is compared with a longer one.
        words = "You are a sailor of many years and speak plainly."
        short, long = (ChatMessage(role="system", content=text) for text in (words, f"{words} You love the sea."))
        self._reads_more(llm, [short, user(self.prompt)], [long, user(self.prompt)], "all of a system message")

    def test_earlier_turns_are_read(self, llm: LLM) -> None:
        """Earlier turns of both sides reach the model."""
        first = [user("Good day."), ChatMessage(role="assistant", content="Good day to you, too.")]
        self._reads_more(llm, [user(self.prompt)], [first[0], user(self.prompt)], "an earlier message of the user")
        self._reads_more(llm, [first[0], user(self.prompt)], [*first, user(self.prompt)], "an earlier answer")

    def test_blocks_of_text_are_read(self, llm: LLM) -> None:
        """A message may have several blocks of text, and its answer is that of all of them as one text."""
        blocks = [TextBlock(text="Think of the sea."), TextBlock(text=self.prompt)]
        message = ChatMessage(role="user", blocks=blocks)
        whole = self._reads_more(llm, [user(blocks[0].text)], [message], "a second block of text")
        if self.is_deterministic:
            joined = [separator.join(block.text for block in blocks) for separator in ("", " ", "\n", "\n\n")]
            expected = [text_of(llm.chat([user(text)])) for text in joined]
            assert text_of(whole) in expected, (
                f"blocks of text must be read as one text, which gives one of {expected!r}, got {text_of(whole)!r}"
            )

    def test_image_is_not_dropped(self, llm: LLM) -> None:
        """A model without eyes refuses an image, whole or streamed."""
        image = ImageBlock(image=_PNG, image_mimetype="image/png")
        message = ChatMessage(role="user", blocks=[TextBlock(text=self.prompt), image])
        if self.supports_images:
            self._reads_more(llm, [user(self.prompt)], [message], "an image")
            return
        with Refused("chat must refuse an image that the model cannot see, and dropped it"):
            llm.chat([message])
        with Refused("stream_chat must refuse an image that the model cannot see, and dropped it"):
            list(llm.stream_chat([message]))

    def test_no_messages_are_an_error(self, llm: LLM) -> None:
        """An empty list of messages is an error, whole or streamed."""
        with Refused("chat must refuse an empty list of messages"):
            llm.chat([])
        with Refused("stream_chat must refuse an empty list of messages"):
            list(llm.stream_chat([]))

    def test_messages_stay_as_they_are(self, llm: LLM) -> None:
        """The caller's messages are not changed by asking."""
        messages = [ChatMessage(role="system", content="Be brief."), user(self.prompt)]
        before = [message.model_dump() for message in messages]
        llm.chat(messages)
        after = [message.model_dump() for message in messages]
        assert after == before, f"chat must leave the caller's messages as they are, {before}, got {after}"

    def _reads_more(self, llm: LLM, less: list[ChatMessage], more: list[ChatMessage], what: str) -> ChatResponse:
        """The answer to `more`, whose prompt must be the longer one where tokens are counted."""
        answer = llm.chat(more)
        assert text_of(answer).strip(), f"chat must answer a conversation with {what}, got {text_of(answer)!r}"
        if self.reports_usage:
            short, long = usage_of(llm.chat(less))[0], usage_of(answer)[0]
            assert long > short, f"chat must read {what}, got {long} tokens with it and {short} without"
        return answer
