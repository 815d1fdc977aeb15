"""Length of a slot (b̄), estimated from the iterations of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from inferq._lazy import np, pl
from inferq.checks import finite, shown
from inferq.errors import ConfigError
from inferq.results.result import Result

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers: TypeAlias = NDArray[np.float64]

Estimator = Literal["median", "mean", "trimmed"]


def slot(
    recorded: Result | pl.DataFrame | Mapping[str, Sequence[float]],
    estimator: Estimator = "median",
    *,
    trim: float = 0.05,
) -> float:
    """Estimate the length of an iteration, b̄, in seconds.

    Idle replicas have no iterations, so the estimate is for busy replicas. A stretch counts as its individual
    iterations, each with its own length: `first_s + j·growth_s` for j = 0 … `count` − 1.

    | estimator | b̄ | nie2026 |
    |---|---|---|
    | `"median"` | the median | Tables 1 and 3 |
    | `"mean"` | the mean | |
    | `"trimmed"` | the mean without the longest share `trim`, rounded down to whole iterations | 2 and 4 |

    Memory is supplied slot by slot, so a full replica serves M / (mean slot · E[g]). The mean of an
    overloaded run therefore gives the right μ. If few slots are long, the other estimators are lower and give
    a higher μ.

    Source: nie2026 section 5.1 and appendix C.

    Args:
        recorded: a result of `simulate(..., iterations=True)`, or a frame with the columns `count`, `first_s`
            and `growth_s` (seconds), e.g. a part of `result.iterations`.
        estimator: the average.
        trim: share of the iterations that `"trimmed"` leaves out, at least 0 and below 1.

    Raises:
        ConfigError: no iterations were recorded, a column is missing, or an argument is invalid.

    Example:
        Two iterations of 10 ms, then three of 20, 22 and 24 ms:

        >>> from inferq.theory import slot
        >>> recorded = {"count": [2, 3], "first_s": [0.01, 0.02], "growth_s": [0.0, 0.002]}
        >>> [round(slot(recorded, one), 5) for one in ("median", "mean")]
        [0.02, 0.0172]
        >>> round(slot(recorded, "trimmed", trim=0.2), 5)
        0.0155
    """
    share = finite("trim", trim)
    if not 0 <= share < 1:
        raise ConfigError("trim", f"must be a share of at least 0 and below 1, got {trim!r}")
    if estimator not in ("median", "mean", "trimmed"):
        raise ConfigError("estimator", f"must be 'median', 'mean' or 'trimmed', got {estimator!r}")
    lengths = _Slots.of(recorded.iterations if isinstance(recorded, Result) else recorded)
    if estimator == "median":
        low, high = lengths.ranked((lengths.total + 1) // 2), lengths.ranked(lengths.total // 2 + 1)
        return low + (high - low) / 2
    count = lengths.total if estimator == "mean" else lengths.total - math.floor(share * lengths.total)
    return lengths.least_sum(count) / count


@dataclass(frozen=True, slots=True, eq=False)
class _Slots:
    """Lengths of iterations as non-decreasing arithmetic progressions, one per stretch."""

    first_s: Numbers
    growth_s: Numbers
    count: NDArray[np.int64]
    total: int

    @classmethod
    def of(cls, frame: Any) -> _Slots:
        names, columns = ("count", "first_s", "growth_s"), []
        what = f"must be a Result or a frame with the columns {', '.join(names)}"
        if not isinstance(frame, Mapping) and not hasattr(frame, "columns"):
            raise ConfigError("recorded", f"{what}, got {shown(frame)}")
        for name in names:
            if name not in (frame if isinstance(frame, Mapping) else frame.columns):
                raise ConfigError("recorded", f"{what}; the column {name} is missing")
            try:
                columns.append(np.asarray(frame[name], dtype=np.float64))
            except (TypeError, ValueError, OverflowError):
                raise ConfigError("recorded", f"{name}: must be a column of numbers") from None
        count, first_s, growth_s = columns
        if not count.shape == first_s.shape == growth_s.shape or count.ndim != 1:
            raise ConfigError("recorded", "count, first_s and growth_s must be columns of one length")
        last_s = first_s + (count - 1) * growth_s
        right = (count >= 1) & (count == np.floor(count)) & np.isfinite(first_s) & np.isfinite(growth_s)
        wrong = np.flatnonzero(~(right & (np.minimum(first_s, last_s) >= 0)))
        if wrong.size:
            row = int(wrong[0])
            raise ConfigError(
                "recorded",
                f"row {row}: a stretch must have at least 1 iteration of non-negative length; got count "
                f"{count[row]}, first_s {first_s[row]}, growth_s {growth_s[row]}",
            )
        whole_count = count.astype(np.int64)
        if not whole_count.size:
            raise ConfigError("recorded", "must contain at least one iteration")
        return cls(np.minimum(first_s, last_s), np.abs(growth_s), whole_count, int(whole_count.sum()))

    def up_to(self, length_s: float) -> NDArray[np.int64]:
        """For each stretch, the number of iterations that are no longer than a length."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            steps = np.floor((length_s - self.first_s) / self.growth_s)
            flat = np.where(length_s >= self.first_s, self.count - 1, -1)
            steps = np.where(self.growth_s > 0, np.clip(steps, -1, self.count - 1), flat)
        # The quotient may be off by one near an integer: the product decides.
        steps += (steps + 1 < self.count) & (self.first_s + (steps + 1) * self.growth_s <= length_s)
        steps -= (steps >= 0) & (self.first_s + np.maximum(steps, 0) * self.growth_s > length_s)
        return steps.astype(np.int64) + 1

    def within(self, low_s: float, high_s: float) -> tuple[int, _Slots]:
        """The number of iterations in stretches that end by `low_s`, and the stretches that extend above it.

        Stretches that begin after `high_s` are in neither.
        """
        last_s = self.first_s + (self.count - 1) * self.growth_s
        here = (last_s > low_s) & (self.first_s <= high_s)
        kept = _Slots(self.first_s[here], self.growth_s[here], self.count[here], self.total)
        return int(self.count[last_s <= low_s].sum()), kept

    def ranked(self, rank: int) -> float:
        """The `rank`-th shortest, from 1 on: bisection over the bits of floats, which have the same order."""

        def length_s(bits: int) -> float:
            return float(np.int64(bits).view(np.float64))

        longest_s = float((self.first_s + (self.count - 1) * self.growth_s).max())
        low, high = -1, int(np.float64(longest_s).view(np.int64))
        below, rest = 0, self
        while high - low > 1:
            middle = (low + high) // 2
            if below + int(rest.up_to(length_s(middle)).sum()) >= rank:
                high = middle
            else:
                low = middle
                more, rest = rest.within(length_s(low), length_s(high))
                below += more
        return length_s(high)

    def least_sum(self, kept: int) -> float:
        """The sum of the `kept` shortest iterations, in seconds."""
        longest = self.ranked(kept)
        inside = self.up_to(float(np.nextafter(longest, -math.inf)))
        sums = inside * self.first_s + self.growth_s * (inside * (inside - 1.0) / 2)
        return math.fsum(sums) + (kept - int(inside.sum())) * longest
