"""Tables and sentences for a terminal of a given width; numbers are never truncated."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from inferq.display.document import Grid
from inferq.display.text import visible

_PIECE = re.compile(r"[^\s_/-]*[\s_/-]?")
"""A part of a name that is not broken."""
_LABEL = re.compile(r"- |\w+( \w+)? {2,}")
"""The label before the text of a line: a hyphen, or one or two words in a column of their own."""
_INDENT = "  "


def table(grid: Grid, width: int) -> str:
    """A table that fits the width: with wide gaps, narrow gaps, folded names, or one block for each row.

    Blank lines separate groups of lines, whose first line alone has a first cell. Nothing is truncated; only
    a single cell may exceed `width`.

    Args:
        grid: the table; title and note are not shown.
        width: columns of the terminal.

    Example:
        >>> from inferq.display.document import Grid
        >>> from inferq.display.terminal import table
        >>> grid = Grid(title="", header=("", "p50", "p99"), lines=[("ttft", "8.5 ms", "12.3 ms")])
        >>> print(table(grid, 80))
                   p50       p99
         ───────────────────────
         ttft   8.5 ms   12.3 ms
        >>> print(table(grid, 20))
        ttft
          p50 8.5 ms,
          p99 12.3 ms
    """
    from rich.cells import cell_len

    rows = [[visible(cell) for cell in line] for line in (grid.header, *grid.lines)]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    words = [place < grid.texts for place in range(len(widths))]
    if grid.last_is_text:
        words[-1] = True
    for gap in (3, 2):
        if sum(widths) + gap * (len(widths) - 1) + 2 <= width:
            return "\n".join(_drawn(grid, widths, gap, words))
    room = width - 2 - 2 * (len(widths) - 1)
    least = [
        max(cell_len(piece.rstrip()) for cell in column for piece in _PIECE.findall(cell))
        for column in zip(*rows, strict=True)
    ]
    folded = _folded(widths, least, words, room)
    if folded is not None:
        return "\n".join(_drawn(grid, folded, 2, words))
    return "\n".join(_as_lines(grid, width))


def wrapped(text: str, width: int, hanging: str = "") -> list[str]:
    """The lines of a text, wrapped between words; further lines are indented.

    Args:
        text: one line; after a hyphen or a label, further lines align with its text.
        width: columns of the terminal.
        hanging: indent of further lines of a text without a label, in addition to that of the first line.

    Example:
        >>> from inferq.display.terminal import wrapped
        >>> wrapped("  - a router that spreads the load: met", 24)
        ['  - a router that', '    spreads the load:', '    met']
    """
    text = visible(text)
    body = text.lstrip()
    label = _LABEL.match(body)
    before = len(text) - len(body) + (label.end() if label else len(hanging))
    return textwrap.wrap(
        text,
        max(width, 20),
        subsequent_indent=" " * before,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [""]


def _folded(
    widths: Sequence[int], least: Sequence[int], words: Sequence[bool], room: int
) -> list[int] | None:
    """Column widths with the widest names folded; None if their parts do not fit."""
    folded = list(widths)
    while sum(folded) > room:
        wide = [place for place, is_word in enumerate(words) if is_word and folded[place] > least[place]]
        if not wide:
            return None
        folded[max(wide, key=lambda place: folded[place])] -= 1
    return folded


def _drawn(grid: Grid, widths: Sequence[int], gap: int, words: Sequence[bool]) -> Iterator[str]:
    """The lines of a table with the given column widths."""
    yield from _row(grid.header, widths, gap, words)
    yield " " + "─" * (sum(widths) + gap * (len(widths) - 1))
    grouped = grid.texts > 0 and not all(line[0] for line in grid.lines)
    for place, line in enumerate(grid.lines):
        if grouped and place and line[0]:
            yield ""
        yield from _row(line, widths, gap, words)


def _row(cells: Sequence[str], widths: Sequence[int], gap: int, words: Sequence[bool]) -> Iterator[str]:
    """One row, with several lines if a name is folded."""
    from rich.cells import set_cell_size

    parts = [_folds(visible(cell), width) for cell, width in zip(cells, widths, strict=True)]
    for line in range(max(map(len, parts))):
        texts = []
        for part, width, is_word in zip(parts, widths, words, strict=True):
            text = part[line] if line < len(part) else ""
            texts.append(set_cell_size(text, width) if is_word else _right(text, width))
        yield " " + (" " * gap).join(texts).rstrip()


def _folds(text: str, width: int) -> list[str]:
    """A text in lines of the given width, broken between its parts if they fit."""
    from rich.cells import cell_len, chop_cells

    lines = [""]
    for piece in _PIECE.findall(text):
        if lines[-1] and cell_len(lines[-1] + piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return [part.rstrip() for line in lines for part in chop_cells(line.rstrip(), width)] or [""]


def _right(text: str, width: int) -> str:
    from rich.cells import cell_len

    return " " * (width - cell_len(text)) + text


def _as_lines(grid: Grid, width: int) -> Iterator[str]:
    """The names of each row, and below them the other cells with their column headers."""
    from rich.cells import cell_len

    names: list[str] = [""] * grid.texts
    for line in grid.lines:
        cells = [visible(cell) for cell in line]
        # a group of lines has one first cell
        names = [cells[0] or names[0], *cells[1 : grid.texts]] if grid.texts else []
        if names:
            heads = grid.header[: grid.texts] if grid.texts > 1 else ("",)
            labels = (
                f"{visible(head)} {name}".strip() for head, name in zip(heads, names, strict=True) if name
            )
            yield from _folds(", ".join(labels), width)
        pairs = [
            f"{visible(head)} {cell}".strip()
            for head, cell in zip(grid.header[grid.texts :], cells[grid.texts :], strict=True)
        ]
        text_line = ""
        for place, pair in enumerate(pairs):
            text = pair if place == len(pairs) - 1 else f"{pair},"
            if text_line and cell_len(_INDENT + text_line) + 1 + cell_len(text) > width:
                yield _INDENT + text_line
                text_line = ""
            text_line = f"{text_line} {text}" if text_line else text
        yield _INDENT + text_line
