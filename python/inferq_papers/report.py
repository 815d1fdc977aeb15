"""What was reproduced of a paper: its numbers, ours beside them, pictures, and where the paper slips."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from inferq import Interval, confidence_interval
from inferq.display import Picture as Picture

if TYPE_CHECKING:
    import polars as pl


def interval(values: Sequence[float]) -> Interval:
    """The mean of independent runs with its interval, of 99 % on every page."""
    return confidence_interval(values, 0.99)


def spelled(found: Interval, decimals: int) -> str:
    """A mean and half of its interval, with so many decimals."""
    return f"{found.mean:,.{decimals}f} ± {found.half_width:,.{decimals}f}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One number of a paper beside what theory and simulation give; None for what there is not."""

    where: str
    """Where in the paper: `"Table 2, 1:1"`."""
    what: str
    unit: str
    paper: float | None = None
    theory: float | None = None
    simulation: float | None = None
    half_width: float | None = None
    """Of the simulation's 99 % interval."""
    note: str = ""
    """What was assumed, or why it cannot be compared; in Markdown."""

    @classmethod
    def seen(
        cls,
        where: str,
        what: str,
        unit: str,
        found: Interval | float | None = None,
        *,
        paper: float | None = None,
        theory: float | None = None,
        note: str = "",
    ) -> Row:
        """A row with the mean of some runs and its interval, or a number without one, if they were run."""
        mean, half_width = (found.mean, found.half_width) if isinstance(found, Interval) else (found, None)
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
        """How far the simulation is from the theory, as a share of the theory."""
        if self.theory is None or self.simulation is None or self.theory == 0:
            return None
        return self.simulation / self.theory - 1


class Rows(list[Row]):
    """The rows of an experiment, in the order in which they are found."""

    def add(
        self,
        where: str,
        what: str,
        unit: str,
        found: Interval | float | None = None,
        *,
        paper: float | None = None,
        theory: float | None = None,
        note: str = "",
    ) -> None:
        """One row more, as `Row.seen` makes it."""
        self.append(Row.seen(where, what, unit, found, paper=paper, theory=theory, note=note))


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Further numbers, which no row of the paper stands against."""

    title: str
    frame: pl.DataFrame
    decimals: dict[str, int] = field(default_factory=dict)
    """For each column of numbers how many decimals are shown, 2 unless told."""
    note: str = ""
    """In Markdown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slip:
    """Where a paper prints something that its own formulas do not give; all in Markdown."""

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
    pictures: tuple[Picture, ...] = ()
    remarks: tuple[str, ...] = ()
    """What comes out, in Markdown, one point each."""


def in_turn(parts: Mapping[str, Callable[[], Section]], tell: Callable[[str], None]) -> tuple[Section, ...]:
    """The sections of a page, each named to `tell` before it is made."""
    sections = []
    for name, make in parts.items():
        tell(name)
        sections.append(make())
    return tuple(sections)


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """All that was reproduced of one paper."""

    name: str
    """`"nie2026"`."""
    title: str
    citation: str
    setting: str
    """What holds for all sections, in Markdown."""
    sections: tuple[Section, ...]
    slips: tuple[Slip, ...]
    quick: bool
    """Whether it was run at smaller sizes."""

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
