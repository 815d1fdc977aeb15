"""The tables, settings and core findings of a run from which further findings are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inferq._lazy import NDArray, np, pl
from inferq.results.finding import Finding
from inferq.results.tables import Columns, RunTables, in_parts
from inferq.systems.system import System

if TYPE_CHECKING:
    from inferq.workload.workload import Workload


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The inputs of findings."""

    requests: Columns
    """Read in parts, because they may exceed the memory."""
    timeline: Columns
    end_s: float
    system: System
    options: dict[str, Any]
    """The options of `simulate` as the core reads them."""
    rows: int
    """Rows of the workload: requests, or jobs of a network."""
    columns: Sequence[str]
    """Columns of the workload."""
    column: Callable[[str], Iterator[pl.Series]]
    """A column of the workload by name, in parts."""
    of_core: Sequence[Finding]
    notes: Sequence[str] = ()
    """How dates or epoch times of the workload were read."""

    def has(self, kind: str) -> bool:
        """Whether the core reported a finding of this kind."""
        return any(finding.kind == kind for finding in self.of_core)

    def parts(self, *names: str) -> Iterator[tuple[NDArray[Any], ...]]:
        """Columns of `requests`, part by part."""
        return in_parts(self.requests, names)

    def prompts(self) -> Iterator[NDArray[np.float64]]:
        """Prompt lengths in tokens, part by part."""
        return (prompts.astype(float) for (prompts,) in self.parts("prompt_tokens"))


def common_facts(
    tables: RunTables, workload: Workload, system: System, options: dict[str, Any]
) -> dict[str, Any]:
    """The fields of `RunFacts` that do not depend on where the requests are stored."""
    return {
        "timeline": tables.timeline,
        "end_s": float(tables.totals["end_s"]),
        "system": system,
        "options": options,
        "of_core": tables.findings,
        "notes": tuple(workload.metadata.get("times", ())),
    }
