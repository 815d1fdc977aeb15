"""How does a report read in a browser? One file, which asks no other for anything."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from inferq.papers import cells
from inferq.papers.markdown import QUICK
from inferq.papers.report import Report, Row, Section, Table
from inferq.reports.document import Picture, figure, shell, table

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_STYLE = """
.citation { color: var(--soft); margin-top: 0; }
.quick { border-left: 4px solid var(--mark); padding: .4rem .9rem; background: var(--marked); }
nav { background: var(--panel); border: 1px solid var(--line); border-radius: 4px; padding: .6rem 1.25rem;
  margin: 1.5rem 0; }
nav ol { margin: .2rem 0; padding-left: 1.4rem; }
nav li { margin: .1rem 0; }
td.where { white-space: nowrap; color: var(--soft); }
.note { text-align: center; }
figure { overflow-x: auto; }
@media screen and (max-width: 45rem) {
  figure svg { max-width: none; }
}
@media print {
  nav { display: none; }
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
    body = [
        f"<header><h1>{escape(report.title)}</h1>",
        f'<p class="citation">{marked.renderInline(report.citation)}</p>',
        f'<p class="quick">{marked.renderInline(QUICK)}</p>' if report.quick else "",
        f"{marked.render(report.setting)}</header>",
        f'<nav aria-label="Contents"><ol>{contents}</ol></nav>' if entries else "",
        *sections,
        f"<footer>Made by <code>inferq paper {escape(report.name)}{' --quick' * report.quick}</code>, inferq "
        f"{escape(version('inferq'))}.</footer>",
    ]
    return shell(f"{report.name}: {report.title}", body, _STYLE)


def _section(section: Section, place: int, marked: MarkdownIt) -> str:
    name = f"section-{place}"
    parts = [f'<section id="{name}">', f"<h2>{escape(section.title)}</h2>", marked.render(section.text)]
    parts += [_figure(one, f"{name}-{number}-", marked) for number, one in enumerate(section.pictures)]
    if section.rows:
        parts.append(_rows(section.rows, name, marked))
    parts += [_table(held, marked) for held in section.tables]
    if section.remarks:
        parts += ["<ul>", *(f"<li>{_entry(remark, marked)}</li>" for remark in section.remarks), "</ul>"]
    return "\n".join([*parts, "</section>"])


def _entry(text: str, marked: MarkdownIt) -> str:
    """An entry of a list: one paragraph stands without its tags."""
    return str(marked.render(text) if "\n\n" in text.strip() else marked.renderInline(" ".join(text.split())))


def _figure(picture: Picture, prefix: str, marked: MarkdownIt) -> str:
    return figure(picture, prefix, marked.renderInline(" ".join(picture.caption.split())))


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
    return table(header, classes, lines) + (f'<ol class="notes">{listed}</ol>' if notes else "")


def _table(held: Table, marked: MarkdownIt) -> str:
    header, numeric, lines = cells.of_table(held)
    classes = ["number" if right else "" for right in numeric]
    grid = table([escape(one) for one in header], classes, [[escape(one) for one in line] for line in lines])
    note = f'<div class="remark">{marked.render(held.note)}</div>' if held.note else ""
    return f"<h3>{escape(held.title)}</h3>{grid}{note}"


def _slips(report: Report, marked: MarkdownIt) -> str:
    lines = [
        [_entry(text, marked) for text in (slip.where, slip.printed, slip.right)] for slip in report.slips
    ]
    grid = table(["where", "printed", "right"], ["where", "", ""], lines)
    return f'<section id="slips">\n<h2>Where the paper slips</h2>\n{grid}\n</section>'
