"""Which text is the long context, and what is the question.

A request is messages and perhaps a document. What comes out is a `Task`: the messages with one
place for the document, so that the target's prompt holds all of it at that place and the
drafter's prompt holds the retrieved passages at the same place. Messages that are long all
together, alone or beside a document, are read in `history`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from rapid_core.config import Fit
from rapid_core.datatypes import Chunk, Document, LongContext, LongHistory, Message, Role, ToolCall
from rapid_core.errors import InputError, OptionError
from rapid_core.fence import LONG_RULE, find_fence, without_fences
from rapid_core.tool_use import Tool

# A message of fewer tokens is read as it is: retrieving from it would cost more than it saves.
LONG_MESSAGE_TOKENS = 1024
# The part of a long message that is taken for its question is at most this long.
QUESTION_CHARACTERS = 2000
# A last message of so few words ("and in 1942?") is searched for together with the one before it.
FOLLOW_UP_WORDS = 6

Context = str | LongContext | LongHistory


@dataclass(frozen=True, slots=True)
class Task:
    """Messages with a place for the document: `before`, document, `after` in message `index`.

    Without a document `context` is None. With a `history` the drafter reads a part of the messages
    only, but always the one of the document; `history` of None: all of them. `tools` are shown with
    the messages. Of several documents `context.text` is empty until planning has chosen those that fit.
    `answer` is the end of the answer so far, where passages are searched for anew.
    """

    messages: tuple[Message, ...]
    query: str
    context: LongContext | None = None
    index: int = 0
    before: str = ""
    after: str = ""
    history: LongHistory | None = None
    tools: tuple[Tool, ...] = ()
    answer: str = ""

    def searched(self, query: str) -> str:
        """What passages are compared with: `query`, and the end of the answer so far."""
        return f"{query}\n{self.answer}" if self.answer else query

    def with_context(self, text: str) -> tuple[Message, ...]:
        """The messages with `text` where the document belongs."""
        if self.context is None:
            return self.messages
        holder = self.messages[self.index]
        content = self.before + text + self.after if text else (self.before + self.after).strip()
        return (*self.messages[: self.index], replace(holder, content=content), *self.messages[self.index + 1 :])


def read_messages(prompt: str | Sequence[Message]) -> tuple[Message, ...]:
    """Check what the caller asks: text, or messages that end with one to answer.

    Raises `InputError` for an empty list, an unknown role, or an empty question.
    """
    messages = (Message("user", prompt),) if isinstance(prompt, str) else tuple(prompt)
    if not messages:
        raise InputError("a request needs at least one message, got none; pass a question or a list of Message")
    for position, message in enumerate(messages):
        if not isinstance(message, Message):
            raise InputError(f"message {position} must be a Message, got {type(message).__name__}")
        if message.role not in get_args(Role):
            raise InputError(f"message {position}: role must be one of {get_args(Role)}, got {message.role!r}")
        if not isinstance(message.content, str):
            raise InputError(f"message {position}: content must be text, got {type(message.content).__name__}")
        _check_unicode(f"message {position}", message.content)
        _check_calls(position, message)
    if messages[-1].role not in ("user", "tool"):
        raise InputError(f"the last message must be from 'user' or 'tool', got {messages[-1].role!r}")
    if messages[-1].role == "user" and not messages[-1].content.strip():
        raise InputError("the question must not be empty; the last message has no text")
    return messages


def read_context(context: Context, fit: Fit = "error") -> LongContext | LongHistory:
    """Check the documents and the chunks that the caller brings, or how a history is to be read.

    Raises `InputError` for an empty document, a chunk that is not text, or a history that keeps
    nothing; `OptionError` where `fit` is given for a history, which is never cut.
    """
    if isinstance(context, LongHistory):
        if fit != "error":
            raise OptionError(
                f"fit says how a document is cut, and the target reads a history whole, got fit={fit!r}; leave it out, "
                "and drop or summarise older messages where they do not fit"
            )
        return _read_history("LongHistory", context)
    given = LongContext(context) if isinstance(context, str) else context
    if not isinstance(given, LongContext) or not isinstance(given.text, str):
        raise InputError(f"context must be text, a LongContext of text or a LongHistory, got {type(context).__name__}")
    if not isinstance(given.query, str):
        raise InputError(f"LongContext.query must be text, got {type(given.query).__name__}")
    for name, value in (("place", given.place), ("separator", given.separator)):
        if not isinstance(value, str):
            raise InputError(f"LongContext.{name} must be text, got {type(value).__name__}")
    history: object = given.history
    if history is not None:
        if not isinstance(history, LongHistory):
            raise InputError(f"LongContext.history must be a LongHistory or None, got {type(history).__name__}")
        _read_history("LongContext.history", history)
    given = replace(given, documents=_read_documents(given.documents))
    if given.documents and given.text:
        raise InputError("a LongContext has either text or documents, got both; make the text one of the documents")
    _check_unicode("the document", given.text)
    if not given.documents and not given.text.strip():
        raise InputError("the document must not be empty; leave context out to ask without one")
    if given.chunks is None:
        return given
    chunks = tuple(
        _read_chunk(chunk, given.text) for chunk in _items("LongContext.chunks", given.chunks, "Chunk or text")
    )
    if given.ranking is not None and sorted(given.ranking) != list(range(len(chunks))):
        raise InputError(
            f"LongContext.ranking must name each of {len(chunks)} chunks once, from 0 on, got {given.ranking!r}"
        )
    return replace(given, chunks=chunks)


def _check_calls(position: int, message: Message) -> None:
    calls: object = message.tool_calls
    if not isinstance(calls, tuple) or any(not isinstance(call, ToolCall) for call in calls):
        raise InputError(f"message {position}: tool_calls must be a tuple of ToolCall, got {calls!r}")
    if calls and message.role != "assistant":
        raise InputError(f"message {position}: only an assistant calls tools, and its role is {message.role!r}")
    for call in message.tool_calls:
        _check_unicode(f"a tool call of message {position}", call.arguments)


def _read_history(what: str, given: LongHistory) -> LongHistory:
    newest: object = given.newest
    if not isinstance(newest, int) or isinstance(newest, bool) or newest < 1:
        raise InputError(f"{what}.newest must be a whole number of at least 1, the question's own, got {newest!r}")
    if given.rank is not None and not callable(given.rank):
        raise InputError(f"{what}.rank must be callable or None, got {type(given.rank).__name__}")
    return given


def _read_documents(documents: object) -> tuple[Document, ...]:
    checked = []
    for rank, document in enumerate(_items("LongContext.documents", documents, "Document")):
        what = f"document {rank}"
        if not isinstance(document, Document) or not isinstance(document.text, str):
            raise InputError(f"{what} must be a Document of text, got {type(document).__name__}")
        if not isinstance(document.name, str) or document.name.splitlines() not in ([], [document.name]):
            raise InputError(f"{what}: its name must be one line of text, got {document.name!r}")
        position: object = document.position
        if not isinstance(position, int) or isinstance(position, bool):
            raise InputError(f"{what}: its position must be a whole number, got {position!r}")
        _check_unicode(what, document.text)
        _check_unicode(f"the name of {what}", document.name)
        if not document.text.strip():
            raise InputError(f"{what} must not be empty; drop it from LongContext.documents")
        checked.append(document)
    return tuple(checked)


def _items(what: str, items: object, kind: str) -> Iterable[Any]:
    if isinstance(items, str) or not isinstance(items, Iterable):
        raise InputError(f"{what} must be a list of {kind}, got {type(items).__name__}")
    return items


def _check_unicode(what: str, text: str) -> None:
    """A lone surrogate, the mark of a text read with the wrong encoding, has no tokens."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{what} must be valid Unicode, and character {error.start} is not; read it with errors='replace'"
        ) from error


def _read_chunk(chunk: Chunk | str, text: str) -> Chunk:
    if isinstance(chunk, str):
        start = text.find(chunk)
        chunk = Chunk(chunk, start, start + len(chunk) if start >= 0 else -1)
    if not isinstance(chunk, Chunk) or not isinstance(chunk.text, str):
        raise InputError(f"a chunk must be text or a Chunk of text, got {type(chunk).__name__}")
    _check_unicode("a chunk", chunk.text)
    if not chunk.text.strip():
        raise InputError("a chunk must not be empty; drop it from LongContext.chunks")
    return chunk


def split(messages: tuple[Message, ...], context: LongContext | None, count_tokens: Callable[[str], int]) -> Task:
    """Find the place of the document, and what to search for in it.

    A document of the caller stands in its place, or before the first user message, where later
    turns leave it untouched. Without one, the longest message is split into its document and its
    question. Raises `InputError` for a place that is not in the messages once.
    """
    query = query_of(messages)
    if context is not None and context.place:
        index, before, after = find_place(messages, context.place)
        return Task(messages, context.query or query.replace(context.place, ""), context, index, before, after)
    if context is not None:
        index = next((i for i, message in enumerate(messages) if message.role == "user"), len(messages) - 1)
        after = "\n\n" + messages[index].content
        return Task(messages, context.query or query, context, index, "", after)
    return find_document(messages, ("system", "user", "tool"), count_tokens) or Task(messages, query)


def find_document(
    messages: tuple[Message, ...], roles: tuple[Role, ...], count_tokens: Callable[[str], int]
) -> Task | None:
    """The longest message of one of `roles` with its document set apart, if it is long at all.

    A system message is instructions, and has a document only where rules or tags set it apart.
    """
    held = [(i, message.content) for i, message in enumerate(messages) if message.role in roles]
    # Tokenizing costs time, and a text of so few characters is hardly ever so many tokens.
    long = [(i, content) for i, content in held if len(content) >= LONG_MESSAGE_TOKENS]
    for index, content in sorted(long, key=lambda it: -len(it[1])):
        role = messages[index].role
        parts = _split_system(content) if role == "system" else split_long_message(content)
        if parts is None:
            continue
        if count_tokens(content) < LONG_MESSAGE_TOKENS:
            return None
        before, document, after = parts
        asks = index == len(messages) - 1 and role == "user"
        query = question_in(before, document, after) if asks else query_of(messages)
        return Task(messages, query, LongContext(document), index, before, after)
    return None


def find_place(messages: Sequence[Message], place: str) -> tuple[int, str, str]:
    """The message that holds `place`, and its text before and behind it."""
    times = [message.content.count(place) for message in messages]
    if sum(times) != 1:
        raise InputError(
            f"LongContext.place must stand in the messages once, and {place!r} stands there {sum(times)} times; put it "
            "where the document belongs"
        )
    index = times.index(1)
    before, _, after = messages[index].content.partition(place)
    return index, before, after


def query_of(messages: Sequence[Message]) -> str:
    """What to search for: the last user message, behind the one before it where it is a follow-up."""
    questions = [message.content for message in messages if message.role == "user"] or [messages[-1].content]
    short = len(questions[-1].split()) <= FOLLOW_UP_WORDS
    if short and len(questions) > 1 and len(questions[-2]) <= QUESTION_CHARACTERS:
        return questions[-2] + "\n" + questions[-1]
    return questions[-1]


def split_long_message(text: str) -> tuple[str, str, str]:
    """(before, document, after): the document is between rules or tags, where there are any.

    Else the question is the short paragraph at the end, or at the start.
    """
    fenced = find_fence(text, longest_frame=QUESTION_CHARACTERS)
    if fenced is not None:
        return fenced
    separator = "\n\n" if "\n\n" in text.strip() else "\n"
    body = text.rstrip()
    head_end, tail_start = body.find(separator), body.rfind(separator)
    if head_end < 0:
        return "", text, ""
    head, tail = body[:head_end], body[tail_start:]
    short = min(QUESTION_CHARACTERS, len(text) // 4)
    if len(tail) <= short and (tail.rstrip().endswith("?") or not head.rstrip().endswith((":", "?"))):
        return "", text[:tail_start], text[tail_start:]
    if len(head) <= short:
        document_start = head_end + len(separator)
        return text[:document_start], text[document_start:], ""
    return "", text, ""


def question_in(before: str, document: str, after: str) -> str:
    """What to search for where a long message asks about itself."""
    return without_fences(before + after).strip() or document[-QUESTION_CHARACTERS:]


def _split_system(text: str) -> tuple[str, str, str] | None:
    """Instructions may be long, and have dividers of their own."""
    return find_fence(text, longest_frame=len(text), shortest_rule=LONG_RULE)
