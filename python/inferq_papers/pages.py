"""The page of a report as HTML with embedded charts, or as Markdown with SVG files."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from inferq import ConfigError
from inferq.display import Chart, figure, number, rounded, shell, svg, table
from inferq_papers.report import Report, Row, Section, Table

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

ENDINGS = (".html", ".md")
"""File extensions of pages."""
WIDTH = 118
"""Most characters in a line of Markdown prose."""
DIGITS = 5
"""Significant digits of computed numbers."""
QUICK = "Made with smaller runs than the full report (`--quick`), so intervals are wider."


def write(report: Report, path: str | Path) -> Path:
    """Write the page: `.html` embeds its charts, `.md` has them in files next to it.

    Returns:
        The path.

    Raises:
        ConfigError: the extension is not supported.
        OSError: the file cannot be written.
    """
    page = Path(path)
    check_ending(page)
    text = html(report) if page.suffix == ".html" else markdown(report, page.parent, page.stem)
    _write(page, text)
    return page


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


def check_ending(page: Path) -> None:
    """Raise an error for a page that is neither HTML nor Markdown.

    Raises:
        ConfigError: the extension is not supported.
    """
    if page.suffix not in ENDINGS:
        raise ConfigError(page, f"must end in {' or '.join(ENDINGS)}, got {page.suffix!r}")


NONE = "–"
"""A cell without a number."""
HEADER = ("where", "what", "paper", "theory", "simulation", "gap")
"""The columns of a table of rows; the first two are text."""


def printed(value: float | None) -> str:
    """A number of a paper, with the digits that were given.

    >>> printed(3.263), printed(25.808), printed(6000.0), printed(4.2e-9), printed(None)
    ('3.263', '25.808', '6,000', '4.2e-09', '–')
    """
    if value is None:
        return NONE
    if value == round(value) and abs(value) < 1e15:
        return f"{round(value):,}"
    return f"{value:,}" if 1e-4 <= abs(value) < 1e15 else f"{value:g}"


def computed(value: float | None, half_width: float | None = None) -> str:
    """A number that was computed, and its interval: as far as the interval's second digit.

    >>> computed(3.2632811), computed(131000.4), computed(0.000372), computed(3.2581, 0.0123)
    ('3.2633', '131,000', '0.000372', '3.258 ± 0.012')
    >>> computed(0.0), computed(-1234.5678), computed(2.0), computed(None), computed(5.25, 0.0)
    ('0', '−1,234.6', '2', '–', '5.25 ± 0')
    """
    if half_width is None or not half_width > 0:
        return number(value, DIGITS) if half_width is None else f"{number(value, DIGITS)} ± 0"
    return " ".join(rounded(value, half_width))


def gap(value: float | None) -> str:
    """A share as a signed percentage.

    >>> gap(-0.0251), gap(0.000004), gap(2.5), gap(None)
    ('−2.51 %', '0.00 %', '+250 %', '–')
    """
    if value is None:
        return NONE
    text = f"{100 * abs(value):,.2f}" if abs(value) < 1 else f"{100 * abs(value):,.0f}"
    sign = "" if not text.strip("0.") else "−" if value < 0 else "+"
    return f"{sign}{text} %"


def noted(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """The number of the note of each row, and the distinct notes of a table.

    >>> one, two = Row(where="", what="", unit="", note="a"), Row(where="", what="", unit="")
    >>> noted([one, two, one])
    (['1', '', '1'], ['a'])
    """
    notes = list(dict.fromkeys(row.note for row in rows if row.note))
    return [str(notes.index(row.note) + 1) if row.note else "" for row in rows], notes


def cells_of_row(row: Row) -> list[str]:
    """The cells of a row under `HEADER`."""
    what = f"{row.what}, {row.unit}" if row.unit else row.what
    return [
        *(row.where, what, printed(row.paper), computed(row.theory)),
        *(computed(row.simulation, row.half_width), gap(row.gap)),
    ]


def cells_of_table(table: Table) -> tuple[list[str], list[bool], list[list[str]]]:
    """Column names of a table, which columns are numeric, and the cells."""
    frame = table.frame
    numeric = [frame[name].dtype.is_numeric() for name in frame.columns]
    cells = [
        [_cell(value, table.decimals.get(name, 2)) for name, value in zip(frame.columns, line, strict=True)]
        for line in frame.iter_rows()
    ]
    return frame.columns, numeric, cells


def _cell(value: object, decimals: int) -> str:
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.{decimals}f}" if math.isfinite(value) else NONE
    return f"{value:,}" if isinstance(value, int) else str(value)


_STYLE = """
.citation { color: var(--soft); margin-top: 0; }
.quick { border-left: 4px solid var(--beware); padding: .4rem .9rem; background: var(--beware-ground); }
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
    """A self-contained HTML page with embedded SVG charts."""
    from markdown_it import MarkdownIt

    marked = MarkdownIt("commonmark", {"html": False}).enable("table")
    sections = [_section(section, place, marked) for place, section in enumerate(report.sections, start=1)]
    entries = [(f"section-{place}", item.title) for place, item in enumerate(report.sections, start=1)]
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
    parts += [_figure(item, f"{name}-{number}-", marked) for number, item in enumerate(section.pictures)]
    if section.rows:
        parts.append(_rows(section.rows, name, marked))
    parts += [_table(table_data, marked) for table_data in section.tables]
    if section.remarks:
        parts += ["<ul>", *(f"<li>{_entry(remark, marked)}</li>" for remark in section.remarks), "</ul>"]
    return "\n".join([*parts, "</section>"])


def _entry(text: str, marked: MarkdownIt) -> str:
    """A list entry; a single paragraph has no paragraph tags."""
    return str(marked.render(text) if "\n\n" in text.strip() else marked.renderInline(" ".join(text.split())))


def _figure(picture: Chart, prefix: str, marked: MarkdownIt) -> str:
    return figure(picture, prefix, marked.renderInline(" ".join(picture.caption.split())))


def _rows(rows: Sequence[Row], name: str, marked: MarkdownIt) -> str:
    numbers, notes = noted(rows)
    classes = ["where", "", "number", "number", "number", "number"]
    header = list(HEADER)
    lines = [[escape(text) for text in cells_of_row(row)] for row in rows]
    if notes:
        header, classes = [*header, "note"], [*classes, "note"]
        links = [f'<a href="#{name}-note-{place}">{place}</a>' if place else "" for place in numbers]
        lines = [[*line, link] for line, link in zip(lines, links, strict=True)]
    listed = "".join(
        f'<li id="{name}-note-{place}">{_entry(note, marked)}</li>'
        for place, note in enumerate(notes, start=1)
    )
    return table(header, classes, lines) + (f'<ol class="notes">{listed}</ol>' if notes else "")


def _table(table_data: Table, marked: MarkdownIt) -> str:
    header, numeric, lines = cells_of_table(table_data)
    classes = ["number" if right else "" for right in numeric]
    grid = table(
        [escape(item) for item in header], classes, [[escape(item) for item in line] for line in lines]
    )
    note = f'<div class="remark">{marked.render(table_data.note)}</div>' if table_data.note else ""
    return f"<h3>{escape(table_data.title)}</h3>{grid}{note}"


def _slips(report: Report, marked: MarkdownIt) -> str:
    lines = [
        [_entry(text, marked) for text in (slip.where, slip.printed, slip.right)] for slip in report.slips
    ]
    grid = table(["where", "printed", "right"], ["where", "", ""], lines)
    return f'<section id="slips">\n<h2>Where the paper slips</h2>\n{grid}\n</section>'


def markdown(report: Report, folder: str | Path, stem: str | None = None) -> str:
    """The page in Markdown; its charts are written into `folder`.

    Args:
        report: of a paper.
        folder: where the page will lie; it must be there.
        stem: prefix of the chart file names. Default: the report's name.

    Raises:
        OSError: a picture cannot be written.
    """
    parts = [f"# {report.title}", report.citation, report.setting]
    parts += [f"*{QUICK}*"] if report.quick else []
    pictures: dict[str, str] = {}
    for section in report.sections:
        parts += _section_in_markdown(section, stem or report.name, pictures)
    if report.slips:
        lines = [(slip.where, slip.printed, slip.right) for slip in report.slips]
        parts += ["## Errors in the paper", _grid(("where", "printed", "correct"), (False,) * 3, lines)]
    page = "\n\n".join(part.strip() for part in parts if part.strip())
    for name, drawn in pictures.items():
        _write(Path(folder) / name, drawn)
    return "\n".join(_wrapped(line) for line in page.split("\n")) + "\n"


def _section_in_markdown(section: Section, stem: str, pictures: dict[str, str]) -> list[str]:
    parts = [f"## {section.title}", section.text]
    for picture in section.pictures:
        name = f"{stem}-{len(pictures) + 1}.svg"
        pictures[name] = svg(picture.chart())
        parts += [f"![{_inside(picture.title)}]({name})", f"*{picture.title}.* {picture.caption}"]
    if section.rows:
        parts += _rows_in_markdown(section.rows)
    for held in section.tables:
        parts += _table_in_markdown(held)
    if section.remarks:
        parts.append("\n".join(_bullet("- ", remark) for remark in section.remarks))
    return parts


def _rows_in_markdown(rows: Sequence[Row]) -> list[str]:
    numbers, notes = noted(rows)
    lines = [cells_of_row(row) for row in rows]
    header, numeric = list(HEADER), [False, False, True, True, True, True]
    if notes:
        header, numeric = [*header, "note"], [*numeric, True]
        lines = [[*line, place] for line, place in zip(lines, numbers, strict=True)]
    listed = "\n".join(_bullet(f"{place}. ", note) for place, note in enumerate(notes, start=1))
    return [_grid(header, numeric, lines), listed]


def _table_in_markdown(table: Table) -> list[str]:
    header, numeric, lines = cells_of_table(table)
    return [f"**{table.title}**", _grid(header, numeric, lines), table.note]


def _grid(header: Sequence[str], numeric: Sequence[bool], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    alignment = ["---:" if right else "---" for right in numeric]
    rows = [[_inside(text) for text in line] for line in (header, *lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [rows[0], alignment, *rows[1:]])


def _inside(text: str) -> str:
    """Text that does not end its table cell."""
    return " ".join(text.split()).replace("|", "\\|")


def _bullet(mark: str, text: str) -> str:
    """A list entry with indented continuation lines."""
    return mark + text.strip().replace("\n", "\n" + " " * len(mark))


# No line break before a unit, or before a character that would look like a list entry.
_TOGETHER = re.compile(r"(?<=\d) (?=(?:%|ms|s|µs|GB)(?!\w))| (?=(?:[-*+>#=±≤≥·×→/−–]|\d+[.)])(?: |$))")
_CODE_OR_TARGET = re.compile(r"`[^`]*`|\]\([^)]*\)")


def _wrapped(line: str) -> str:
    """Lines of at most `WIDTH` characters; tables, headings and charts are not wrapped."""
    if len(line) <= WIDTH or line.startswith(("|", "#", "![")):
        return line
    whole = _TOGETHER.sub("\0", _CODE_OR_TARGET.sub(lambda match: match[0].replace(" ", "\0"), line))
    mark = re.match(r" *(?:[-*] |\d+\. )?", line)
    further = " " * len(mark[0] if mark else "")
    filled = textwrap.fill(
        whole, WIDTH, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )
    return filled.replace("\0", " ")
