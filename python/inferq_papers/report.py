"""Report of a paper: its numbers compared with theory and simulation, charts, and errors in the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from inferq import Interval, confidence_interval
from inferq.display import Chart as Chart

if TYPE_CHECKING:
    import polars as pl


def interval(values: Sequence[float]) -> Interval:
    """Mean of independent runs with a 99 % confidence interval, as on every page."""
    return confidence_interval(values, 0.99)


def with_half_width(measured: Interval, decimals: int) -> str:
    """A mean and half of its interval, with a number of decimals."""
    return f"{measured.mean:,.{decimals}f} ± {measured.half_width:,.{decimals}f}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One number of a paper compared with theory and simulation; None if not available."""

    where: str
    """Place in the paper: `"Table 2, 1:1"`."""
    what: str
    unit: str
    paper: float | None = None
    theory: float | None = None
    simulation: float | None = None
    half_width: float | None = None
    """Half width of the simulation's 99 % interval."""
    note: str = ""
    """Assumptions, or why it cannot be compared; in Markdown."""

    @classmethod
    def seen(
        cls,
        where: str,
        what: str,
        unit: str,
        measured: Interval | float | None = None,
        *,
        paper: float | None = None,
        theory: float | None = None,
        note: str = "",
    ) -> Row:
        """A row with the mean of some runs and its interval, or with a single number."""
        mean, half_width = (
            (measured.mean, measured.half_width) if isinstance(measured, Interval) else (measured, None)
        )
        return cls(
            where=where,
            what=what,
            unit=unit,
            paper=paper,
            theory=theory,
            simulation=mean,
            half_width=half_width,
            note=note,
        )

    @property
    def gap(self) -> float | None:
        """Relative difference of simulation and theory."""
        if self.theory is None or self.simulation is None or self.theory == 0:
            return None
        return self.simulation / self.theory - 1


class Rows(list[Row]):
    """The rows of an experiment in order."""

    def add(
        self,
        where: str,
        what: str,
        unit: str,
        measured: Interval | float | None = None,
        *,
        paper: float | None = None,
        theory: float | None = None,
        note: str = "",
    ) -> None:
        """Add a row; see `Row.seen`."""
        self.append(Row.seen(where, what, unit, measured, paper=paper, theory=theory, note=note))


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Numbers without a counterpart in the paper."""

    title: str
    frame: pl.DataFrame
    decimals: dict[str, int] = field(default_factory=dict)
    """Decimals per numeric column. Default: 2."""
    note: str = ""
    """In Markdown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slip:
    """An error in a paper: a printed value that its own formulas contradict; in Markdown."""

    where: str
    printed: str
    right: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """One experiment of a paper."""

    title: str
    text: str
    """The setting, in Markdown."""
    rows: tuple[Row, ...] = ()
    tables: tuple[Table, ...] = ()
    pictures: tuple[Chart, ...] = ()
    remarks: tuple[str, ...] = ()
    """Conclusions in Markdown, one point each."""


def in_turn(parts: Mapping[str, Callable[[], Section]], tell: Callable[[str], None]) -> tuple[Section, ...]:
    """The sections of a page; `tell` receives the name of each before it runs."""
    sections = []
    for name, make in parts.items():
        tell(name)
        sections.append(make())
    return tuple(sections)


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The reproduction of one paper."""

    name: str
    """`"nie2026"`."""
    title: str
    citation: str
    setting: str
    """Common setting of all sections, in Markdown."""
    sections: tuple[Section, ...]
    slips: tuple[Slip, ...]
    quick: bool
    """Whether the runs were smaller than in the full report."""

    def rows(self) -> pl.DataFrame:
        """All rows of all sections, in order.

        Returns:
            One line for each `Row`: `name` (of the report), `section` (its title), `where`, `what`, `unit`,
            `paper`, `theory`, `simulation`, `half_width`, `gap`, `note`; null for what there is not.

        Example:
            >>> from inferq_papers.report import Report, Row, Section
            >>> row = Row(where="Table 1", what="largest rate", unit="requests/s", theory=4.0, simulation=3.9)
            >>> page = Report(
            ...     name="example", title="An example", citation="", setting="", quick=True, slips=(),
            ...     sections=(Section(title="One server", text="", rows=(row,)),),
            ... )
            >>> page.rows().select("section", "paper", "theory", "simulation", "gap").rows()
            [('One server', None, 4.0, 3.9, -0.025000000000000022)]
        """
        import polars as pl

        texts = ("name", "section", "where", "what", "unit")
        numbers = ("paper", "theory", "simulation", "half_width", "gap")
        schema: dict[str, Any] = dict.fromkeys(texts, pl.String) | dict.fromkeys(numbers, pl.Float64)
        lines = [
            (
                *(self.name, section.title, row.where, row.what, row.unit),
                *(row.paper, row.theory, row.simulation, row.half_width, row.gap, row.note),
            )
            for section in self.sections
            for row in section.rows
        ]
        return pl.DataFrame(lines, schema={**schema, "note": pl.String}, orient="row")
