"""What `iq.timing.fit` must find: the coefficients that made the data, and what the data cannot tell."""

import json
import math

import altair as alt
import numpy as np
import polars as pl
import pytest

import inferq as iq
from inferq.display.style import svg

TRUE = {"base": 0.0455, "per_token": 0.0003, "knee": 64, "per_context_token": 2e-7}


def drawn(rows, seed=0, **truth):
    """Iterations of all regimes with the lengths that a `PiecewiseLinear` gives them, in exact terms."""
    chance = np.random.default_rng(seed)
    kind = chance.integers(0, 3, rows)
    decodes = np.where(kind == 1, 0, chance.integers(1, 200, rows))
    prefill = np.where(kind == 0, 0, chance.integers(1, 512, rows))
    context = (decodes * chance.uniform(10, 2000, rows)).astype(int)
    chunk_context = np.where(prefill > 0, chance.integers(0, 4000, rows), 0)
    terms = TRUE | truth
    duration = (
        terms["base"]
        + terms["per_token"] * np.maximum(prefill + decodes - terms["knee"], 0)
        + terms["per_context_token"] * context
        + terms.get("per_prefill_square", 0) * prefill**2
        + terms.get("per_chunk_context", 0) * prefill * chunk_context
    )
    return {
        "duration_s": duration,
        "prefill_tokens": prefill,
        "decodes": decodes,
        "context_tokens": context,
        "prefill_squares": prefill**2,
        "prefill_products": prefill * chunk_context,
        "prefill_context": chunk_context,
    }


def short(log):
    return {name: log[name] for name in ("duration_s", "prefill_tokens", "decodes", "context_tokens")}


def coefficients(fitted):
    return {name: value for name, value in fitted.coefficients.select("coefficient", "value").iter_rows()}


def run_under(timing, budget=256):
    chance = np.random.default_rng(3)
    count = 150
    workload = {
        "arrival_s": np.sort(chance.uniform(0, 40, count)),
        "prompt_tokens": chance.integers(1, 200, count),
        "output_tokens": chance.integers(1, 60, count),
    }
    engine = iq.Engine(timing=timing, scheduler=iq.Sarathi(token_budget=budget), kv=iq.KvCache.unlimited())
    return iq.simulate(workload, engine, iterations=True)


def test_iterations_of_a_run_follow_one_another_and_are_as_many_as_it_had():
    run = run_under(iq.PiecewiseLinear(**TRUE))
    log = run.single_iterations()
    assert log.height == run.iterations["count"].sum()
    end_s = log["start_s"] + log["duration_s"]
    assert (log["start_s"][1:] - end_s[:-1]).min() > -1e-9
    assert math.isclose(end_s.max(), run.requests["finish_s"].max(), rel_tol=1e-12)


def test_iterations_of_a_run_give_its_model_back():
    truth = iq.PiecewiseLinear(**TRUE)
    found = iq.timing.fit(run_under(truth).single_iterations()).model
    assert found.knee == truth.knee
    for name in ("base", "per_token", "per_context_token"):
        assert math.isclose(getattr(found, name), getattr(truth, name), rel_tol=1e-8)


def test_a_run_under_memory_linear_gives_it_back():
    truth = iq.research.MemoryLinear(base=0.015, per_kv_token=2.6e-7)
    log = run_under(truth, budget=100_000).single_iterations()  # no prompt is cut
    fitted = iq.timing.fit(log.with_columns(prefill_context=pl.lit(0)), "MemoryLinear")
    assert math.isclose(fitted.model.base, truth.base, rel_tol=1e-9)
    assert math.isclose(fitted.model.per_kv_token, truth.per_kv_token, rel_tol=1e-8)
    assert fitted.r_squared > 1 - 1e-12


@pytest.mark.parametrize(
    ("alpha", "beta", "tokens_per_s"), [(0.0174, 6.2e-5, 45.45), (0.0152, 3.6e-5, 52.63)]
)
def test_the_fits_of_lin2026_come_back(alpha, beta, tokens_per_s):
    truth = iq.research.MixedSolo(alpha=alpha, beta=beta, solo=1 / tokens_per_s)
    found = iq.timing.fit(run_under(truth).single_iterations(), "MixedSolo").model
    assert math.isclose(found.alpha, alpha, rel_tol=1e-9)
    assert math.isclose(found.beta, beta, rel_tol=1e-9)
    assert math.isclose(1 / found.solo, tokens_per_s, rel_tol=1e-9)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("robust", [False, True])
def test_all_terms_come_back_from_exact_data(robust, relative):
    log = drawn(400, per_prefill_square=3e-8, per_chunk_context=6e-8)
    fitted = iq.timing.fit(log, robust=robust, relative=relative)
    wanted = TRUE | {"per_prefill_square": 3e-8, "per_chunk_context": 6e-8}
    found = coefficients(fitted)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert math.isclose(found[name], value, rel_tol=1e-7), name
    assert fitted.r_squared > 1 - 1e-12
    assert fitted.residuals["p95"].abs().max() < 1e-9


@pytest.mark.parametrize("knee", [5, 17, 130, 300, 450])
def test_the_knee_is_found_wherever_it_is(knee):
    assert iq.timing.fit(short(drawn(500, seed=knee, knee=knee))).model.knee == knee


def test_a_line_without_a_floor_has_no_knee():
    fitted = iq.timing.fit(short(drawn(300, knee=0)))
    assert fitted.model.knee == 0
    assert fitted.coefficients.filter(pl.col("coefficient") == "knee")["how"].item() == "undetermined"
    assert "floor" in fitted.explain()


def test_a_line_through_the_origin_ends_where_its_data_begin():
    log = decoding(list(range(50, 90)), [40 * (n % 7) for n in range(40)])
    log["duration_s"] = [1e-3 * (d - 20) for d in log["decodes"]]  # the base would be -0.02 s with knee 0
    fitted = iq.timing.fit(log)
    assert (fitted.model.base >= 0, 20 <= fitted.model.knee <= 50) == (True, True)
    np.testing.assert_allclose(fitted.predictions["predicted_s"], log["duration_s"], rtol=1e-9)


def test_a_known_base_shows_a_knee_below_all_iterations():
    log = decoding(list(range(50, 90)), [40 * (n % 7) for n in range(40)])
    log["duration_s"] = [0.01 + 1e-3 * (d - 20) for d in log["decodes"]]
    fitted = iq.timing.fit(log, fixed={"base": 0.01})
    assert fitted.model.knee == 20
    assert math.isclose(fitted.model.per_token, 1e-3, rel_tol=1e-9)


def covered(noisy, runs, **options):
    """How often the interval of each coefficient holds the truth."""
    held = dict.fromkeys(TRUE, 0)
    for seed in range(runs):
        log = short(drawn(300, seed=seed))
        log["duration_s"] = noisy(log["duration_s"], np.random.default_rng([seed, 77]))
        for row in iq.timing.fit(log, **options).coefficients.iter_rows(named=True):
            if row["coefficient"] in held and row["how"] == "fitted":
                held[row["coefficient"]] += row["low"] <= TRUE[row["coefficient"]] <= row["high"]
    return held


def within_chance(hits, runs, share):
    """Whether so many hits are what a share of that size gives in all but 1 of 10,000 experiments."""
    from scipy.stats import binom

    return binom.ppf(5e-5, runs, share) <= hits <= binom.ppf(1 - 5e-5, runs, share)


def same_noise(duration, chance):
    return duration + chance.normal(0, 0.003, duration.size)


def growing_noise(duration, chance):
    return duration * chance.normal(1, 0.05, duration.size)


@pytest.mark.parametrize(
    ("noisy", "options"),
    [
        (same_noise, {}),
        (growing_noise, {}),
        (growing_noise, {"relative": True}),
        (same_noise, {"robust": True}),
    ],
)
def test_intervals_hold_the_truth_as_often_as_they_say(noisy, options):
    runs, share = 150, 0.9
    held = covered(noisy, runs, confidence=share, **options)
    # Whole knees and the kink make the knee only nearly normal; it may be held more often.
    assert all(within_chance(held[name], runs, share) for name in TRUE if name != "knee"), held
    assert within_chance(held["knee"], runs, share) or held["knee"] > share * runs, held


def test_huber_is_not_bent_by_one_iteration_in_twenty_that_took_ten_times_as_long():
    log = short(drawn(2000))
    chance = np.random.default_rng(5)
    log["duration_s"] = log["duration_s"] * chance.normal(1, 0.01, 2000)
    log["duration_s"] = np.where(chance.uniform(size=2000) < 0.05, 10, 1) * log["duration_s"]
    plain, robust = iq.timing.fit(log), iq.timing.fit(log, robust=True)
    # Huber's bias in the location under 5 % one-sided outliers is below 0.1 standard deviations (Huber 1964);
    # those are at most 1 % of 0.2 s here.
    assert abs(robust.model.base - TRUE["base"]) < 0.1 * 0.01 * 0.2
    assert abs(robust.model.per_token / TRUE["per_token"] - 1) < 0.02
    assert abs(robust.model.knee - TRUE["knee"]) < 10
    # Each outlier adds nine lengths, so the ordinary fit is too long by 0.05·9 = 45 %.
    assert plain.predictions["predicted_s"].sum() / plain.predictions["measured_s"].sum() == pytest.approx(1)
    assert plain.residuals.filter(pl.col("regime") == "all")["p50"].item() > 0.3


def test_residuals_are_told_by_regime():
    fitted = iq.timing.fit(short(drawn(900)))
    told = fitted.residuals
    assert told["regime"].to_list() == ["decode small", "decode large", "prefill", "mixed", "all"]
    assert told["iterations"][:-1].sum() == told["iterations"][-1] == 900


def test_a_known_coefficient_is_kept_and_the_others_are_fitted_beside_it():
    fitted = iq.timing.fit(short(drawn(300)), fixed={"knee": 64, "per_context_token": 2e-7})
    assert fitted.model.knee == 64
    assert fitted.model.per_context_token == 2e-7
    assert math.isclose(fitted.model.per_token, TRUE["per_token"], rel_tol=1e-9)
    assert fitted.coefficients.filter(pl.col("how") == "fixed").height == 2


def test_a_coefficient_that_would_be_negative_is_zero_and_said():
    log = short(drawn(300, per_context_token=0.0, knee=0))
    log["duration_s"] = log["duration_s"] - 1e-9 * log["context_tokens"]
    fitted = iq.timing.fit(log, fixed={"knee": 0})
    assert fitted.model.per_context_token == 0
    assert "per_context_token is 0" in fitted.explain()


def test_iterations_that_all_last_equally_long_have_no_r_squared():
    log = short(drawn(50, per_token=0.0, per_context_token=0.0))
    fitted = iq.timing.fit(log)
    assert fitted.r_squared is None
    assert math.isclose(fitted.model.base, TRUE["base"], rel_tol=1e-12)
    assert (fitted.model.per_token, fitted.model.knee) == (0, 0)


def test_the_model_of_a_fit_runs_and_reads_back():
    fitted = iq.timing.fit(drawn(300))
    engine = iq.Engine(timing=fitted.model, scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
    assert "PiecewiseLinear" in json.dumps(engine.to_json())
    assert str(fitted) == fitted.explain()
    assert repr(fitted).startswith("Fit(PiecewiseLinear(")


def test_the_plot_shows_every_regime_once():
    chart = iq.timing.fit(short(drawn(300))).plot()
    assert isinstance(chart, alt.VConcatChart)
    picture = svg(chart)
    for words in (
        "decode small",
        "decode large",
        "prefill",
        "mixed",
        "measured (s)",
        "tokens of the iteration",
    ):
        assert words in picture


# What the data cannot tell


def refused(log, *words, **options):
    with pytest.raises(iq.ConfigError) as error:
        iq.timing.fit(log, **options)
    for word in words:
        assert word in str(error.value), str(error.value)


def decoding(decodes, context):
    rows = len(decodes)
    duration = np.random.default_rng(1).uniform(0.01, 0.02, rows)
    return {
        "duration_s": duration,
        "prefill_tokens": [0] * rows,
        "decodes": decodes,
        "context_tokens": context,
    }


def test_one_count_of_decodes_cannot_tell_the_cost_of_a_token():
    refused(decoding([8] * 20, list(range(100, 120))), "per_token: every iteration has 8 tokens", "base")


def test_one_count_of_decodes_tells_the_cost_of_a_token_where_the_base_is_known():
    log = decoding([8] * 20, [10 * (n % 7) for n in range(20)])
    log["duration_s"] = [0.01 + 8e-4 + 1e-6 * context for context in log["context_tokens"]]
    fitted = iq.timing.fit(log, fixed={"base": 0.01, "knee": 0})
    assert math.isclose(fitted.model.per_token, 1e-4, rel_tol=1e-9)


def test_no_context_cannot_tell_its_cost():
    log = decoding([0] * 20, [0] * 20) | {"prefill_tokens": list(range(1, 21))}
    refused(log, "per_context_token: no iteration has context_tokens", "fixed=")


def test_context_that_follows_the_decodes_is_refused_where_the_knee_is_known():
    decodes = list(range(1, 41))
    log = decoding(decodes, [100 * d for d in decodes])
    refused(log, "per_token, per_context_token:", "linearly dependent", fixed={"knee": 0})
    fitted = iq.timing.fit(log, fixed={"knee": 0, "per_context_token": 0})
    assert fitted.model.per_context_token == 0


def test_two_counts_of_tokens_cannot_tell_the_knee():
    refused(decoding([4, 8] * 10, list(range(100, 120))), "knee:", 'fixed={"knee"')


def test_a_knee_beyond_all_iterations_is_refused():
    refused(short(drawn(50)), "per_token: no iteration has tokens above the knee", fixed={"knee": 5000})


def test_decodes_alone_cannot_tell_what_a_chunk_costs():
    refused(decoding([1, 2, 3, 4], [10, 20, 30, 45]), "alpha: no iteration has", model="MixedSolo")


def test_cut_prompts_without_their_context_are_refused_for_memory():
    refused(short(drawn(50)), "per_kv_token", "prefill_context", model="MemoryLinear")


def test_too_few_iterations_are_refused():
    refused(short(drawn(4)), "4 coefficients require at least 5 iterations, got 4")


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("duration_s", math.nan, ("row 7: duration_s must be a finite number, got nan",)),
        ("duration_s", -0.01, ("row 7: duration_s must be positive, got -0.01",)),
        ("duration_s", 0.0, ("row 7: duration_s must be positive, got 0",)),
        ("decodes", -1, ("row 7: decodes must be non-negative, got -1",)),
        ("prefill_tokens", 1.5, ("row 7: prefill_tokens must be an integer, got 1.5",)),
        ("context_tokens", math.inf, ("row 7: context_tokens must be a finite number, got inf",)),
    ],
)
def test_a_wrong_value_is_named_with_its_row(column, value, words):
    log = short(drawn(20))
    log[column] = log[column].astype(float)
    log[column][7] = value
    refused(log, *words)


def test_other_bad_input_is_named():
    log = short(drawn(20))
    refused([1, 2], "frame: must be")
    refused({name: log[name] for name in log if name != "decodes"}, "frame: missing column decodes")
    refused(log | {"decodes": ["a"] * 20}, "decodes: must contain numbers")
    refused(log | {"prefill_tokens": [0] * 20, "decodes": [0] * 20}, "row 0: decodes is 0", "must compute tokens")
    refused(log, "model: 'Piecewise'", "PiecewiseLinear", model="Piecewise")
    refused(log, "fixed: 'kne'", "knee", fixed={"kne": 3})
    refused(log, "fixed.base", fixed={"base": -1})
    refused(log, "fixed.knee", fixed={"knee": 1.5})
    refused(log, "fixed.per_prefill_square", "prefill_squares", fixed={"per_prefill_square": 1e-8})
    refused(log, "robust", robust=1)
    refused(log, "confidence", confidence=2)
    refused(log | {"decodes": [1, 2]}, "frame: columns differ in length")


def test_milliseconds_are_recognized_and_may_be_meant():
    log = short(drawn(100))
    thousand = log | {"duration_s": 1000 * log["duration_s"]}
    refused(thousand, "duration_s", "milliseconds", "check_units=False")
    assert iq.timing.fit(thousand, check_units=False).model.knee == TRUE["knee"]
    start_s = np.concatenate([[0], np.cumsum(log["duration_s"])[:-1]])
    fast = log | {"duration_s": log["duration_s"] * 10, "start_s": start_s / 100}  # 1 ms each, in ms
    refused(fast, "are concurrent on average", "milliseconds")
    alone = iq.timing.fit(log | {"start_s": start_s})
    assert alone.model.knee == TRUE["knee"]
    assert "iterations begin within" not in alone.explain()
    noise = np.random.default_rng(1).normal(1, 0.02, 100)  # durations and starts are not of one clock
    rough = log | {"start_s": start_s, "duration_s": log["duration_s"] * noise}
    assert "iterations begin within" not in iq.timing.fit(rough).explain()


def test_a_time_of_day_is_no_duration():
    log = short(drawn(20))
    log["duration_s"][7] = 1.76e9
    refused(log, "row 7: duration_s must be from 1e-12 to 1e+09 s, got 1.76e+09", check_units=False)


@pytest.mark.parametrize("relative", [False, True])
def test_one_absurd_iteration_does_not_move_a_robust_fit(relative):
    log = short(drawn(400))
    log["duration_s"] *= np.random.default_rng(2).normal(1, 0.02, 400)
    without = iq.timing.fit({name: log[name][1:] for name in log}, robust=True, relative=relative).model
    log["duration_s"][0] = 1e9
    found = iq.timing.fit(log, robust=True, relative=relative).model
    assert found.knee == pytest.approx(without.knee, abs=2)
    assert found.base == pytest.approx(without.base, rel=2e-3)
    assert found.per_token == pytest.approx(without.per_token, rel=2e-3)


def test_a_knee_among_few_different_iterations_is_refused():
    """Three batches, each measured often, can be met with any knee below two of them."""
    log = {name: np.repeat(values[:3], 50) for name, values in short(drawn(400)).items()}
    refused(log, "knee: 3 different iterations", "base, per_token, per_context_token", 'fixed={"knee": …}')
    assert iq.timing.fit(log, fixed={"knee": 0, "per_context_token": TRUE["per_context_token"]})


def test_iterations_that_overlap_are_said_to():
    log = short(drawn(100))
    start_s = np.concatenate([[0], np.cumsum(log["duration_s"])[:-1]])
    start_s[30:] -= 0.9 * log["duration_s"][29]
    start_s[60:] -= 0.9 * log["duration_s"][59]
    assert "2% of the iterations begin within" in iq.timing.fit(log | {"start_s": start_s}).explain()


# Files


def test_a_table_with_other_names_and_units_is_read(tmp_path):
    log = short(drawn(50))
    path = tmp_path / "steps.csv"
    named = pl.DataFrame({"ms": log["duration_s"] * 1e3, **{n: log[n] for n in log if n != "duration_s"}})
    named.rename({"decodes": "n_decode"}).write_csv(path)
    read = iq.timing.read_iterations(path, columns={"duration_s": "ms", "decodes": "n_decode"}, unit="ms")
    assert read["decodes"].to_list() == log["decodes"].tolist()
    np.testing.assert_allclose(read["duration_s"], log["duration_s"], rtol=1e-12)
    with pytest.raises(iq.TraceError, match=r"steps.csv: has no column for duration_s; its columns are ms"):
        iq.timing.read_iterations(path)
    with pytest.raises(iq.ConfigError, match="unit: unknown unit of time 'hours'"):
        iq.timing.read_iterations(path, unit="hours")
    with pytest.raises(iq.ConfigError, match=r"columns: 'decode' .* decodes"):
        iq.timing.read_iterations(path, columns={"decode": "n_decode"})
    with pytest.raises(iq.TraceError, match="has no column 'n_decod'; did you mean n_decode"):
        iq.timing.read_iterations(path, columns={"decodes": "n_decod"})
    (tmp_path / "wrong.csv").write_text(
        "duration_s,prefill_tokens,decodes,context_tokens\n0.1,1,1,1\n-1,1,1,1\n"
    )
    with pytest.raises(iq.TraceError, match=r"wrong.csv: row 1: duration_s must be positive, got -1"):
        iq.timing.read_iterations(tmp_path / "wrong.csv")
    (tmp_path / "wrong.csv").write_text("duration_s;prefill_tokens;decodes;context_tokens\n0,1;1;1;1\n")
    with pytest.raises(iq.TraceError, match=r"wrong.csv: must have commas between fields, got ';'"):
        iq.timing.read_iterations(tmp_path / "wrong.csv")
