"""What was measured, as tables."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rapid_core.bench.options import METHODS
from rapid_core.bench.records import FirstToken, LengthFigures, Memory
from rapid_core.bench.report import Report, label
from rapid_core.bench.summary import MethodFigures, Spread

# A file or a pipe has no width of its own; a row must not be cut there.
PIPE_WIDTH = 110


def print_tables(report: Report, console: Console) -> None:
    """Four tables a length: speed, speed by kind of prompt, drafts, and what is measured once."""
    console.print(Text(report.title(), style="bold"), soft_wrap=True)
    for length, figures in report.lengths.items():
        for table in (_speed_table(report, length), _kind_table(report, length), _draft_table(report, length)):
            console.print()
            console.print(table)
        console.print()
        console.print(_figure_table(report, figures))
    remarks = [f"left out: {METHODS[name]}: {reason}" for name, reason in report.options.left_out.items()]
    remarks += [f"note: {note}" for note in report.notes()]
    if not report.complete:
        remarks.append("stopped early: this is what was measured until then")
    for remark in remarks:
        console.print(Text(remark, style="yellow"), soft_wrap=True)


def _speed_table(report: Report, length: int) -> Table:
    table = _table(f"{length:,} tokens", "tokens/s", "÷ generate()", "÷ plain", "of limit")
    for name, found in report.methods(length).items():
        table.add_row(
            _label(report, name, found),
            _range(found.tokens_per_s, 1),
            _range(found.over.get("generate"), 2),
            _range(found.over.get("plain"), 2),
            _percent(found.of_limit),
        )
    return table


def _kind_table(report: Report, length: int) -> Table:
    kinds = report.kinds(length)
    table = _table("tokens/s, ÷ generate()", *kinds)
    for name, found in report.methods(length).items():
        own = [methods.get(name) for methods in kinds.values()]
        table.add_row(_label(report, name, found), *("" if each is None else _speed(each) for each in own))
    return table


def _draft_table(report: Report, length: int) -> Table:
    table = _table("drafts", "accepted", "a round", "transfer", "tokens that differ")
    for name, found in report.methods(length).items():
        table.add_row(
            _label(report, name, found),
            _percent(found.acceptance),
            f"{found.tokens_per_round:.2f}",
            _percent(found.transferred) if name == "transfer" else "",
            "" if report.simulated(found) or not found.compared else f"{found.differing} of {found.compared}",
        )
    if report.options.simulated:
        rate = report.options.simulated_acceptance
        table.caption = f"* simulated: a draft stands with probability {rate:g} if those before it do"
        table.caption_justify = "left"
    return table


def _label(report: Report, method: str, found: MethodFigures) -> str:
    """A method's name, with a star where its figures are simulated."""
    return label(method, report.options) + ("*" if report.simulated(found) else "")


def _figure_table(report: Report, figures: LengthFigures) -> Table:
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
        least = 1e3 / report.limit.tokens_per_s(figures.prompt_tokens)
        table.add_row("one target forward", f"{times} tokens, ratio {ratio:.2f}; bandwidth limit {least:.1f} ms")
    for name, share in figures.other_share.items():
        table.add_row("outside the models", f"{share:.1%} of decoding, {label(name, report.options)}")
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
