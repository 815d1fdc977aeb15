"""One measured run of a server: settings, load and measured metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise

from inferq._lazy import pl
from inferq.checks import nearest
from inferq.errors import TraceError

QUANTITIES = ("ttft", "tpot", "e2e")
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
THROUGHPUTS = ("req_s", "out_tok_s")
METRICS = (*(f"{quantity}_{which}" for quantity in QUANTITIES for which in STATISTICS), *THROUGHPUTS)
"""Compared metrics: TTFT, TPOT and E2E in seconds; requests and output tokens per second. Names as in
`Result.summary`, except the last two."""

_MEASURED = {
    **{f"{quantity}_{which}_s": f"{quantity}_{which}" for quantity in QUANTITIES for which in STATISTICS},
    **{name: name for name in THROUGHPUTS},
}
"""Columns of a table of runs, and their metrics."""
_FROM_E2E = "tpot_from_e2e_s"
"""(mean E2E − mean TTFT) / (outputs − 1): used if the mean TPOT is missing."""
_REMARKS = ("in_tok_s", "repeats", "grade", "guesses", "note", "where")
"""Columns that are ignored."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRun:
    """One measured run: published settings (None if unknown) and measured metrics.

    Fields are columns in a table of runs. Times are in seconds, lengths in tokens.

    Args:
        id: name of the run. Runs `name-s0`, `name-s1`, … are stages of one server.
        place: file and row.
        source: publisher.
        engine, engine_version: `vllm` or `sglang`, and its release.
        model: a name of `timing.known_models()` or of the Hugging Face Hub.
        gpu, tp, pp, dp, ep: GPU, and tensor, pipeline, data and expert parallel sizes.
        disaggregated: 1 if prefill and decode run on separate GPUs.
        replicas: replicas behind a router.
        dtype, kv_dtype: data types of the weights and of the KV cache.
        max_num_seqs, max_num_batched_tokens, max_model_len, gpu_mem_util, kv_blocks, prefix_cache,
            chunked_prefill, kv_offload, async_scheduling, eager, speculation: settings of the server.
                `prefix_cache` is `blocks`, `radix` or `none`; `eager` is 1 without CUDA graphs; `speculation`
                is `none` or a method, and `unknown` if the publisher does not state it.
        arrival: arrival process, see `clients`.
        rate_rps, concurrency, n_requests, duration_s: requests per second, users or connections, number of
            requests, duration of arrivals in seconds.
        burstiness: shape of gamma gaps; 1 is Poisson.
        workload: name of the workload.
        input_law, input_mean, output_law, output_mean: distributions and means of prompt and output lengths.
        output_counted: output tokens counted by the client, if different.
        failures: number of failed requests.
        doubt: reason not to trust the measured values; such a run is not evaluated.
        fold: `fit` if constants may be calibrated on the run, `hold` if not. Runs of `fit` are not evaluated.
        uncertain: for each setting that the publisher does not state exactly, the reason for its value.
        requests: the log of the run, `arrival_s`, `prompt_tokens`, `output_tokens`.
        measured: values by the names in `METRICS`.
    """

    id: str
    place: str
    source: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    model: str | None = None
    gpu: str | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: int | None = None
    disaggregated: int | None = None
    replicas: int | None = None
    dtype: str | None = None
    kv_dtype: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    gpu_mem_util: float | None = None
    kv_blocks: int | None = None
    prefix_cache: str | None = None
    chunked_prefill: int | None = None
    kv_offload: str | None = None
    async_scheduling: int | None = None
    eager: int | None = None
    speculation: str | None = None
    arrival: str | None = None
    rate_rps: float | None = None
    concurrency: int | None = None
    burstiness: float | None = None
    n_requests: int | None = None
    duration_s: float | None = None
    workload: str | None = None
    input_law: str | None = None
    input_mean: float | None = None
    output_law: str | None = None
    output_mean: float | None = None
    output_counted: float | None = None
    failures: int | None = None
    doubt: str | None = None
    fold: str | None = None
    uncertain: Mapping[str, str] = field(default_factory=dict, compare=False)
    requests: pl.DataFrame | None = field(default=None, compare=False, repr=False)
    measured: Mapping[str, float] = field(default_factory=dict)

    def wrong(self, column: str, message: str) -> TraceError:
        """An error about a column of this run."""
        return TraceError(f"{self.place}, {column}", message)


_TEXTS = (
    *("source", "engine", "engine_version", "model", "gpu", "dtype", "kv_dtype", "prefix_cache"),
    *("kv_offload", "speculation", "arrival", "workload", "input_law", "output_law", "doubt", "fold"),
)
_LEAST = {"chunked_prefill": 0, "failures": 0, "disaggregated": 0, "async_scheduling": 0, "eager": 0}
_WHOLE = (
    *("tp", "pp", "dp", "ep", "disaggregated", "replicas", "async_scheduling", "eager", "max_num_seqs"),
    *("max_num_batched_tokens", "max_model_len", "kv_blocks"),
    *("chunked_prefill", "concurrency", "n_requests", "failures"),
)
_NUMBERS = (
    *("gpu_mem_util", "rate_rps", "burstiness", "duration_s", "input_mean", "output_mean", "output_counted"),
)
SETTINGS = tuple(
    entry.name
    for entry in fields(MeasuredRun)
    if entry.name not in ("id", "place", "uncertain", "requests", "measured")
)
"""Columns of settings and load, which can also be set for all runs of a file."""
COLUMNS = ("id", *SETTINGS, *_MEASURED, _FROM_E2E, *_REMARKS)


def measured_run(
    place: str, cells: Mapping[str, str], default_id: str, uncertain: Mapping[str, str] | None = None
) -> MeasuredRun:
    """The run of a row.

    Args:
        place: file and row, for errors.
        cells: texts by column; empty texts are ignored.
        default_id: id of a row without one.
        uncertain: reasons for the values of settings that a publisher does not state exactly. None: the row
            is not of a publisher's table, and must have a measured value.

    Raises:
        TraceError: naming the row and the column.
    """
    texts = {name: text.strip() for name, text in cells.items() if text is not None and text.strip()}
    for name in texts:
        if name not in COLUMNS:
            raise TraceError(place, f"unknown column {name!r}{nearest(name, COLUMNS)}")
    settings: dict[str, object] = {name: texts[name] for name in _TEXTS if name in texts}
    for name in _WHOLE:
        if name in texts:
            settings[name] = _whole(f"{place}, {name}", texts[name], _LEAST.get(name, 1))
    for name in _NUMBERS:
        if name in texts:
            settings[name] = _positive(f"{place}, {name}", texts[name], name == "rate_rps")
    measured = {
        metric: _positive(f"{place}, {column}", texts[column])
        for column, metric in _MEASURED.items()
        if column in texts
    }
    if "tpot_mean" not in measured and _FROM_E2E in texts:
        measured["tpot_mean"] = _positive(f"{place}, {_FROM_E2E}", texts[_FROM_E2E])
    if not measured and uncertain is None:
        raise TraceError(place, f"has no measured value in any of the columns {', '.join(_MEASURED)}")
    _in_order(place, measured)
    return MeasuredRun(
        id=texts.get("id", default_id),
        place=place,
        uncertain=uncertain or {},
        measured=measured,
        **settings,  # type: ignore[arg-type]
    )


def _whole(path: str, text: str, least: int) -> int:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value != int(value) or not least <= value < 2**53:
        raise TraceError(path, f"must be an integer of at least {least}, got {text!r}")
    return int(value)


def _positive(path: str, text: str, may_be_infinite: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        raise TraceError(path, f"must be a number, got {text!r}") from None
    if not value > 0 or (math.isinf(value) and not may_be_infinite):
        raise TraceError(path, f"must be a positive number, got {text!r}")
    return value


def _in_order(place: str, measured: Mapping[str, float]) -> None:
    """Check that percentiles do not decrease, which would mean that columns were swapped."""
    for quantity in QUANTITIES:
        names = [name for name in (f"{quantity}_{which}" for which in STATISTICS[1:]) if name in measured]
        for low, high in pairwise(names):
            if measured[low] > measured[high]:
                raise TraceError(
                    f"{place}, {high}_s",
                    f"must be at least {low}_s, {measured[low]:g} s, got {measured[high]:g} s",
                )
