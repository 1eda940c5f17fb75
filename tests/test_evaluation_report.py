"""The report of made-up records: the HTML file, the same as Markdown, and the tables of a terminal."""

from __future__ import annotations

import io
import random
import re
import sys
from dataclasses import replace
from html import escape
from html.parser import HTMLParser

import pytest
from evaluation_records import DEFAULTS, LC, METRICS, RAG, RAPID, SD, answer_of, made_up
from markdown_it import MarkdownIt
from rich.console import Console

import rapid_core.evaluation.report.markdown
from rapid_core import MissingDependencyError
from rapid_core.evaluation import statistics
from rapid_core.evaluation.report import print_summary, write_html, write_markdown
from rapid_core.evaluation.report.blocks import one_line
from rapid_core.evaluation.report.markdown import _escaped
from rapid_core.evaluation.report.wording import difference, estimate, points, spread
from rapid_core.evaluation.statistics import Estimate, Interval, Quartiles
from rapid_core.evaluation.summary import summarize

HOSTILE = "<script>alert(1)</script> | *[link](https://example.org)* `code` $x$ ` \x1b[2J\r\nnext\udcff"
DESCRIPTION = {
    "target": "a <b>target</b>",
    "drafter": None,
    "data": HOSTILE,
    "command": "rapid eval --data '<script>' --out x",
    "versions": {"torch": "2.13.0"},
    "options": {"eta": [0, 10, "auto"], "device_map": {"lm_head": 0}, "limit": None},
}
VOID = {"meta", "br", "img", "link", "input", "hr", "path", "use", "line"}


def run_of_everything():
    """All methods, a sweep over eta with unrelated passages, one over lengths, a failure, and hostile words."""
    settings = [*DEFAULTS, replace(RAPID, eta=5), replace(RAPID, eta="auto")]
    settings += [replace(setting, unrelated=True) for setting in (RAG, SD, RAPID)]
    answers, measurements = made_up(settings)
    answers[7] = replace(answers[7], error=HOSTILE, scores={})
    answers[8] = replace(answers[8], notes=(HOSTILE,))
    answers = [replace(each, source=HOSTILE if each.source == "books" else "papers") for each in answers]
    lengths = [replace(s, context_tokens=tokens) for tokens in (1000, 2000) for s in (LC, RAG, RAPID)]
    more = made_up(lengths, task="multiple-choice", documents=3, seed=1)
    metrics = METRICS | {"multiple-choice": {"f1": "accuracy"}, "summary": {"rouge_l_sum": "ROUGE-L-Sum"}}
    return [*answers, *more[0]], [*measurements, *more[1]], metrics


class Page(HTMLParser):
    """What a browser would see: tags, ids, links, words, and tables as lists of rows."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.targets, self.tables, self.words, self.open = [], [], [], [], [], []
        self.pictures = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append(tag)
        self.ids += [attrs["id"]] if "id" in attrs else []
        self.targets += [attrs[name] for name in ("href", "xlink:href", "src", "action", "data") if name in attrs]
        if tag == "svg":
            self.pictures.append(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in {"td", "th"}:
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "svg"} & set(self.open):
            self.words.append(data)
        if self.open and self.open[-1] in {"td", "th"}:
            self.tables[-1][-1][-1] += data


@pytest.fixture(scope="module", autouse=True)
def few_resamples():
    """What is written does not depend on how many there are, but for a few digits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "RESAMPLES", 1000)
        yield


@pytest.fixture(scope="module")
def summary():
    answers, measurements, metrics = run_of_everything()
    return summarize(answers, measurements, metrics, notes=["Left out: " + HOSTILE])


@pytest.fixture(scope="module")
def html(summary, tmp_path_factory):
    file = tmp_path_factory.mktemp("html") / "report.html"
    write_html(summary, DESCRIPTION, file)
    return file.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


@pytest.fixture(scope="module")
def markdown(summary, tmp_path_factory):
    file = tmp_path_factory.mktemp("markdown") / "report of it.md"
    write_markdown(summary, DESCRIPTION, file)
    return file


def test_the_page_needs_no_network_and_runs_no_script(html, page):
    assert "script" not in page.tags and not {"link", "iframe", "object", "img"} & set(page.tags)
    assert page.targets and all(target.startswith("#") for target in page.targets)
    assert not re.search(r"url\((?!#)|@import", html)


def test_every_tag_is_closed_ids_are_unique_and_links_within_the_page_lead_somewhere(html, page):
    assert page.open == []
    assert len(page.ids) == len(set(page.ids)) > 0
    assert {target[1:] for target in page.targets} <= set(page.ids)
    assert set(re.findall(r"url\(#([^)]+)\)", html)) <= set(page.ids)


def test_foreign_words_are_shown_as_they_are_and_are_no_markup(html, page):
    words = "".join(page.words)
    assert words.count("<script>alert(1)</script> | *[link](https://example.org)* `code` $x$ ` [2J next\ufffd") == 6
    assert "rapid eval --data '<script>' --out x" in words and "a <b>target</b>" in words
    assert ["device map", "lm_head: 0"] in page.tables[-1] and ["eta", "0, 10, auto"] in page.tables[-1]
    assert "b" not in page.tags and "\x1b" not in html


def test_plots_say_in_words_what_they_show_and_take_the_colour_of_the_page(html, page):
    names = [picture["aria-label"] for picture in page.pictures]
    assert len(names) == 2 * 3 + 2 and all(picture["role"] == "img" for picture in page.pictures)
    assert any("Token F1 by setting" in name and "rapid, eta 10" in name for name in names)
    assert "currentColor" in html and "#010203" not in html


def test_rows_are_as_long_as_their_table_is_wide(page):
    assert len(page.tables) > 20
    assert all(len({len(row) for row in table}) == 1 for table in page.tables)


def test_the_page_is_for_narrow_screens_dark_rooms_and_paper(html, page):
    assert 'name="viewport"' in html and html.count('class="wide"') == page.tags.count("figure")
    assert "overflow-x: auto" in html and "prefers-color-scheme: dark" in html and "@media print" in html


def test_markdown_has_the_same_tables_and_words(page, markdown):
    parsed = Page(MarkdownIt("commonmark").enable("table").render(markdown.read_text(encoding="utf-8")))
    # A table without headings has an empty row of them in Markdown.
    theirs = [[row for row in table if any(row)] for table in parsed.tables]
    assert theirs == page.tables
    assert not {"script", "b", "a", "em"} & set(parsed.tags)
    words = " ".join("".join(parsed.words).split())
    assert "Scores are times 100." in words and "rapid eval --data '<script>' --out x" in words


def test_markdown_names_its_pictures_which_stand_beside_it(page, markdown):
    parsed = Page(MarkdownIt("commonmark").enable("table").render(markdown.read_text(encoding="utf-8")))
    names = [target.replace("%20", " ") for target in parsed.targets]
    assert len(names) == len(page.pictures) == parsed.tags.count("img")
    assert sorted(names) == sorted(file.name for file in markdown.parent.glob("*.png"))
    assert all((markdown.parent / name).read_bytes().startswith(b"\x89PNG") for name in names)


@pytest.mark.parametrize(
    "text",
    [
        "1. first",
        "2) second",
        "- item",
        "+ item",
        "---",
        "# heading",
        "[x]: https://example.org",
        "[a](b)",
        "![a](b)",
        "a_b_c *d* `e` ~f~ <g> &amp; | h \\ i $j$",
        "-7.7",
        "18.1 [1.3, 42.3]",
        "> quoted",
        "*",
        "**",
    ],
)
def test_words_mean_nothing_to_markdown(text):
    shown = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(_escaped(text))
    assert shown == f"<p>{escape(text, quote=False)}</p>\n"


def test_figures_are_plain_in_markdown(markdown):
    text = markdown.read_text(encoding="utf-8")
    assert re.search(r"\| lc \| \d+\.\d \[\d", text) and not re.search(r"\d\\", text)


def row_of(table, name):
    (found,) = [row for row in table if row[0] == name]
    return dict(zip(table[0], found, strict=True))


def hand_worked():
    """8 documents of one question: lc gets 3 right, RAPID 5, at 4 and at 8 tokens/s."""
    lc, rapid = [1, 1, 1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0]
    answers, measurements = [], []
    for setting, scores in ((LC, lc), (RAG, lc), (RAPID, rapid)):
        own = made_up([setting], documents=8, questions=1)
        answers += [replace(each, scores={"f1": float(score)}) for each, score in zip(own[0], scores, strict=True)]
        seconds = 1.0 if setting == RAPID else 2.0
        measurements += [replace(each, tokens=8, decode_s=seconds, rounds=2) for each in own[1]]
    return answers, measurements


def test_figures_of_the_page_by_hand(tmp_path):
    answers, measurements = hand_worked()
    write_html(summarize(answers, measurements, {"short-answer": {"f1": "token F1"}}), {}, tmp_path / "r.html")
    tables = Page((tmp_path / "r.html").read_text()).tables
    first, scores, right = tables[0], tables[1], next(t for t in tables if "only RAPID" in t[0])
    rapid = row_of(first, "rapid, eta 10")
    assert rapid["tokens/s"] == "8.0" and rapid["÷ lc"] == "2.00"
    assert re.fullmatch(r"62\.5 \[\d+\.\d, 100\.0\]", rapid["token F1 [95 %]"])
    assert re.fullmatch(r"\+25\.0 \[\+0\.0, \+\d+\.\d\]", rapid["difference to lc [95 %]"])
    assert row_of(first, "lc")["difference to lc [95 %]"] == "-"
    assert row_of(scores, "rag")["difference to lc"] == "+0.0"
    assert row_of(right, "rapid, eta 10")["only RAPID"].startswith("25.0 [")
    assert row_of(right, "rapid, eta 10")["none"].startswith("37.5 [")


def test_figures_are_written_without_a_minus_before_zero_and_with_marks():
    assert points(-0.0004) == "0.0" and points(-0.0004, sign=True) == "+0.0" and points(0.12345) == "12.3"
    few = {"value": 0.1, "questions": 9, "documents": 3, "by_documents": Interval(-0.1, 0.3)}
    few = Estimate(**few, by_questions=Interval(0.05, 0.2))
    assert estimate(few) == "10.0 [5.0, 20.0]†" and difference(few) == "+10.0 [+5.0, +20.0]† ▲"
    many = replace(few, documents=8)
    assert difference(many) == "+10.0 [-10.0, +30.0]"
    lower = replace(many, value=-0.1, by_documents=Interval(-0.3, -0.05))
    assert difference(lower) == "-10.0 [-30.0, -5.0] ▼"
    assert difference(None) == spread(None, 1) == "-"
    assert spread(Quartiles(1234.5, 1, 2000, 3), 0) == "1,234 (1 to 2,000)"


def test_words_of_one_line_hold_nothing_that_steers_a_terminal_or_breaks_utf8():
    assert one_line(" a\n\tb\x1b[31m\x9bc\ud800 ") == "a b [31m c\ufffd"


def test_a_gamma_that_all_have_is_told_once(tmp_path, page):
    assert "Every setting that drafts has gamma 10." in "".join(page.words)
    assert not any("gamma" in cell for table in page.tables for row in table for cell in row)
    settings = (LC, RAPID, replace(RAPID, gamma=5))
    write_html(summarize(*made_up(settings, documents=2), METRICS), {}, tmp_path / "r.html")
    assert "rapid, eta 10, gamma 5" in Page((tmp_path / "r.html").read_text()).tables[0][-2][0]


SMALL_RUNS = {
    "no lc": made_up((RAG, RAPID), documents=2),
    "one question": made_up(documents=1, questions=1),
    "one document": made_up(documents=1),
    "one setting": made_up((LC,)),
    "no measurements": (made_up()[0], []),
    "no answers": ([], []),
    "all failed": ([answer_of("q", LC, error="too long"), answer_of("q", RAPID, error="too long")], []),
    "nothing in common": ([answer_of("q", LC, 1.0), answer_of("r", RAPID, 1.0)], []),
}


@pytest.mark.parametrize("run", SMALL_RUNS)
def test_a_run_that_lacks_something_has_a_report_that_says_so(run, tmp_path, monkeypatch):
    # The page has the same plots.
    monkeypatch.setattr(rapid_core.evaluation.report.markdown, "png", lambda plot: b"")
    answers, measurements = SMALL_RUNS[run]
    found = summarize(answers, measurements, METRICS)
    write_html(found, {}, tmp_path / "report.html")
    write_markdown(found, {}, tmp_path / "report.md")
    page = Page((tmp_path / "report.html").read_text())
    assert page.open == [] and not re.search(r"\b(nan|inf|None)\b", "".join(page.words))
    print_summary(found, Console(file=io.StringIO()))


def test_a_shuffled_run_gives_the_same_bytes(html, markdown, tmp_path, monkeypatch):
    answers, measurements, metrics = run_of_everything()
    shuffled = random.Random(5)
    shuffled.shuffle(answers)
    shuffled.shuffle(measurements)
    other = summarize(answers, measurements, metrics, notes=["Left out: " + HOSTILE])
    write_html(other, DESCRIPTION, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == html
    monkeypatch.setattr(rapid_core.evaluation.report.markdown, "png", lambda plot: b"")
    write_markdown(other, DESCRIPTION, tmp_path / markdown.name)
    assert (tmp_path / markdown.name).read_bytes() == markdown.read_bytes()


def test_the_terminal_gets_a_table_of_each_task_with_nothing_cut(summary):
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=110))
    lines = out.getvalue().splitlines()
    assert "…" not in out.getvalue() and "\x1b" not in out.getvalue()
    (row,) = [line for line in lines if line.startswith("rapid, eta 5 ")]
    assert re.search(r"\d+\.\d \[\d+\.\d, \d+\.\d\] +[+-]\d+\.\d \[[+-]\d+\.\d, [+-]\d+\.\d\].* 70\.0%$", row)
    assert any(line.startswith("40 questions, of which every setting answered 39") for line in lines)
    assert any(line.startswith("note: Left out: <script>") for line in lines)


def test_without_matplotlib_the_error_names_what_to_install(summary, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"rapid-integrations\[eval\]"):
        write_html(summary, {}, tmp_path / "report.html")
