"""A page for a browser: one file, on light and dark screens, which asks for no other."""

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
"""A scenario longer than that is cut."""
_MARKS = {"✓": "kept", "✗": "broken"}
"""What a cell of a table is that begins so."""
_MOST_IN_CELL = 60
"""Letters of a text in a table."""
_LEAST_SCALE = 0.78
"""Smaller than that no letter of a picture can be read: on a narrower screen it scrolls."""


BROAD, SLIM = 850, 286
"""Pixels that a picture of a page plots on: as wide as the page, and as wide as a phone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A chart of one size, made when the page is written."""

    title: str
    caption: str
    chart: Callable[[], Any]
    """Makes an altair chart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedPicture:
    """A chart that a page has as wide as itself and as a phone, and whose points it tells."""

    title: str
    caption: str
    chart: Callable[[int], Any]
    """Makes an altair chart that plots on so many pixels."""


def fitted(title: str, caption: str, chart: Callable[[int], Any]) -> tuple[FittedPicture, ...]:
    """A picture, or none where a run has nothing to draw it from."""
    made = cache(chart)
    try:
        made(BROAD)
    except ConfigError:
        return ()
    return (FittedPicture(title=title, caption=caption, chart=made),)


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """A table of cells that are texts already."""

    title: str
    header: Sequence[str]
    lines: Sequence[Sequence[str]]
    texts: int = 1
    """So many columns, from the left, hold words; the others numbers."""
    last_is_text: bool = False
    """Whether the last column holds words too."""
    wraps: bool = False
    """Whether long texts go on in further lines; else they are cut on a page, and whole under the mouse."""
    note: str = ""


NoteKind = Literal["critical", "warning", "good", "info"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """A sentence or two above the numbers, with their kind."""

    kind: NoteKind
    text: str


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
    """A part of a page."""

    title: str
    text: str = ""
    grids: tuple[Grid, ...] = ()
    pictures: tuple[Picture | FittedPicture, ...] = ()
    folded: tuple[tuple[str, str], ...] = ()
    """What is shown when it is asked for: the line that is always there, and the text under it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A page about a run or an experiment. All of it is plain text."""

    title: str
    setting: str
    """What was done, in one line."""
    notes: tuple[Note, ...]
    """What a reader should know before the numbers."""
    ran: tuple[tuple[str, str], ...] = ()
    """What ran: model, hardware, engine, requests, load, each with its name."""
    facts: tuple[tuple[str, str], ...] = ()
    """The numbers that matter most, with their names."""
    chapters: tuple[Chapter, ...] = ()
    heads: Mapping[NoteKind, str] = field(default_factory=lambda: HEADS)
    """Headings of notes by kind, in the order of the page."""

    def html(self, tell: Callable[[int, int], object] | None = None) -> str:
        """The page; `tell` gets how many of its chapters are drawn, and how many there are."""
        chapters: list[str] = []
        for place, one in enumerate(self.chapters, start=1):
            chapters.append(_chapter(one, f"part-{place}"))
            if tell is not None:
                tell(place, len(self.chapters))
        facts = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in self.facts
        )
        ran = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in self.ran)
        body = [
            f"<header><h1>{escape(self.title)}</h1>",
            f'<p class="setting">{escape(self.setting)}</p>' if self.setting else "",
            f'<dl class="ran">{ran}</dl>' if ran else "",
            "</header>",
            *(
                _notes(kind, self.heads[kind], [one.text for one in self.notes if one.kind == kind])
                for kind in self.heads
            ),
            f'<dl class="facts">{facts}</dl>' if facts else "",
            *chapters,
            f"<footer>Made by inferq {escape(version('inferq'))}.</footer>",
        ]
        return shell(self.title, body, _file("report.css"))


def _notes(kind: str, head: str, texts: Sequence[str]) -> str:
    listed = "".join(f"<li>{_prose(one)}</li>" for one in texts)
    return f'<aside class="note {kind}"><b>{escape(head)}</b><ul>{listed}</ul></aside>' if texts else ""


_UNITS = re.compile(r"(?<=\d) (?=%|m?s\b|per second)")


def _prose(text: str) -> str:
    """A sentence as HTML; a number stays on one line with its unit."""
    return escape(_UNITS.sub("\u00a0", text))


@cache
def _file(name: str) -> str:
    """A file beside this one that becomes part of every page."""
    return (_FILES / name).read_text(encoding="utf-8")


_POINTS = '<script type="application/json">'
"""What the points of a picture begin with, for the script that reads them off."""


def escape(text: str) -> str:
    """A text as HTML, in which what could not be seen is an escape."""
    return escape_html(visible(text))


def shell(title: str, body: Iterable[str], style: str = "") -> str:
    """A page: what is the same for all of them around the parts of its body.

    Args:
        title: plain text.
        body: HTML.
        style: rules beside those that all pages share.
    """
    shared = "\n".join(
        [
            _file("page.css"),
            *("@media screen and (prefers-color-scheme: dark) {", dark("figure"), "}"),
        ]
    )
    body = list(body)
    script, policy = "", "default-src 'none'; style-src 'unsafe-inline'"  # nothing but the style inside it
    if any(_POINTS in part for part in body):  # and the one script that reads pictures off
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


def figure(picture: Picture | FittedPicture, prefix: str, caption: str) -> str:
    """A picture with its caption.

    Args:
        picture: drawn now.
        prefix: with what the names inside begin, another one for each picture of a page.
        caption: HTML.
    """
    under = f"<figcaption><b>{escape(picture.title)}.</b> {caption}</figcaption>"
    if isinstance(picture, Picture):
        drawn = _drawn(picture.chart(), picture.title, prefix, scrolls=True)
        return f'<figure><div class="wide">{drawn}</div>{under}</figure>'
    broad = picture.chart(BROAD)
    both = (("broad", broad), ("slim", picture.chart(SLIM)))
    drawings = "".join(
        f'<div class="{name}">{_drawn(chart, picture.title, f"{prefix}{name}-")}</div>'
        for name, chart in both
    )
    told = json.dumps(points_of(broad), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    held = f"{_POINTS}{told}</script>"
    return f"<figure>{drawings}{under}{held}</figure>"


def _drawn(chart: Any, title: str, prefix: str, *, scrolls: bool = False) -> str:
    drawn = svg(chart, prefix)
    wide = _WIDTH.search(drawn)
    least = f' style="min-width: {_LEAST_SCALE * float(wide[1]):.0f}px"' if scrolls and wide else ""
    return drawn.replace("<svg ", f'<svg role="img" aria-label="{escape(title)}"{least} ', 1)


def table(header: Sequence[str], classes: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML already; it scrolls where the screen is narrower."""

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
    """A scenario as far as it can be read: a distribution made of a trace holds all pairs of lengths."""
    if len(scenario) <= MOST_LETTERS:
        return scenario
    more = (
        f"{len(scenario) - MOST_LETTERS:,} more letters: the attribute `scenario` of what is shown has them"
    )
    return f"{scenario[:MOST_LETTERS]}\n… {more}"


def _chapter(chapter: Chapter, name: str) -> str:
    pictures = [
        figure(one, f"{name}-{place}-", _prose(one.caption)) for place, one in enumerate(chapter.pictures)
    ]
    parts = [
        f'<section id="{name}">',
        f"<h2>{escape(chapter.title)}</h2>",
        f"<p>{_prose(chapter.text)}</p>" if chapter.text else "",
        *pictures,
        *(_grid(one) for one in chapter.grids),
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
    return f"{title}{table([_cell(one) for one in grid.header], classes, lines)}{note}"


def _cell(text: str) -> str:
    """A text in a table; one that would make it too wide is cut, and is whole where the mouse rests on it."""
    if len(text) <= _MOST_IN_CELL:
        return escape(text)
    return f'<span title="{escape(text)}">{escape(text[: _MOST_IN_CELL - 1].rstrip())}…</span>'
