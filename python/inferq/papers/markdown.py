"""How does a report read as a page in Markdown, with its pictures beside it?"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from inferq.papers import cells
from inferq.papers.report import Report, Row, Section, Table
from inferq.reports.style import svg

WIDTH = 118
"""Characters of a line of prose at most."""

QUICK = "Made with smaller runs than the full report (`--quick`): its intervals are wider."


def markdown(report: Report, stem: str) -> tuple[str, dict[str, str]]:
    """The text of the page, and the SVG of each picture under the name by which the page calls it."""
    parts = [f"# {report.title}", report.citation, report.setting]
    parts += [f"*{QUICK}*"] if report.quick else []
    pictures: dict[str, str] = {}
    for section in report.sections:
        parts += _section(section, stem, pictures)
    if report.slips:
        lines = [(slip.where, slip.printed, slip.right) for slip in report.slips]
        parts += ["## Where the paper slips", _grid(("where", "printed", "right"), (False,) * 3, lines)]
    page = "\n\n".join(part.strip() for part in parts if part.strip())
    return "\n".join(_wrapped(line) for line in page.split("\n")) + "\n", pictures


def _section(section: Section, stem: str, pictures: dict[str, str]) -> list[str]:
    parts = [f"## {section.title}", section.text]
    for picture in section.pictures:
        name = f"{stem}-{len(pictures) + 1}.svg"
        pictures[name] = svg(picture.chart())
        parts += [f"![{_inside(picture.title)}]({name})", f"*{picture.title}.* {picture.caption}"]
    if section.rows:
        parts += _rows(section.rows)
    for table in section.tables:
        parts += _table(table)
    if section.remarks:
        parts.append("\n".join(_bullet("- ", remark) for remark in section.remarks))
    return parts


def _rows(rows: Sequence[Row]) -> list[str]:
    numbers, notes = cells.noted(rows)
    lines = [cells.of_row(row) for row in rows]
    header, numeric = list(cells.HEADER), [False, False, True, True, True, True]
    if notes:
        header, numeric = [*header, "note"], [*numeric, True]
        lines = [[*line, place] for line, place in zip(lines, numbers, strict=True)]
    listed = "\n".join(_bullet(f"{place}. ", note) for place, note in enumerate(notes, start=1))
    return [_grid(header, numeric, lines), listed]


def _table(table: Table) -> list[str]:
    header, numeric, lines = cells.of_table(table)
    return [f"**{table.title}**", _grid(header, numeric, lines), table.note]


def _grid(header: Sequence[str], numeric: Sequence[bool], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    alignment = ["---:" if right else "---" for right in numeric]
    rows = [[_inside(text) for text in line] for line in (header, *lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [rows[0], alignment, *rows[1:]])


def _inside(text: str) -> str:
    """Text that does not end the cell that it stands in."""
    return " ".join(text.split()).replace("|", "\\|")


def _bullet(mark: str, text: str) -> str:
    """An entry of a list, its further lines indented."""
    return mark + text.strip().replace("\n", "\n" + " " * len(mark))


# No line breaks before a unit, or before what would make it look like an entry of a list.
_TOGETHER = re.compile(r"(?<=\d) (?=(?:%|ms|s|µs|GB)(?!\w))| (?=(?:[-*+>#=±≤≥·×→/−–]|\d+[.)])(?: |$))")
_CODE_OR_TARGET = re.compile(r"`[^`]*`|\]\([^)]*\)")


def _wrapped(line: str) -> str:
    """Lines of at most `WIDTH` characters; tables, headings and pictures stay as they are."""
    if len(line) <= WIDTH or line.startswith(("|", "#", "![")):
        return line
    whole = _TOGETHER.sub("\0", _CODE_OR_TARGET.sub(lambda match: match[0].replace(" ", "\0"), line))
    mark = re.match(r" *(?:[-*] |\d+\. )?", line)
    further = " " * len(mark[0] if mark else "")
    filled = textwrap.fill(
        whole, WIDTH, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )
    return filled.replace("\0", " ")
