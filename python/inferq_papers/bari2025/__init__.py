"""Reproduction of bari2025 (Bari, Hegde and de Veciana): RAD and SLAI compared with simulation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from inferq_papers.bari2025 import slai, tiles
from inferq_papers.report import Report, Slip

SLIPS = (
    Slip(
        where="Theorem 1, T^R",
        printed="an output of L^D tokens takes L^D decode iterations",
        right="L^D − 1: by Definition 1 the prompt's last iteration produces the first token",
    ),
    Slip(
        where="Theorem 1 and Proposition 1",
        printed=(
            "no scheduler serves more than r/T^R, as the attention of a prompt takes p·(p + t_lcm) pairs of "
            "tokens at least"
        ),
        right=(
            "true only for t_lcm = t_col: chunks of t_col tokens, the shorter chunk first, have the lowest "
            "cost in (7); Assumption 3 is required as well, which the theorem omits"
        ),
    ),
    Slip(
        where="Appendix B.3, end of the proof",
        printed="α = (λ·T^R − 1)/T^max",
        right="(λ·T^R/r − 1)/T^max; for r > 1 the printed value is positive also if λ·T^R < r",
    ),
    Slip(
        where="Algorithm 1 line 13, Algorithm 2 line 7",
        printed="c = min(t_lcm, L^P − i)",
        right="min(t_lcm, L^P − i + 1), or the last token of a prompt is never computed",
    ),
    Slip(
        where="Algorithm 1, end of a cycle",
        printed="the count of a cycle is set to 0 only after a decode iteration",
        right="also when it has reached n and no request decodes (all outputs of length 1), or RAD waits "
        "forever",
    ),
    Slip(
        where="Assumption 3",
        printed="LCM(t_row, t_col, t_row)",
        right="LCM(t_row, t_col, t_red)",
    ),
    Slip(
        where="Appendix D: Theorem 2 for Algorithm 2",
        printed="memory for t_col requests is enough (Assumption 4)",
        right="it completes the prompts of a whole cycle first, and stores up to n of them",
    ),
    Slip(
        where="(5)",
        printed="1/μ(t_row, t_col)",
        right="1/(s·μ(t_row, t_col)), as in (3); here `gemv_s` is the whole factor",
    ),
    Slip(
        where="Algorithm 3, lines 5 and 12",
        printed="tests mode = Prefill twice",
        right="the first branch, which decodes, is for mode = Decode",
    ),
    Slip(
        where="Algorithm 4, lines 11–16",
        printed="repeats while the budget is not used up",
        right="and while the prompt is not complete; a finished prompt adds 0 tokens forever",
    ),
    Slip(
        where="Table 1, decode length",
        printed="standard deviation 101",
        right="is inconsistent with a median of 415 and a 90th percentile of 834; the dataset's is 266",
    ),
)


def report(
    *, quick: bool = False, traces: Path | None = None, tell: Callable[[str], None] = lambda line: None
) -> Report:
    """The paper's page.

    Args:
        quick: smaller runs of about a minute; the same rows.
        traces: folder with `openchat_sharegpt4_8k.parquet`; Default: rows that require it stay empty.
        tell: receives one line per step.

    Raises:
        ConfigError: the folder lacks that file.
    """
    return Report(
        name="bari2025",
        title="Whole tiles (RAD) and token deadlines (SLAI)",
        citation=(
            "Agrim Bari, Parikshit Hegde, Gustavo de Veciana: Optimal Scheduling Algorithms for LLM "
            "Inference: Theory and Practice, 2025"
        ),
        setting=(
            "The paper proves the capacity of RAD without printing a number, and measures SLAI on a GPU "
            "without printing its model of batch times. The first part compares theory with simulation, the "
            "second the paper's figures with simulation. Intervals are of 99 %."
        ),
        sections=(
            tiles.section(quick, tell),
            *slai.sections(quick, traces, tell),
        ),
        slips=SLIPS,
        quick=quick,
    )
