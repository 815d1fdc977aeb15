"""Statements of theory: numbers, hypotheses and explanations."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from inferq.display import text


@dataclass(frozen=True, kw_only=True, slots=True)
class Hypothesis:
    """An assumption of a theorem, and whether the scenario meets it.

    Args:
        name: the assumption, in a few words.
        met: whether it holds; None if unknown.
        why: the reason, with its numbers.

    Example:
        >>> from inferq.theory import Hypothesis
        >>> print(Hypothesis(name="memory slack", met=None, why="no capacity is configured"))
        memory slack: unknown (no capacity is configured)
    """

    name: str
    met: bool | None
    why: str

    def __str__(self) -> str:
        """One line."""
        state = {True: "met", False: "not met", None: "unknown"}[self.met]
        return f"{self.name}: {state} ({self.why})"


class Statement:
    """A result of `inferq.theory`: frozen numbers with an explanation."""

    __slots__ = ()
    source: ClassVar[str] = ""
    """The paper and the equation."""

    def explain(self) -> str:
        """The inequality in symbols and in numbers, the conclusion, and the hypotheses."""
        raise NotImplementedError

    def __str__(self) -> str:
        """The same text as `explain()`."""
        return self.explain()

    def _repr_html_(self) -> str:
        """The explanation as HTML for notebooks."""
        return f'<pre style="white-space:pre-wrap">{html.escape(self.explain())}</pre>'


def number(value: float | None) -> str:
    """A number with 6 significant digits; integers in full.

    >>> number(131000), number(3.2632811), number(0.000372), number(None)
    ('131,000', '3.26328', '0.000372', 'unknown')
    """
    return "unknown" if value is None else text.number(value, 6)


def explained(
    symbols: str, lines: Iterable[str], stable: bool | None, hypotheses: tuple[Hypothesis, ...]
) -> str:
    """An explanation: the inequality in symbols, lines of numbers, the verdict, and the hypotheses."""
    verdict = {True: "stable", False: "unstable", None: "unknown"}[stable]
    numbers = (f"  {line}" for line in (*lines, f"verdict: {verdict}"))
    return "\n".join([symbols, *numbers, *hypotheses_text(hypotheses)])


def hypotheses_text(hypotheses: tuple[Hypothesis, ...]) -> list[str]:
    """The lines of an explanation that list the hypotheses."""
    return ["Assumptions:", *(f"  - {hypothesis}" for hypothesis in hypotheses)] if hypotheses else []
