"""What was measured, by length and method, and as one JSON object."""

from __future__ import annotations

import platform
import shlex
import sys
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import torch

from rapid_core.bench.measure import Bench
from rapid_core.bench.options import METHODS, TRANSFORMERS_METHODS, BenchOptions
from rapid_core.bench.records import LengthFigures, Run
from rapid_core.bench.summary import Limit, MethodFigures, Spread, by_kind, summarise
from rapid_core.planning import SPECULATION_OFF


class Report:
    """The figures of a benchmark. complete: whether all of it was measured."""

    def __init__(self, bench: Bench) -> None:
        self.options = bench.options
        self.complete = bench.complete
        self.limit = Limit(bench.read_bytes, bench.cache_bytes, bench.bandwidth)
        self._bench = bench

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
        mark = f", ACCEPTANCE SIMULATED at {simulated:g}" if simulated is not None else ""
        compiled = ", our steps compiled" if self.options.compile else ""
        return f"{target}, {self._bench.dtype}, {self._bench.device} ({self._bench.device_name}){compiled}{mark}"

    def summary(self) -> dict[str, Any]:
        """The medians, small enough for one line."""
        return {
            "rapid_bench": version("rapid-integrations"),
            "target": self.options.random_weights or self.options.target,
            "drafter": self.options.drafter,
            "device": self._bench.device_name,
            "dtype": self._bench.dtype,
            "gamma": self.options.speculation("lossless").gamma,
            "eta": self.options.eta,
            "compile": self.options.compile,
            "simulated_acceptance": self.options.simulated_acceptance,
            "complete": self.complete,
            "lengths": {
                str(length): {
                    method: {
                        "tokens_per_s": _rounded(found.tokens_per_s),
                        "over_generate": _rounded(found.over.get("generate")),
                        "over_plain": _rounded(found.over.get("plain")),
                        "worst_prompt_over_plain": _rounded(found.worst_prompt.get("plain")),
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
            "complete": self.complete,
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

    def simulated(self, found: MethodFigures) -> bool:
        """Whether figures hang on drafts whose acceptance was drawn at random."""
        return self.options.simulated and found.acceptance is not None

    def notes(self) -> list[str]:
        """What the engine decided by itself in our answers, each once."""
        own = [run for run in self._bench.runs if run.method not in TRANSFORMERS_METHODS]
        return list(dict.fromkeys(note for run in own for note in run.answer.notes if note != SPECULATION_OFF))

    def _methods(self, runs: list[Run]) -> dict[str, MethodFigures]:
        found = {name: summarise(runs, name, self.limit) for name in self.options.measured}
        return {name: figures for name, figures in found.items() if figures is not None}


def label(method: str, options: BenchOptions) -> str:
    """What a method is called, with the eta that it had."""
    if method != "transfer":
        return METHODS[method]
    return f"RAPID, eta = {options.eta if options.eta == 'auto' else format(options.eta, 'g')}"


def _rounded(found: Spread | float | None) -> float | None:
    middle = found.median if isinstance(found, Spread) else found
    return None if middle is None else round(middle, 3)
