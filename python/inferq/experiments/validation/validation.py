"""`Validation`: measured and simulated metrics, and their errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferq._lazy import pl
from inferq.checks import nearest, positive, whole
from inferq.display.style import PANEL
from inferq.display.text import counted
from inferq.errors import ConfigError
from inferq.experiments.validation.charts import of_errors
from inferq.experiments.validation.measured_run import METRICS
from inferq.experiments.validation.validated_run import ValidatedRun

BY = (
    *("source", "engine", "engine_version", "model", "gpu", "tp", "ep", "dtype", "kv_dtype", "fold"),
    *("load", "timing"),
)
"""Columns for grouping errors."""
_WORST = 0.25
"""Share of the runs in the worst quarter."""


@dataclass(frozen=True, slots=True, repr=False)
class Validation:
    """Measured and simulated runs; made by `inferq.validate`."""

    frame: pl.DataFrame
    """One row per metric and simulated run: `run`, `source`, `engine`, `engine_version`, `model`, `gpu`,
    `tp`, `ep`, `dtype`, `kv_dtype`, `fold`, `load`, `timing`, `metric`, `measured`, `simulated` (seconds, or
    per second), `error` (simulated / measured − 1), `evaluated` (whether it counts)."""

    runs: pl.DataFrame
    """One row per run: these columns, `evaluated`, `exclusion` (reason), and of the simulated run
    `simulated_requests`, `unserved`, `preemptions`, `cached_share` (of prompt tokens), `in_flight` (mean),
    `queue_share` (of E2E). Null in a run that cannot be simulated."""

    assumed: pl.DataFrame
    """One row per assumed setting: `run`, `setting`, `value`, `reason`."""

    @classmethod
    def of(cls, rows: Sequence[ValidatedRun]) -> Validation:
        """Build the frames."""
        compared, runs, assumed = [], [], []
        for row in rows:
            run = row.run
            named = {
                "run": run.id,
                "source": run.source,
                "engine": next(iter((run.engine or "").split()), None),
                "engine_version": run.engine_version,
                "model": run.model,
                "gpu": run.gpu,
                "tp": run.tp,
                "ep": run.ep,
                "dtype": run.dtype,
                "kv_dtype": run.kv_dtype,
                "fold": run.fold,
                "load": load_of(row.facts) if row.facts else None,
                "timing": _timing(row.timing),
            }
            evaluated = not row.exclusion
            runs.append({**named, "evaluated": evaluated, "exclusion": row.exclusion, **row.facts})
            assumed += [
                {"run": run.id, "setting": setting, "value": value, "reason": reason}
                for setting, (value, reason) in row.assumptions.settings.items()
            ]
            for metric in METRICS:
                if metric not in run.measured or metric not in row.simulated:
                    continue
                if metric == "out_tok_s" and run.output_counted is not None:
                    continue  # counted after retokenization
                measured, simulated = run.measured[metric], row.simulated[metric]
                compared.append(
                    {
                        **named,
                        "metric": metric,
                        "measured": measured,
                        "simulated": simulated,
                        "error": simulated / measured - 1,
                        "evaluated": evaluated,
                    }
                )
        texts = dict.fromkeys(("run", "setting", "value", "reason"), pl.String)
        return cls(
            pl.DataFrame(compared, infer_schema_length=None),
            pl.DataFrame(runs, infer_schema_length=None),
            pl.DataFrame(assumed, schema=texts),
        )

    def errors(self, by: str | Sequence[str] | None = None) -> pl.DataFrame:
        """Errors by metric, over evaluated runs.

        Args:
            by: `source`, `engine`, `engine_version`, `model`, `gpu`, `tp`, `ep`, `dtype`, `kv_dtype`, `fold`,
                `load` or `timing`, or several.

        Returns:
            One row per metric (and value of `by`): `metric`, `runs`, `median` and `p90` of |error|, `bias`
            (signed median), `worst` (largest |error|); as shares.

        Raises:
            ConfigError: an unknown column.
        """
        keys = [by] if isinstance(by, str) else list(by or ())
        for key in keys:
            if key not in BY:
                raise ConfigError("by", f"unknown column {key!r}{nearest(key, BY)}")
        order = {metric: place for place, metric in enumerate(METRICS)}
        size = pl.col("error").abs()
        return (
            self.frame.filter("evaluated")
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
        """The runs with the largest errors of a metric, worst first; columns as `frame`."""
        return (
            self._of(metric)
            .sort(pl.col("error").abs(), descending=True, maintain_order=True)
            .head(whole("n", n, 1, 2**31 - 1))
        )

    def in_common(self, metric: str = "e2e_mean") -> pl.DataFrame:
        """Settings that are more frequent in the worst quarter of the runs, by a metric.

        Returns:
            One row per value, largest difference first: `column`, `value`, `worst` (runs of the worst quarter
            with it), `of_worst` and `of_all` (shares), `median` (|error| of all runs with it).
        """
        rows = self._of(metric)
        size = pl.col("error").abs()
        count = max(1, round(_WORST * rows.height))
        worst = rows.sort(size, descending=True, maintain_order=True).head(count)
        common = []
        for column in BY:
            for value in worst[column].unique(maintain_order=True).to_list():
                has = pl.col(column).eq_missing(pl.lit(value))
                here, everywhere = worst.filter(has), rows.filter(has)
                of_worst, of_all = here.height / worst.height, everywhere.height / rows.height
                if of_worst > of_all:
                    common.append(
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
        frame = pl.DataFrame(common, schema=schema)
        return frame.sort(pl.col("of_worst") - pl.col("of_all"), descending=True, maintain_order=True)

    def _of(self, metric: str) -> pl.DataFrame:
        rows = self.frame.filter(pl.col("evaluated") & (pl.col("metric") == metric))
        if not rows.height:
            known = self.frame["metric"].unique(maintain_order=True).to_list()
            raise ConfigError("metric", f"no evaluated run has {metric!r}{nearest(metric, known)}")
        return rows

    def beyond(
        self, max_median: Mapping[str, float] | None = None, max_p90: Mapping[str, float] | None = None
    ) -> list[str]:
        """Errors that exceed their limits, one line each.

        Args:
            max_median: maximum median of |error| by metric, as a share.
            max_p90: maximum 90th percentile of |error| by metric, as a share.

        Raises:
            ConfigError: no run has a metric, or a limit is not positive.
        """
        errors = {row["metric"]: row for row in self.errors().to_dicts()}
        lines = []
        for which, limits in (("median", max_median or {}), ("p90", max_p90 or {})):
            for metric, limit in limits.items():
                positive(f"max_{which}[{metric!r}]", limit)
                if metric not in errors:
                    raise ConfigError(f"max_{which}", f"no run has {metric!r}{nearest(metric, [*errors])}")
                error = errors[metric][which]
                if error > limit:
                    lines.append(
                        f"{which} error of {metric} is {100 * error:.1f} %, the limit is {100 * limit:g} %"
                    )
        return lines

    def chart(self, width: int = 2 * PANEL) -> Any:
        """Errors of all runs, a panel per quantity, as an Altair chart with plots of a width in pixels."""
        return of_errors(self.frame, width)

    def __repr__(self) -> str:
        """The number of runs, and the errors of the main metrics."""
        evaluated = int(self.runs["evaluated"].sum())
        errors = ", ".join(
            f"{row['metric']} {100 * row['median']:.1f} % (P90 {100 * row['p90']:.1f} %)"
            for row in self.errors().to_dicts()
            if row["metric"] in ("ttft_mean", "tpot_mean", "e2e_mean", "req_s")
        )
        return (
            f"Validation({counted(self.runs.height, 'run')}, {evaluated} evaluated; median |error|: {errors})"
        )


def _timing(text: str) -> str | None:
    """The kind of a timing model, by its text."""
    if not text:
        return None
    return "table" if text.startswith("TimingTable") else "roofline"


def load_of(facts: Mapping[str, Any]) -> str:
    """The load of a simulated server, by the share of the queue time in E2E."""
    share = facts["queue_share"]
    return "below saturation" if share < 0.05 else "at saturation" if share < 0.3 else "saturated"
