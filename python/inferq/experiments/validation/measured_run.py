"""One measured run of a server: its settings, its load, and what its client counted."""

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
METRICS = (*(f"{one}_{which}" for one in QUANTITIES for which in STATISTICS), *THROUGHPUTS)
"""What is compared: seconds to the first token, to each further one, and to the last; requests and output
tokens a second. Names as in `Result.summary`, but for the last two."""

_MEASURED = {
    **{f"{one}_{which}_s": f"{one}_{which}" for one in QUANTITIES for which in STATISTICS},
    **{name: name for name in THROUGHPUTS},
}
"""Columns of a table of runs, and the metric in each."""
_FROM_E2E = "tpot_from_e2e_s"
"""(mean E2E − mean TTFT) / (outputs − 1): taken where the mean TPOT is not given."""
_REMARKS = ("in_tok_s", "repeats", "grade", "guesses", "note", "where")
"""Columns that are for a reader."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRun:
    """One measured run: settings that were published, None where they were not, and what was measured.

    A field is the column of its name in a table of runs. Times are seconds, lengths tokens.

    Args:
        id: what the run is called. Runs `name-s0`, `name-s1`, … are stages of one server that goes on.
        place: the file and the row that it stands in.
        source: who published it.
        engine, engine_version: `vllm` or `sglang`, and its release.
        model: a name of `timing.known_models()` or of the Hugging Face Hub.
        gpu, tp, pp, dp: the card, and how many share the model: by tensors, pipelines, data.
        dtype: numbers of the weights.
        max_num_seqs, max_num_batched_tokens, max_model_len, gpu_mem_util, kv_blocks, prefix_cache,
            chunked_prefill, kv_offload: the server's settings. `prefix_cache` is `blocks`, `radix` or `none`.
        arrival: how requests come: see `clients`.
        rate_rps, concurrency, n_requests, duration_s: requests a second, users or connections, requests in
            all, seconds in which they come.
        burstiness: shape of gamma gaps; 1: Poisson.
        workload: what it is called.
        input_law, input_mean, output_law, output_mean: lengths of prompts and outputs.
        output_counted: tokens of an output as the client counted them, where that is another number.
        failures: requests that failed.
        requests: rows of the run's own log, `arrival_s`, `prompt_tokens`, `output_tokens`.
        measured: seconds, or per second, by the names in `METRICS`.
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
    dtype: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    gpu_mem_util: float | None = None
    kv_blocks: int | None = None
    prefix_cache: str | None = None
    chunked_prefill: int | None = None
    kv_offload: str | None = None
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
    requests: pl.DataFrame | None = field(default=None, compare=False, repr=False)
    measured: Mapping[str, float] = field(default_factory=dict)

    def wrong(self, column: str, message: str) -> TraceError:
        """The error that something in this run is wrong or missing."""
        return TraceError(f"{self.place}, {column}", message)


_TEXTS = (
    *("source", "engine", "engine_version", "model", "gpu", "dtype", "prefix_cache", "kv_offload"),
    *("arrival", "workload", "input_law", "output_law"),
)
_LEAST = {"chunked_prefill": 0, "failures": 0}
_WHOLE = (
    *("tp", "pp", "dp", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "kv_blocks"),
    *("chunked_prefill", "concurrency", "n_requests", "failures"),
)
_NUMBERS = (
    *("gpu_mem_util", "rate_rps", "burstiness", "duration_s", "input_mean", "output_mean", "output_counted"),
)
SETTINGS = tuple(
    one.name for one in fields(MeasuredRun) if one.name not in ("id", "place", "requests", "measured")
)
"""The columns of settings and load, which may also be given for all runs of a file."""
COLUMNS = ("id", *SETTINGS, *_MEASURED, _FROM_E2E, *_REMARKS)


def measured_run(place: str, cells: Mapping[str, str], otherwise: str) -> MeasuredRun:
    """The run of a row.

    Args:
        place: its file and row, for errors.
        cells: texts by column; an empty one says nothing.
        otherwise: its id where the row has none.

    Raises:
        TraceError: naming the row and the column.
    """
    said = {name: text.strip() for name, text in cells.items() if text is not None and text.strip()}
    for name in said:
        if name not in COLUMNS:
            raise TraceError(place, f"unknown column {name!r}{nearest(name, COLUMNS)}")
    settings: dict[str, object] = {name: said[name] for name in _TEXTS if name in said}
    for name in _WHOLE:
        if name in said:
            settings[name] = _whole(f"{place}, {name}", said[name], _LEAST.get(name, 1))
    for name in _NUMBERS:
        if name in said:
            settings[name] = _positive(f"{place}, {name}", said[name], name == "rate_rps")
    measured = {
        metric: _positive(f"{place}, {column}", said[column])
        for column, metric in _MEASURED.items()
        if column in said
    }
    if "tpot_mean" not in measured and _FROM_E2E in said:
        measured["tpot_mean"] = _positive(f"{place}, {_FROM_E2E}", said[_FROM_E2E])
    if not measured:
        raise TraceError(
            place, f"nothing was measured: none of the columns {', '.join(_MEASURED)} has a number"
        )
    _in_order(place, measured)
    return MeasuredRun(id=said.get("id", otherwise), place=place, measured=measured, **settings)  # type: ignore[arg-type]


def _whole(path: str, text: str, least: int) -> int:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value != int(value) or not least <= value < 2**53:
        raise TraceError(path, f"must be a whole number from {least} on, is {text!r}")
    return int(value)


def _positive(path: str, text: str, may_be_infinite: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        raise TraceError(path, f"must be a number, is {text!r}") from None
    if not value > 0 or (math.isinf(value) and not may_be_infinite):
        raise TraceError(path, f"must be a number above 0, is {text!r}")
    return value


def _in_order(place: str, measured: Mapping[str, float]) -> None:
    """Percentiles rise; one that falls says that columns were taken for one another."""
    for quantity in QUANTITIES:
        found = [name for name in (f"{quantity}_{which}" for which in STATISTICS[1:]) if name in measured]
        for low, high in pairwise(found):
            if measured[low] > measured[high]:
                raise TraceError(
                    f"{place}, {high}_s",
                    f"{measured[high]:g} s is below {low}_s, {measured[low]:g} s: percentiles cannot fall",
                )
