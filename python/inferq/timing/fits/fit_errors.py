"""How far is what a model predicts from what was measured, in each regime?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferq._lazy import np, pl
from inferq.timing.fits.terms import tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from inferq.timing.fits.iteration_log import Log

SMALL_BATCH = 16
"""An iteration of decodes only is small up to so many of them."""
REGIMES = ("decode small", "decode large", "prefill", "mixed")


def predictions_of(log: Log, predicted: NDArray[np.float64]) -> pl.DataFrame:
    """One row an iteration: `regime`, `tokens`, `measured_s`, `predicted_s`."""
    prefilling, decodes = log["prefill_tokens"] > 0, log["decodes"]
    alone = np.where(decodes <= SMALL_BATCH, REGIMES[0], REGIMES[1])
    regime = np.where(prefilling, np.where(decodes > 0, REGIMES[3], REGIMES[2]), alone)
    return pl.DataFrame(
        {"regime": regime, "tokens": tokens(log), "measured_s": log["duration_s"], "predicted_s": predicted}
    )


def r_squared(measured: NDArray[np.float64], predicted: NDArray[np.float64]) -> float | None:
    """1 − (sum of squared residuals) / (sum of squared differences from the mean); None if all are alike."""
    if np.ptp(measured) <= 1e-12 * measured.max():
        return None
    left = float(np.sum((measured - predicted) ** 2))
    return 1 - left / float(np.sum((measured - measured.mean()) ** 2))


def by_regime(predictions: pl.DataFrame) -> pl.DataFrame:
    """Quantiles of the relative error in each regime that occurs, and in all."""
    error = (pl.col("predicted_s") / pl.col("measured_s") - 1).alias("error")
    errors = predictions.select("regime", error)
    everything = errors.with_columns(regime=pl.lit("all"))
    quantiles = [pl.col("error").quantile(p / 100, "linear").alias(f"p{p}") for p in (5, 50, 95)]
    found = (
        pl.concat([errors, everything])
        .group_by("regime")
        .agg(
            pl.len().cast(pl.Int64).alias("iterations"),
            *quantiles,
            pl.col("error").abs().median().alias("median_error"),
        )
    )
    order = pl.DataFrame({"regime": [*REGIMES, "all"]})
    return order.join(found, on="regime", how="inner", maintain_order="left")
