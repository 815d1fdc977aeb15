"""Reproduction of ao2025: waiting for larger batches, by theory and in simulation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from inferq_papers.ao2025 import cases, fluid, memory, theorems, waiting
from inferq_papers.report import Report, Section, Slip, in_turn

SLIPS = (
    Slip(
        where="Proposition 1 and the assumption before it",
        printed="λ d0 (l' + 1)(l + l'/2) ≥ 1",
        right="λ d1 (l' + 1)(l + l'/2) ≥ 1, as in (3) and (6)",
    ),
    Slip(
        where="3.2, balance of several types",
        printed="`(d0 + d1 M*) λ_j = n*_j`",
        right="`(d0 + d1 M*) λ_j = n*_j / (l'_j + 1)`, as in 3.1; (6) follows from it",
    ),
    Slip(
        where="(8), first line",
        printed="`(1/d0)·Σ n*_j·(1 − Σ λ_j (l'_j + 1)(l_j + l'_j/2))`",
        right="`(1/d0)·Σ n*_j·(1 − d1 Σ λ_j (l'_j + 1)(l_j + l'_j/2)) = Σ λ_j (l'_j + 1)`",
    ),
    Slip(
        where="(4) and (8) against 2.3",
        printed="throughput Σ λ_j (l'_j + 1)",
        right="Σ λ_j l'_j output tokens, if the prompt's iteration produces no token, as in 2.3",
    ),
    Slip(
        where="A.2",
        printed="`n*_j = ΔT λ_j (l'_j + 1)(l_j + l'_j/2)`",
        right="`n*_j = ΔT λ_j (l'_j + 1)`",
    ),
    Slip(
        where="A.3, the list of newcomers that fit",
        printed="(0,0), (1,0), (0,1), (1,1), (2,0), so p = 1 − 9/2·e⁻² = 0.391",
        right="(0,2) fits as well: p = 1 − 5·e⁻² = 0.323",
    ),
    Slip(
        where="A.3, last line",
        printed="the queue of type 2 at t is at least 0.3·t",
        right="a probability p in two steps gives at most p/2 per step; measured: see Proposition 4",
    ),
    Slip(
        where="(11) and C",
        printed="`Σ n_j (l + (l'_1 + … + l'_j)/2)(l'_j − l'_(j−1))`",
        right="`Σ n_j Σ (l + k)` over the stages k of segment j: `(l'_(j−1) + l'_j + 1)/2` on average, "
        "and stage 0",
    ),
    Slip(
        where="7.2, M^π",
        printed="Σ n_i (l + i·ΔL/2)·ΔL",
        right="as for (11): the middle of segment i is at (i − 1/2)·ΔL",
    ),
    Slip(
        where="(12) and (15), lower bound of θ_j",
        printed="`8 (n_j − n_(j−1) p_j)/n_j`",
        right="`8 (n_j − n_(j−1) p_j)/n_(j−1)`, as Lemma 8 proves; the printed bound can exceed θ_j",
    ),
    Slip(
        where="(12), (15) and the captions of Figures 16 to 18",
        printed="ln(mζS/δ), ln((L − 1)(T + 1)/δ)",
        right="ln((L − 1)·S/δ) with S iterations, as in the proof",
    ),
    Slip(
        where="Algorithm 2, index sets",
        printed="stages from `Σ l'_j` of the segments before",
        right="stages from `l'_(i−1) + 1`: the l' are lengths, not increments; so 5.1 and Figure 6",
    ),
    Slip(
        where="6.1, thresholds",
        printed="`n_j = B·ρ_j/(l'_j + 1)`",
        right="n_j in proportion to λ_j: the same factor for all types, as in (9)",
    ),
    Slip(
        where="6.2, thresholds 15:14:12:8",
        printed='"following (10)"',
        right="they satisfy its second line with equality, which (10) excludes",
    ),
    Slip(
        where="6.1, high demand",
        printed="6000, 4000 and 2000 requests per second",
        right="requires d1 < 4.15e-9 s per token of cache, impossible on any GPU; here a hundredth",
    ),
)


def report(
    *,
    quick: bool = False,
    traces: Path | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Report:
    """The experiments, theorems and memory bounds of ao2025 compared with inferq.

    Args:
        quick: smaller runs with wider intervals.
        traces: unused; the chats of section 6.2 follow from printed shares.
        tell: receives one line per part.

    Source: Ao, Luo, Simchi-Levi and Wang, "Optimizing LLM Inference: Fluid-Guided Online Scheduling with
        Memory Constraints" (2025).
    """
    parts: dict[str, Callable[[], Section]] = {
        "fluid equilibria": lambda: fluid.settles(quick),
        "thresholds": fluid.thresholds,
        "WAIT against VllmV1 and Sarathi": lambda: waiting.against(quick, tell),
        "memory of waiting": lambda: waiting.memory(quick),
        "Proposition 4": lambda: theorems.memory_greedy(quick),
        "Theorem 1": lambda: theorems.convergence(quick),
        "segments": memory.designs,
        "Figure 6": memory.figure_6,
    }
    return Report(
        name="ao2025",
        title="Waiting for larger batches under a memory limit",
        citation=(
            "Ao, Luo, Simchi-Levi and Wang, *Optimizing LLM Inference: Fluid-Guided Online Scheduling with "
            "Memory Constraints* (2025)"
        ),
        setting=(
            "Model (1): an iteration takes d0 + d1 · (tokens in the cache of its batch). The paper states "
            "neither "
            f"d0, d1 nor C. Here d0 = {1000 * cases.BASE_S:g} ms, d1 = {1e6 * cases.PER_TOKEN_S:g} µs and "
            f"C = {cases.KV_TOKENS:,} tokens, about Llama-2-7B on an A100, and the iteration of the "
            f"prompt produces "
            "no token (section 2.3) unless noted."
        ),
        sections=in_turn(parts, tell),
        slips=SLIPS,
        quick=quick,
    )
