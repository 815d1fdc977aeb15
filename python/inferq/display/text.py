"""Formatting of numbers, amounts and sentences for pages and terminals."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

NONE = "–"
"""The text of a missing value."""


def number(value: float | None, digits: int | None = None, *, sign: bool = False) -> str:
    """Format a number with separators: integers and large numbers without decimals.

    Other numbers have two decimals, or three significant digits if they are small. `digits` sets the number
    of significant digits.

    >>> number(None), number(12.0), number(3207.4), number(17.333), number(0.012345)
    ('–', '12', '3,207', '17.33', '0.0123')
    >>> number(-1.5), number(1.5, sign=True), number(3.2632811, 6), number(float("inf"))
    ('−1.50', '+1.50', '3.26328', '∞')
    """
    if value is None or math.isnan(value):
        return NONE
    size = abs(value)
    mark = "−" if value < 0 else "+" if sign and value > 0 else ""
    if math.isinf(size):
        return f"{mark}∞"
    if size < 1e15 and (size == round(size) or size >= 10 ** (digits or 3) - 0.5):
        return f"{mark}{size:,.0f}"
    if digits is None and 1 <= size < 1e15:
        return f"{mark}{size:.2f}"
    return f"{mark}{size:,.{digits or 3}g}"


def seconds(value: float | None) -> str:
    """Format a duration in milliseconds or seconds.

    >>> seconds(None), seconds(0.0386), seconds(0.0000123), seconds(12.3456), seconds(71262.4)
    ('–', '38.6 ms', '0.0123 ms', '12.35 s', '71,262 s')
    """
    if value is None or math.isnan(value):
        return NONE
    if value < 0.9995:
        return f"{value * 1000:.1f} ms" if value >= 0.001 or value == 0 else f"{number(value * 1000, 3)} ms"
    return f"{value:.2f} s" if value < 1000 else f"{number(value)} s"


def percent(share: float | None, digits: int = 3, *, sign: bool = False) -> str:
    """Format a share in percent.

    >>> percent(None), percent(0.0), percent(0.27463), percent(1.0), percent(0.9995, 6)
    ('–', '0 %', '27.5 %', '100 %', '99.95 %')
    >>> percent(0.0251, sign=True), percent(-0.0251, sign=True)
    ('+2.51 %', '−2.51 %')
    """
    return NONE if share is None else f"{number(100 * share, digits, sign=sign)} %"


def amount(value: float | None, unit: str) -> str:
    """Format a value in a unit of metrics: seconds, a share, or a rate.

    >>> amount(0.0386, "s"), amount(0.25, "share"), amount(3.5, "requests/s"), amount(None, "s")
    ('38.6 ms', '25 %', '3.50 requests/s', '–')
    """
    if value is None or unit == "s":
        return seconds(value)
    return percent(value) if unit == "share" else f"{number(value)} {unit}".rstrip()


def rounded(value: float | None, half_width: float | None, *, sign: bool = False) -> tuple[str, str]:
    """Format a value and the half width of its interval, which has two significant digits.

    >>> rounded(3.2581, 0.0123), rounded(131.5, 12.4, sign=True), rounded(5.25, 0.0), rounded(2.5, None)
    (('3.258', '± 0.012'), ('+132', '± 12'), ('5.25', '± 0'), ('2.50', ''))
    """
    if value is None or half_width is None or not 1e-6 < half_width < math.inf:
        return number(value, sign=sign), "" if half_width is None else f"± {number(half_width, 2)}"
    decimals = max(0, 1 - math.floor(math.log10(half_width)))
    mark = "−" if value < 0 else "+" if sign and value > 0 else ""
    return f"{mark}{abs(value):,.{decimals}f}", f"± {half_width:,.{decimals}f}"


def counted(count: int, noun: str) -> str:
    """Format a count with its noun.

    >>> counted(1, "seed"), counted(12_000, "seed")
    ('1 seed', '12,000 seeds')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
    "\ufdd0-\ufdef\ufeff\ufff9-\ufffb\ufffe\uffff]"
)
"""Control characters, bidirectional marks and characters that XML forbids; not tab and newline."""


def visible(text: str) -> str:
    r"""A text with escapes for invisible characters, for names from files.

    >>> print(visible("chat" + chr(27) + "[2J" + chr(0x202E)))
    chat\x1b[2J\u202e
    """

    def escaped(match: re.Match[str]) -> str:
        code = ord(match[0])
        return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"

    return _HIDDEN.sub(escaped, text)


def pictured(name: str) -> str:
    r"""A name for charts: `visible`, and unable to end a script of the page.

    Example:
        >>> from inferq.display.text import pictured
        >>> print(pictured("a" + chr(27) + "b </script>"))
        a\x1bb <\/script>
    """
    return visible(name).replace("</", "<\\/").replace("<!--", "<\\!--")


def is_hidden(text: str) -> bool:
    """Whether a text, or its JSON form, has a character that `visible` escapes."""
    return _HIDDEN.search(text) is not None or re.search(r"\\u(?:00[01]|00[7-9])|\\[bfr]", text) is not None


def listed(names: Iterable[str], last: str = "and") -> str:
    """Join names with commas, and a word before the last.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"], "or")
    ('a', 'a and b', 'a, b or c')
    """
    *first, end = names
    return f"{', '.join(first)} {last} {end}" if first else end


_LONG = re.compile(r"(?<![\w.,:/-])\d{4,15}(?![\w:/-]|[.,]\d)")
"""A long integer in a text, but no part of a name, a decimal or a time."""


def grouped(text: str) -> str:
    """A text with separators in its long integers.

    >>> grouped("3798 of 11877 iterations, 12.3456 s")
    '3,798 of 11,877 iterations, 12.3456 s'
    """
    return _LONG.sub(lambda match: f"{int(match[0]):,}", text)


def sentence(text: str, names: Iterable[str] = ()) -> str:
    """A text with a capital letter, a full stop and separators in its long integers.

    Args:
        text: a finding.
        names: names that keep their case at the start of the text.

    Example:
        >>> from inferq.display.text import sentence
        >>> sentence("one-seed: use ten"), sentence("a100: overload", ["a100"]), sentence("ttft_p99: none.")
        ('One-seed: use ten.', 'a100: overload.', 'ttft_p99: none.')
        >>> sentence("3798 of 11877 iterations, 12.3456 s")
        '3,798 of 11,877 iterations, 12.3456 s.'
    """
    text = grouped(text)
    is_name = "_" in text.split(" ", 1)[0] or any(text.startswith(name) for name in names)
    text = text if is_name else f"{text[:1].upper()}{text[1:]}"
    return text if text.endswith((".", "!", "?")) else f"{text}."
