"""The command `rapid bench`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rapid_core.bench.options import KINDS, METHODS, BenchOptions
from rapid_core.command_options import DEFAULT_ETA, number_or_word, numbers_of, spread, words_of
from rapid_core.documents import PYTHON_REFERENCE, read_document
from rapid_core.errors import OptionError
from rapid_core.extras import check_installed
from rapid_core.model_choice import ModelChoice

STOPPED_STATUS = 130


@spread
def bench(
    models: ModelChoice,
    lengths: Annotated[str, typer.Option(help="Tokens of the document, separated by commas.")] = "2000,7600",
    max_new_tokens: Annotated[int, typer.Option(help="Length of every answer, in tokens.")] = 96,
    repeats: Annotated[int, typer.Option(help="Runs of each method on each prompt.")] = 3,
    prompts: Annotated[int, typer.Option(help="Prompts of each kind.")] = 1,
    methods: Annotated[str, typer.Option(help="Methods to measure, separated by commas.")] = ",".join(METHODS),
    kinds: Annotated[str, typer.Option(help="Kinds of prompts, separated by commas.")] = ",".join(KINDS),
    document: Annotated[str, typer.Option(help="What is read: a file, a folder, '-' or the default.")] = (
        PYTHON_REFERENCE
    ),
    gamma: Annotated[int | None, typer.Option(help="Draft tokens a round; left to the engine unless given.")] = None,
    eta: Annotated[
        str, typer.Option(help="Strength of the knowledge transfer, for the method 'transfer': a number or 'auto'.")
    ] = DEFAULT_ETA,
    compile_steps: Annotated[
        bool, typer.Option("--compile", help="Compile our decoding steps, and record CUDA graphs of them on a GPU.")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write everything to this file.")] = None,
    plot_file: Annotated[Path | None, typer.Option("--plot", help="Draw the curves into this PNG file.")] = None,
    random_weights: Annotated[
        str | None,
        typer.Option(
            metavar="CONFIG",
            help="Build a random model of this configuration (hub name, folder or config.json) in place of the "
            "target, and of the drafter's where one is named; for speed alone.",
        ),
    ] = None,
    acceptance: Annotated[
        float | None, typer.Option(help="Rate at which drafts of random weights are accepted; 0.8 unless given.")
    ] = None,
) -> None:
    """Measure transformers' decoding and ours side by side; the last line is JSON."""
    options = BenchOptions(
        **asdict(models),
        lengths=numbers_of("lengths", lengths),
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        prompts=prompts,
        methods=words_of(methods),
        kinds=words_of(kinds),
        document=document,
        gamma=gamma,
        eta=number_or_word(eta),  # type: ignore[arg-type]
        compile=compile_steps,
        random_weights=random_weights,
        acceptance=acceptance,
    )
    _check_files(json_file, plot_file)
    read = read_document(document)

    from rapid_core.bench.measure import Bench, load
    from rapid_core.bench.report import Report
    from rapid_core.bench.tables import PIPE_WIDTH, print_tables
    from rapid_core.loading import hide_progress_bars

    hide_progress_bars()
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    if not out.is_terminal:
        out = Console(highlight=False, width=PIPE_WIDTH)
    with err.status("loading models") as status, load(options) as engine:
        measured = Bench(options, engine, read)
        # A log gets a line for each step, a terminal one line that changes.
        measured.measure(status.update if err.is_terminal else err.print)
    report = Report(measured)
    print_tables(report, out)
    if json_file is not None:
        found = json.dumps(report.as_object(), ensure_ascii=False, allow_nan=False, indent=1)
        json_file.write_text(found + "\n", encoding="utf-8")
    if plot_file is not None:
        from rapid_core.bench.plot import draw

        draw(report, plot_file)
    sys.stdout.write(json.dumps(report.summary(), ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()
    if not measured.complete:
        raise typer.Exit(STOPPED_STATUS)


def _check_files(json_file: Path | None, plot_file: Path | None) -> None:
    """What would fail after the measurement must fail before it."""
    check_installed("psutil", extra="bench")
    if plot_file is not None:
        check_installed("matplotlib", extra="bench")
        if plot_file.suffix.lower() != ".png":
            raise OptionError(f"the plot is a PNG file, got {str(plot_file)!r}; give a name that ends with .png")
    for file in (json_file, plot_file):
        if file is None:
            continue
        if not file.parent.is_dir() or file.is_dir():
            raise OptionError(f"a file is written into a folder that exists, got {str(file)!r}; make the folder first")
        was_there = file.exists()
        try:
            file.open("ab").close()
        except OSError as error:
            raise OptionError(f"{str(file)!r} must be a file that can be written: {error}; name another one") from error
        if not was_there:
            file.unlink()
    if json_file is not None and json_file == plot_file:
        raise OptionError(f"--json and --plot must be two files, got {str(json_file)!r} for both")
