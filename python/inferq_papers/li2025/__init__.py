"""What does li2025 (arXiv 2504.07347) report, and what do theory and simulation give beside it?"""

from __future__ import annotations

from pathlib import Path

import inferq as iq
from inferq._lazy import pl
from inferq.theory.capacities.token_capacity import token_capacity
from inferq_papers.edge import unit
from inferq_papers.li2025 import networks
from inferq_papers.li2025.one_engine import CHAT, TIMING, Sizes, Tell, engine, figure_1, poisson
from inferq_papers.li2025.theorems import lengths_and_times, several
from inferq_papers.report import Report, Row, Section, Slip, Table


def measured_on_gpus(sizes: Sizes) -> Section:
    """What cannot be repeated without the paper's GPUs, and Figure 9 in kind."""
    notes = {
        "Figure 3": "batch times at a fixed budget vary little: measured with SGLang; here t(n) is exact",
        "Figure 4": "fits of (2.3) with R² > 0.985: measured on GPUs; no data given to fit",
        "Figure 9": "latency by token budget, CodeLlama-34B, production traces: neither is given",
    }
    asked = unit(poisson(sizes.requests // 4)).speed(LATENCY_RATE)
    found = []
    for budget in (128, 256, 512, 1024, 2048):
        result = iq.simulate(asked, engine(iq.Sarathi(token_budget=budget, max_seqs=budget)), warmup=1000)
        row = result.summary().row(0, named=True)
        found.append(
            {
                "token budget": budget,
                "limit (2.7), per s": token_capacity(
                    CHAT, TIMING, token_budget=budget, first_token="decode"
                ).capacity_per_s,
                "median TTFT, s": row["ttft_p50"],
                "median E2E, s": row["e2e_p50"],
                "99th percentile of E2E, s": row["e2e_p99"],
            }
        )
    small, paper, large = found[0], found[2], found[3]
    return Section(
        title="What was measured on GPUs",
        text="These need the paper's GPUs, or numbers that it does not print.",
        rows=tuple(Row(where=where, what="–", unit="–", note=note) for where, note in notes.items()),
        tables=(
            Table(
                title=f"Figure 9 in kind: Sarathi by token budget at {LATENCY_RATE} requests per second",
                frame=pl.DataFrame(found),
                note="Our engine and equal requests instead of CodeLlama-34B and production traces.",
            ),
        ),
        remarks=(
            "**Budgets trade little in model (2.3).** In the paper 512 tokens give the lower median time "
            "to the end and 1,024 the earlier first token, and small budgets compute attention over and "
            "over. Here time goes by tokens alone, and at this rate a batch seldom has more than 256 of "
            f"them, so that larger budgets change nothing: {paper['median E2E, s']:.2f} s to the end with "
            f"512, {large['median E2E, s']:.2f} s with 1,024. With 128 iterations are shorter, the median "
            f"time to the end is {small['median E2E, s']:.2f} s, but first tokens and the slowest requests "
            f"wait longer: its limit is {small['limit (2.7), per s']:.2f} a second.",
        ),
    )


LATENCY_RATE = 7.0
"""Requests a second at which budgets are compared: below the limit of each."""


SLIPS = (
    Slip(
        where="section 2.1",
        printed="a = 0.30, and b0 = 64 ms/token",
        right="a = 0.30 ms per token, b0 = 64 tokens",
    ),
    Slip(where="(4.2), (C.1), (C.18), C.5", printed="b/t_p", right="b/t_b; (C.1) also prints m_b for m_d"),
    Slip(
        where="after Theorem 1",
        printed="b/t_b represents the maximal token processing rate",
        right="max over n ≤ b of n/t_n does; it is b/t_b if c ≥ a·b0, as for every engine measured",
    ),
    Slip(
        where="(C.19), section 4.2, C.5",
        printed="total workload f = m_p Z_p + (m_p + m_d) Z_d",
        right="f = (m_p + m_d) Z_p + m_d Z_d: those in phase p still owe all their tokens, those in d "
        "their decodes; only so does f' = λ(m_p + m_d) − b/t_b follow from (C.10)–(C.14)",
    ),
    Slip(
        where="Appendix B",
        printed="b − λ(p + d) = ε'",
        right="b − λ t_b (p + d): the proof is for t_b = 1 slot",
    ),
    Slip(
        where="section 3",
        printed="Orca is work-conserving",
        right="only if it cuts prompts: whole prompts leave the end of a budget empty",
    ),
    Slip(
        where="section 3",
        printed="FasterTransformer, without a limit on its batch",
        right="its stable rate is that of full batches, S / (t(S·m_p) + m_d·t(S)), by their size S",
    ),
)


def report(*, quick: bool = False, traces: Path | None = None, tell: Tell = lambda text: None) -> Report:
    """All of li2025 that needs no GPU.

    Args:
        quick: shorter runs, wider intervals, the same rows.
        traces: of no use here; nothing in the paper that can be repeated needs real lengths.
        tell: is told what is run next.

    Example:
        >>> from inferq_papers import li2025
        >>> li2025.SLIPS[0].where, li2025.SLIPS[0].right
        ('section 2.1', 'a = 0.30 ms per token, b0 = 64 tokens')
    """
    sizes = Sizes.of(quick)
    return Report(
        name="li2025",
        title="Throughput-Optimal Scheduling Algorithms for LLM Inference and AI Agents",
        citation="Li, Dai, Peng, arXiv 2504.07347 (2025)",
        setting=(
            "Theory: `iq.theory.token_capacity`, `sequence_capacity`, `request_level_capacity` and "
            '`network_capacity`. The paper counts a decode for each output token (`first_token="decode"`) '
            "and has no limit of memory."
        ),
        sections=(
            figure_1(sizes, tell),
            lengths_and_times(sizes, tell),
            several(sizes, tell),
            *networks.sections(quick, tell),
            measured_on_gpus(sizes),
        ),
        slips=SLIPS,
        quick=quick,
    )
