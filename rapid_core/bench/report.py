"""What was measured, as one JSON object and as tables."""

from __future__ import annotations

import platform
import shlex
import sys
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rapid_core.bench.measure import Bench
from rapid_core.bench.options import METHODS, BenchOptions
from rapid_core.bench.records import FirstToken, LengthFigures, Memory, Run
from rapid_core.bench.summary import Limit, MethodFigures, Spread, by_kind, summarise

# A file or a pipe has no width of its own; a row must not be cut there.
PIPE_WIDTH = 110


class Report:
    """The figures of a benchmark, by length and method."""

    def __init__(self, bench: Bench) -> None:
        self.options = bench.options
        self._bench = bench
        self._limit = Limit(bench.read_bytes, bench.cache_bytes, bench.bandwidth)

    @property
    def lengths(self) -> dict[int, LengthFigures]:
        """What was measured once a length."""
        return self._bench.figures

    def methods(self, length: int) -> dict[str, MethodFigures]:
        """The figures of each method that ran at a length, over all kinds of prompts."""
        return self._methods([run for run in self._bench.runs if run.length == length])

    def kinds(self, length: int) -> dict[str, dict[str, MethodFigures]]:
        """The same by kind of prompt."""
        runs = [run for run in self._bench.runs if run.length == length]
        return {kind: self._methods(own) for kind, own in by_kind(runs).items()}

    def title(self) -> str:
        """What was measured where, and that acceptance is simulated where it is."""
        target = self.options.random_weights or self.options.target
        simulated = self.options.simulated_acceptance
        label = f", ACCEPTANCE SIMULATED at {simulated:g}" if simulated is not None else ""
        return f"{target}, {self._bench.dtype}, {self._bench.device} ({self._bench.device_name}){label}"

    def summary(self) -> dict[str, Any]:
        """The medians, small enough for one line."""
        return {
            "rapid_bench": version("rapid-integrations"),
            "target": self.options.random_weights or self.options.target,
            "device": self._bench.device_name,
            "dtype": self._bench.dtype,
            "simulated_acceptance": self.options.simulated_acceptance,
            "complete": self._bench.complete,
            "lengths": {
                str(length): {
                    method: {
                        "tokens_per_s": _rounded(found.tokens_per_s),
                        "over_generate": _rounded(found.over.get("generate")),
                        "over_plain": _rounded(found.over.get("plain")),
                        "worst_prompt_over_plain": round(worst, 3)
                        if (worst := found.worst_prompt.get("plain")) is not None
                        else None,
                    }
                    for method, found in self.methods(length).items()
                }
                for length in self.lengths
            },
        }

    def as_object(self) -> dict[str, Any]:
        """Everything, for a file."""
        bench = self._bench
        return {
            "command": shlex.join(sys.argv),
            "versions": {
                "rapid-integrations": version("rapid-integrations"),
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": version("transformers"),
            },
            "machine": {
                "device": str(bench.device),
                "name": bench.device_name,
                "threads": torch.get_num_threads(),
                "bandwidth_bytes_per_s": bench.bandwidth,
            },
            "model": {
                "dtype": bench.dtype,
                "bytes_read_a_step": bench.read_bytes,
                "cache_bytes_a_token": bench.cache_bytes,
            },
            "options": asdict(self.options),
            "simulated_acceptance": self.options.simulated_acceptance,
            "complete": bench.complete,
            "lengths": [
                {
                    "length": length,
                    **asdict(figures),
                    "methods": {name: asdict(found) for name, found in self.methods(length).items()},
                    "kinds": {
                        kind: {name: asdict(found) for name, found in methods.items()}
                        for kind, methods in self.kinds(length).items()
                    },
                }
                for length, figures in self.lengths.items()
            ],
            "runs": [asdict(run) | {"tokens_per_s": run.answer.tokens_per_s} for run in bench.runs],
            "summary": self.summary(),
        }

    def print(self, console: Console) -> None:
        """Four tables a length: speed, speed by kind of prompt, drafts, and what is measured once."""
        console.print(Text(self.title(), style="bold"), soft_wrap=True)
        for length, figures in self.lengths.items():
            console.print(self._speed_table(length))
            console.print(self._kind_table(length))
            console.print(self._draft_table(length))
            console.print(_figure_table(figures, self._limit, self.options))
        for name, reason in self.options.left_out.items():
            console.print(Text(f"left out: {METHODS[name]}: {reason}", style="yellow"), soft_wrap=True)
        for note in dict.fromkeys(note for run in self._bench.runs for note in run.answer.notes):
            if not note.startswith("plain decoding: speculation is off"):
                console.print(Text(f"note: {note}", style="yellow"), soft_wrap=True)
        if not self._bench.complete:
            console.print(Text("stopped early: this is what was measured until then", style="yellow"), soft_wrap=True)

    def _methods(self, runs: list[Run]) -> dict[str, MethodFigures]:
        found = {name: summarise(runs, name, self._limit) for name in self.options.measured}
        return {name: figures for name, figures in found.items() if figures is not None}

    def _speed_table(self, length: int) -> Table:
        table = _table(f"{length:,} tokens", "tokens/s", "÷ generate()", "÷ plain", "of limit")
        for name, found in self.methods(length).items():
            table.add_row(
                self._label(name, found),
                _range(found.tokens_per_s, 1),
                _range(found.over.get("generate"), 2),
                _range(found.over.get("plain"), 2),
                _percent(found.of_limit),
            )
        return table

    def _kind_table(self, length: int) -> Table:
        kinds = self.kinds(length)
        table = _table("tokens/s, ÷ generate()", *kinds)
        for name, found in self.methods(length).items():
            own = [methods.get(name) for methods in kinds.values()]
            table.add_row(self._label(name, found), *("" if each is None else _speed(each) for each in own))
        return table

    def _draft_table(self, length: int) -> Table:
        table = _table("drafts", "accepted", "a round", "transfer", "tokens that differ")
        for name, found in self.methods(length).items():
            table.add_row(
                self._label(name, found),
                _percent(found.acceptance),
                f"{found.tokens_per_round:.2f}",
                _percent(found.transferred) if name == "transfer" else "",
                "" if self._simulated(found) or not found.compared else f"{found.differing} of {found.compared}",
            )
        if self.options.simulated:
            rate = self.options.simulated_acceptance
            table.caption = f"* simulated: a draft stands with probability {rate:g} if those before it do"
            table.caption_justify = "left"
        return table

    def _label(self, method: str, found: MethodFigures) -> str:
        return label(method, self.options) + ("*" if self._simulated(found) else "")

    def _simulated(self, found: MethodFigures) -> bool:
        """Whether figures hang on drafts whose acceptance was drawn at random."""
        return self.options.simulated and found.acceptance is not None


def label(method: str, options: BenchOptions) -> str:
    """What a method is called, with the eta that it had."""
    return f"RAPID, eta = {options.eta:g}" if method == "transfer" else METHODS[method]


def _figure_table(figures: LengthFigures, limit: Limit, options: BenchOptions) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    if figures.cold is not None and figures.warm is not None:
        table.add_row("first token, ours", f"cold {_first(figures.cold)}")
        part = figures.warm.seconds / figures.cold.seconds
        table.add_row("", f"second question {_first(figures.warm)}; {part:.1%} of the first one's")
    if figures.cold_generate is not None:
        table.add_row("first token, generate()", f"{figures.cold_generate.seconds:.2f} s")
    for name, memory in (("ours", figures.memory), ("generate()", figures.memory_generate)):
        if memory is not None:
            table.add_row(f"peak memory, {name}", _memory(memory))
    if figures.forward_s:
        few, more = min(figures.forward_s), max(figures.forward_s)
        times = f"{1e3 * figures.forward_s[few]:.1f} ms for {few}, {1e3 * figures.forward_s[more]:.1f} ms for {more}"
        ratio = figures.forward_s[more] / figures.forward_s[few]
        least = 1e3 / limit.tokens_per_s(figures.prompt_tokens)
        table.add_row("one target forward", f"{times} tokens, ratio {ratio:.2f}; bandwidth limit {least:.1f} ms")
    for name, share in figures.other_share.items():
        table.add_row("outside the models", f"{share:.1%} of decoding, {label(name, options)}")
    return table


def _first(first: FirstToken) -> str:
    parts = {"retrieval": first.retrieval_s, "prefill": first.prefill_s, "the drafter's": first.draft_prefill_s}
    told = ", ".join(f"{name} {seconds:.2f}" for name, seconds in parts.items() if seconds is not None)
    return f"{first.seconds:.2f} s: {told}"


def _memory(memory: Memory) -> str:
    weights, caches, beyond = (f"{part / 2**20:,.0f}" for part in (memory.weights, memory.caches, memory.beyond))
    return f"{weights} MiB of weights, {caches} of caches, {beyond} beyond"


def _table(title: str, *headings: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(title, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _speed(found: MethodFigures) -> str:
    if found.tokens_per_s is None:
        return ""
    over = found.over.get("generate")
    return f"{found.tokens_per_s.median:.1f}" + (f", {over.median:.2f}" if over else "")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _range(found: Spread | None, digits: int) -> str:
    return "" if found is None else f"{found.median:.{digits}f} ({found.min:.{digits}f} to {found.max:.{digits}f})"


def _rounded(found: Spread | None) -> float | None:
    return None if found is None else round(found.median, 3)
