"""TiledGemm: matrix products in tiles (bari2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from inferq.timing.models.timing_model import TimingModel


@dataclass(frozen=True, kw_only=True, slots=True)
class TiledGemm(TimingModel):
    """Matrix products in tiles: time is a step function of batch tokens and of each row's context.

    An iteration takes

    - `linear_s_per_tile·⌈tokens / columns⌉ + other_s_per_token·tokens` for all tokens of the batch,
    - plus, for each decode row with i = its context + 1,
      `layers·gemv_s·((width / columns)·⌈i / rows⌉ + (width / rows)·⌈i / columns⌉)`,
    - plus, for each chunk of c tokens at context x, `layers·gemm_s·⌈c / columns⌉·((width / reduction)·
      ⌈(x + c) / rows⌉ + (width / rows)·⌈(x + c) / reduction⌉)`.

    Source: bari2025 (7), with t_row = `rows`, t_col = `columns`, t_red = `reduction`, d = `width`,
        N = `layers`, 1/μ_Lin = `linear_s_per_tile`, 1/μ_nLin = `other_s_per_token`, 1/μ(t_row, t_col) of (5)
        = `gemv_s`, 1/(s·μ(t_row, t_col, t_red)) = `gemm_s`. (5) omits the number of multiprocessors s of
        (3); `gemv_s` is the whole factor. Assumption 3 names t_row twice in place of t_red.

    Args:
        rows: rows of an output tile, at least 1; divides `width`.
        columns: columns of an output tile, at least 1; divides `width`.
        reduction: length of the reduction tile, at least 1; divides `width`.
        width: dimension of the keys and values of one token in a layer, at least 1.
        linear_s_per_tile: seconds of all linear layers for `columns` tokens.
        other_s_per_token: seconds per token of everything else, such as activations.
        gemm_s: seconds of one pair of tiles of a chunk's attention.
        gemv_s: seconds of one pair of tiles of a decode's attention.
        layers: layers of the model, at least 1.

    Raises:
        ConfigError: a number of seconds is negative, not finite, or rounds to 0 attoseconds although it is
            not 0; another number outside its range; a tile size that does not divide `width`.

    Example:
        The tiles of an A100. One token more than two tiles requires a third tile:

        >>> import inferq as iq
        >>> tiles = {"rows": 128, "columns": 256, "reduction": 32, "width": 4096, "layers": 32}
        >>> seconds = {"linear_s_per_tile": 1, "other_s_per_token": 0, "gemm_s": 0, "gemv_s": 0}
        >>> linear = iq.research.TiledGemm(**tiles, **seconds)
        >>> scheduler = iq.Sarathi(token_budget=1024)
        >>> engine = iq.Engine(timing=linear, scheduler=scheduler, kv=iq.KvCache.unlimited())
        >>> workload = {"arrival_s": [0.0, 10.0], "prompt_tokens": [512, 513], "output_tokens": [1, 1]}
        >>> iq.simulate(workload, engine).requests["ttft_s"].to_list()
        [2.0, 3.0]
    """

    rows: int
    columns: int
    reduction: int
    width: int
    linear_s_per_tile: float
    other_s_per_token: float
    gemm_s: float
    gemv_s: float
    layers: int

    uncounted: ClassVar[str] = "depends on tiles, not tokens; use tile_capacity"

    def shortest_iteration_s(self) -> float:
        """One token without attention."""
        return self.linear_s_per_tile + self.other_s_per_token
