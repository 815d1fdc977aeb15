"""Fits of timing models to measured iterations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inferq._lazy import load, np, pl
from inferq.checks import flag, nearest, not_negative, whole, within
from inferq.description import spelled
from inferq.errors import ConfigError
from inferq.timing.fits.fit_charts import of_fit
from inferq.timing.fits.iteration_log import checked_log, overlap_note
from inferq.timing.fits.regression import HUBER, Solution, inseparable, solved, standard_errors
from inferq.timing.fits.table_fit import tabulated
from inferq.timing.fits.terms import LEAST_S, LINEAR, Linear, Term, tokens
from inferq.timing.models.timing_model import TimingModel
from inferq.workload.columns import MOST_TOKENS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from inferq.timing.fits.iteration_log import Log

TABLE = "TimingTable"
"""The model that is fitted on a grid."""

_SMALL_BATCH = 16
"""Maximum decodes of a small iteration."""
_REGIMES = ("decode small", "decode large", "prefill", "mixed")


@dataclass(frozen=True, kw_only=True, repr=False)
class Fit:
    """A timing model fitted to measured iterations, with its errors; the result of `fit`."""

    model: TimingModel
    """The model, for the `timing` of an `Engine`."""
    coefficients: pl.DataFrame
    """One row per coefficient: `coefficient`, `value`, `standard_error`, `low` and `high` (the confidence
    interval by Student's t distribution), `unit`, and `how`: `fitted`, `fixed` (by the caller), `absent` (the
    log lacks its column), `bound` (at 0; least squares would be negative) or `undetermined` (a knee that no
    iteration shows). Only fitted coefficients have an error.

    For a `TimingTable` one row per grid point: `part`, `row` (tokens of the batch or the chunk, or decodes),
    `column` (context; null for `linear`), `seconds`, `iterations` (number on the point, with fractions for
    those between points) and `how`: `fitted`, `bound`, `fixed`, `continued` (no iteration is near) or `flat`
    (the log has one context only)."""
    r_squared: float | None
    """1 − (sum of squared residuals) / (sum of squared differences from the mean), in seconds, unweighted;
    None if all durations are equal."""
    residuals: pl.DataFrame
    """One row per regime and one for `all`: `regime`, `iterations`, and of predicted / measured − 1 the
    quantiles `p5`, `p50`, `p95` and the median of the absolute value, `median_error`. Regimes: `decode small`
    (decodes only, at most 16), `decode large`, `prefill` (no decodes), `mixed`."""
    predictions: pl.DataFrame
    """One row per iteration, as in the log: `regime`, `tokens`, `measured_s`, `predicted_s`."""
    confidence: float
    robust: bool
    relative: bool
    notes: tuple[str, ...]
    """Caveats."""

    def plot(self) -> Any:
        """Chart predicted against measured duration, and the relative error against tokens.

        Returns:
            An Altair chart of two panels, colored by regime; large logs are sampled evenly.
        """
        r_squared = "" if self.r_squared is None else f", R² = {self.r_squared:.4f}"
        fitted = f"{type(self.model).__name__} fitted to {self.predictions.height:,} iterations"
        return of_fit(self.predictions, f"{fitted}{r_squared}")

    def explain(self) -> str:
        """Report the coefficients with their errors, the residuals by regime, and caveats."""
        loss = f"Huber's loss ({HUBER} standard deviations)" if self.robust else "least squares"
        of = "relative" if self.relative else "absolute"
        name, count = type(self.model).__name__, self.predictions.height
        lines = [f"{name} fitted to {count:,} iterations by {loss} of {of} errors"]
        lines += _grid_lines(self.coefficients) if name == TABLE else _coefficient_lines(self.coefficients)
        if self.r_squared is not None:
            lines.append(f"R² = {self.r_squared:.6f}")
        lines.append("predicted / measured − 1:")
        for row in self.residuals.iter_rows(named=True):
            lines.append(
                f"  {row['regime']}: median {row['p50']:+.2%}, from {row['p5']:+.2%} to {row['p95']:+.2%} "
                f"in 90 % of {row['iterations']:,}"
            )
        return "\n".join([*lines, *self.notes])

    def __str__(self) -> str:
        """The text of `explain()`."""
        return self.explain()

    def __repr__(self) -> str:
        """The model and its R²."""
        r_squared = "None" if self.r_squared is None else f"{self.r_squared:.6f}"
        return f"Fit({self.model!r}, r_squared={r_squared})"


def fit(
    frame: object,
    model: str = "PiecewiseLinear",
    *,
    robust: bool = False,
    relative: bool = False,
    fixed: Mapping[str, Any] | None = None,
    grids: Mapping[str, Sequence[int]] | None = None,
    confidence: float = 0.95,
    check_units: bool = True,
) -> Fit:
    """Fit a timing model to measured iterations, by non-negative least squares.

    | model | coefficients |
    |---|---|
    | `PiecewiseLinear` | `base`, `per_token`, `knee`, `per_context_token`, and two more of long chunks |
    | `MemoryLinear` | `base`, `per_kv_token` |
    | `MixedSolo` | `alpha`, `beta`, `solo` |
    | `TimingTable` | the times at its grid points |

    For a given knee the model is linear: knees are searched on a grid that is refined around the best one. If
    no iteration shows a floor, the knee is 0, or, if the base would then be negative, the fewest tokens of an
    iteration. `per_prefill_square` and `per_chunk_context` are fitted if the frame has their columns, and
    otherwise 0.

    A `TimingTable` is linear in the times at its grid points. Cross-validation in five parts selects the
    weight of the second differences between neighboring points; a point without iterations thus continues its
    neighbors. Whole iterations do not fully separate linear layers from attention (a decode is also a token
    of the batch): the undetermined part counts as linear layers. For an iteration with several chunks only
    sums are known; they are treated as equal chunks with Σ c² / Σ c tokens at context Σ c·x / Σ c.

    Args:
        frame: one row for each iteration, a polars or pandas frame or a dict of columns: `duration_s`,
            `prefill_tokens` (Σ c over its chunks), `decodes` (rows), `context_tokens` (Σ of the contexts of
            the decodes, before it); optional `start_s`, `prefill_squares` (Σ c²), `prefill_products` (Σ c·x
            with the context x of the chunk) and `prefill_context` (Σ x; required by `MemoryLinear` if
            there are prefills). Other columns are ignored.
        model: one of the names above.
        robust: Huber's loss: residuals beyond 1.345 standard deviations count linearly, which limits the
            effect of outliers. The standard deviation is that of a normal distribution with the same median
            absolute residual.
        relative: minimize relative errors, not errors in seconds: appropriate if the noise grows with the
            duration, or if short iterations matter as much as long ones.
        fixed: known coefficients, such as `{"knee": 0, "per_context_token": 0}`; for a `TimingTable` whole
            parts, such as `{"chunk": other_table.chunk}`.
        grids: for a `TimingTable`, the points of some of its axes: `tokens`, `chunk`, `context`, `sequences`,
            `mean_context`. They must cover all iterations, with an iteration within half the distance to the
            neighbors of each point. Default: up to 16, 8, 6, 8 and 6 of the observed values, geometrically
            spaced, fewer if there are less than four iterations per grid point.
        confidence: confidence level of `low` and `high`.
        check_units: reject durations that look like milliseconds: half of them above 2, or, with `start_s`,
            more than 100 concurrent iterations.

    Returns:
        The model, its coefficients with heteroscedasticity-consistent standard errors (HC3), R², the
        residuals by regime.

    Raises:
        ConfigError: a missing column; a value that is missing, not finite, negative or not an integer (with
            its row); durations that look like milliseconds; too few iterations; a coefficient that the
            iterations do not identify; an invalid argument.

    Source: HC3: MacKinnon and White (1985); the loss: Huber (1964).

    Example:
        Iterations generated with the fit of lin2026 for Qwen3-8B reproduce its coefficients:

        >>> import inferq as iq
        >>> log = {
        ...     "prefill_tokens": [64, 128, 256, 512, 0, 0],
        ...     "decodes": [8, 8, 4, 0, 8, 16],
        ...     "context_tokens": [900, 910, 400, 0, 950, 2000],
        ... }
        >>> log["duration_s"] = [0.0174 + 6.2e-5 * c if c else 0.022 for c in log["prefill_tokens"]]
        >>> fitted = iq.timing.fit(log, "MixedSolo").model
        >>> [round(number, 9) for number in (fitted.alpha, fitted.beta, fitted.solo)]
        [0.0174, 6.2e-05, 0.022]
    """
    kind = spelled(model, (*LINEAR, TABLE))
    if kind is None:
        raise ConfigError("model", f"{model!r} cannot be fitted{nearest(str(model), [*LINEAR, TABLE])}")
    robust, relative = flag("robust", robust), flag("relative", relative)
    check_units = flag("check_units", check_units)
    confidence = within("confidence", confidence, 0.5, 0.999999)
    log = checked_log(frame, check_units)
    if kind == TABLE:
        return _table(log, grids, fixed, robust, relative, confidence)
    if grids is not None:
        raise ConfigError("grids", f"{kind} has no grids, only {TABLE}")
    linear = LINEAR[kind]
    return _Fitting(linear, log, _fixed(linear, fixed), robust, relative, confidence).fit()


def _table(
    log: Log,
    grids: Mapping[str, Sequence[int]] | None,
    fixed: Mapping[str, Any] | None,
    robust: bool,
    relative: bool,
    confidence: float,
) -> Fit:
    fitted = tabulated(log, grids, fixed, robust=robust, relative=relative)
    predictions = _predictions(log, fitted.predicted)
    return Fit(
        model=fitted.table,
        coefficients=fitted.coefficients,
        r_squared=_r_squared(log["duration_s"], fitted.predicted),
        residuals=_by_regime(predictions),
        predictions=predictions,
        confidence=confidence,
        robust=robust,
        relative=relative,
        notes=(*fitted.notes, *overlap_note(log)),
    )


def _fixed(linear: Linear, fixed: Mapping[str, float] | None) -> dict[str, float]:
    names = [term.name for term in linear.terms] + (["knee"] if linear.kneed else [])
    if fixed is None:
        return {}
    if not isinstance(fixed, Mapping):
        raise ConfigError("fixed", f"must map coefficients to numbers, got {fixed!r}")
    values = {}
    for name, value in fixed.items():
        if name not in names:
            raise ConfigError(
                "fixed", f"{name!r} is not a coefficient of {linear.kind.__name__}{nearest(str(name), names)}"
            )
        path = f"fixed.{name}"
        values[name] = (
            float(whole(path, value, 0, MOST_TOKENS)) if name == "knee" else not_negative(path, value)
        )
    return values


class _Fitting:
    """One call of `fit`: the free coefficients and the solution."""

    def __init__(
        self,
        linear: Linear,
        log: Log,
        fixed: dict[str, float],
        robust: bool,
        relative: bool,
        confidence: float,
    ) -> None:
        self.linear, self.log, self.fixed = linear, log, fixed
        self.robust, self.relative, self.confidence = robust, relative, confidence
        self.tokens = tokens(log)
        self.absent = [
            term.name
            for term in linear.terms
            if term.optional and term.needs not in log and not fixed.get(term.name)
        ]
        self._check_columns()
        # The check ensures that an optional term without its column is 0.
        self.terms = [term for term in linear.terms if term.name not in self.absent]
        self.free = [term for term in self.terms if term.name not in fixed]
        self.columns = {term.name: term.column(log) for term in self.terms}
        flat = linear.kneed is not None and fixed.get(linear.kneed) == 0
        self.search = linear.kneed is not None and "knee" not in fixed and not flat
        # A free base compensates for every knee below the fewest tokens.
        self.floor = 0 if "base" in fixed else int(self.tokens.min())
        self._check_rows()

    def _check_columns(self) -> None:
        for term in self.linear.terms:
            if term.needs is None or term.needs in self.log:
                continue
            if term.optional and self.fixed.get(term.name):
                raise ConfigError(f"fixed.{term.name}", f"requires the column {term.needs} of the frame")
            if not term.optional and self.log["prefill_tokens"].any():
                raise ConfigError(
                    term.name,
                    f"the frame has prefill_tokens but lacks the column {term.needs} "
                    "(Σ of the contexts of the chunks; 0 for whole prompts)",
                )

    def _check_rows(self) -> None:
        rows, unknowns = self.tokens.size, len(self.free) + self.search
        if rows <= unknowns:
            raise ConfigError(
                "frame", f"{unknowns} coefficients require at least {unknowns + 1} iterations, got {rows}"
            )
        for term in self.free:
            column = self.columns[term.name]
            if not column.any():
                raise ConfigError(term.name, f"no iteration has {term.counted}: {_remedy(term.name)}")
            if np.ptp(column) or term.name == "base":
                continue
            if any(other.name == "base" for other in self.free):
                raise ConfigError(
                    term.name,
                    f"every iteration has {column[0]:g} {term.counted}, so it cannot be separated "
                    f"from base: {_remedy(term.name)}",
                )
        if not self.search:
            return
        counts = np.unique(self.tokens).size
        if counts < 3:
            raise ConfigError(
                "knee", f"the iterations have fewer than 3 different counts of tokens: {_remedy('knee')}"
            )
        if counts < unknowns:
            shapes = np.unique(np.column_stack(list(self.columns.values())), axis=0).shape[0]
            if shapes < unknowns:
                raise ConfigError(
                    "knee",
                    f"{shapes} different iterations cannot identify it together with "
                    f"{', '.join(term.name for term in self.free)}: {_remedy('knee')}",
                )

    def design(self, knee: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The columns of the free coefficients, and the seconds of the fixed ones."""

        def column(term: Term) -> NDArray[np.float64]:
            if term.name == self.linear.kneed:
                return np.maximum(self.columns[term.name] - knee, 0.0)
            return self.columns[term.name]

        constant = np.zeros_like(self.tokens)
        for term in self.terms:
            if term.name in self.fixed:
                constant += self.fixed[term.name] * column(term)
        columns = [column(term) for term in self.free]
        return np.column_stack(columns) if columns else np.empty((constant.size, 0)), constant

    def fit(self) -> Fit:
        """Solve and describe the solution."""
        measured = self.log["duration_s"]
        solution = solved(
            self.design,
            measured,
            self.tokens if self.search else None,
            int(self.fixed.get("knee", 0)),
            floor=self.floor,
            robust=self.robust,
            relative=self.relative,
        )
        self._check_identified(solution)
        values = {name: 0.0 for name in self.absent} | self.fixed
        for term, value in zip(self.free, solution.values, strict=True):
            values[term.name] = float(value) if value >= LEAST_S else 0.0
        if self.linear.kneed:
            flat = values[self.linear.kneed] == 0 and self.search
            values["knee"] = 0 if flat else solution.knee
        errors = self._errors(solution, values)
        columns, constant = self.design(solution.knee)
        predicted = columns @ solution.values + constant
        coefficients = self._coefficients(values, errors)
        predictions = _predictions(self.log, predicted)
        arguments: dict[str, Any] = {
            name: int(value) if name == "knee" else value for name, value in values.items()
        }
        return Fit(
            model=self.linear.kind(**arguments),
            coefficients=coefficients,
            r_squared=_r_squared(measured, predicted),
            residuals=_by_regime(predictions),
            predictions=predictions,
            confidence=self.confidence,
            robust=self.robust,
            relative=self.relative,
            notes=(*self._notes(coefficients), *overlap_note(self.log)),
        )

    def _check_identified(self, solution: Solution) -> None:
        """Reject linearly dependent columns at the solution's knee."""
        columns = self.design(solution.knee)[0]
        if columns.shape[1] == 0:
            return
        names = [term.name for term in self.free]
        empty = [name for name, column in zip(names, columns.T, strict=True) if not column.any()]
        if empty:
            raise ConfigError(
                f"{empty[0]}",
                f"no iteration has tokens above the knee of {solution.knee}: {_remedy(empty[0])}",
            )
        mixed = inseparable(columns * solution.weights[:, None])
        if mixed:
            several = ", ".join(names[place] for place in mixed)
            counted = ", ".join(self.free[place].counted for place in mixed)
            raise ConfigError(
                several,
                f"their columns ({counted}) are linearly dependent in these iterations: "
                f"{_remedy(names[mixed[-1]])}",
            )

    def _errors(self, solution: Solution, values: dict[str, float]) -> dict[str, float]:
        """The standard errors of the coefficients inside their bounds."""
        names = [term.name for term in self.free]
        columns = self.design(solution.knee)[0]
        inside = [place for place, name in enumerate(names) if values[name] > 0]
        parts: list[NDArray[np.float64]] = [columns[:, place] for place in inside]
        named = [names[place] for place in inside]
        kneed = self.linear.kneed
        if self.search and kneed and values[kneed] > 0 and solution.knee > self.floor:
            parts.append(np.where(self.tokens > solution.knee, -values[kneed], 0.0))
            named.append("knee")
        if not parts:
            return {}
        errors = standard_errors(np.column_stack(parts) * solution.weights[:, None], solution)
        return dict(zip(named, errors.tolist(), strict=True))

    def _coefficients(self, values: dict[str, float], errors: dict[str, float]) -> pl.DataFrame:
        t = load("scipy.stats").t

        reach = float(t.ppf(0.5 + self.confidence / 2, self.tokens.size - max(len(errors), 1)))
        units = {term.name: term.unit for term in self.linear.terms} | {"knee": "tokens"}
        order = [term.name for term in self.linear.terms] + (["knee"] if self.linear.kneed else [])
        rows = []
        for name in order:
            value, error = float(values[name]), errors.get(name)
            low = None if error is None else max(value - reach * error, 0.0)
            high = None if error is None else value + reach * error
            rows.append((name, value, error, low, high, units[name], self._how(name, error)))
        numbers = dict.fromkeys(("value", "standard_error", "low", "high"), pl.Float64)
        schema = {"coefficient": pl.String, **numbers, "unit": pl.String, "how": pl.String}
        return pl.DataFrame(rows, schema=schema, orient="row")

    def _how(self, name: str, error: float | None) -> str:
        if name in self.fixed:
            return "fixed"
        if name in self.absent:
            return "absent"
        if error is not None:
            return "fitted"
        return "undetermined" if name == "knee" else "bound"

    def _notes(self, coefficients: pl.DataFrame) -> tuple[str, ...]:
        notes = []
        for row in coefficients.iter_rows(named=True):
            name, how = row["coefficient"], row["how"]
            if how == "absent":
                needs = next(term.needs for term in self.linear.terms if term.name == name)
                notes.append(f"{name} is 0: the log lacks the column {needs}.")
            elif how == "bound":
                notes.append(f"{name} is 0: without the bound it would be negative or negligible.")
            elif how == "undetermined":
                notes.append(
                    f"No iteration shows a floor: the knee is {row['value']:g}, which has no effect from the "
                    f"fewest measured tokens ({self.tokens.min():g}) on."
                )
            elif how == "fitted" and row["low"] == 0:
                level = f"{100 * self.confidence:g} %"
                notes.append(f"{name} does not differ significantly from 0 at {level} confidence.")
        most = (
            f"{self.tokens.max():,.0f} tokens and {self.log['context_tokens'].max():,.0f} of decode context"
        )
        notes.append(f"Measured up to {most}; larger values are extrapolated without a finding.")
        return tuple(notes)


def _coefficient_lines(coefficients: pl.DataFrame) -> list[str]:
    lines = []
    for row in coefficients.iter_rows(named=True):
        error = row["standard_error"]
        accuracy = f"± {error:.2g}" if error is not None else f"({row['how']})"
        lines.append(f"  {row['coefficient']} = {row['value']:.6g} {accuracy} {row['unit']}")
    return lines


def _grid_lines(points: pl.DataFrame) -> list[str]:
    """The axes and the range of times of each part of a table."""
    axes = {"linear": ("tokens", ""), "chunk": ("tokens", "context"), "decode": ("decodes", "mean context")}
    lines = []
    for part, (rows, columns) in axes.items():
        own = points.filter(part=part)
        lengths = own.select(pl.col("row", "column").n_unique()).row(0)
        size = f"{lengths[0]} × {lengths[1]}" if columns else f"{lengths[0]}"
        ends = own.select(
            *(pl.col(name).min().alias(f"low_{name}") for name in ("row", "column", "seconds")),
            *(pl.col(name).max().alias(f"high_{name}") for name in ("row", "column", "seconds")),
        ).row(0, named=True)
        reach = f"{ends['low_row']:,} to {ends['high_row']:,} {rows}"
        if columns:
            reach += f" at {columns} {ends['low_column']:,} to {ends['high_column']:,}"
        how = " (fixed)" if (own["how"] == "fixed").all() else ""
        seconds = f"{ends['low_seconds']:.3g} to {ends['high_seconds']:.3g} s"
        lines.append(f"  {part}: {size} points, {reach}: {seconds}{how}")
    return lines


def _remedy(name: str) -> str:
    """A fix for a coefficient that the iterations do not identify."""
    return f'add iterations that differ in it, or set fixed={{"{name}": …}}'


def _predictions(log: Log, predicted: NDArray[np.float64]) -> pl.DataFrame:
    """One row per iteration: `regime`, `tokens`, `measured_s`, `predicted_s`."""
    prefilling, decodes = log["prefill_tokens"] > 0, log["decodes"]
    alone = np.where(decodes <= _SMALL_BATCH, _REGIMES[0], _REGIMES[1])
    regime = np.where(prefilling, np.where(decodes > 0, _REGIMES[3], _REGIMES[2]), alone)
    return pl.DataFrame(
        {"regime": regime, "tokens": tokens(log), "measured_s": log["duration_s"], "predicted_s": predicted}
    )


def _r_squared(measured: NDArray[np.float64], predicted: NDArray[np.float64]) -> float | None:
    """1 − (sum of squared residuals) / (sum of squared differences from the mean); None if all are equal."""
    if np.ptp(measured) <= 1e-12 * measured.max():
        return None
    left = float(np.sum((measured - predicted) ** 2))
    return 1 - left / float(np.sum((measured - measured.mean()) ** 2))


def _by_regime(predictions: pl.DataFrame) -> pl.DataFrame:
    """Quantiles of the relative error in each occurring regime, and in all."""
    error = (pl.col("predicted_s") / pl.col("measured_s") - 1).alias("error")
    errors = predictions.select("regime", error)
    everything = errors.with_columns(regime=pl.lit("all"))
    quantiles = [pl.col("error").quantile(p / 100, "linear").alias(f"p{p}") for p in (5, 50, 95)]
    errors_of = (
        pl.concat([errors, everything])
        .group_by("regime")
        .agg(
            pl.len().cast(pl.Int64).alias("iterations"),
            *quantiles,
            pl.col("error").abs().median().alias("median_error"),
        )
    )
    order = pl.DataFrame({"regime": [*_REGIMES, "all"]})
    return order.join(errors_of, on="regime", how="inner", maintain_order="left")
