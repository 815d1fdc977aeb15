"""Errors of TPOT and TTFT by kind of deployment: model, number formats, GPU, parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from inferq import MeasuredRun, Validation, read_runs, validate
from inferq.timing import LatentAttention, ModelShape, Recurrent
from inferq_papers.hardware.engines import with_stand_in
from inferq_papers.report import Section, Table

TITLE = "Errors by kind of deployment"
FILES = ("inferencex.csv", "varad.csv", "llmd.csv")
METRICS = ("tpot_mean", "ttft_mean")
WITHIN, BEYOND = 10, 15
"""Median errors of TPOT in %, at most and above which a kind of deployment is named."""
_CALIBRATION = "in the fold that constants are calibrated on"
GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("By kind of model and timing", ("kind", "timing")),
    ("By weight format and GPU", ("dtype", "gpu")),
    ("By server", ("engine", "engine_version")),
    ("By parallelism", ("tp", "ep")),
)


def read(folder: Path) -> list[MeasuredRun]:
    """The runs of the three tables."""
    return [run for name in FILES for run in read_runs(folder / name)]


def kind_of(model: str) -> str:
    """The kind of a model: its feed-forward parts, and attention other than full attention."""
    shape = ModelShape.of(model)
    mixers = [mixer for group in shape.groups for mixer in group.mixers]
    parts = {
        "experts": shape.experts > 1,
        "windows": any(mixer.limit is not None for mixer in mixers),
        "latent": any(isinstance(mixer, LatentAttention) for mixer in mixers),
        "index": any(mixer.index_bytes_per_token for mixer in mixers),
        "states": any(isinstance(mixer, Recurrent) for mixer in mixers),
    }
    return ", ".join(name for name, has_part in parts.items() if has_part) or "dense"


def judged(validation: Validation, fold: str | None) -> pl.DataFrame:
    """Errors of TPOT and TTFT in a fold (None: both), without doubtful and speculative runs."""
    reasons = validation.runs.select("run", "exclusion")
    return (
        validation.frame.join(reasons, on="run")
        .filter(
            pl.col("metric").is_in(METRICS),
            pl.col("exclusion").is_in(["", _CALIBRATION]),
            pl.lit(True) if fold is None else pl.col("fold") == fold,
        )
        .with_columns(kind=pl.col("model").map_elements(kind_of, return_dtype=pl.String))
    )


def errors(frame: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Median, 90th percentile and signed median of the errors in %, by columns and metric."""
    size = 100 * pl.col("error").abs()
    return (
        frame.group_by(*by, "metric", maintain_order=True)
        .agg(
            pl.len().alias("runs"),
            size.median().alias("median"),
            size.quantile(0.9, "linear").alias("P90"),
            (100 * pl.col("error").median()).alias("bias"),
        )
        .sort(
            *by,
            pl.col("metric").replace_strict({name: at for at, name in enumerate(METRICS)}),
            nulls_last=True,
        )
        .with_columns(pl.col("metric").str.replace_all("_", " "))
    )


def not_simulated(validation: Validation) -> pl.DataFrame:
    """Runs that are not simulated, and runs that are not evaluated, by reason."""
    return (
        validation.runs.filter(~pl.col("exclusion").is_in(["", _CALIBRATION]))
        .group_by(pl.col("exclusion").str.replace(r"; .*| \(.*", "").alias("reason"), "engine")
        .agg(pl.len().alias("runs"), pl.col("model").n_unique().alias("models"))
        .sort("runs", "reason", descending=[True, False])
    )


def deployments_section(folder: Path) -> Section:
    """Errors of published closed loops by kind of deployment, and runs that cannot be simulated."""
    if not folder.is_dir():
        return Section(title=TITLE, text=TEXT)
    validation = validate(read(folder), engine=with_stand_in)
    held, fit = judged(validation, "hold"), judged(validation, "fit")
    tpot = errors(held, ("kind", "dtype", "gpu", "engine", "timing")).filter(metric="tpot mean")
    decimals = dict.fromkeys(("median", "P90", "bias"), 1)
    return Section(
        title=TITLE,
        text=TEXT,
        tables=(
            *(
                Table(title=f"{title}, evaluated fold, %", frame=errors(held, by), decimals=decimals)
                for title, by in GROUPS
            ),
            Table(
                title="By kind of model and timing, fold that constants may be calibrated on, %",
                frame=errors(fit, GROUPS[0][1]),
                decimals=decimals,
            ),
            Table(title="Runs that are not evaluated", frame=not_simulated(validation)),
        ),
        remarks=(
            f"**Within 10 %** in median TPOT: {_named(tpot.filter(pl.col('median') <= WITHIN))}.",
            f"**Do not trust TPOT** here, the median error is above 15 %: "
            f"{_named(tpot.filter(pl.col('median') > BEYOND))}.",
            "**TTFT of a closed loop** depends on prefill kernels, on the start of the users and on the time "
            "of the API. It is shown, but no constant was calibrated on it.",
        ),
    )


def _named(groups: pl.DataFrame) -> str:
    """Groups of deployments with their median errors."""
    return (
        "; ".join(
            f"{row['kind']}, {row['dtype']} on {row['gpu']} under {row['engine']}, by {row['timing']} "
            f"({row['median']:.0f} %, {row['runs']} runs)"
            for row in groups.sort("median").rows(named=True)
        )
        or "none"
    )


TEXT = (
    "Runs of InferenceX, of aiconfigurator, and of small models on an A10G. Deployments are split into two "
    "folds by a hash of model, GPU, engine, weights and parallelism. Constants are calibrated on one fold "
    "and evaluated on the other. Both folds were in view when the form of the roofline and the rules for "
    "baking tables were chosen, so unseen deployments may be off by more. TensorRT-LLM is simulated by "
    "vLLM's scheduler without host time. Runs with speculative decoding are not evaluated, because draft "
    "lengths and acceptance rates are not published."
)
