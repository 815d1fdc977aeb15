"""HTML pages: one file each, for light and dark screens, without external resources."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape as escape_html
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from inferq.display.points import points_of
from inferq.display.style import dark, svg
from inferq.display.text import visible
from inferq.errors import ConfigError

_FILES = Path(__file__).parent

_WIDTH = re.compile(r'<svg [^>]*\bwidth="([\d.]+)"')
MOST_LETTERS = 60_000
"""A longer scenario is truncated on a page."""
_MARKS = {"✓": "met", "✗": "missed"}
"""CSS class of a cell by its first character."""
_MOST_IN_CELL = 60
"""Characters of a text in a table."""
_LEAST_SCALE = 0.78
"""The smallest legible scale of a chart; on a narrower screen the chart scrolls."""


BROAD, SLIM = 850, 286
"""Width of the plot in pixels on a page and on a phone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """A chart of one size, made when the page is written."""

    title: str
    caption: str
    chart: Callable[[], Any]
    """Returns an altair chart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedChart:
    """A chart drawn for the width of the page and of a phone, with values at the pointer."""

    title: str
    caption: str
    chart: Callable[[int], Any]
    """Returns an altair chart whose plot has the given width in pixels."""


def fitted(title: str, caption: str, chart: Callable[[int], Any]) -> tuple[FittedChart, ...]:
    """A chart, or none if the run has no data for it."""
    made = cache(chart)
    try:
        made(BROAD)
    except ConfigError:
        return ()
    return (FittedChart(title=title, caption=caption, chart=made),)


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """A table of formatted cells."""

    title: str
    header: Sequence[str]
    lines: Sequence[Sequence[str]]
    texts: int = 1
    """Number of text columns from the left; the other columns hold numbers."""
    last_is_text: bool = False
    """Whether the last column holds text."""
    wraps: bool = False
    """Whether long texts wrap. Otherwise a page truncates them and shows the whole text in a tooltip."""
    note: str = ""


NoteKind = Literal["critical", "warning", "good", "info"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """A sentence or two above the numbers, with their kind."""

    kind: NoteKind
    text: str


MARKS: Mapping[NoteKind, str] = {"critical": "✗", "warning": "!", "good": "✓", "info": "·"}
HEADS: Mapping[NoteKind, str] = {
    "critical": "✗ Problems",
    "warning": "! Caveats",
    "good": "✓ Good",
    "info": "Notes",
}
"""Headings of notes by kind, the most severe first."""
ANSWER_FIRST: Mapping[NoteKind, str] = {kind: HEADS[kind] for kind in ("critical", "good", "warning", "info")}
"""The same with good news before caveats, for pages about an answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chapter:
    """A section of a page."""

    title: str
    text: str = ""
    grids: tuple[Grid, ...] = ()
    charts: tuple[Chart | FittedChart, ...] = ()
    folded: tuple[tuple[str, str], ...] = ()
    """Collapsed texts: the visible line, and the text below it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A page about a run or an experiment, in plain text.

    The first screen has the title, the verdict, the key facts and the lead chart.
    """

    title: str
    setting: str = ""
    """One line about the experiment."""
    verdict: Note | None = None
    key_facts: tuple[tuple[str, str], ...] = ()
    """The most important numbers by name, at most four."""
    lead: tuple[Chart | FittedChart, ...] = ()
    """The chart at the top."""
    notes: tuple[Note, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    """Further numbers by name."""
    setup: tuple[tuple[str, str], ...] = ()
    """Model, hardware, engine, requests and load by name."""
    chapters: tuple[Chapter, ...] = ()
    heads: Mapping[NoteKind, str] = field(default_factory=lambda: HEADS)
    """Headings of notes by kind, in the order of the page."""

    def html(self, tell: Callable[[int, int], object] | None = None) -> str:
        """The page; `tell` receives the number of finished chapters and their total."""
        chapters: list[str] = []
        for number, chapter in enumerate(self.chapters, start=1):
            chapters.append(_chapter(chapter, f"part-{number}"))
            if tell is not None:
                tell(number, len(self.chapters))
        setup = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in self.setup)
        verdict = self.verdict
        body = [
            f"<header><h1>{escape(self.title)}</h1>",
            f'<p class="setting">{escape(self.setting)}</p>' if self.setting else "",
            "</header>",
            f'<p class="verdict {verdict.kind}">{MARKS[verdict.kind]} {_prose(verdict.text)}</p>'
            if verdict
            else "",
            _facts("key facts", self.key_facts),
            *(
                figure(chart, f"lead-{place}-", _prose(chart.caption))
                for place, chart in enumerate(self.lead)
            ),
            *(
                _notes(kind, self.heads[kind], [note.text for note in self.notes if note.kind == kind])
                for kind in self.heads
            ),
            _facts("facts", self.facts),
            f'<section><h2>Setup</h2><dl class="setup">{setup}</dl></section>' if setup else "",
            *chapters,
            f"<footer>Made by inferq {escape(version('inferq'))}.</footer>",
        ]
        return shell(self.title, body, _file("report.css"))


def _facts(kind: str, facts: Iterable[tuple[str, str]]) -> str:
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{_prose(text)}</dd></div>" for name, text in facts)
    return f'<dl class="{kind}">{items}</dl>' if items else ""


def _notes(kind: str, head: str, texts: Sequence[str]) -> str:
    items = "".join(f"<li>{_prose(text)}</li>" for text in texts)
    return f'<aside class="note {kind}"><b>{escape(head)}</b><ul>{items}</ul></aside>' if texts else ""


_UNITS = re.compile(r"(?<=\d) (?=%|m?s\b|per second)")


def _prose(text: str) -> str:
    """A sentence as HTML, with no line break between a number and its unit."""
    return escape(_UNITS.sub("\u00a0", text))


@cache
def _file(name: str) -> str:
    """A file in this folder that every page includes."""
    return (_FILES / name).read_text(encoding="utf-8")


_POINTS = '<script type="application/json">'
"""Start of the points of a chart, which the script reads."""


def escape(text: str) -> str:
    """A text as HTML, with escapes for invisible characters."""
    return escape_html(visible(text))


def shell(title: str, body: Iterable[str], style: str = "") -> str:
    """A page with its head, style and script around a body.

    Args:
        title: plain text.
        body: HTML.
        style: CSS in addition to that of all pages.
    """
    shared = "\n".join(
        [
            _file("page.css"),
            *("@media screen and (prefers-color-scheme: dark) {", dark("figure"), "}"),
        ]
    )
    body = list(body)
    script, policy = "", "default-src 'none'; style-src 'unsafe-inline'"
    if any(_POINTS in part for part in body):  # one script, which shows values at the pointer
        script = f"\n{_file('page.js')}"
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>{shared}{style}</style>",
        "</head>",
        "<body>",
        *body,
        f"<script>{script}</script>" if script else "",
        "</body>",
        "</html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def figure(chart: Chart | FittedChart, prefix: str, caption: str) -> str:
    """A chart with its caption.

    Args:
        chart: the chart.
        prefix: prefix of the ids inside, different for each chart of a page.
        caption: HTML.
    """
    under = f"<figcaption><b>{escape(chart.title)}.</b> {caption}</figcaption>"
    if isinstance(chart, Chart):
        drawn = _drawn(chart.chart(), chart.title, prefix, scrolls=True)
        return f'<figure><div class="wide">{drawn}</div>{under}</figure>'
    broad = chart.chart(BROAD)
    both = (("broad", broad), ("slim", chart.chart(SLIM)))
    drawings = "".join(
        f'<div class="{name}">{_drawn(drawing, chart.title, f"{prefix}{name}-")}</div>'
        for name, drawing in both
    )
    points = json.dumps(points_of(broad), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return f"<figure>{drawings}{under}{_POINTS}{points}</script></figure>"


def _drawn(chart: Any, title: str, prefix: str, *, scrolls: bool = False) -> str:
    drawn = svg(chart, prefix)
    wide = _WIDTH.search(drawn)
    least = f' style="min-width: {_LEAST_SCALE * float(wide[1]):.0f}px"' if scrolls and wide else ""
    return drawn.replace("<svg ", f'<svg role="img" aria-label="{escape(title)}"{least} ', 1)


def table(header: Sequence[str], classes: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table of HTML cells, which scrolls on a narrow screen."""

    def row(tag: str, texts: Sequence[str]) -> str:
        scope = ' scope="col"' if tag == "th" else ""
        kinds = [
            f"{kind} {_MARKS.get(text[:1], '')}".strip() for kind, text in zip(classes, texts, strict=True)
        ]
        return "".join(
            f'<{tag}{scope} class="{kind}">{text}</{tag}>' if kind else f"<{tag}{scope}>{text}</{tag}>"
            for kind, text in zip(kinds, texts, strict=True)
        )

    body = "\n".join(f"<tr>{row('td', line)}</tr>" for line in lines)
    head = f"<thead><tr>{row('th', header)}</tr></thead>"
    return f'<div class="wide" tabindex="0"><table>{head}\n<tbody>\n{body}\n</tbody></table></div>'


def cut(scenario: str) -> str:
    """A scenario, truncated if too long: an empirical distribution holds all pairs of lengths."""
    if len(scenario) <= MOST_LETTERS:
        return scenario
    more = f"{len(scenario) - MOST_LETTERS:,} more characters; the attribute `scenario` has all of them"
    return f"{scenario[:MOST_LETTERS]}\n… {more}"


def _chapter(chapter: Chapter, name: str) -> str:
    charts = [
        figure(chart, f"{name}-{place}-", _prose(chart.caption)) for place, chart in enumerate(chapter.charts)
    ]
    parts = [
        f'<section id="{name}">',
        f"<h2>{escape(chapter.title)}</h2>",
        f"<p>{_prose(chapter.text)}</p>" if chapter.text else "",
        *charts,
        *map(_grid, chapter.grids),
        *(
            f"<details><summary>{escape(line)}</summary><pre>{escape(text)}</pre></details>"
            for line, text in chapter.folded
        ),
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _grid(grid: Grid) -> str:
    classes = ["" if place < grid.texts else "number" for place in range(len(grid.header))]
    if grid.last_is_text:
        classes[-1] = "word"
    cell = escape if grid.wraps else _cell
    lines = [[cell(text) for text in line] for line in grid.lines]
    title = f"<h3>{escape(grid.title)}</h3>" if grid.title else ""
    note = f'<p class="remark">{_prose(grid.note)}</p>' if grid.note else ""
    return f"{title}{table([_cell(text) for text in grid.header], classes, lines)}{note}"


def _cell(text: str) -> str:
    """A text in a table; a long one is truncated and shown in full in a tooltip."""
    if len(text) <= _MOST_IN_CELL:
        return escape(text)
    return f'<span title="{escape(text)}">{escape(text[: _MOST_IN_CELL - 1].rstrip())}…</span>'
