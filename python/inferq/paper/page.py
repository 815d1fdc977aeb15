"""How does a report read in a browser? One file, which asks no other for anything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from inferq.paper import cells
from inferq.paper.markdown import QUICK
from inferq.paper.report import Picture, Report, Row, Section, Table
from inferq.picture.style import INK, svg

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_STYLE = """
html { background: #fff; color: var(--ink);
  font: 16px/1.55 system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; }
body { max-width: 60rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; overflow-wrap: break-word; }
h1 { font-size: 1.75rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 3rem 0 .75rem; padding-top: 1rem;
  border-top: 1px solid #d5d5d5; }
h3 { font-size: 1rem; margin: 1.75rem 0 .4rem; }
p, ul, ol { margin: .6rem 0; }
p, li, figcaption { max-width: 46rem; }
li { margin: .35rem 0; }
a { color: #00558a; }
code { font: .9em ui-monospace, "SF Mono", Menlo, Consolas, monospace; background: #f3f3f3;
  padding: .05em .3em; border-radius: 3px; }
pre { background: #f3f3f3; padding: .75rem 1rem; overflow-x: auto; }
pre code { padding: 0; }
.citation { color: #555; margin-top: 0; }
.quick { border-left: 4px solid #e69f00; padding: .4rem .9rem; background: #fff8e8; }
nav { background: #f7f7f7; border: 1px solid #e2e2e2; border-radius: 4px; padding: .6rem 1.25rem;
  margin: 1.5rem 0; }
nav ol { margin: .2rem 0; padding-left: 1.4rem; }
nav li { margin: .1rem 0; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .875rem; line-height: 1.4; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .35rem .9rem .35rem 0;
  border-bottom: 1px solid #e6e6e6; }
th { border-bottom: 2px solid var(--ink); vertical-align: bottom; white-space: nowrap; }
th:last-child, td:last-child { padding-right: .25rem; }
.number { text-align: right; white-space: nowrap; }
td.where { white-space: nowrap; color: #555; }
.note { text-align: center; }
.notes, .remark { font-size: .875rem; color: #444; }
figure { margin: 1.5rem 0; overflow-x: auto; }
figure svg { display: block; max-width: 100%; height: auto; }
figcaption { font-size: .875rem; color: #444; margin-top: .3rem; }
footer { margin-top: 4rem; color: #666; font-size: .85rem; }
@media screen and (max-width: 45rem) {
  figure svg { max-width: none; }
}
@media print {
  html { font-size: 11px; }
  body { max-width: none; padding: 0; }
  nav { display: none; }
  .wide, figure { overflow: visible; }
  tr, figure, li { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
}
"""


def html(report: Report) -> str:
    """The whole page."""
    from importlib.metadata import version

    from markdown_it import MarkdownIt

    marked = MarkdownIt("commonmark", {"html": False}).enable("table")
    sections = [_section(section, place, marked) for place, section in enumerate(report.sections, start=1)]
    entries = [(f"section-{place}", one.title) for place, one in enumerate(report.sections, start=1)]
    if report.slips:
        entries.append(("slips", "Where the paper slips"))
        sections.append(_slips(report, marked))
    contents = "".join(f'<li><a href="#{name}">{escape(title)}</a></li>' for name, title in entries)
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(report.name)}: {escape(report.title)}</title>",
        f"<style>:root {{ color-scheme: light; --ink: {INK}; }}{_STYLE}</style>",
        "</head>",
        "<body>",
        f"<header><h1>{escape(report.title)}</h1>",
        f'<p class="citation">{marked.renderInline(report.citation)}</p>',
        f'<p class="quick">{marked.renderInline(QUICK)}</p>' if report.quick else "",
        f"{marked.render(report.setting)}</header>",
        f'<nav aria-label="Contents"><ol>{contents}</ol></nav>' if entries else "",
        *sections,
        f"<footer>Made by <code>inferq paper {escape(report.name)}{' --quick' * report.quick}</code>, inferq "
        f"{escape(version('inferq'))}.</footer>",
        "</body>",
        "</html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _section(section: Section, place: int, marked: MarkdownIt) -> str:
    name = f"section-{place}"
    parts = [f'<section id="{name}">', f"<h2>{escape(section.title)}</h2>", marked.render(section.text)]
    parts += [_figure(one, f"{name}-{number}-", marked) for number, one in enumerate(section.pictures)]
    if section.rows:
        parts.append(_rows(section.rows, name, marked))
    parts += [_table(table, marked) for table in section.tables]
    if section.remarks:
        parts += ["<ul>", *(f"<li>{_entry(remark, marked)}</li>" for remark in section.remarks), "</ul>"]
    return "\n".join([*parts, "</section>"])


def _entry(text: str, marked: MarkdownIt) -> str:
    """An entry of a list: one paragraph stands without its tags."""
    return str(marked.render(text) if "\n\n" in text.strip() else marked.renderInline(" ".join(text.split())))


def _figure(picture: Picture, prefix: str, marked: MarkdownIt) -> str:
    drawn = svg(picture.chart(), prefix).replace(
        "<svg ", f'<svg role="img" aria-label="{escape(picture.title)}" ', 1
    )
    caption = f"<b>{escape(picture.title)}.</b> {marked.renderInline(' '.join(picture.caption.split()))}"
    return f"<figure>{drawn}<figcaption>{caption}</figcaption></figure>"


def _rows(rows: Sequence[Row], name: str, marked: MarkdownIt) -> str:
    numbers, notes = cells.noted(rows)
    classes = ["where", "", "number", "number", "number", "number"]
    header = list(cells.HEADER)
    lines = [[escape(text) for text in cells.of_row(row)] for row in rows]
    if notes:
        header, classes = [*header, "note"], [*classes, "note"]
        links = [f'<a href="#{name}-note-{place}">{place}</a>' if place else "" for place in numbers]
        lines = [[*line, link] for line, link in zip(lines, links, strict=True)]
    listed = "".join(
        f'<li id="{name}-note-{place}">{_entry(note, marked)}</li>'
        for place, note in enumerate(notes, start=1)
    )
    return _grid(header, classes, lines) + (f'<ol class="notes">{listed}</ol>' if notes else "")


def _table(table: Table, marked: MarkdownIt) -> str:
    header, numeric, lines = cells.of_table(table)
    classes = ["number" if right else "" for right in numeric]
    grid = _grid([escape(one) for one in header], classes, [[escape(one) for one in line] for line in lines])
    note = f'<div class="remark">{marked.render(table.note)}</div>' if table.note else ""
    return f"<h3>{escape(table.title)}</h3>{grid}{note}"


def _slips(report: Report, marked: MarkdownIt) -> str:
    lines = [
        [_entry(text, marked) for text in (slip.where, slip.printed, slip.right)] for slip in report.slips
    ]
    grid = _grid(["where", "printed", "right"], ["where", "", ""], lines)
    return f'<section id="slips">\n<h2>Where the paper slips</h2>\n{grid}\n</section>'


def _grid(header: Sequence[str], classes: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML already."""

    def row(tag: str, texts: Sequence[str]) -> str:
        scope = ' scope="col"' if tag == "th" else ""
        return "".join(
            f'<{tag}{scope} class="{kind}">{text}</{tag}>' if kind else f"<{tag}{scope}>{text}</{tag}>"
            for kind, text in zip(classes, texts, strict=True)
        )

    body = "\n".join(f"<tr>{row('td', line)}</tr>" for line in lines)
    head = f"<thead><tr>{row('th', header)}</tr></thead>"
    return f'<div class="wide" tabindex="0"><table>{head}\n<tbody>\n{body}\n</tbody></table></div>'
