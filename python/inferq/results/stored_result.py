"""What became of the requests of a run whose results lie in a directory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from inferq._lazy import pl
from inferq.errors import ConfigError
from inferq.inputs import path_of
from inferq.results.finding import Finding
from inferq.results.result import Result
from inferq.results.store import TOTALS, check_all, manifest, read_findings, read_json, read_scenario
from inferq.results.tables import StoredTables


@dataclass(frozen=True, eq=False, repr=False)
class StoredResult(Result):
    """What became of every request of a run with `simulate(..., out=directory)`, or of one that was written.

    It has everything that a `Result` has. `requests` is a polars `LazyFrame` over its files in the directory,
    whose rows, columns and order are those of the frame in memory; `summary` reads a part after the other.
    `Result.read(directory)` opens it again, in any process.

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

    _tables: StoredTables
    directory: Path = Path()

    @classmethod
    def opened(cls, directory: str | os.PathLike[str], *, is_known: bool = False) -> StoredResult:
        """The result in a directory; `Result.read` calls this.

        Args:
            directory: a finished run is in it.
            is_known: whether this process has written all of it just now, and need not look at every byte.
        """
        place = path_of("directory", directory, "directory")
        record = manifest(place)
        if record is None:
            raise ConfigError(
                "directory", f"{place} holds no run of simulate(..., out=…), Result.write or --out"
            )
        if not record["complete"]:
            of_all = "" if record["rows"] is None else f" of {record['rows']:,}"
            raise ConfigError(
                "directory",
                f"{place} holds a run that was stopped after {record['written']:,}{of_all} requests; its "
                "parts can be read with polars, and the same run with this `out` ends it",
            )
        scenario = read_scenario(place, record)
        totals, findings = read_json(place, "totals.json", TOTALS), read_findings(place)
        if not is_known:
            check_all(place, record, totals)
        tables = StoredTables(place, record, totals, findings)
        return cls(tables, {**scenario, **scenario["run"]}, directory=place)

    @property
    def height(self) -> int:
        """The number of rows of `requests`."""
        return sum(self._tables.statuses)

    @property
    def requests(self) -> pl.LazyFrame:  # type: ignore[override]
        """One row for each request that arrived by the horizon: the columns of `Result.requests`."""
        return self._tables.scan()

    @cached_property
    def _findings(self) -> list[Finding]:
        return self._tables.findings

    @property
    def scenario(self) -> str:
        """As `Result.scenario`, from its file."""
        return (self.directory / "scenario.json").read_text(encoding="utf-8").removesuffix("\n")

    def _main(self) -> list[str]:
        """None: they would be read from the disk."""
        return []

    def write(self, directory: str | os.PathLike[str]) -> Path:
        """Refused: the result is written already, in `directory`."""
        raise ConfigError("directory", f"the result lies in {self.directory}; copy that to {directory}")
