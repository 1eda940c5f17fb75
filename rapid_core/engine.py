"""`RapidEngine`: the public face, and one request at a time.

Longer than other files: five public methods name the same options, so that editors show them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from rapid_core.answering import Answerer, IsCancelled
from rapid_core.background import iterate_in_thread
from rapid_core.cache_store import CacheBudget, CacheStore
from rapid_core.compiled import CompiledStep, resolve_backend
from rapid_core.config import Fit, Retrieval, Sampling, Speculation, cache_bytes
from rapid_core.context import Context
from rapid_core.datatypes import Chunk, Delta, LongContext, PromptPair, Result, SharedVocabulary, Stats, Usage
from rapid_core.document_keeper import DocumentKeeper
from rapid_core.errors import EngineStateError, InputError, OptionError
from rapid_core.first_token import AlonePreparer, Preparer
from rapid_core.loading import LoadedModel
from rapid_core.memory import is_out_of_memory, out_of_memory
from rapid_core.placement import DeviceMap
from rapid_core.planning import Planner
from rapid_core.prompts import ChatPrompter
from rapid_core.question import Reader
from rapid_core.request import Progress, Prompt, Request
from rapid_core.retrieval import Encoder
from rapid_core.roles import load_roles
from rapid_core.runner import ModelRunner, check_rewind, refuse_recurrent
from rapid_core.tool_use import Tool, ToolUse
from rapid_core.turns import Turn, Turns
from rapid_core.vocabulary import SAME_VOCABULARY, Vocabulary, pair_vocabularies


def _never() -> bool:
    return False


def _read_path(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise OptionError(f"a saved document is named by a path, got {path!r}")
    name = str(path)
    # The file format knows names in UTF-8 only: what could be saved must be loadable.
    if "\0" in name or name != name.encode("utf-8", "replace").decode():
        raise OptionError(f"the path of a saved document must be text without null characters, got {name!r}")
    return Path(path).expanduser()


def _drafter_prompter(drafter: LoadedModel, target: ChatPrompter, vocabulary: Vocabulary) -> ChatPrompter:
    """The drafter's own chat template; a base model of the target's vocabulary has none, and reads the target's."""
    if not drafter.tokenizer.chat_template and vocabulary.shared is None:
        return target
    try:
        return ChatPrompter(drafter.tokenizer, drafter.eos_ids)
    except InputError as error:
        raise InputError(f"the drafter {drafter.name!r} has another vocabulary than the target: {error}") from error


class RapidEngine:
    """A target and a drafter that answer questions about long documents.

    One engine serves one request at a time; others wait their turn, in order. `close()`, or
    leaving a `with` block, frees the memory.
    """

    def __init__(
        self,
        target: LoadedModel,
        drafter: LoadedModel | None = None,
        *,
        retrieval: Retrieval | None = None,
        encoder: Encoder | None = None,
        encoder_device: str = "cpu",
        cache_gib: float = 4.0,
        compile: bool | str = False,  # noqa: A002 - torch's name for it
        reproducible: bool = False,
    ) -> None:
        """Take models that are already loaded; without a drafter the target drafts for itself.

        A drafter of another family has prompts in its own chat template, and drafts what both
        vocabularies have: see `shared_vocabulary`. Raises `VocabularyError` where that is too little.

        encoder: one to use in place of the one that `retrieval` names. cache_gib: GiB that the
        caches of both roles may take together, so that a question about an earlier document
        need not read it again; the least recently used go first. What is being served has its
        caches also beyond that, and 0 keeps only those. compile: compile the steps of decoding,
        and record them as CUDA graphs on a GPU; a name is that of another backend of
        `torch.compile` than inductor. Where a model does not allow it, `Stats.notes` says so.
        reproducible: read a prompt in the same pieces whatever the caches hold, so that rounding does
        not depend on what was asked before; of an earlier prompt whole pieces of 512 tokens are
        reused, or all of it where it is the same, and of a loaded document nothing. Rounds of a greedy
        answer with gamma="auto" go by the clock all the same, and compiled steps by the room in a cache.
        Raises `CompilationError` where the compiler fails.
        """
        budget, backend = CacheBudget(cache_bytes(cache_gib)), resolve_backend(compile)
        for loaded in (target, drafter or target):
            refuse_recurrent(loaded.model.config, type(loaded.model))
        self.target, self.drafter = target, drafter or target
        self.retrieval = retrieval or Retrieval()
        shared = self.target.model is self.drafter.model
        pairing = pair_vocabularies(target, self.drafter)
        step = CompiledStep(backend) if backend else None
        drafter_step = step if shared or backend is None else CompiledStep(backend)
        self._target, self._drafter = (
            ModelRunner(
                loaded.model,
                role=role,
                vocab_size=size,
                store=CacheStore(budget, check_rewind(loaded.model), role),
                compiled=compiled,
                reproducible=reproducible,
            )
            for role, loaded, size, compiled in (
                ("target", self.target, pairing.target_size, step),
                ("drafter", self.drafter, pairing.drafter_size, drafter_step),
            )
        )
        self._shared_vocabulary = pairing.report
        if pairing.vocabulary.shared is not None:
            self._drafter.notes.append(f"the drafter has another vocabulary: {pairing.report}")
        for runner in (self._target, self._drafter):
            # A compiler that is missing is found here, and not behind a long prefill.
            runner.compile_steps(1)
        self._prompter = drafter_prompter = ChatPrompter(target.tokenizer, target.eos_ids)
        if not shared:
            drafter_prompter = _drafter_prompter(self.drafter, self._prompter, pairing.vocabulary)
        self._planner = Planner(
            self._prompter,
            drafter_prompter,
            self.retrieval,
            window=self._target.window,
            drafter_window=self._drafter.window,
            encoder=encoder,
            encoder_device=encoder_device,
        )
        self._keeper = DocumentKeeper(self._target, self._prompter, self._planner.searcher, target.name)
        self._answerer = Answerer(
            target,
            self._target,
            self._drafter,
            vocabulary=pairing.vocabulary,
            prompter=self._prompter,
            preparer=Preparer(
                self._planner,
                Reader(self._target, self._prompter),
                Reader(self._drafter, drafter_prompter),
                encoder_device=encoder_device,
            ),
            keeper=self._keeper,
        )
        self._alone = Answerer(
            self.drafter,
            self._drafter,
            self._drafter,
            vocabulary=SAME_VOCABULARY,
            prompter=drafter_prompter,
            preparer=AlonePreparer(
                self._planner, Reader(self._drafter, drafter_prompter), encoder_device=encoder_device
            ),
        )
        self._turns = Turns()
        self._names = (self.target.name, self.drafter.name)
        self._closed = False

    @classmethod
    def load(
        cls,
        target: str,
        drafter: str | None = None,
        *,
        device: str = "auto",
        drafter_device: str | None = None,
        device_map: DeviceMap | None = None,
        drafter_device_map: DeviceMap | None = None,
        dtype: str = "auto",
        drafter_dtype: str | None = None,
        quantization: str | Any | None = None,
        drafter_quantization: str | Any | None = None,
        retrieval: Retrieval | None = None,
        trust_remote_code: bool = False,
        cache_gib: float = 4.0,
        compile: bool | str = False,  # noqa: A002 - torch's name for it
        reproducible: bool = False,
    ) -> Self:
        """Load models by hub name, folder, `.gguf` file or "demo".

        A drafter that is None, or the same as the target with the same options, shares its weights.
        The drafter's options are the target's unless given. device_map: in place of a device, for
        several: "auto", "balanced", "balanced_low_0", "sequential", or a mapping of modules to
        devices; nothing is left to the CPU or a disk where there are accelerators. quantization:
        "bnb-8bit", "bnb-4bit", "torchao-int8", "torchao-int4", "none", or a quantization config of
        transformers. The demo brings its own encoder: with target "demo" the default one, which
        lies on a hub, is replaced by it. cache_gib, compile, reproducible: as for an engine that is made
        from loaded models.
        Raises `LoadError` and its kind, `NotEnoughMemoryError` before weights are read that memory
        does not hold, and `CompilationError`.
        """
        if retrieval is not None and not isinstance(retrieval, Retrieval):
            raise OptionError(f"retrieval must be a Retrieval, got {type(retrieval).__name__}")
        retrieval = retrieval or Retrieval()
        if target == "demo" and retrieval.encoder == Retrieval().encoder:
            retrieval = replace(retrieval, encoder="demo")
        # What can be wrong is found before gigabytes are read.
        cache_bytes(cache_gib)
        resolve_backend(compile)
        loaded, loaded_drafter = load_roles(
            target,
            drafter,
            device=device,
            drafter_device=drafter_device,
            device_map=device_map,
            drafter_device_map=drafter_device_map,
            dtype=dtype,
            drafter_dtype=drafter_dtype,
            quantization=quantization,
            drafter_quantization=drafter_quantization,
            trust_remote_code=trust_remote_code,
        )
        return cls(
            loaded,
            loaded_drafter,
            retrieval=retrieval,
            encoder_device=loaded.device,
            cache_gib=cache_gib,
            compile=compile,
            reproducible=reproducible,
        )

    def warm_up(self) -> None:
        """Do now what the first question would wait for: load the encoder and the store, compile every step."""
        with self._turn():
            self._planner.warm_up()
            for runner in (self._target, self._drafter):
                runner.compile_steps()

    @property
    def window(self) -> int:
        """The target's window in tokens, prompt and answer together."""
        return self._target.window

    @property
    def names(self) -> tuple[str, str]:
        """What target and drafter were loaded by; the same name twice where one set of weights is both."""
        return self._names

    @property
    def shared_vocabulary(self) -> SharedVocabulary:
        """How much of their vocabularies target and drafter have in common."""
        return self._shared_vocabulary

    @property
    def tools_in_template(self) -> bool:
        """Whether the target's chat template shows tools; where not, they are described in the system message."""
        return self._prompter.tool_format.shows_tools

    def count_tokens(self, prompt: Prompt, *, tools: Sequence[Tool] | ToolUse = ()) -> int:
        """Tokens of a text for the target, or of messages with all that the chat template adds."""
        if isinstance(prompt, str):
            return self._prompter.count_tokens(prompt)
        return len(self._prompter.encode(tuple(prompt), ToolUse.of(tools).shown))

    def token_ids(self, text: str) -> tuple[int, ...]:
        """The target's token ids of `text` alone."""
        return self._prompter.token_ids(text)

    def prompts(
        self,
        prompt: Prompt,
        *,
        context: Context | None = None,
        sampling: Sampling | None = None,
        speculation: Speculation | None = None,
        fit: Fit = "error",
        tools: Sequence[Tool] | ToolUse = (),
    ) -> PromptPair:
        """The two prompts that `generate` would use, as token ids."""
        self._check_open()
        request = Request.of(prompt, context, sampling, speculation, fit, tools, None)
        with self._turn():
            return self._answerer_of(request).prompts(request)

    def first_and_last(self, text: str, tokens: int) -> str:
        """`text` with its middle cut out, so that about `tokens` of the target's tokens are left.

        Source: paper, section 4.1.
        """
        return self._prompter.first_and_last(text, tokens)

    def retrieve(
        self,
        prompt: Prompt,
        *,
        context: Context | None = None,
        tokens: int | None = None,
        threshold: float | None = None,
    ) -> tuple[Chunk, ...]:
        """The passages that the drafter would read, in their order; none where nothing is near or to be left out.

        tokens: of all passages together, at the most; threshold: the similarity that each needs. None is what
        `Retrieval` says. They can be handed on as `LongContext.chunks`.
        """
        self._check_open()
        usual = self.retrieval
        retrieval = replace(
            usual,
            budget=usual.budget if tokens is None else tokens,
            threshold=usual.threshold if threshold is None else threshold,
        )
        request = Request.of(prompt, context, None, None, "error", (), None)
        with self._turn():
            return self._answerer.retrieve(request, retrieval)

    def prefill(
        self,
        prompt: Prompt,
        *,
        context: Context | None = None,
        sampling: Sampling | None = None,
        speculation: Speculation | None = None,
        fit: Fit = "error",
        tools: Sequence[Tool] | ToolUse = (),
        progress: Progress | None = None,
    ) -> Stats:
        """Read the prompts that `generate` would read, so that it finds them in the caches; returns what it took.

        A question about the same document then starts behind the document.
        """
        self._check_open()
        request = Request.of(prompt, context, sampling, speculation, fit, tools, progress)
        with self._turn():
            return self._answerer_of(request).read(request)

    def log_likelihoods(
        self,
        prompt: Prompt,
        answers: Sequence[str],
        *,
        context: Context | None = None,
        speculation: Speculation | None = None,
        fit: Fit = "error",
    ) -> tuple[float, ...]:
        """How probable each of some answers is behind a prompt: the sum over its tokens, in nats, at temperature 1.

        To the target; with `Speculation.retrieved_alone()` to the drafter; with eta > 0 by the augmented
        target distribution, as if each token had been drafted. The end of the answer is not counted.
        Raises `InputError` for an answer without tokens, `PromptTooLongError` for one that the window does not hold.
        """
        self._check_open()
        request = Request.of(prompt, context, None, speculation, fit, (), None)
        with self._turn():
            return self._answerer_of(request).log_likelihoods(request, tuple(answers))

    def generate(
        self,
        prompt: Prompt,
        *,
        context: Context | None = None,
        sampling: Sampling | None = None,
        speculation: Speculation | None = None,
        fit: Fit = "error",
        tools: Sequence[Tool] | ToolUse = (),
        progress: Progress | None = None,
    ) -> Result:
        """Answer a question, or the last of some messages, about a document.

        context: the document or documents, or how a long history is read; without one a long
        message is split by itself, and so are messages that are long all together. fit: what to
        do with a document that does not fit the target's window. tools: what the model may call,
        or a `ToolUse` that says whether it must; calls come back as `tool_calls`. progress: called with
        ("index" | "prefill" | "draft prefill", done, total), perhaps from another thread but by
        one at a time: passages are retrieved while the target prefills where that pays.
        Raises `RapidError` for input and options that break a rule, before any work.
        """
        return Result.of(
            self.stream(
                prompt,
                context=context,
                sampling=sampling,
                speculation=speculation,
                fit=fit,
                tools=tools,
                progress=progress,
            )
        )

    def stream(
        self,
        prompt: Prompt,
        *,
        context: Context | None = None,
        sampling: Sampling | None = None,
        speculation: Speculation | None = None,
        fit: Fit = "error",
        tools: Sequence[Tool] | ToolUse = (),
        progress: Progress | None = None,
    ) -> Generator[Delta]:
        """Like `generate`, piece by piece; the last delta has finish_reason, usage and stats.

        Closing the iterator stops the work, and the engine is free for the next request.
        """
        self._check_open()
        request = Request.of(prompt, context, sampling, speculation, fit, tools, progress)
        return self._serve(request, self._turns.join, _never)

    async def agenerate(
        self,
        prompt: Prompt,
        *,
        context: Context | None = None,
        sampling: Sampling | None = None,
        speculation: Speculation | None = None,
        fit: Fit = "error",
        tools: Sequence[Tool] | ToolUse = (),
        progress: Progress | None = None,
    ) -> Result:
        """`generate` without blocking the event loop; cancelling the task stops the work."""
        stream = self.astream(
            prompt,
            context=context,
            sampling=sampling,
            speculation=speculation,
            fit=fit,
            tools=tools,
            progress=progress,
        )
        return Result.of([delta async for delta in stream])

    async def astream(
        self,
        prompt: Prompt,
        *,
        context: Context | None = None,
        sampling: Sampling | None = None,
        speculation: Speculation | None = None,
        fit: Fit = "error",
        tools: Sequence[Tool] | ToolUse = (),
        progress: Progress | None = None,
    ) -> AsyncGenerator[Delta]:
        """`stream` without blocking the event loop; `progress` is called from another thread."""
        self._check_open()
        request = Request.of(prompt, context, sampling, speculation, fit, tools, progress)
        # The place in the queue is taken here: threads start in no order.
        turn = self._turns.join()
        try:
            deltas = iterate_in_thread(lambda cancelled: self._serve(request, lambda: turn, cancelled))
            # Closing this generator must stop the thread now, and not when the other one is collected.
            async with aclosing(deltas):
                async for delta in deltas:
                    yield delta
        finally:
            # A thread that never came to start must not keep its place.
            if not turn.started:
                turn.leave()

    def save_document(self, path: str | os.PathLike[str]) -> None:
        """Keep the document that the target read last across restarts: a safetensors file for `load_document`.

        It holds the text (of several documents the one that they made), the target's keys and
        values up to where the question begins, and the vectors of the chunks where the text was
        searched; chunks and a query that came with a `LongContext` are not in it. It takes about
        as many bytes as the cache.
        Raises `EngineStateError` without such a document, and `SavedDocumentError` where the file
        cannot be written.
        """
        with self._turn():
            self._keeper.save(_read_path(path))

    def load_document(self, path: str | os.PathLike[str]) -> LongContext:
        """Take over a document that `save_document` kept, and return it for `context=`.

        It need not be read again where the messages before it are those of the saved request,
        nor embedded again where encoder and chunk size are. The device may be another one.
        Raises `SavedDocumentError` for a file that is damaged or that another model made.
        """
        with self._turn():
            return self._keeper.load(_read_path(path))

    def close(self) -> None:
        """Free models, caches and indexes, after the request that runs.

        A stream that its reader has left open ends here: reading on raises `EngineStateError`.
        """
        if self._closed:
            return
        self._turns.drop_suspended()
        turn = self._turns.join()
        try:
            turn.wait(_never)
            if not self._closed:
                self._closed = True
                self._target.clear()
                self._drafter.clear()
                self._answerer.forget()
                self._alone.forget()
                self._planner.close()
                self._keeper.forget()
                del self.target, self.drafter, self._answerer, self._alone, self._target.model, self._drafter.model
        finally:
            turn.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the engine for a call that yields nothing."""
        turn = self._turns.join()
        try:
            turn.wait(_never)
            self._check_open()
            with self._within_memory():
                yield
        finally:
            turn.leave()

    def _answerer_of(self, request: Request) -> Answerer:
        return self._alone if request.speculation.answers == "drafter" else self._answerer

    def _check_open(self) -> None:
        if self._closed:
            raise EngineStateError("a closed engine cannot answer; load another one")

    @contextmanager
    def _within_memory(self) -> Iterator[None]:
        """Turn what Python and torch raise for want of memory into an error of ours, and give the caches back."""
        try:
            yield
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            # First, so that what the error says is there is what the next request finds.
            self._target.clear()
            self._drafter.clear()
            self._answerer.forget()
            self._alone.forget()
            devices = [(runner.role, runner.device) for runner in (self._target, self._drafter)]
            remedy = "shorten the prompt, lower max_new_tokens, or choose a quantization or another device"
            raise out_of_memory(error, devices, remedy=remedy) from None

    def _serve(self, request: Request, join: Callable[[], Turn], is_cancelled: IsCancelled) -> Generator[Delta]:
        turn = join()
        try:
            if turn.wait(is_cancelled):
                self._check_open()
                with self._within_memory():
                    for delta in self._answerer_of(request).answer(request, is_cancelled):
                        turn.suspend()
                        yield delta
                        turn.resume()
            else:
                yield Delta("", finish_reason="cancelled", usage=Usage(), stats=Stats())
        finally:
            turn.leave()
