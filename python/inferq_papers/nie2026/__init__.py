"""Reproduction of nie2026: rates and queues of replicas limited by KV cache memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import inferq as iq
from inferq_papers.nie2026 import pictures, runs
from inferq_papers.nie2026.backlog import averages, fleet, queues
from inferq_papers.nie2026.capacity import bounds, eight_replicas, long_prompts, one_replica
from inferq_papers.nie2026.on_gpus import measured
from inferq_papers.nie2026.runs import MEMORY_TOKENS, REPLICAS, SETTINGS, Sizes
from inferq_papers.report import Chart, Report, Slip

QUICK = Sizes(seeds=4, requests=40_000, arrivals=20_000, longbench=1_000, policies=20_000)
FULL = Sizes(seeds=8, requests=400_000, arrivals=100_000, longbench=5_000, policies=200_000, settings=4)


def report(
    *, quick: bool = False, traces: Path | None = None, tell: Callable[[str], None] = lambda text: None
) -> Report:
    """Tables 1 to 4 and Figures 2 and 4 of nie2026 compared with theory and simulation.

    Args:
        quick: shorter runs for the same rows.
        traces: folder with `longbench_v2_trunc120k.parquet`. Default: the rows that require it stay empty.
        tell: receives one line per step.

    Raises:
        OSError: `traces` lacks the file.
    """
    sizes = QUICK if quick else FULL
    tell("Table 1: one replica in overload")
    rates = {
        ratio: runs.saturated_rates(setting, 1, sizes.requests, sizes.seeds)
        for ratio, setting in SETTINGS.items()
    }
    tell("Table 3: eight replicas in overload")
    eight = runs.saturated_rates(SETTINGS["1:1"], REPLICAS, sizes.requests, sizes.seeds)
    tell("Tables 2 and 4: long prompts")
    long, long_rows = long_prompts(sizes, traces)
    one, one_rows = one_replica(rates)
    both, both_rows = eight_replicas(rates["1:1"], eight)
    glance = Chart(
        title="Served rate of each row and the bounds of the theorems",
        caption="Band: from (1 − δ)·μ over whole chunks to μ of the formula, clipped at the edge of the "
        "chart (LongBench v2). Lines: 99 % intervals. Marks at the edge lie beyond it.",
        chart=lambda: pictures.bounds(bounds([*one_rows, *both_rows, *long_rows])),
    )
    tell("Figures 2 and 4: queues over time")
    over_time = queues(sizes)
    tell("which average of the slot")
    slots = averages(sizes)
    tell("how many replicas")
    fleets = fleet(sizes)
    tell("the paper's GPU")
    comparison = measured(sizes, traces)
    first = replace(one, pictures=(*one.pictures, glance))
    return Report(
        name="nie2026",
        title="Stability of replicas limited by KV cache memory",
        citation="Nie, Si and Zhou, *A Queueing-Theoretic Framework for Stability Analysis of LLM Inference "
        "with KV Cache Memory Constraints* (arXiv 2605.04595), sections 3 to 5, appendices A to C",
        setting=SETTING,
        sections=(first, both, over_time, long, slots, fleets, comparison),
        slips=_slips(),
        quick=quick,
    )


SETTING = (
    "Every slot takes b̄ (37.2 ms for lengths 1:1, 43.0 for 2:1, 33.7 for 1:2), each replica has memory for "
    "M = 131,000 tokens, and prompts are computed in chunks of ŝ = 512. A request occupies E[g] tokens × "
    "slots in total, so a replica serves at most μ = M / (b̄ · E[g]), and at least (1 − δ)μ with a "
    "backlog, δ = max(s + o)/M. Lengths are discrete and uniform, from 10 to 1,600 each for 1:1, to 2,133 "
    "and 1,066 for 2:1, and conversely for 1:2. The simulation runs the paper's own policy: "
    "`SlotGreedy`, "
    '`Constant(b̄)`, `first_token="decode"`, `KvCache(tokens=M, block=1)`. Intervals are of 99 %, '
    "Student's t over independent seeds."
)


def _slips() -> tuple[Slip, ...]:
    """Printed values that the paper's own formulas contradict."""
    setting = SETTINGS["1:1"]
    limit = setting.capacity()
    equal = iq.Workload({"prompt_tokens": range(10, 1601), "output_tokens": range(10, 1601)})
    dependent = iq.theory.kv_capacity(
        equal, kv_tokens=MEMORY_TOKENS, slot_s=setting.slot_s, first_token="decode"
    ).mu
    engines = iq.theory.kv_capacity(
        setting.workload(1.0, 1), kv_tokens=MEMORY_TOKENS, slot_s=setting.slot_s, first_token="prefill"
    ).mu
    whole = [f"{ratio.capacity().mu_whole_chunks:.3f}" for ratio in SETTINGS.values()]
    mixed = runs.mixed_capacity().mu
    return (
        Slip(
            where="Table 1, mixed",
            printed="μ_theory = 3.385",
            right=f"1/μ = ½/3.956 + ½/2.902 gives {mixed:.3f}, a gap of "
            f"{100 * (mixed / runs.PRINTED_MIXED_GPU - 1):.1f} % to the GPU and not 7.9 %",
        ),
        Slip(
            where="Table 3",
            printed="μ_theory = 25.808, gap 3.38 %",
            right=f"8 · 3.263 = {8 * limit.mu:.3f}, "
            f"gap {100 * (1 - 8 * limit.mu / runs.PRINTED_EIGHT_GPU):.2f} %",
        ),
        Slip(
            where="section 3, footnote 1",
            printed="s/ŝ is a positive integer for all requests",
            right="lengths are uniform from 10 on; the printed rates require s/ŝ as a real number. "
            f"Over whole chunks they are {', '.join(whole)}",
        ),
        Slip(
            where="section 5.1",
            printed="outputs are set to the length of the prompt",
            right=f"for 1:1 this gives μ = {dependent:.3f}; the printed 3.263 requires independent prompt "
            "and output, as in the list above it",
        ),
        Slip(
            where="sections 3 and 4",
            printed="the last chunk produces the first output token, and o decodes hold s + 1 … s + o",
            right=f"then o − 1 decodes follow, and μ is {engines:.3f} for 1:1 "
            '(`first_token="prefill"`); the printed rates count o',
        ),
        Slip(
            where="appendix A, v_i(t)",
            printed="½(cŝ + s)(s/ŝ − c + 1) and s(o − d + 1) + ½(o − d + 1)(o + d)",
            right="½((c + 1)ŝ + s)(s/ŝ − c) and s(o − d) + ½(o − d)(o + d + 1): the printed forms include "
            "the step that is already done",
        ),
        Slip(
            where="section 5.2",
            printed="the queue at λ = 3 is usually upper bounded by 5",
            right="most of the time but not always: see the row",
        ),
        Slip(
            where="sections 5.2 and 5.3",
            printed="Figure 4(b) for one GPU, Table 4 for eight",
            right="Figure 2(b) and Table 3",
        ),
    )
