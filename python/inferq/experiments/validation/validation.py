"""What `inferq.validate` found: measured and simulated side by side, and how far they are apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inferq._lazy import pl
from inferq.checks import nearest, positive, whole
from inferq.display.text import counted
from inferq.errors import ConfigError
from inferq.experiments.validation.measured_run import METRICS

if TYPE_CHECKING:
    from inferq.experiments.validation.validate import Row

BY = ("source", "engine", "engine_version", "model", "gpu", "tp", "load", "clock")
"""Columns by which errors are grouped, and which the worst runs may have in common."""
_WORST = 0.25
"""Share of the runs that count as the worst."""


@dataclass(frozen=True, slots=True, repr=False)
class Validation:
    """Measured runs beside simulated ones; made by `inferq.validate`."""

    frame: pl.DataFrame
    """A row for each metric of each run: `run`, `source`, `engine`, `engine_version`, `model`, `gpu`, `tp`,
    `load`, `clock`, `metric`, `measured`, `simulated` (seconds, or per second), `error` (simulated / measured
    − 1), `judged` (whether it counts)."""

    runs: pl.DataFrame
    """A row for each run: those columns, `judged`, `why_not`, and of the simulated run `simulated_requests`,
    `unserved`, `preemptions`, `cached_share` (of prompt tokens), `in_flight` (mean), `queue_share` (of the
    time of a request)."""

    assumed: pl.DataFrame
    """A row for each setting that a run does not say: `run`, `setting`, `value`, `why`."""

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Validation:
        """The frames of runs, each measured and simulated."""
        compared, runs, assumed = [], [], []
        for row in rows:
            run = row.run
            named = {
                "run": run.id,
                "source": run.source,
                "engine": (run.engine or "").split()[0],
                "engine_version": run.engine_version,
                "model": run.model,
                "gpu": run.gpu,
                "tp": run.tp,
                "load": load_of(row.facts),
                "clock": "table" if row.clock.startswith("TimingTable") else "roofline",
            }
            runs.append({**named, "judged": row.judged, "why_not": row.why_not, **row.facts})
            assumed += [
                {"run": run.id, "setting": setting, "value": value, "why": why}
                for setting, (value, why) in row.assumed.settings.items()
            ]
            for metric in METRICS:
                if metric not in run.measured or metric not in row.simulated:
                    continue
                if metric == "out_tok_s" and run.output_counted is not None:
                    continue  # of retokenised text
                measured, simulated = run.measured[metric], row.simulated[metric]
                compared.append(
                    {
                        **named,
                        "metric": metric,
                        "measured": measured,
                        "simulated": simulated,
                        "error": simulated / measured - 1,
                        "judged": row.judged,
                    }
                )
        texts = dict.fromkeys(("run", "setting", "value", "why"), pl.String)
        return cls(
            pl.DataFrame(compared, infer_schema_length=None),
            pl.DataFrame(runs, infer_schema_length=None),
            pl.DataFrame(assumed, schema=texts),
        )

    def errors(self, by: str | Sequence[str] | None = None) -> pl.DataFrame:
        """Errors by metric, over the runs that are judged.

        Args:
            by: `source`, `engine`, `engine_version`, `model`, `gpu`, `tp`, `load` or `clock`, or several.

        Returns:
            A row for each metric (and value of `by`): `metric`, `runs`, `median` and `p90` of |error|,
            `bias` (median of the error with its sign), `worst` (the largest |error|); shares.

        Raises:
            ConfigError: another column.
        """
        keys = [by] if isinstance(by, str) else list(by or ())
        for key in keys:
            if key not in BY:
                raise ConfigError("by", f"unknown column {key!r}{nearest(key, BY)}")
        order = {metric: place for place, metric in enumerate(METRICS)}
        size = pl.col("error").abs()
        return (
            self.frame.filter("judged")
            .group_by(*keys, "metric", maintain_order=True)
            .agg(
                pl.len().alias("runs"),
                size.median().alias("median"),
                size.quantile(0.9, "linear").alias("p90"),
                pl.col("error").median().alias("bias"),
                size.max().alias("worst"),
            )
            .sort(*keys, pl.col("metric").replace_strict(order, return_dtype=pl.Int64), maintain_order=True)
        )

    def worst(self, metric: str = "e2e_mean", n: int = 10) -> pl.DataFrame:
        """The runs that are furthest off by a metric, the worst first; columns as `frame`."""
        return (
            self._of(metric)
            .sort(pl.col("error").abs(), descending=True, maintain_order=True)
            .head(whole("n", n, 1, 2**31 - 1))
        )

    def in_common(self, metric: str = "e2e_mean") -> pl.DataFrame:
        """What the worst quarter of the runs have in common, by a metric.

        Returns:
            A row for each value of a column that is more frequent among them than among all, the most telling
            first: `column`, `value`, `worst` (runs of the worst quarter that have it), `of_worst` and
            `of_all` (shares), `median` (|error| of all that have it).
        """
        rows = self._of(metric)
        size = pl.col("error").abs()
        count = max(1, round(_WORST * rows.height))
        worst = rows.sort(size, descending=True, maintain_order=True).head(count)
        found = []
        for column in BY:
            for value in worst[column].unique(maintain_order=True).to_list():
                has = pl.col(column).eq_missing(pl.lit(value))
                here, everywhere = worst.filter(has), rows.filter(has)
                of_worst, of_all = here.height / worst.height, everywhere.height / rows.height
                if of_worst > of_all:
                    found.append(
                        {
                            "column": column,
                            "value": str(value),
                            "worst": here.height,
                            "of_worst": of_worst,
                            "of_all": of_all,
                            "median": everywhere.select(size.median()).item(),
                        }
                    )
        schema = {"column": pl.String, "value": pl.String, "worst": pl.Int64} | dict.fromkeys(
            ("of_worst", "of_all", "median"), pl.Float64
        )
        frame = pl.DataFrame(found, schema=schema)
        return frame.sort(pl.col("of_worst") - pl.col("of_all"), descending=True, maintain_order=True)

    def _of(self, metric: str) -> pl.DataFrame:
        rows = self.frame.filter(pl.col("judged") & (pl.col("metric") == metric))
        if not rows.height:
            known = self.frame["metric"].unique(maintain_order=True).to_list()
            raise ConfigError("metric", f"no run has {metric!r}{nearest(metric, known)}")
        return rows

    def beyond(
        self, max_median: Mapping[str, float] | None = None, max_p90: Mapping[str, float] | None = None
    ) -> list[str]:
        """Which errors are larger than they may be, a line each; none: it passes.

        Args:
            max_median: the largest median of |error| by metric, as a share.
            max_p90: the same for the 90th percentile.

        Raises:
            ConfigError: a metric that no run has; a limit that is no share above 0.
        """
        errors = {row["metric"]: row for row in self.errors().to_dicts()}
        lines = []
        for which, limits in (("median", max_median or {}), ("p90", max_p90 or {})):
            for metric, limit in limits.items():
                positive(f"max_{which}[{metric!r}]", limit)
                if metric not in errors:
                    raise ConfigError(f"max_{which}", f"no run has {metric!r}{nearest(metric, [*errors])}")
                found = errors[metric][which]
                if found > limit:
                    lines.append(
                        f"{which} error of {metric} is {100 * found:.1f} %, may be {100 * limit:g} %"
                    )
        return lines

    def chart(self) -> Any:
        """Measured against simulated, a panel for each quantity: an altair chart."""
        from inferq.experiments.validation.charts import of_errors

        return of_errors(self.frame)

    def __repr__(self) -> str:
        """How many runs, and the error of the first metrics."""
        judged = int(self.runs["judged"].sum())
        told = ", ".join(
            f"{row['metric']} {100 * row['median']:.1f} % (P90 {100 * row['p90']:.1f} %)"
            for row in self.errors().to_dicts()
            if row["metric"] in ("ttft_mean", "tpot_mean", "e2e_mean", "req_s")
        )
        return f"Validation({counted(self.runs.height, 'run')}, {judged} judged; median |error|: {told})"


def load_of(facts: Mapping[str, Any]) -> str:
    """How loaded a simulated server was, by the share of a request's time that it spent in the queue."""
    share = facts["queue_share"]
    return "below saturation" if share < 0.05 else "at saturation" if share < 0.3 else "saturated"
