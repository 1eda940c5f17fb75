"""A model that judges answers, behind any address that speaks OpenAI's chat completions."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from rapid_core.datatypes import Message
from rapid_core.errors import OptionError, RapidError
from rapid_core.extras import require

# A name of its own: the key of one service must not go to another address because it happens to be set.
KEY_VARIABLE = "RAPID_JUDGE_API_KEY"
HIGHEST = 10
LONGEST_WAIT_S = 60.0
# Of what a server says when it refuses.
_REASON_CHARACTERS = 300

_RULES = (
    "You judge the last reply of an assistant in a conversation. You see the conversation, a reference reply that is "
    "known to be good, and the reply to judge. Ask whether it answers the user's last message, keeps to what was said "
    "before, and is correct; the reference shows what is right, and other words are as good. Length is no merit. "
    f"Give one sentence of reasons, and then, on a line of its own, 'Score: N', N from 1 (useless) to {HIGHEST} "
    "(as good as the reference, or better)."
)
_NUMBER = r"[\s*_:=\[(]*(\d+(?:\.\d+)?)"
# The last one counts: a judge may weigh scores before it settles.
_SCORES = (
    re.compile(rf"\b(?:score|rating)(?:\s+is)?{_NUMBER}", re.IGNORECASE),
    re.compile(rf"(?<![\d.])(\d+(?:\.\d+)?)\s*(?:/|out of)\s*{HIGHEST}\b", re.IGNORECASE),
    re.compile(rf"\A{_NUMBER}[\s*_.\])]*\Z"),
)


class JudgeError(RapidError):
    """A judge that cannot be asked: the address, the model or the key is wrong."""


class NoScoreError(JudgeError):
    """A judge that gave this answer no score, and may give one to the next."""


@dataclass(frozen=True, kw_only=True)
class Judge:
    """A model that gives an answer 1 to 10.

    url: in front of "/chat/completions", "http://localhost:8000/v1" say. api_key: sent as a bearer
    token, "" for none; never shown. timeout_s: seconds for one reply. tries: of one answer.
    wait_s: seconds before the second try, doubled before each further one, up to 60.
    Raises `OptionError` for what cannot be an address or a name.
    """

    url: str
    model: str
    api_key: str = field(default="", repr=False)
    timeout_s: float = 120.0
    tries: int = 5
    wait_s: float = 1.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.username or parts.password:
            raise OptionError(
                f"judge_url must hold no name and no password, since it is written into reports; leave them out, and "
                f"set the environment variable {KEY_VARIABLE}"
            )
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise OptionError(
                f"judge_url must be an http or https address such as http://localhost:8000/v1, got {self.url!r}"
            )
        if not self.model.strip():
            raise OptionError("judge_model must name the model behind judge_url, got an empty name")
        if self.tries < 1:
            raise OptionError(f"tries must be at least 1, got {self.tries}")

    @classmethod
    def from_environment(cls, url: str, model: str) -> Judge:
        """The judge whose key, if it needs one, is in the environment variable RAPID_JUDGE_API_KEY."""
        return cls(url=url, model=model, api_key=os.environ.get(KEY_VARIABLE, ""))

    def score(self, conversation: Sequence[Message], reference: str, answer: str) -> float:
        """What the judge gives `answer`, 1 to 10, as the next turn of `conversation`.

        Waits and asks again where the server is busy, fails or does not reply in time. Raises
        `NoScoreError` where that does not help or the reply holds no score; `JudgeError` where
        nobody answers at the address or the request is refused; `MissingDependencyError` without httpx.
        """
        reply = self._ask(_messages(conversation, reference, answer))
        for pattern in _SCORES:
            if found := pattern.findall(reply):
                score = float(found[-1])
                if not 1 <= score <= HIGHEST:
                    raise NoScoreError(
                        f"a judge's score must be from 1 to {HIGHEST}, {self.model} gave {found[-1]}; "
                        "judge with a model that keeps to the scale"
                    )
                return score
        raise NoScoreError(
            f"a judge's reply must hold 'Score: N', {self.model} wrote {self._hidden(reply)!r}; "
            "judge with a model that follows the form"
        )

    def _ask(self, messages: list[dict[str, str]]) -> str:
        httpx = require("httpx", extra="eval")
        address = f"{self.url.rstrip('/')}/chat/completions"
        body = {"model": self.model, "messages": messages, "temperature": 0}
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        failure: JudgeError | None = None
        asked_to_wait_s = 0.0
        for attempt in range(self.tries):
            if attempt:
                time.sleep(min(max(self.wait_s * 2 ** (attempt - 1), asked_to_wait_s), LONGEST_WAIT_S))
            try:
                response = httpx.post(address, json=body, headers=headers, timeout=self.timeout_s)
            except httpx.TimeoutException:
                failure = NoScoreError(
                    f"a judge must reply within {self.timeout_s:g} s, {self.url} did not, asked {self.tries} times; "
                    "ask again later, or judge with a faster model"
                )
            except httpx.TransportError as error:
                failure = JudgeError(
                    f"judge_url must be an address that answers, {self.url} does not ({self._hidden(str(error))}); "
                    "start the server, or correct the address"
                )
            else:
                if response.is_success:
                    return self._content(response)
                reason = f"{response.status_code} {self._hidden(response.text)}".strip()
                if response.status_code not in (408, 429) and response.status_code < 500:
                    raise JudgeError(
                        f"a judge must take what it is asked, {self.url} refused model {self.model!r} with {reason}; "
                        f"correct judge_url or judge_model, or set {KEY_VARIABLE}"
                    )
                failure = NoScoreError(
                    f"a judge must be able to reply, {self.url} said {reason} to {self.tries} tries; ask again later"
                )
                # Some servers say how long they will be busy.
                said = response.headers.get("retry-after", "")
                asked_to_wait_s = float(said) if said.isdecimal() else 0.0
        assert failure is not None
        raise failure

    def _content(self, response: Any) -> str:
        try:
            content = response.json()["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError):
            content = None
        if not isinstance(content, str):
            raise JudgeError(
                f"judge_url must lead to chat completions, {self.url} replied {self._hidden(response.text)!r}; "
                "correct the address, it usually ends in /v1"
            )
        return content

    def _hidden(self, text: str) -> str:
        """What a server said, short, and without the key, which some repeat."""
        shown = text.replace(self.api_key, "***") if self.api_key else text
        return " ".join(shown.split())[:_REASON_CHARACTERS]


def judge_of(url: str | None, model: str | None) -> Judge | None:
    """The judge that options name, with its key from the environment; None where they name nobody.

    Raises `OptionError` where one of the two is missing.
    """
    if url is None and model is None:
        return None
    if url is None or model is None:
        raise OptionError(
            f"a judge needs an address and the name of a model, got judge_url={url!r} and judge_model={model!r}; give "
            "both, or leave both out"
        )
    return Judge.from_environment(url, model)


def _messages(conversation: Sequence[Message], reference: str, answer: str) -> list[dict[str, str]]:
    turns = "\n\n".join(f"{message.role.capitalize()}: {message.content}" for message in conversation)
    content = (
        f"<conversation>\n{turns}\n</conversation>\n\n<reference>\n{reference}\n</reference>\n\n"
        f"<reply>\n{answer}\n</reply>"
    )
    return [{"role": "system", "content": _RULES}, {"role": "user", "content": content}]
