"""The page that the HTML report is: a template that escapes whatever is put into it, and its style."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --soft: #57606a; --page: #ffffff; --line: #d0d7de; --row: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --soft: #9aa4ae; --page: #14181d; --line: #3a424b; --row: #1c2229; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 78rem; color: var(--text); background: var(--page);
  font: 1rem/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 3rem 0 0.5rem; padding-top: 0.75rem; border-top: 1px solid var(--line);
  overflow-wrap: anywhere; }
p, li { max-width: 46rem; overflow-wrap: anywhere; }
a { color: inherit; }
nav ul { padding: 0; display: flex; flex-wrap: wrap; gap: 0.25rem 1.25rem; list-style: none; }
figure { margin: 1.5rem 0; }
figcaption { font-weight: 600; margin-bottom: 0.4rem; }
figure > .note { color: var(--soft); font-size: 0.875rem; margin: 0.4rem 0 0; }
.wide { overflow-x: auto; }
.wide:focus-visible { outline: 2px solid var(--soft); }
.wide svg { min-width: 36rem; width: 100%; height: auto; }
table { border-collapse: collapse; font-size: 0.875rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.5rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child, .words td { text-align: left; }
.words td, .words th { white-space: normal; overflow-wrap: anywhere; }
thead th { border-bottom-width: 2px; vertical-align: bottom; }
tbody th { font-weight: 400; }
tbody tr:nth-child(even) { background: var(--row); }
pre { padding: 0.75rem; background: var(--row); white-space: pre-wrap; overflow-wrap: anywhere; }
@media print {
  :root { color-scheme: light; --text: #000; --soft: #444; --page: #fff; --line: #bbb; --row: #f4f4f4; }
  body { max-width: none; padding: 0; font-size: 9pt; }
  table { font-size: 7.5pt; }
  th, td { padding: 0.15rem 0.35rem; white-space: normal; }
  .wide { overflow: visible; }
  nav { display: none; }
  figure, tr { break-inside: avoid; }
  h2, figcaption { break-after: avoid; }
}
"""

TEMPLATE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{{ report.title }}</title>
<style>{{ style }}</style>
</head>
<body>
<header><h1>{{ report.title }}</h1></header>
<nav aria-label="Sections"><ul>
{% for section in report.sections %}<li><a href="#section-{{ loop.index }}">{{ section.title }}</a></li>
{% endfor %}</ul></nav>
<main>
{% for section in report.sections %}
<section>
<h2 id="section-{{ loop.index }}">{{ section.title }}</h2>
{% for block in section.blocks %}
{% set kind = kind_of(block) %}
{% if kind == "Text" %}<p>{{ block.words }}</p>
{% elif kind == "Listing" %}<ul>{% for item in block.items %}<li>{{ item }}</li>{% endfor %}</ul>
{% elif kind == "Code" %}<pre><code>{{ block.text }}</code></pre>
{% elif kind == "Table" %}<figure>
<figcaption>{{ block.title }}</figcaption>
<div class="wide" tabindex="0" role="region" aria-label="{{ block.title }}">
<table class="{{ "figures" if block.columns else "words" }}">
{% if block.columns %}<thead><tr>
{%- for column in block.columns %}<th scope="col">{{ column }}</th>{% endfor %}</tr></thead>
{% endif %}<tbody>
{% for row in block.rows %}<tr><th scope="row">{{ row[0] }}</th>
{%- for cell in row[1:] %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody>
</table>
</div>
{% if block.note %}<p class="note">{{ block.note }}</p>
{% endif %}</figure>
{% else %}<figure>
<figcaption>{{ block.title }}</figcaption>
<div class="wide" tabindex="0" role="region" aria-label="{{ block.title }}">{{ drawn(block) }}</div>
</figure>
{% endif %}
{% endfor %}
</section>
{% endfor %}
</main>
</body>
</html>
"""
