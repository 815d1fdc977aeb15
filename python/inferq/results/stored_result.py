"""Results of a run in a directory."""

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
    """Results of a run in a directory, from `simulate(..., out=directory)`, `Result.write` or `Result.read`.

    It has the interface of `Result`. `requests` is a polars `LazyFrame` over the files in the directory, with
    the same rows, columns and order as the frame in memory. `summary` reads one part at a time.

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
            directory: the directory of a complete run.
            is_known: whether this process has just written the files, so that hashes need no check.
        """
        place = path_of("directory", directory, "directory")
        record = manifest(place)
        if record is None:
            raise ConfigError(
                "directory", f"{place} contains no run of simulate(..., out=…), Result.write or --out"
            )
        if not record["complete"]:
            of_all = "" if record["rows"] is None else f" of {record['rows']:,}"
            raise ConfigError(
                "directory",
                f"{place} contains a run that was interrupted after {record['written']:,}{of_all} requests; "
                "run the same scenario with this `out` to complete it, or read its parts with polars",
            )
        scenario = read_scenario(place, record)
        totals, findings = read_json(place, "totals.json", TOTALS), read_findings(place)
        if not is_known:
            check_all(place, record, totals)
        tables = StoredTables(place, record, totals, findings)
        return cls(tables, {**scenario, **scenario["run"]}, directory=place)

    @property
    def height(self) -> int:
        """Number of rows of `requests`."""
        return sum(self._tables.statuses)

    @property
    def requests(self) -> pl.LazyFrame:  # type: ignore[override]
        """One row per request that arrived by the horizon, with the columns of `Result.requests`."""
        return self._tables.scan()

    @cached_property
    def _findings(self) -> list[Finding]:
        return self._tables.findings

    @property
    def scenario(self) -> str:
        """The content of `scenario.json`, as `Result.scenario`."""
        return (self.directory / "scenario.json").read_text(encoding="utf-8").removesuffix("\n")

    def _main(self) -> list[str]:
        """Nothing, because the numbers would be read from disk."""
        return []

    def write(self, directory: str | os.PathLike[str]) -> Path:
        """Raise an error: the result is already stored in `directory`."""
        raise ConfigError("directory", f"the result is stored in {self.directory}; copy it to {directory}")
