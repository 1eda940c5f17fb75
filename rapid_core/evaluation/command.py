"""The command `rapid eval`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rapid_core.command_options import DEFAULT_ETA, number_or_word, numbers_of, spread, words_of
from rapid_core.errors import OptionError
from rapid_core.evaluation.judge import KEY_VARIABLE, Judge, judge_of
from rapid_core.evaluation.methods import METHODS
from rapid_core.evaluation.options import LOCAL_TASKS, PAPER_GAMMA, EvalOptions, FitChoice
from rapid_core.model_choice import ModelChoice

# Of tables that go into a file or a pipe, in characters.
PIPE_WIDTH = 200
FAILED_STATUS = 3
STOPPED_STATUS = 130


@spread
def evaluate(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder of the run; a run that was stopped goes on there.")],
    models: ModelChoice,
    upward_drafter: Annotated[
        str | None, typer.Option(help="Drafter of the method 'rapid-upward', larger than the target.")
    ] = None,
    tasks: Annotated[str, typer.Option(help="Tasks, separated by commas.")] = ",".join(LOCAL_TASKS),
    methods: Annotated[
        str,
        typer.Option(help=f"Methods, separated by commas: {', '.join(METHODS)}. All that can run unless given."),
    ] = "",
    data: Annotated[
        str | None,
        typer.Option(
            help="Folder with the data of the tasks, a benchmark's file, or the name of its dataset on the hub."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Questions of each task, at the most.")] = None,
    documents: Annotated[int | None, typer.Option(help="Documents of each task, at the most.")] = None,
    max_document_tokens: Annotated[int | None, typer.Option(help="Leave longer documents out.")] = None,
    eta: Annotated[
        str, typer.Option(help="Strengths of the transfer, separated by commas: numbers or 'auto'.")
    ] = DEFAULT_ETA,
    gamma: Annotated[
        str,
        typer.Option(
            help="Draft tokens a round, separated by commas: numbers, or 'auto', which follows the clock, so that "
            "answers can differ from run to run."
        ),
    ] = f"{PAPER_GAMMA}",
    retrieved_tokens: Annotated[
        str, typer.Option(help="Tokens of passages, separated by commas; the engine's own length unless given.")
    ] = "",
    context_tokens: Annotated[
        str,
        typer.Option(
            help="Tokens of the document, separated by commas: longer ones are cut, shorter ones lengthened with "
            "other documents of the task."
        ),
    ] = "",
    unrelated: Annotated[
        bool, typer.Option("--unrelated", help="Compare passages of another document of the task, too.")
    ] = False,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy; the task's own unless given.")] = None,
    seed: Annotated[int, typer.Option(help="Of all that is drawn.")] = 0,
    fit: Annotated[
        FitChoice, typer.Option(help="A document that exceeds the target's window: refuse it, or cut its middle out.")
    ] = "error",
    chain_of_thought: Annotated[
        bool, typer.Option("--chain-of-thought", help="Let the target reason first, where a task can.")
    ] = False,
    judge_url: Annotated[
        str | None,
        typer.Option(
            help="Address of a model that judges answers, as OpenAI's: http://localhost:8000/v1. A key that it needs "
            f"is read from the environment variable {KEY_VARIABLE}."
        ),
    ] = None,
    judge_model: Annotated[str | None, typer.Option(help="Name of the model at --judge-url.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out data that cannot be used.")] = False,
    report_only: Annotated[
        bool,
        typer.Option(
            "--report-only",
            help="Write the report of the run in --out again, without models; with --judge-url and --judge-model its "
            "answers are judged before, where no judge has.",
        ),
    ] = False,
) -> None:
    """Compare methods on questions about long documents; the last line is JSON.

    Exit status: 0; 3 where questions failed, which the answers name; 130 for a run that was
    stopped, which goes on with the same command.
    """
    if report_only:
        _refuse_others(context)
        judge = judge_of(judge_url, judge_model)
        _report(out, complete=None if judge is None else _judge(out, judge))
    options = EvalOptions(
        **asdict(models),
        upward_drafter=upward_drafter,
        tasks=words_of(tasks),
        methods=words_of(methods),
        data=data,
        limit=limit,
        documents=documents,
        max_document_tokens=max_document_tokens,
        eta=tuple(map(number_or_word, words_of(eta))),  # type: ignore[arg-type]
        gamma=tuple(map(number_or_word, words_of(gamma))),  # type: ignore[arg-type]
        retrieved_tokens=numbers_of("retrieved_tokens", retrieved_tokens),
        context_tokens=numbers_of("context_tokens", context_tokens),
        unrelated=unrelated,
        temperature=temperature,
        seed=seed,
        fit=fit,
        chain_of_thought=chain_of_thought,
        judge_url=judge_url,
        judge_model=judge_model,
        skip_bad=skip_bad,
    )
    from rapid_core.evaluation.session import evaluate as run
    from rapid_core.loading import hide_progress_bars

    hide_progress_bars()
    try:
        complete = run(options, out, Console(stderr=True, highlight=False))
    except KeyboardInterrupt:
        # Before the first question there is nothing to report.
        raise typer.Exit(STOPPED_STATUS) from None
    _report(out, complete=complete)


def _judge(folder: Path, judge: Judge) -> bool:
    """Judge what a run has kept; whether that came to its end."""
    from rapid_core.evaluation.judging import judge_kept

    console = Console(stderr=True, highlight=False)
    try:
        judge_kept(folder, judge, console)
    except KeyboardInterrupt:
        console.print("stopped; the same command goes on from here")
        return False
    return True


def _report(folder: Path, *, complete: bool | None) -> None:
    """Write the report of a folder, print one line of JSON, and exit with the status of the run."""
    from rapid_core.evaluation.session import report

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPE_WIDTH)
    found = report(folder, console)
    sys.stdout.write(json.dumps(found, ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()
    if complete is False:
        raise typer.Exit(STOPPED_STATUS)
    raise typer.Exit(FAILED_STATUS if found["failed"] else 0)


def _refuse_others(context: typer.Context) -> None:
    """What the run was is in its folder; another word about it would change nothing."""
    given = [
        f"--{name.replace('_', '-')}"
        for name in context.params
        if name not in ("out", "report_only", "judge_url", "judge_model")
        and (source := context.get_parameter_source(name)) is not None
        and source.name != "DEFAULT"
    ]
    if given:
        raise OptionError(f"--report-only takes the run as it is in --out, got {', '.join(given)}; leave that out")
