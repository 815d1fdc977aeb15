"""Which efficiencies bring a roofline nearest to many shipped tables at once?

One set for all models and GPUs: the mean of |ln(roofline / table)| over the batches of `compared_batches`,
the tables of `FITTED` and every regime counting the same, is least. Run it after those tables or the batches
change, and copy what it prints, rounded to two digits, to `EFFICIENCIES` in
`python/inferq/timing/models/roofline.py`:

    python benches/fit_roofline.py
"""

import numpy as np
import polars as pl
from scipy.optimize import minimize

from inferq.timing.hardware.gpu import Gpu
from inferq.timing.models.roofline import EFFICIENCIES, Roofline
from inferq.timing.models.timing_model import iteration_s
from inferq.timing.tables.roofline_residuals import compared_batches, roofline_against_tables, shipped_models

FITTED: dict[str, dict[str, int]] = {
    "llama-3.1-8b": {},
    "llama-3.1-70b": {"a100-80gb": 4, "h100-80gb": 4, "h200": 4, "l40s": 4},
    "qwen3-4b": {},
    "qwen3-8b": {},
    "qwen3-32b": {"l40s": 2},
    "mixtral-8x7b": {"a100-80gb": 2, "h100-80gb": 2, "h200": 2, "l40s": 4},
}
"""Fitted tables: these models on one GPU, or on the stated number of GPUs."""
FITTED_GPUS = ("a100-80gb", "h100-80gb", "h200", "l40s")

SHARES = tuple(name for name in EFFICIENCIES if not name.endswith("_s"))


def rows() -> dict[str, np.ndarray]:
    """For each table and batch: its time, its weight, and the parts of a roofline whose shares are all 1."""
    batches = list(compared_batches())
    count = {
        regime: sum(one.regime == regime for one in batches) for regime in {one.regime for one in batches}
    }
    found = []
    for model, gpu, tensor_parallel, table in shipped_models():
        if gpu not in FITTED_GPUS or FITTED.get(model, {gpu: 0}).get(gpu, 1) != tensor_parallel:
            continue
        one = Roofline(model, gpu, tensor_parallel, **dict.fromkeys(EFFICIENCIES, 1.0))
        for regime, chunks, decodes in batches:
            tokens = sum(chunk for chunk, _ in chunks) + len(decodes)
            context = sum(decodes) + len(decodes)
            found.append(
                {
                    "table": iteration_s(table, chunks=chunks, decodes=decodes),
                    "weight": 1 / count[regime],
                    "flops": one.linear_flops_s_per_token * tokens,
                    "read": one.linear_weight_s + one.linear_activation_s_per_token * tokens,
                    "pairs": one.chunk_compute_s_per_pair * sum(c * (x + (c + 1) / 2) for c, x in chunks),
                    "chunk_read": one.chunk_memory_s_per_token * sum(c + x for c, x in chunks),
                    "decode_compute": one.decode_compute_s_per_token * context,
                    "decode_read": one.decode_memory_s_per_token * context,
                    "layers": one.base_s,
                    "exchanges": one.all_reduce_latency_s,
                    "experts": experts_s(Roofline(model, gpu, tensor_parallel), tokens),
                    "sent": one.all_reduce_s_per_token * tokens * Gpu.of(gpu).nvlink,
                    "sent_pcie": one.all_reduce_s_per_token * tokens * (not Gpu.of(gpu).nvlink),
                }
            )
    return {name: np.array([row[name] for row in found]) for name in found[0]}


def experts_s(roofline: Roofline, tokens: int) -> float:
    """Time of the layers with experts, whose constants `fit_roofline_constants.py` fits."""
    return sum(
        part.base_s
        + part.s_per_token * tokens
        + part.weight_s * (1 - (1 - part.active / part.experts) ** tokens)
        for part in roofline.experts
    )


def seconds(part: dict[str, np.ndarray], given: dict[str, float]) -> np.ndarray:
    """The roofline with other efficiencies: the formula of `Roofline`, batch by batch."""
    attention, cache = given["attention_flops_efficiency"], given["kv_bandwidth_efficiency"]
    return (
        np.maximum(part["flops"] / given["flops_efficiency"], part["read"] / given["bandwidth_efficiency"])
        + np.maximum(part["pairs"] / attention, part["chunk_read"] / cache)
        + np.maximum(part["decode_compute"] / attention, part["decode_read"] / cache)
        + part["sent"] / given["link_efficiency"]
        + part["sent_pcie"] / given["pcie_efficiency"]
        + part["layers"] * given["layer_s"]
        + part["exchanges"]
        + part["experts"]
    )


def loss(part: dict[str, np.ndarray], given: dict[str, float]) -> float:
    """The mean of |ln(roofline / table)|, tables and regimes alike."""
    return float(np.average(np.abs(np.log(seconds(part, given) / part["table"])), weights=part["weight"]))


def fitted(part: dict[str, np.ndarray]) -> dict[str, float]:
    """The best of several descents; a share stays below 1."""

    def given(place: np.ndarray) -> dict[str, float]:
        return {
            name: float(1 / (1 + np.exp(-value))) if name in SHARES else float(np.exp(value))
            for name, value in zip(EFFICIENCIES, place, strict=True)
        }

    best = None
    for share, small in ((0.5, 1e-5), (0.7, 3e-5), (0.85, 5e-6)):
        start = [np.log(share / (1 - share)) if name in SHARES else np.log(small) for name in EFFICIENCIES]
        for _ in range(3):
            found = minimize(
                lambda place: loss(part, given(place)),
                start,
                method="Nelder-Mead",
                options={"maxiter": 6000, "maxfev": 6000, "xatol": 1e-4, "fatol": 1e-7, "adaptive": True},
            )
            start = found.x
        if best is None or found.fun < best.fun:
            best = found
    return given(best.x)


if __name__ == "__main__":
    parts = rows()
    best = fitted(parts)
    for name, value in best.items():
        print(f"{name:28} {value:.3g}   now {EFFICIENCIES[name]:.3g}")
    print(f"loss {loss(parts, best):.4f}, now {loss(parts, dict(EFFICIENCIES)):.4f}")
    errors = roofline_against_tables()
    error = pl.col("error")
    told = [error.median().alias("median"), error.abs().quantile(0.95, "linear").alias("p95 of |error|")]
    with pl.Config(tbl_rows=200, tbl_width_chars=140, float_precision=3, tbl_hide_dataframe_shape=True):
        print(errors.group_by("regime", maintain_order=True).agg(told))
        by_table = errors.group_by("model", "gpu", "tensor_parallel", "regime", maintain_order=True)
        print(by_table.agg(told))
