"""What was taken on measured rows, and on which: those judge nothing.

The times of the host and of the API in `servers.json` are the only numbers of a preset that no source of the
server says. Each was chosen on some rows of a publisher. The host's are of a grid (0, 0.5, 1 and 2 ms an
iteration; 0, 10, 20, 40 and 60 µs a sequence; under vLLM 0.11 also 0, 2, 3 and 4 ms above 512 tokens), by
the sum of the median errors of mean TPOT and mean E2E: SGLang's the best by 1.1 points; vLLM 0.11's the
second of 80, 0.2 points behind one that has nothing for a sequence; vLLM 0.12's, with the base of 0.11, the
third of 20, 0.4 points behind. The API's are the median of what is missing from the mean TTFT below
saturation, to half a millisecond.

One setting of a publisher is known from rows alone: the share of the memory of its SGLang servers, which its
tool for deployments can pass on as `--mem-fraction-static`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from inferq.experiments.validation.measured_run import MeasuredRun


def _fills_two_cards(run: MeasuredRun) -> bool:
    """Do the users of a run need more than two cards hold beside 32 billion weights?"""
    held = (run.concurrency or 0) * ((run.input_mean or 0) + (run.output_mean or 0))
    return run.tp == 2 and held > 290_000


class Taken(NamedTuple):
    """Rows that a preset's numbers were taken on."""

    rows: str
    is_one: Callable[[MeasuredRun], bool]


TAKEN = {
    ("kubernetes-sigs/inference-perf", "0.11.0"): Taken(
        "KubeCon's rows with 128 sequences", lambda run: run.max_num_seqs == 128
    ),
    ("ai-dynamo/aiconfigurator", "0.12.0"): Taken(
        "prompts below 1,500 tokens", lambda run: (run.input_mean or 0) < 1500
    ),
    ("inference-sim/training", "0.15.1"): Taken(
        "CodeLlama-34b", lambda run: "codellama" in (run.model or "").lower()
    ),
    ("ai-dynamo/aiconfigurator", "0.5.1.post1"): Taken(
        "prompts below 1,500 tokens, and three where the cache is full",
        lambda run: (run.input_mean or 0) < 1500 or _fills_two_cards(run),
    ),
}
"""By publisher and release."""


def taken_on(run: MeasuredRun) -> str | None:
    """The rows, in words, that a preset was taken on, if this run is one of them."""
    for (source, release), taken in TAKEN.items():
        if (run.source or "").startswith(source) and run.engine_version == release and taken.is_one(run):
            return taken.rows
    return None


SHARE_OF_PUBLISHER = {("ai-dynamo/aiconfigurator", "sglang"): 0.8}
"""The share of the memory where a publisher's flags are not the defaults.

Three of SGLang 0.5.1's rows on two cards need more than fits, with users × lengths above 290,000 tokens. Of
the shares from 0.70 to 0.85 in steps of 0.05, and the default of 0.868, 0.80 is nearest to their mean TTFT:
it is 7 % off, where 0.75 is 14, 0.85 is 24 and the default 26 %.
"""


def share_of(run: MeasuredRun) -> float | None:
    """The share of the memory of a publisher's servers, where rows say that it is not the default."""
    for (source, engine), share in SHARE_OF_PUBLISHER.items():
        if (run.source or "").startswith(source) and (run.engine or "").startswith(engine):
            return share
    return None
