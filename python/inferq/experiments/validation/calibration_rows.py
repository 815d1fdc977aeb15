"""Measured runs used for calibration; they are excluded from evaluation.

The times of the host and of the API in `servers.json` are the only values of a preset without a source in the
server. Each was calibrated on runs of one publisher. Host times are from a grid (0, 0.5, 1 and 2 ms per
iteration; 0, 10, 20, 40 and 60 µs per sequence; for vLLM 0.11 also 0, 2, 3 and 4 ms above 512 tokens). The
criterion is the sum of the median errors of mean TPOT and mean E2E. SGLang's is the best by 1.1 points. vLLM
0.11's is the second of 80, 0.2 points behind one without a time per sequence. vLLM 0.12's, with the base of
0.11, is the third of 20, 0.4 points behind. API times are the median difference of the mean TTFT below
saturation, rounded to half a millisecond.

The exposed time of vLLM from 0.14 on is 0.2 ms per doubling beyond two GPUs. It was calibrated on 23 runs of
gpt-oss-120b (InferenceX, vLLM 0.18.0 on 1, 4 and 8 H200, fold `fit`) with measured kernels, on a grid from 0
to 0.35 ms in steps of 0.05 ms: their median error of mean TPOT falls from 6.1 to 2.1 %. On two GPUs the
residual of CodeLlama-34b (0.15.1) is 0.03 ms. On releases and GPUs without calibration, the median error of
mean TPOT falls from 22 to 17 % (Kimi-K2.5, 0.17.0, 8 B200), from 18 to 11 % (MiniMax-M2.5, 0.19.0, 8 B200)
and from 5.6 to 4.5 % (Llama-2-70b, 0.15.1, 4 H100), and rises in none. A time per word of the vocabulary
was not confirmed: on an A10G, 32,000 and 128,256 words differ only by the time to read the output layer.

One setting is known only from runs: the memory share of one publisher's SGLang servers, 0.80 in the column
`gpu_mem_util` of their rows. Three runs of SGLang 0.5.1 on two GPUs exceed the KV cache, with users × lengths
above 290,000 tokens. Of the shares from 0.70 to 0.85 in steps of 0.05, and the default of 0.868, 0.80 has the
smallest error of their mean TTFT: 7 %, compared with 14 % (0.75), 24 % (0.85) and 26 % (default).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from inferq.experiments.validation.measured_run import MeasuredRun


def _fills_two_gpus(run: MeasuredRun) -> bool:
    """Whether the requests need more KV cache than two GPUs have next to 32 billion weights."""
    tokens = (run.concurrency or 0) * ((run.input_mean or 0) + (run.output_mean or 0))
    return run.tp == 2 and tokens > 290_000


class CalibrationRows(NamedTuple):
    """The runs that a preset was calibrated on."""

    name: str
    contains: Callable[[MeasuredRun], bool]


CALIBRATION_ROWS = {
    ("kubernetes-sigs/inference-perf", "0.11.0"): CalibrationRows(
        "KubeCon runs with 128 sequences", lambda run: run.max_num_seqs == 128
    ),
    ("ai-dynamo/aiconfigurator", "0.12.0"): CalibrationRows(
        "prompts below 1,500 tokens", lambda run: (run.input_mean or 0) < 1500
    ),
    ("inference-sim/training", "0.15.1"): CalibrationRows(
        "CodeLlama-34b", lambda run: "codellama" in (run.model or "").lower()
    ),
    ("ai-dynamo/aiconfigurator", "0.5.1.post1"): CalibrationRows(
        "prompts below 1,500 tokens, and three runs with a full KV cache",
        lambda run: (run.input_mean or 0) < 1500 or _fills_two_gpus(run),
    ),
}
"""By publisher and release."""


def calibrated_on(run: MeasuredRun) -> str | None:
    """The name of the calibration runs that contain this run, or None."""
    for (source, release), rows in CALIBRATION_ROWS.items():
        if (run.source or "").startswith(source) and run.engine_version == release and rows.contains(run):
            return rows.name
    return None
