"""Tables of a run as numpy columns, in memory or in a directory, and frames of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from inferq import _core
from inferq._lazy import NDArray, np, pl
from inferq.display.text import grouped
from inferq.errors import NotThereError, ResultError
from inferq.inputs import read_parquet
from inferq.results.finding import Finding
from inferq.systems.routers import NO_REPLICA
from inferq.workload.parts import Scanned

Columns = Mapping[str, "NDArray[Any]"]

PART_ROWS = 2**20
"""Rows of a part; runs are stored and processed in parts."""

STATUSES = ("finished", "rejected", "abandoned", "unfinished", "lost")
LOST = STATUSES.index("lost")
FAILED = ("rejected", "abandoned", "lost")
"""Statuses of failed requests."""

EVENTS = ("asked", "ready", "drains", "ended", "died")
"""Events of replicas, in the order of the codes of the core."""

REQUESTS = (
    *("id", "class", "replica", "status", "measured", "arrival_s", "admitted_s", "first_token_s", "finish_s"),
    *("left_s", "queue_s", "ttft_s", "tpot_s", "max_itl_s", "e2e_s", "prompt_tokens", "output_tokens"),
    *("preemptions", "cached_tokens", "prefill_replica", "prefilled_s", "handoff_s"),
)
"""The columns of `Result.requests`; the last three with prefill/decode disaggregation."""

_REPLICAS = ("replica", "prefill_replica")

_ITL = {"class": "uint32", "lower_s": "float64", "upper_s": "float64", "count": "int64"}
_BLOCK_OPERATIONS = {
    "replica": "uint32",
    "hit_blocks": "int64",
    "cached_blocks": "int64",
    "evicted_blocks": "int64",
}

_ABSENT = {
    "jobs": "only a run over a Network has jobs; see requests",
    "iterations": "not recorded; use simulate(..., iterations=True)",
    "batches": "not recorded; use simulate(..., batches=True)",
    "fleet_events": "only runs of a Cluster with an autoscaler or failures have them",
    "occupancy": "only runs of a GateAndRoute have it",
    "revenue": "only runs of a GateAndRoute have it",
}
FRAMES = ("itl", "timeline", "block_operations", *_ABSENT)
"""The frames of a result besides `requests`, each an attribute of `RunTables` and a file name."""


def has_failed(status: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether requests failed, from the codes of their statuses."""
    codes = [STATUSES.index(name) for name in FAILED]
    failed: NDArray[np.bool_] = np.isin(status, codes)
    return failed


def _empty(kinds: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    return {name: np.zeros(0, kind) for name, kind in kinds.items()}


def core_findings(findings: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """Findings of the core, with separators in their long numbers."""
    return [Finding(part["kind"], grouped(part["message"]), part["data"]) for part in findings]


@dataclass(slots=True, eq=False, repr=False)
class RunTables:
    """The tables of a run in memory."""

    names: dict[str, Sequence[str]]
    """The names of the codes in each coded column (`class`, `status`, …)."""
    workload: pl.DataFrame
    """The drawn requests, or jobs of a network."""
    requests: Columns
    timeline: Columns
    totals: dict[str, Any]
    itl_totals: list[dict[str, Any]]
    """`count`, sum (`sum_as`) and maximum (`max_s`) of the token gaps of each class."""
    findings: list[Finding] = field(default_factory=list)
    """Findings of the core."""
    drained: NDArray[np.uint32] | Sequence[int] = ()
    itl: Columns = field(default_factory=lambda: _empty(_ITL))
    block_operations: Columns = field(default_factory=lambda: _empty(_BLOCK_OPERATIONS))
    work: Columns | None = None
    """Iterations by their tokens: `load`, `iterations`, `broken`, `cap` and `memory`."""
    jobs: Columns | None = None
    iterations: Columns | None = None
    batches: Columns | None = None
    fleet_events: Columns | None = None
    occupancy: Columns | None = None
    revenue: Columns | None = None

    def __post_init__(self) -> None:
        """Name statuses, and convert totals in attoseconds to integers."""
        self.names = {**self.names, "status": STATUSES, "event": EVENTS}
        self.totals = {
            name: int(value) if name.endswith("_as") else value for name, value in self.totals.items()
        }

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order of their codes."""
        return list(self.names["class"])

    @property
    def statuses(self) -> list[int]:
        """Requests by status, in the order of `STATUSES`."""
        counts: list[int] = np.bincount(self.requests["status"], minlength=len(STATUSES)).tolist()
        return counts

    def has(self, name: str) -> bool:
        """Whether the run has this table of `FRAMES`."""
        return getattr(self, name) is not None

    def frame(self, name: str) -> pl.DataFrame:
        """A table as a frame.

        Raises:
            ConfigError: the run does not have the table.
        """
        if not self.has(name):
            raise NotThereError(name, _ABSENT[name])
        return as_frame(getattr(self, name), self.names)

    def scan(self) -> pl.LazyFrame:
        """The rows of `requests`."""
        return as_frame(self.requests, self.names).lazy()

    def frames(self, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Columns of `requests` as frames, part by part."""
        for part in in_parts(self.requests, columns):
            yield as_frame(dict(zip(columns, part, strict=True)), self.names)

    def objective(self, name: str) -> NDArray[np.float64] | None:
        """A column of objectives of the workload, NaN for null; None without such a column."""
        return _seconds(self.workload[name]) if name in self.workload.columns else None


class StoredTables(RunTables):
    """The tables of a run in a directory, which are read on access.

    Args:
        place: the directory.
        manifest: the content of `manifest.json`.
        totals: the content of `totals.json`.
        findings: the content of `findings.json`.
    """

    __slots__ = ("_counts", "_files", "_frames", "_place", "_scanned")

    def __init__(
        self, place: Path, manifest: Mapping[str, Any], totals: Mapping[str, Any], findings: list[Finding]
    ) -> None:
        self._place, self._scanned, self._counts = place, manifest["workload"], totals["statuses"]
        self._frames = {file for file in manifest["files"] if file.endswith(".parquet")}
        self._files = [place / part["file"] for part in manifest["parts"]]
        self.names = {"class": totals["classes"], "status": STATUSES, "event": EVENTS}
        self.workload = self._sessions()
        self.requests = StoredColumns(self._files, manifest)
        self.findings = findings
        self.totals, self.itl_totals, self.drained = (
            totals[name] for name in ("totals", "itl_totals", "drained")
        )
        work = totals["work"]
        self.work = work and {name: np.array(values, dtype=np.uint64) for name, values in work.items()}
        gaps = self.frame("itl")
        coded = gaps.with_columns(pl.col("class").cast(pl.Enum(self.classes)).to_physical())
        self.itl = {name: coded[name].to_numpy() for name in coded.columns}

    def scan(self) -> pl.LazyFrame:
        """The rows of `requests`, over their files."""
        return pl.scan_parquet(self._files)

    @property
    def statuses(self) -> list[int]:
        """Requests by status, as counted at the end of the run."""
        return [*self._counts, *[0] * (len(STATUSES) - len(self._counts))]

    def has(self, name: str) -> bool:
        """Whether the run has a file of this name."""
        return f"{name}.parquet" in self._frames

    def frame(self, name: str) -> pl.DataFrame:
        """A table as a frame, from its file."""
        if not self.has(name):
            raise NotThereError(name, _ABSENT[name])
        file = self._place / f"{name}.parquet"
        return read_parquet(file, partial(ResultError, file))

    def frames(self, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Columns of `requests`, part by part, from their files."""
        return (pl.read_parquet(file, columns=list(columns)) for file in self._files)

    def objective(self, name: str) -> NDArray[np.float64] | None:
        """A column of objectives, from the file of the workload."""
        if self._scanned is not None:
            scanned = Scanned(self._scanned)
            return _seconds(pl.concat(scanned.column(name))) if name in scanned.columns else None
        lazy = pl.scan_parquet(self._place / "workload.parquet") if self.has("workload") else pl.LazyFrame()
        return _seconds(lazy.select(name).collect()[name]) if name in lazy.collect_schema() else None

    def _sessions(self) -> pl.DataFrame:
        """The columns of the workload with sessions and think times; empty without think times."""
        file = self._place / "workload.parquet"
        schema = pl.read_parquet_schema(file) if self.has("workload") else {}
        if "think_s" not in schema:
            return pl.DataFrame()
        columns: list[str] = [name for name in ("session_id", "think_s") if name in schema]
        return pl.read_parquet(file, columns=columns)


class StoredColumns(Mapping[str, "NDArray[Any]"]):
    """The columns of `requests` in files, which are read on access."""

    def __init__(self, files: Sequence[Path], manifest: Mapping[str, Any]) -> None:
        self._files, self._parts, self._height = files, manifest["parts"], manifest["written"]
        self._schema = pl.read_parquet_schema(files[0])

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._schema:
            raise KeyError(name)
        column: NDArray[Any] | None = None
        for (values,), part in zip(self.parts([name]), self._parts, strict=True):
            if column is None:
                column = np.empty(self._height, dtype=values.dtype)
            column[part["first"] : part["first"] + part["rows"]] = values
        assert column is not None, "a run has a part at least"
        return column

    def parts(self, names: Sequence[str]) -> Iterator[tuple[NDArray[Any], ...]]:
        """Columns, part by part."""
        for file in self._files:
            frame = pl.read_parquet(file, columns=list(dict.fromkeys(names)))
            yield tuple(_as_given(frame[name]) for name in names)

    def __contains__(self, name: object) -> bool:
        return name in self._schema

    def __iter__(self) -> Iterator[str]:
        return iter(self._schema)

    def __len__(self) -> int:
        return len(self._schema)


class RequestColumns(Mapping[str, "NDArray[Any]"]):
    """The columns of `requests`, which are computed on access from the rows of the core.

    After all columns have been computed, they replace the rows.
    """

    def __init__(self, rows: _core.RequestRows, extra: Columns | None = None) -> None:
        """Store the rows.

        Args:
            rows: the rows of the core.
            extra: columns to insert after `id`.
        """
        self._rows: _core.RequestRows | None = rows
        self._extra = extra or {}
        self._made: dict[str, tuple[NDArray[Any], bool]] = {}
        first, *others = rows.names
        self._names = (first, *self._extra, *others)

    def with_columns(self, columns: Columns) -> RequestColumns:
        """The same rows with further columns after `id`."""
        assert self._rows is not None, "rows exist until all columns are computed"
        return RequestColumns(self._rows, columns)

    def whole(self) -> dict[str, tuple[NDArray[Any], bool]]:
        """All columns, each with a flag for missing values."""
        if self._rows is not None:
            made = {name: (values, absent > 0) for name, values, absent in self._rows.columns()}
            made |= {name: (values, False) for name, values in self._extra.items()}
            self._made = {name: made[name] for name in self._names}
            self._rows = None
        return self._made

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name in self._extra:
            return self._extra[name]
        column = self._made[name][0] if self._rows is None else self._rows.column(name)
        if column is None:
            raise KeyError(name)
        return column

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _as_given(column: pl.Series) -> NDArray[Any]:
    """A column of `requests` in the form of the core."""
    if isinstance(column.dtype, pl.Enum):
        return column.to_physical().to_numpy()
    if column.dtype.is_float():
        return column.fill_null(math.nan).to_numpy()
    return column.fill_null(NO_REPLICA).to_numpy() if column.name in _REPLICAS else column.to_numpy()


def in_parts(columns: Columns, names: Sequence[str]) -> Iterator[tuple[NDArray[Any], ...]]:
    """Columns in parts of `PART_ROWS` rows, with the same parts in memory and in a directory."""
    if isinstance(columns, StoredColumns):
        yield from columns.parts(names)
        return
    whole = [columns[name] for name in names]
    for first in range(0, max(whole[0].size, 1), PART_ROWS):
        yield tuple(column[first : first + PART_ROWS] for column in whole)


def as_frame(columns: Columns, names: Mapping[str, Sequence[str]]) -> pl.DataFrame:
    """A frame of numpy columns, with names for codes and null for NaN; only columns with NaN are copied."""

    def series(name: str, values: NDArray[Any], has_absent: bool) -> pl.Series:
        if name in names:
            known = pl.Series(name, names[name], dtype=pl.Enum(names[name]))
            if len(known) == 1 or not values.any():  # all codes are 0
                return known.new_from_index(0, values.size)
            return known.gather(pl.Series(values))
        column = pl.Series(name, values, nan_to_null=has_absent)
        return column.set(column == NO_REPLICA, None) if has_absent and name in _REPLICAS else column

    return pl.DataFrame([series(name, values, absent) for name, (values, absent) in _whole(columns).items()])


def _whole(columns: Columns) -> dict[str, tuple[NDArray[Any], bool]]:
    """All columns, each with a flag for missing values."""
    if isinstance(columns, RequestColumns):
        return columns.whole()
    return {name: (values, _has_absent(name, values)) for name, values in columns.items()}


def _has_absent(name: str, values: NDArray[Any]) -> bool:
    if name in _REPLICAS:
        return bool((values == NO_REPLICA).any())
    return values.dtype.kind == "f" and values.size > 0 and math.isnan(values.min())


def _seconds(values: pl.Series) -> NDArray[np.float64]:
    seconds: NDArray[np.float64] = values.fill_null(math.nan).to_numpy()
    return seconds
