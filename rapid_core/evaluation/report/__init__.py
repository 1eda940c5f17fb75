"""The report of an evaluation: one HTML file, the same as Markdown, and short tables for a terminal."""

from __future__ import annotations

from rapid_core.evaluation.report.html import write_html
from rapid_core.evaluation.report.markdown import write_markdown
from rapid_core.evaluation.report.terminal import print_summary

__all__ = ["print_summary", "write_html", "write_markdown"]
