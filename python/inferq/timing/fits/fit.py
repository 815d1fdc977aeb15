"""Which timing model describes iterations that were measured?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inferq._lazy import np, pl
from inferq.checks import flag, nearest, not_negative, whole, within
from inferq.description import spelled
from inferq.errors import ConfigError
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
"""What is fitted on a grid, without coefficients of its own."""

_SMALL_BATCH = 16
"""An iteration of decodes only is small up to so many of them."""
_REGIMES = ("decode small", "decode large", "prefill", "mixed")


@dataclass(frozen=True, kw_only=True, repr=False)
class Fit:
    """A timing model made of measured iterations, and how well it meets them; made by `fit`."""

    model: TimingModel
    """What an `Engine` takes as its `timing`."""
    coefficients: pl.DataFrame
    """One row a coefficient: `coefficient`, `value`, `standard_error`, `low` and `high` (between which the
    true value lies with the asked confidence, by Student's t distribution), `unit`, and `how`: `fitted`,
    `fixed` (by the caller), `absent` (its column is not in the log), `bound` (at 0, below which least squares
    alone would go) or `undetermined` (a knee that no iteration shows). Those but `fitted` have no error.

    Of a `TimingTable` one row a grid point: `part`, `row` (tokens of the batch or the chunk, or decodes),
    `column` (context; null for `linear`), `seconds`, `iterations` (how many lie on it, those between points
    in shares) and `how`: `fitted`, `bound`, `fixed`, `continued` (no iteration lies beside it) or `flat` (all
    contexts are alike in the log, so nothing is known of others)."""
    r_squared: float | None
    """1 − (sum of squared residuals) / (sum of squared differences from the mean), in seconds and over all
    iterations alike; None where all last equally long."""
    residuals: pl.DataFrame
    """One row a regime and one for `all`: `regime`, `iterations`, and of predicted / measured − 1 the
    quantiles `p5`, `p50`, `p95` and the median of the absolute value, `median_error`. Regimes: `decode small`
    (decodes only, at most 16), `decode large`, `prefill` (no decodes), `mixed`."""
    predictions: pl.DataFrame
    """One row an iteration, as in the log: `regime`, `tokens`, `measured_s`, `predicted_s`."""
    confidence: float
    robust: bool
    relative: bool
    notes: tuple[str, ...]
    """What to know before trusting it."""

    def plot(self) -> Any:
        """Predicted against measured length, and the relative error against the tokens of the iteration.

        Returns:
            An altair chart of two panels, colored by regime; of large logs evenly spaced iterations.
        """
        from inferq.timing.fits.fit_charts import of_fit

        r_squared = "" if self.r_squared is None else f", R² = {self.r_squared:.4f}"
        fitted = f"{type(self.model).__name__} fitted to {self.predictions.height:,} iterations"
        return of_fit(self.predictions, f"{fitted}{r_squared}")

    def explain(self) -> str:
        """The coefficients with their errors, the misses by regime, and what to know."""
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
        """What `explain()` says."""
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
    """Make a timing model of measured iterations, by least squares with coefficients that are 0 or above.

    | model | coefficients |
    |---|---|
    | `PiecewiseLinear` | `base`, `per_token`, `knee`, `per_context_token`, and two more of long chunks |
    | `MemoryLinear` | `base`, `per_kv_token` |
    | `MixedSolo` | `alpha`, `beta`, `solo` |
    | `TimingTable` | the times at its grid points |

    For a given knee the rest is linear: knees are tried on a grid that gets finer around the best one. Where
    no iteration shows a floor, the knee is 0, or, if the base would then be negative, the fewest tokens of an
    iteration. Of long chunks, `per_prefill_square` and `per_chunk_context` are fitted where the frame has
    their columns, and 0 where it has not.

    A `TimingTable` is linear in the times at its grid points. How much a bend between three neighbors counts
    against it is chosen by cross-validation in five parts; a point beside which no iteration lies thus
    continues its neighbors. Of whole iterations one cannot tell linear layers from attention entirely (a
    decode in any batch is also a token): what is left open counts as linear layers. Of an iteration with
    several chunks only sums are known, and it is taken as that many chunks alike, Σ c² / Σ c tokens each at
    context Σ c·x / Σ c.

    Args:
        frame: one row for each iteration, a polars or pandas frame or a dict of columns: `duration_s`,
            `prefill_tokens` (Σ c over its chunks), `decodes` (rows), `context_tokens` (Σ of the contexts of
            the decodes, before it); optional `start_s`, `prefill_squares` (Σ c²), `prefill_products` (Σ c·x,
            x being the context of the chunk) and `prefill_context` (Σ x; `MemoryLinear` needs it where
            something is prefilled). Other columns are left alone.
        model: one of the names above.
        robust: Huber's loss: residuals beyond 1.345 standard deviations count linearly, so that a few
            iterations that were disturbed do not bend the model. The standard deviation is that of a normal
            distribution with the same median of absolute residuals.
        relative: make the relative errors small, not those in seconds: right when the noise grows with the
            length of the iteration, and when short iterations are to be met as well as long ones.
        fixed: coefficients that are known, such as `{"knee": 0, "per_context_token": 0}`; of a `TimingTable`
            whole parts, such as `{"chunk": other_table.chunk}`.
        grids: of a `TimingTable`, the points of some of its axes: `tokens`, `chunk`, `context`, `sequences`,
            `mean_context`. They reach over all iterations, and around each, halfway to its neighbors, lies
            an iteration. Without them up to 16, 8, 6, 8 and 6 of the values that occur, a constant factor
            apart, and fewer if there are not four iterations a grid point.
        confidence: of `low` and `high` of each coefficient.
        check_units: refuse durations that look like milliseconds: half of them above 2, or, with `start_s`,
            more than 100 iterations at once.

    Returns:
        The model, its coefficients with standard errors that hold also where the noise depends on the length
        (White's sandwich, HC3), R², the residuals by regime.

    Raises:
        ConfigError: a column is missing; a value is missing, not finite, negative or not whole (named with
            its row); durations look like milliseconds; too few iterations; iterations that cannot identify a
            coefficient, which is named; an argument is wrong.

    Source: HC3: MacKinnon and White (1985); the loss: Huber (1964).

    Example:
        The fit of lin2026 for Qwen3-8B comes back from iterations that follow it:

        >>> import inferq as iq
        >>> log = {
        ...     "prefill_tokens": [64, 128, 256, 512, 0, 0],
        ...     "decodes": [8, 8, 4, 0, 8, 16],
        ...     "context_tokens": [900, 910, 400, 0, 950, 2000],
        ... }
        >>> log["duration_s"] = [0.0174 + 6.2e-5 * c if c else 0.022 for c in log["prefill_tokens"]]
        >>> found = iq.timing.fit(log, "MixedSolo").model
        >>> [round(number, 9) for number in (found.alpha, found.beta, found.solo)]
        [0.0174, 6.2e-05, 0.022]
    """
    kind = spelled(model, (*LINEAR, TABLE))
    if kind is None:
        raise ConfigError(
            "model", f"{model!r} is none that can be fitted{nearest(str(model), [*LINEAR, TABLE])}"
        )
    robust, relative = flag("robust", robust), flag("relative", relative)
    check_units = flag("check_units", check_units)
    confidence = within("confidence", confidence, 0.5, 0.999999)
    log = checked_log(frame, check_units)
    if kind == TABLE:
        return _table(log, grids, fixed, robust, relative, confidence)
    if grids is not None:
        raise ConfigError("grids", f"a {kind} has none, only a {TABLE}")
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
        raise ConfigError("fixed", f"must map coefficients to numbers, not {fixed!r}")
    values = {}
    for name, value in fixed.items():
        if name not in names:
            raise ConfigError(
                "fixed", f"{name!r} is no coefficient of {linear.kind.__name__}{nearest(str(name), names)}"
            )
        path = f"fixed.{name}"
        values[name] = (
            float(whole(path, value, 0, MOST_TOKENS)) if name == "knee" else not_negative(path, value)
        )
    return values


class _Fitting:
    """One call of `fit`: which coefficients are asked for, and what was found."""

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
        # An optional term without its column can only be held at 0, which the check has seen to.
        self.terms = [term for term in linear.terms if term.name not in self.absent]
        self.free = [term for term in self.terms if term.name not in fixed]
        self.columns = {term.name: term.column(log) for term in self.terms}
        flat = linear.kneed is not None and fixed.get(linear.kneed) == 0
        self.search = linear.kneed is not None and "knee" not in fixed and not flat
        # A base that may be anything makes up for every knee that no iteration lies below.
        self.floor = 0 if "base" in fixed else int(self.tokens.min())
        self._check_rows()

    def _check_columns(self) -> None:
        for term in self.linear.terms:
            if term.needs is None or term.needs in self.log:
                continue
            if term.optional and self.fixed.get(term.name):
                raise ConfigError(f"fixed.{term.name}", f"the frame has no column {term.needs}")
            if not term.optional and self.log["prefill_tokens"].any():
                raise ConfigError(
                    term.name,
                    f"the frame has prefill_tokens but no column {term.needs} "
                    "(Σ of the contexts of the chunks; 0 where no prompt is cut)",
                )

    def _check_rows(self) -> None:
        rows, unknowns = self.tokens.size, len(self.free) + self.search
        if rows <= unknowns:
            raise ConfigError(
                "frame", f"{unknowns} coefficients need at least {unknowns + 1} iterations, not {rows}"
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
                    f"every iteration has {column[0]:g} {term.counted}, so it cannot be told "
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
                    f"{shapes} different iterations cannot tell it beside "
                    f"{', '.join(term.name for term in self.free)}: {_remedy('knee')}",
                )

    def design(self, knee: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The columns of the coefficients that are asked for, and the seconds of those that are known."""

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
        """Solve, judge, describe."""
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
        """Refuse columns of which one is a sum of the others at the knee that was found."""
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
                f"what they multiply ({counted}) moves together in these iterations: "
                f"{_remedy(names[mixed[-1]])}",
            )

    def _errors(self, solution: Solution, values: dict[str, float]) -> dict[str, float]:
        """The standard errors of the coefficients inside their bounds."""
        names = [term.name for term in self.free]
        columns = self.design(solution.knee)[0]
        inside = [place for place, name in enumerate(names) if values[name] > 0]
        parts: list[NDArray[np.float64]] = [columns[:, place] for place in inside]
        kept = [names[place] for place in inside]
        kneed = self.linear.kneed
        if self.search and kneed and values[kneed] > 0 and solution.knee > self.floor:
            parts.append(np.where(self.tokens > solution.knee, -values[kneed], 0.0))
            kept.append("knee")
        if not parts:
            return {}
        errors = standard_errors(np.column_stack(parts) * solution.weights[:, None], solution)
        return dict(zip(kept, errors.tolist(), strict=True))

    def _coefficients(self, values: dict[str, float], errors: dict[str, float]) -> pl.DataFrame:
        from scipy.stats import t

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
                notes.append(f"{name} is 0: the log has no column {needs}.")
            elif how == "bound":
                notes.append(f"{name} is 0: without that bound it would come out negative or as nothing.")
            elif how == "undetermined":
                notes.append(
                    f"No iteration shows a floor: the knee is set to {row['value']:g}, which changes nothing "
                    f"from the fewest tokens measured ({self.tokens.min():g}) on."
                )
            elif how == "fitted" and row["low"] == 0:
                sure = f"{100 * self.confidence:g} %"
                notes.append(f"{name} cannot be told from 0 with {sure} confidence by these iterations.")
        most = (
            f"{self.tokens.max():,.0f} tokens and {self.log['context_tokens'].max():,.0f} of decode context"
        )
        notes.append(f"It was measured up to {most}; beyond, the lines go on and nothing says so.")
        return tuple(notes)


def _coefficient_lines(coefficients: pl.DataFrame) -> list[str]:
    lines = []
    for row in coefficients.iter_rows(named=True):
        error = row["standard_error"]
        sure = f"± {error:.2g}" if error is not None else f"({row['how']})"
        lines.append(f"  {row['coefficient']} = {row['value']:.6g} {sure} {row['unit']}")
    return lines


def _grid_lines(points: pl.DataFrame) -> list[str]:
    """Of each part of a table its axes, and between which times it lies."""
    words = {"linear": ("tokens", ""), "chunk": ("tokens", "context"), "decode": ("decodes", "mean context")}
    lines = []
    for part, (rows, columns) in words.items():
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
    """What to do about a coefficient that the iterations do not identify."""
    return f'add iterations that differ in it, or say fixed={{"{name}": …}}'


def _predictions(log: Log, predicted: NDArray[np.float64]) -> pl.DataFrame:
    """One row an iteration: `regime`, `tokens`, `measured_s`, `predicted_s`."""
    prefilling, decodes = log["prefill_tokens"] > 0, log["decodes"]
    alone = np.where(decodes <= _SMALL_BATCH, _REGIMES[0], _REGIMES[1])
    regime = np.where(prefilling, np.where(decodes > 0, _REGIMES[3], _REGIMES[2]), alone)
    return pl.DataFrame(
        {"regime": regime, "tokens": tokens(log), "measured_s": log["duration_s"], "predicted_s": predicted}
    )


def _r_squared(measured: NDArray[np.float64], predicted: NDArray[np.float64]) -> float | None:
    """1 − (sum of squared residuals) / (sum of squared differences from the mean); None if all are alike."""
    if np.ptp(measured) <= 1e-12 * measured.max():
        return None
    left = float(np.sum((measured - predicted) ** 2))
    return 1 - left / float(np.sum((measured - measured.mean()) ** 2))


def _by_regime(predictions: pl.DataFrame) -> pl.DataFrame:
    """Quantiles of the relative error in each regime that occurs, and in all."""
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
