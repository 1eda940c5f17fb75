"""A plot as the text of an SVG or the bytes of a PNG."""

from __future__ import annotations

import io
import re
from html import escape
from typing import Any

from rapid_core.evaluation.report.blocks import Plot
from rapid_core.evaluation.report.plots import INK
from rapid_core.extras import require

# Letters stay letters, and none of them starts a formula; what is drawn twice is the same twice.
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "rapid",
    "text.parse_math": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 10.0,
}
UNSAID: dict[str, None] = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def svg(plot: Plot) -> str:
    """To stand in a page: no declaration, letters in the colour of the page, ids of its own, the alt text."""
    drawn = _drawn(plot, format="svg", transparent=True, metadata=UNSAID).decode()
    drawn = drawn[drawn.index("<svg") :].replace(INK, "currentColor")
    drawn = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{plot.name}-", drawn)
    return drawn.replace("<svg ", f'<svg role="img" aria-label="{escape(plot.alt)}" ', 1)


def png(plot: Plot) -> bytes:
    """On white."""
    return _drawn(plot, format="png", dpi=130, metadata={"Software": None})


def _drawn(plot: Plot, **options: Any) -> bytes:
    matplotlib = require("matplotlib", extra="eval")
    with matplotlib.rc_context(STYLE):
        figure = require("matplotlib.figure", extra="eval").Figure(layout="constrained")
        plot.draw(figure)
        file = io.BytesIO()
        figure.savefig(file, **options)
    return file.getvalue()
