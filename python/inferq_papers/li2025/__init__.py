"""li2025 (arXiv 2504.07347): reported numbers, theory and simulation."""

from __future__ import annotations

from pathlib import Path

import polars as pl

import inferq as iq
from inferq.theory import token_capacity
from inferq_papers.edge import unit
from inferq_papers.li2025 import networks
from inferq_papers.li2025.one_engine import CHAT, TIMING, Sizes, Tell, engine, figure_1, poisson
from inferq_papers.li2025.theorems import lengths_and_times, several
from inferq_papers.report import Report, Row, Section, Slip, Table


def measured_on_gpus(sizes: Sizes) -> Section:
    """Results that require the paper's GPUs, and the setting of Figure 9."""
    notes = {
        "Figure 3": "batch times vary little at a fixed budget: measured with SGLang; here t(n) is exact",
        "Figure 4": "fits of (2.3) with R² > 0.985: measured on GPUs; no data is published",
        "Figure 9": "latency by token budget, CodeLlama-34B, production traces: neither is published",
    }
    workload = unit(poisson(sizes.requests // 4)).speed(LATENCY_RATE)
    lines = []
    for budget in (128, 256, 512, 1024, 2048):
        result = iq.simulate(workload, engine(iq.Sarathi(token_budget=budget, max_seqs=budget)), warmup=1000)
        row = result.summary().row(0, named=True)
        lines.append(
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
    small, paper, large = lines[0], lines[2], lines[3]
    return Section(
        title="Measurements on GPUs",
        text="These results require the paper's GPUs, or numbers that it does not print.",
        rows=tuple(Row(where=where, what="–", unit="–", note=note) for where, note in notes.items()),
        tables=(
            Table(
                title=f"Setting of Figure 9: Sarathi by token budget at {LATENCY_RATE} requests per second",
                frame=pl.DataFrame(lines),
                note="This engine and equal requests, instead of CodeLlama-34B and production traces.",
            ),
        ),
        remarks=(
            "**Budgets matter little in model (2.3).** In the paper 512 tokens have the lower median E2E, "
            "1,024 the lower TTFT, and small budgets recompute attention repeatedly. Here time depends on "
            "tokens alone, and at this rate a batch rarely has more than 256 of them. So larger budgets "
            f"change nothing: median E2E is {paper['median E2E, s']:.2f} s with 512 and "
            f"{large['median E2E, s']:.2f} s with 1,024. With 128, iterations are shorter and median E2E is "
            f"{small['median E2E, s']:.2f} s, but TTFT and the slowest requests get worse: the limit is "
            f"{small['limit (2.7), per s']:.2f} per second.",
        ),
    )


LATENCY_RATE = 7.0
"""Requests per second for the comparison of budgets, below the limit of each."""


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
        right="f = (m_p + m_d) Z_p + m_d Z_d: requests in phase p have all their tokens left, requests in d "
        "their decodes; only then f' = λ(m_p + m_d) − b/t_b follows from (C.10)–(C.14)",
    ),
    Slip(
        where="Appendix B",
        printed="b − λ(p + d) = ε'",
        right="b − λ t_b (p + d): the proof is for t_b = 1 slot",
    ),
    Slip(
        where="section 3",
        printed="Orca is work-conserving",
        right="only if it cuts prompts: whole prompts leave the end of a budget unused",
    ),
    Slip(
        where="section 3",
        printed="FasterTransformer, without a limit on its batch",
        right="its stable rate is that of full batches of size S, S / (t(S·m_p) + m_d·t(S))",
    ),
)


def report(*, quick: bool = False, traces: Path | None = None, tell: Tell = lambda text: None) -> Report:
    """Reproduce all of li2025 that requires no GPU.

    Args:
        quick: shorter runs, wider intervals, the same rows.
        traces: not used; no reproducible result of the paper uses real lengths.
        tell: receives the name of each step.

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
            "and has no memory limit."
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
