"""Statements of theory: numbers, the hypotheses that they need, and the words that connect them."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from inferq.display import text


@dataclass(frozen=True, kw_only=True, slots=True)
class Hypothesis:
    """What a theorem assumes, and whether the scenario meets it.

    Args:
        name: the assumption, in a few words.
        met: whether it holds; None where that cannot be known from the scenario.
        why: the reason, with its numbers.

    Example:
        >>> from inferq.theory import Hypothesis
        >>> print(Hypothesis(name="memory slack", met=None, why="no capacity is given"))
        memory slack: not known (no capacity is given)
    """

    name: str
    met: bool | None
    why: str

    def __str__(self) -> str:
        """One line."""
        said = {True: "met", False: "not met", None: "not known"}[self.met]
        return f"{self.name}: {said} ({self.why})"


class Statement:
    """What a function of `inferq.theory` returns: frozen numbers, and the words that connect them."""

    __slots__ = ()
    source: ClassVar[str] = ""
    """The paper and the equation."""

    def explain(self) -> str:
        """The inequality in symbols and with the numbers put in, what follows, and what it assumes."""
        raise NotImplementedError

    def __str__(self) -> str:
        """What `explain()` says."""
        return self.explain()

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return f'<pre style="white-space:pre-wrap">{html.escape(self.explain())}</pre>'


def number(value: float | None) -> str:
    """A number to 6 digits, whole ones in full.

    >>> number(131000), number(3.2632811), number(0.000372), number(None)
    ('131,000', '3.26328', '0.000372', 'not known')
    """
    return "not known" if value is None else text.number(value, 6)


def explained(
    symbols: str, lines: Iterable[str], stable: bool | None, hypotheses: tuple[Hypothesis, ...]
) -> str:
    """An explanation: the inequality in symbols, lines of numbers, the verdict, and what is assumed."""
    verdict = {True: "stable", False: "unstable", None: "unknown"}[stable]
    numbers = (f"  {line}" for line in (*lines, f"verdict: {verdict}"))
    return "\n".join([symbols, *numbers, *hypotheses_text(hypotheses)])


def hypotheses_text(hypotheses: tuple[Hypothesis, ...]) -> list[str]:
    """The lines of an explanation that say what is assumed; none where nothing is."""
    return ["It assumes:", *(f"  - {one}" for one in hypotheses)] if hypotheses else []
