"""A page for a browser: one file, on light and dark screens, which asks for no other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape as escape_html
from importlib.metadata import version
from typing import Any

from inferq.reports.style import INK, dark, svg
from inferq.reports.text import visible

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""What the browser may load for a page: nothing but the style inside it."""

_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: %INK%; --soft: #555; --line: #e2e2e2;
  --panel: #f5f6f7; --link: #00558a; --mark: #e69f00; --marked: #fff8e8; --shade: #0003; }
@media screen and (prefers-color-scheme: dark) {
:root { --ground: #15181d; --ink: #e3e5e9; --soft: #a9afb8; --line: #343941; --panel: #1e2229;
  --link: #7cc4f5; --mark: #d99a1c; --marked: #2b2416; --shade: #000a; }
%DARK%
}
html { background: var(--ground); color: var(--ink); -webkit-text-size-adjust: 100%;
  font: 16px/1.55 system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; }
body { max-width: 60rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; overflow-wrap: break-word; }
h1 { font-size: 1.75rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 3rem 0 .75rem; padding-top: 1rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.75rem 0 .4rem; }
p, ul, ol { margin: .6rem 0; }
p, li, figcaption { max-width: 46rem; }
li { margin: .35rem 0; }
a { color: var(--link); }
code { font: .9em ui-monospace, "SF Mono", Menlo, Consolas, monospace; background: var(--panel);
  padding: .05em .3em; border-radius: 3px; }
pre { background: var(--panel); padding: .75rem 1rem; overflow-x: auto; font-size: .8125rem;
  line-height: 1.45; }
pre code { padding: 0; background: none; }
.wide { overflow-x: auto; margin: 1rem 0; background-repeat: no-repeat;
  background-attachment: local, local, scroll, scroll; background-position: left, right, left, right;
  background-size: 2.5rem 100%, 2.5rem 100%, .75rem 100%, .75rem 100%; background-image:
  linear-gradient(to right, var(--ground) 40%, transparent),
  linear-gradient(to left, var(--ground) 40%, transparent),
  linear-gradient(to right, var(--shade), transparent), linear-gradient(to left, var(--shade), transparent); }
table { border-collapse: collapse; font-size: .875rem; line-height: 1.4; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .35rem .9rem .35rem 0;
  border-bottom: 1px solid var(--line); }
th { border-bottom: 2px solid var(--ink); vertical-align: bottom; white-space: nowrap; }
th:last-child, td:last-child { padding-right: .25rem; }
.number { text-align: right; white-space: nowrap; }
.notes, .remark, figcaption { font-size: .875rem; color: var(--soft); }
figure { margin: 1.5rem 0; }
figure svg { display: block; max-width: 100%; height: auto; }
figcaption { margin-top: .3rem; }
footer { margin-top: 4rem; color: var(--soft); font-size: .85rem; }
@media print {
  html { font-size: 11px; }
  body { max-width: none; padding: 0; }
  .wide, figure { overflow: visible; }
  tr, figure, li { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
}
"""

_REPORT = """
.setting { color: var(--soft); margin-top: 0; }
.findings { border-left: 4px solid var(--mark); background: var(--marked); padding: .3rem .9rem .3rem 2rem;
  margin: 1.25rem 0; }
.word { white-space: nowrap; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .6rem;
  margin: 1.25rem 0; }
.facts div { background: var(--panel); border-radius: 4px; padding: .5rem .75rem; }
.facts dt { font-size: .8125rem; color: var(--soft); }
.facts dd { margin: 0; font-size: 1.15rem; font-variant-numeric: tabular-nums; }
.pictures { display: grid; gap: 1.5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.pictures figure { margin: .75rem 0; max-width: 34rem; min-width: 0; overflow-x: auto; }
.pictures figure svg { width: 100%; max-width: none; }
details { margin: 1rem 0; }
summary { cursor: pointer; color: var(--link); }
details pre { max-height: 30rem; overflow: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
@media (min-width: 52rem) {
  .pictures figure:only-child { display: grid; grid-template-columns: 34rem 1fr; gap: 1.5rem; max-width: none;
    align-items: center; }
}
@media (max-width: 30rem) {
  body { padding: 1.25rem 1rem 3rem; }
  h1 { font-size: 1.4rem; }
  .facts { grid-template-columns: repeat(2, 1fr); }
  table { font-size: .78rem; }
  th, td { padding-right: .5rem; }
}
"""


_WIDTH = re.compile(r'<svg [^>]*\bwidth="([\d.]+)"')
MOST_LETTERS = 60_000
"""A scenario longer than that is cut."""
_MOST_IN_CELL = 60
"""Letters of a text in a table."""
_LEAST_SCALE = 0.78
"""Smaller than that no letter of a picture can be read: on a narrower screen it scrolls."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A chart, made when the page is written."""

    title: str
    caption: str
    chart: Callable[[], Any]
    """Makes an altair chart."""


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
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chapter:
    """A question of a page, and what answers it."""

    title: str
    text: str = ""
    grids: tuple[Grid, ...] = ()
    pictures: tuple[Picture, ...] = ()
    folded: tuple[tuple[str, str], ...] = ()
    """What is shown when it is asked for: the line that is always there, and the text under it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A page about a run or an experiment. All of it is plain text."""

    title: str
    setting: str
    """What was done, in one line."""
    findings: tuple[str, ...]
    """What a reader should know before the numbers, a sentence or two each."""
    facts: tuple[tuple[str, str], ...] = ()
    """The numbers that matter most, with their names."""
    chapters: tuple[Chapter, ...] = ()

    def html(self) -> str:
        """The page."""
        listed = "".join(f"<li>{escape(one)}</li>" for one in self.findings)
        facts = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in self.facts
        )
        body = [
            f"<header><h1>{escape(self.title)}</h1>",
            f'<p class="setting">{escape(self.setting)}</p></header>',
            f'<ul class="findings">{listed}</ul>' if listed else "",
            f'<dl class="facts">{facts}</dl>' if facts else "",
            *(_chapter(one, f"part-{place}") for place, one in enumerate(self.chapters, start=1)),
            f"<footer>Made by inferq {escape(version('inferq'))}.</footer>",
        ]
        return shell(self.title, body, _REPORT)


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
    shared = _STYLE.replace("%INK%", INK).replace("%DARK%", dark("figure"))
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>{shared}{style}</style>",
        "</head>",
        "<body>",
        *body,
        "</body>",
        "</html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def figure(picture: Picture, prefix: str, caption: str) -> str:
    """A picture with its caption.

    Args:
        picture: drawn now.
        prefix: with what the names inside begin, another one for each picture of a page.
        caption: HTML.
    """
    drawn = svg(picture.chart(), prefix)
    wide = _WIDTH.search(drawn)
    least = f"min-width: {_LEAST_SCALE * float(wide[1]):.0f}px" if wide else ""
    drawn = drawn.replace(
        "<svg ", f'<svg role="img" aria-label="{escape(picture.title)}" style="{least}" ', 1
    )
    return f"<figure>{drawn}<figcaption><b>{escape(picture.title)}.</b> {caption}</figcaption></figure>"


def table(header: Sequence[str], classes: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML already; it scrolls where the screen is narrower."""

    def row(tag: str, texts: Sequence[str]) -> str:
        scope = ' scope="col"' if tag == "th" else ""
        return "".join(
            f'<{tag}{scope} class="{kind}">{text}</{tag}>' if kind else f"<{tag}{scope}>{text}</{tag}>"
            for kind, text in zip(classes, texts, strict=True)
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
    pictures = "\n".join(
        figure(one, f"{name}-{place}-", escape(one.caption)) for place, one in enumerate(chapter.pictures)
    )
    parts = [
        f'<section id="{name}">',
        f"<h2>{escape(chapter.title)}</h2>",
        f"<p>{escape(chapter.text)}</p>" if chapter.text else "",
        *(_grid(one) for one in chapter.grids),
        f'<div class="pictures">{pictures}</div>' if pictures else "",
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
    lines = [[_cell(text) for text in line] for line in grid.lines]
    title = f"<h3>{escape(grid.title)}</h3>" if grid.title else ""
    note = f'<p class="remark">{escape(grid.note)}</p>' if grid.note else ""
    return f"{title}{table([_cell(one) for one in grid.header], classes, lines)}{note}"


def _cell(text: str) -> str:
    """A text in a table; one that would make it too wide is cut, and is whole where the mouse rests on it."""
    if len(text) <= _MOST_IN_CELL:
        return escape(text)
    return f'<span title="{escape(text)}">{escape(text[: _MOST_IN_CELL - 1].rstrip())}…</span>'
