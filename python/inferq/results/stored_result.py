"""What became of the requests of a run whose results lie in a directory?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferq._lazy import np, pl
from inferq.errors import ConfigError
from inferq.results.result import STATUSES, Result
from inferq.results.store import manifest
from inferq.systems.routers import NO_REPLICA

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

FRAMES = ("jobs", "tbt", "timeline", "block_operations", "iterations", "batches", "occupancy", "revenue")
"""The frames of a result besides `requests`, each a file of that name."""


class StoredResult(Result):
    """What became of every request of a run with `simulate(..., out=directory)`.

    It has everything that a `Result` has. `requests` is a polars `LazyFrame` over the files in
    `directory/requests`, whose rows, columns and order are those of the frame in memory; `summary` reads one
    column after the other, which takes about 25 bytes of memory a request. `Result.read(directory)` opens it
    again, in any process.

    Example:
        >>> import inferq as iq, tempfile
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache(tokens=1000))
        >>> workload = {"arrival_s": [0.0, 0.5], "prompt_tokens": [10, 5], "output_tokens": [3, 1]}
        >>> place = tempfile.mkdtemp()
        >>> result = iq.simulate(workload, engine, out=place)
        >>> result
        StoredResult(2 requests: 2 finished; 0 findings)
        >>> result.requests.select("id", "finish_s").collect().rows()
        [(0, 3.0), (1, 2.0)]
        >>> iq.Result.read(place).summary()["ttft_mean"].item()
        1.25
    """

    directory: Path
    _told: dict[str, Any]
    _scenario: str

    @classmethod
    def opened(cls, directory: str | os.PathLike[str]) -> StoredResult:
        """The result in a directory; `Result.read` calls this."""
        place = Path(directory)
        told = manifest(place)
        if told is None:
            raise ConfigError("directory", f"{place} holds no run of simulate(..., out=…)")
        if not told["complete"]:
            of_all = "" if told["rows"] is None else f" of {told['rows']:,}"
            raise ConfigError(
                "directory",
                f"{place} holds a run that was stopped after {told['written']:,}{of_all} "
                "requests; its parts can be read with polars, and the same run with this `out` ends it",
            )
        rest = json.loads((place / "totals.json").read_text(encoding="utf-8"))
        scenario = (place / "scenario.json").read_text(encoding="utf-8").removesuffix("\n")
        recorded = json.loads(scenario)
        options = {**recorded, **recorded["run"]}
        tables = {name: None for name in FRAMES} | {
            "requests": _Columns(place, told),
            "tbt": _gaps(place, rest["classes"]),
            "findings": json.loads((place / "findings.json").read_text(encoding="utf-8")),
            "work": rest["work"] and _arrays(rest["work"]),
            "revenue": True if (place / "revenue.parquet").exists() else None,
            **{name: rest[name] for name in ("tbt_totals", "totals", "drained", "statuses")},
        }
        sessions = _sessions(place)
        made = cls(tables, rest["classes"], sessions, None, options)  # type: ignore[arg-type]
        for name, value in (("directory", place), ("_told", told), ("_scenario", scenario)):
            object.__setattr__(made, name, value)
        return made

    @property
    def height(self) -> int:
        """The number of rows of `requests`."""
        return int(self._told["written"])

    @property
    def requests(self) -> pl.LazyFrame:  # type: ignore[override]
        """One row for each request that arrived by the horizon: the columns of `Result.requests`."""
        return pl.scan_parquet([self.directory / part["file"] for part in self._told["parts"]])

    @cached_property
    def jobs(self) -> pl.DataFrame:
        """As `Result.jobs`."""
        if not (self.directory / "jobs.parquet").exists():
            raise ConfigError("jobs", "only a run over a Network has jobs; see requests")
        return self._frame("jobs")

    @cached_property
    def tbt(self) -> pl.DataFrame:
        """As `Result.tbt`."""
        return self._frame("tbt")

    @cached_property
    def timeline(self) -> pl.DataFrame:
        """As `Result.timeline`."""
        return self._frame("timeline")

    @cached_property
    def block_operations(self) -> pl.DataFrame:
        """As `Result.block_operations`."""
        return self._frame("block_operations")

    @cached_property
    def iterations(self) -> pl.DataFrame:
        """As `Result.iterations`."""
        return self._frame("iterations") if self._has("iterations") else super().iterations

    @cached_property
    def batches(self) -> pl.DataFrame:
        """As `Result.batches`."""
        return self._frame("batches") if self._has("batches") else super().batches

    @cached_property
    def occupancy(self) -> pl.DataFrame:
        """As `Result.occupancy`."""
        return self._frame("occupancy") if self._has("occupancy") else super().occupancy

    @cached_property
    def revenue(self) -> pl.DataFrame:
        """As `Result.revenue`."""
        return self._frame("revenue") if self._has("revenue") else super().revenue

    @property
    def scenario(self) -> str:
        """As `Result.scenario`."""
        return self._scenario

    def write(self, directory: str | os.PathLike[str]) -> Path:
        """Refused: the result is written already, in `directory`."""
        raise ConfigError("directory", f"the result lies in {self.directory}; copy that to {directory}")

    def __repr__(self) -> str:
        counts = self._tables["statuses"]
        said = ", ".join(
            f"{count:,} {status}" for status, count in zip(STATUSES, counts, strict=True) if count
        )
        findings = len(self.findings)
        found = f"{findings} finding{'' if findings == 1 else 's'}"
        return f"StoredResult({self.height:,} requests{': ' if said else ''}{said}; {found})"

    def _has(self, name: str) -> bool:
        return (self.directory / f"{name}.parquet").exists()

    def _frame(self, name: str) -> pl.DataFrame:
        return pl.read_parquet(self.directory / f"{name}.parquet")

    def _named(self, keys: list[str], rows: slice | NDArray[np.intp]) -> pl.DataFrame:
        wanted = self.requests.select(keys)
        if isinstance(rows, slice):
            return wanted.slice(rows.start, rows.stop - rows.start).collect()
        return wanted.collect()[rows]

    def _asked(self, objective: str) -> NDArray[np.float64] | None:
        from inferq.workload.parts import Scanned

        if self._told["workload"] is not None:
            scanned = Scanned(self._told["workload"])
            asked = scanned.column(objective) if objective in scanned.columns else None
        else:
            file = self.directory / "workload.parquet"
            lazy = pl.scan_parquet(file) if file.exists() else pl.LazyFrame()
            asked = (
                lazy.select(objective).collect()[objective] if objective in lazy.collect_schema() else None
            )
        return None if asked is None else asked.fill_null(float("nan")).to_numpy()


class _Columns(Mapping[str, "NDArray[Any]"]):
    """The columns of `requests` as the core gave them, each read when it is asked for."""

    def __init__(self, place: Path, told: dict[str, Any]) -> None:
        self._place, self._parts, self._rows = place, told["parts"], told["written"]
        self._schema = pl.read_parquet_schema(place / self._parts[0]["file"])

    def __getitem__(self, name: str) -> NDArray[Any]:

        if name not in self._schema:
            raise KeyError(name)
        column: NDArray[Any] | None = None
        for part in self._parts:
            read = pl.read_parquet(self._place / part["file"], columns=[name])[name]
            if isinstance(read.dtype, pl.Enum):
                read = read.to_physical()
            elif read.dtype.is_float():
                read = read.fill_null(float("nan"))
            elif name in ("replica", "prefill_replica"):
                read = read.fill_null(NO_REPLICA)
            values = read.to_numpy()
            if column is None:
                column = np.empty(self._rows, dtype=values.dtype)
            column[part["first"] : part["first"] + part["rows"]] = values
        assert column is not None, "a run has a part at least"
        return column

    def __contains__(self, name: object) -> bool:
        return name in self._schema

    def __iter__(self) -> Iterator[str]:
        return iter(self._schema)

    def __len__(self) -> int:
        return len(self._schema)


def _sessions(place: Path) -> pl.DataFrame:
    """The columns of the workload that say who waited for whom; none where nobody did."""
    file = place / "workload.parquet"
    known: Mapping[str, object] = pl.read_parquet_schema(file) if file.exists() else {}
    if "think_s" not in known:
        return pl.DataFrame()
    return pl.read_parquet(file, columns=[name for name in ("session_id", "think_s") if name in known])


def _gaps(place: Path, classes: list[str]) -> dict[str, NDArray[Any]]:
    """The histogram of token gaps as the core gave it."""
    frame = pl.read_parquet(place / "tbt.parquet")
    coded = frame["class"].cast(pl.Enum(classes)).to_physical() if "class" in frame.columns else None
    columns = {name: frame[name].to_numpy() for name in frame.columns if name != "class"}
    return columns if coded is None else {"class": coded.to_numpy(), **columns}


def _arrays(columns: Mapping[str, list[int]]) -> dict[str, NDArray[Any]]:
    return {name: np.array(values, dtype=np.uint64) for name, values in columns.items()}
