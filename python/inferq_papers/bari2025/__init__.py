"""What do whole tiles and deadlines for tokens buy? Bari, Hegde and de Veciana beside simulation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from inferq_papers.bari2025 import slai, tiles
from inferq_papers.report import Report, Slip

SLIPS = (
    Slip(
        where="Theorem 1, T^R",
        printed="an output of L^D tokens takes L^D decode iterations",
        right="L^D − 1: by Definition 1 the first token comes with the prompt's last iteration",
    ),
    Slip(
        where="Theorem 1 and Proposition 1",
        printed=(
            "no scheduler serves more than r/T^R, as the attention of a prompt takes p·(p + t_lcm) pairs of "
            "tokens at least"
        ),
        right=(
            "true only for t_lcm = t_col: chunks of t_col tokens, the shorter one first, cost least in (7); "
            "Assumption 3 is needed as well, which the theorem does not name"
        ),
    ),
    Slip(
        where="Appendix B.3, end of the proof",
        printed="α = (λ·T^R − 1)/T^max",
        right="(λ·T^R/r − 1)/T^max; for r > 1 the printed one is above 0 also where λ·T^R < r",
    ),
    Slip(
        where="Algorithm 1 line 13, Algorithm 2 line 7",
        printed="c = min(t_lcm, L^P − i)",
        right="min(t_lcm, L^P − i + 1), or the last token of a prompt is never computed",
    ),
    Slip(
        where="Algorithm 1, end of a cycle",
        printed="the count of a cycle is set to 0 only after a decode iteration",
        right="also when it has reached n and no request decodes (all outputs of length 1), or RAD waits for "
        "ever",
    ),
    Slip(
        where="Assumption 3",
        printed="LCM(t_row, t_col, t_row)",
        right="LCM(t_row, t_col, t_red)",
    ),
    Slip(
        where="Appendix D: Theorem 2 for Algorithm 2",
        printed="memory for t_col requests is enough (Assumption 4)",
        right="it completes the prompts of a whole cycle first, and holds up to n of them",
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
        right="and while the prompt is not complete; a prompt that it finishes adds 0 tokens for ever",
    ),
    Slip(
        where="Table 1, decode length",
        printed="standard deviation 101",
        right="cannot go with a median of 415 and a 90th percentile of 834; the dataset's is 266",
    ),
)


def report(
    *, quick: bool = False, traces: Path | None = None, tell: Callable[[str], None] = lambda line: None
) -> Report:
    """The paper's page.

    Args:
        quick: smaller runs, about a minute; the same rows.
        traces: folder with `openchat_sharegpt4_8k.parquet`; None: the rows that need it say so.
        tell: called with a line whenever something begins.

    Raises:
        ConfigError: a folder without that file.
    """
    return Report(
        name="bari2025",
        title="What do whole tiles and deadlines for tokens buy?",
        citation=(
            "Agrim Bari, Parikshit Hegde, Gustavo de Veciana: Optimal Scheduling Algorithms for LLM "
            "Inference: Theory and Practice, 2025"
        ),
        setting=(
            "The paper proves what RAD serves, without a number, and measures SLAI on a GPU whose model of "
            "batch times it does not give. So theory stands beside simulation in the first part, the paper's "
            "figures beside simulation in the second. Intervals are of 99 %."
        ),
        sections=(
            tiles.section(quick, tell),
            *slai.sections(quick, traces, tell),
        ),
        slips=SLIPS,
        quick=quick,
    )
