"""What a fitted `TimingTable` must say: the lengths of whole iterations, and what they cannot tell."""

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import inferq as iq
from inferq.timing import ChunkPart, DecodePart, LinearPart

CONTEXT = [0, 512, 2048, 8192]
TRUTH = iq.TimingTable(
    linear=LinearPart([1, 16, 64, 256, 1024, 2304], [0.006, 0.0061, 0.0065, 0.009, 0.031, 0.068]),
    chunk=ChunkPart(
        [1, 64, 512, 2048], CONTEXT, [[4e-5 * n**2 * (1 + x / 500) for x in CONTEXT] for n in (1, 2, 4, 7)]
    ),
    decode=DecodePart(
        [1, 8, 32, 256],
        CONTEXT,
        [[2e-5 * n**0.8 + 3e-8 * n * x**0.97 for x in CONTEXT] for n in (1, 8, 32, 256)],
    ),
)
GRIDS = {
    "tokens": TRUTH.linear.tokens,
    "chunk": TRUTH.chunk.chunk,
    "context": TRUTH.chunk.context,
    "sequences": TRUTH.decode.sequences,
    "mean_context": TRUTH.decode.mean_context,
}
POINTS = 6 + 16 + 16


def price(model, log, row):
    """What the core says of one row of a log of at most one chunk an iteration."""
    chunk, context, decodes, total = (
        int(log[name][row]) for name in ("prefill_tokens", "prefill_context", "decodes", "context_tokens")
    )
    each = [total // decodes + (place < total % decodes) for place in range(decodes)] if decodes else []
    return iq.timing.iteration_s(model, chunks=[(chunk, context)] if chunk else [], decodes=each)


def drawn(rows, seed=0, truth=TRUTH):
    """Iterations all over the grid, a third decodes, a third a chunk, a third both."""
    chance = np.random.default_rng(seed)
    kind = chance.integers(0, 3, rows)
    decodes = np.where(kind == 1, 0, np.exp(chance.uniform(0, np.log(256.5), rows)).astype(int))
    chunk = np.where(kind == 0, 0, np.exp(chance.uniform(0, np.log(2048.5), rows)).astype(int))
    context = np.where(chunk > 0, chance.integers(0, 8193, rows), 0)
    log = {
        "prefill_tokens": chunk,
        "decodes": decodes,
        "context_tokens": (decodes * chance.uniform(0, 8192, rows)).astype(int),
        "prefill_squares": chunk**2,
        "prefill_products": chunk * context,
        "prefill_context": context,
    }
    return {"duration_s": np.array([price(truth, log, row) for row in range(rows)]), **log}


LOG, OTHERS = drawn(1500), drawn(150, seed=1)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("robust", [False, True])
def test_iterations_of_a_table_give_the_price_of_every_other_iteration(robust, relative):
    fitted = iq.timing.fit(LOG, "TimingTable", grids=GRIDS, robust=robust, relative=relative)
    for row, duration_s in enumerate(OTHERS["duration_s"]):
        assert math.isclose(price(fitted.model, OTHERS, row), duration_s, rel_tol=1e-5)
    assert fitted.r_squared > 1 - 1e-12
    assert fitted.coefficients["seconds"].min() >= 0


def test_points_chosen_from_the_data_come_close_too():
    fitted = iq.timing.fit(LOG, "TimingTable")
    wrong = [abs(price(fitted.model, OTHERS, row) / OTHERS["duration_s"][row] - 1) for row in range(150)]
    # Twice as many points as the truth has, none of them on its bends.
    assert np.median(wrong) < 0.005
    assert np.quantile(wrong, 0.95) < 0.03


def from_truth(fitted):
    """Relative distances of what is predicted from the lengths without noise."""
    return fitted.predictions["predicted_s"].to_numpy() / LOG["duration_s"] - 1


def test_noise_leaves_what_so_many_points_leave_of_it():
    chance = np.random.default_rng(2)
    noisy = LOG | {"duration_s": LOG["duration_s"] * chance.normal(1, 0.02, 1500)}
    fitted = iq.timing.fit(noisy, "TimingTable", grids=GRIDS, relative=True)
    # Of independent noise σ least squares with p values keeps σ²·χ²(p) in all; the tail of 1 in 10,000.
    from scipy.stats import chi2

    assert np.sum(from_truth(fitted) ** 2) < 0.02**2 * chi2.ppf(1 - 1e-4, POINTS)


def test_huber_is_not_bent_by_one_iteration_in_twenty_that_took_ten_times_as_long():
    chance = np.random.default_rng(3)
    disturbed = np.where(chance.uniform(size=1500) < 0.05, 10, 1) * chance.normal(1, 0.02, 1500)
    log = LOG | {"duration_s": LOG["duration_s"] * disturbed}
    plain = iq.timing.fit(log, "TimingTable", grids=GRIDS, relative=True)
    robust = iq.timing.fit(log, "TimingTable", grids=GRIDS, relative=True, robust=True)
    # Each outlier adds nine lengths: 0.05 · 9 = 45 %.
    # Huber's bias is below 0.1 standard deviations (Huber 1964).
    assert np.median(from_truth(plain)) > 0.3
    assert abs(np.median(from_truth(robust))) < 0.1 * 0.02
    assert np.quantile(np.abs(from_truth(robust)), 0.95) < 0.02


def test_a_run_gives_the_prices_back_by_which_it_ran():
    chance = np.random.default_rng(4)
    workload = {
        "arrival_s": np.arange(300) * 0.1,  # so far apart that no two prompts share an iteration
        "prompt_tokens": np.exp(chance.uniform(3, 7.5, 300)).astype(int),
        "output_tokens": chance.integers(2, 120, 300),
    }
    engine = iq.Engine(timing=TRUTH, scheduler=iq.VllmV1(), kv=iq.KvCache.unlimited())
    log = iq.simulate(workload, engine, iterations=True).single_iterations()
    fitted = iq.timing.fit(log, "TimingTable", relative=True)
    errors = fitted.residuals.filter(regime="all")
    assert errors["median_error"].item() < 0.002
    assert "no prefill_squares" in fitted.explain()
    assert "chunks have no context" in fitted.explain()
    assert set(fitted.coefficients.filter(part="chunk", column=1)["how"]) == {"flat"}
    # The fitted table runs, and a run that it does not reach says so.
    engine = iq.Engine(timing=fitted.model, scheduler=iq.VllmV1(token_budget=300), kv=iq.KvCache.unlimited())
    again = iq.simulate(workload, engine)
    assert any(finding.kind == "beyond-table" for finding in again.findings)


def test_several_chunks_that_are_alike_are_priced_as_each_of_them():
    log = {name: values.copy() for name, values in LOG.items()}
    rows = [row for row in range(1500) if 0 < log["prefill_tokens"][row] < 300][:200]
    for row in rows:
        chunk, context = int(log["prefill_tokens"][row]), int(log["prefill_context"][row])
        decodes, total = int(log["decodes"][row]), int(log["context_tokens"][row])
        each = [total // decodes + (place < total % decodes) for place in range(decodes)] if decodes else []
        log["duration_s"][row] = iq.timing.iteration_s(TRUTH, chunks=[(chunk, context)] * 3, decodes=each)
        for name in ("prefill_tokens", "prefill_squares", "prefill_products", "prefill_context"):
            log[name][row] *= 3
    fitted = iq.timing.fit(log, "TimingTable", grids=GRIDS)
    assert fitted.residuals.filter(regime="all")["p95"].item() < 1e-6
    assert "200 iterations have several chunks" in fitted.explain()


def test_a_corner_without_iterations_continues_the_lines_that_lead_to_it():
    straight = iq.TimingTable(
        linear=TRUTH.linear,
        chunk=TRUTH.chunk,
        decode=DecodePart(
            [1, 8, 32, 256], CONTEXT, [[3e-8 * n * x for x in CONTEXT] for n in (1, 8, 32, 256)]
        ),
    )
    log = drawn(1500, truth=straight)
    there = (log["decodes"] <= 32) | (log["context_tokens"] <= 2048 * log["decodes"])
    log = {name: values[there] for name, values in log.items()}
    fitted = iq.timing.fit(log, "TimingTable", grids=GRIDS)
    assert fitted.coefficients.filter(how="continued")["part", "row", "column"].rows() == [
        ("decode", 256, 8192)
    ]
    corner = [iq.timing.iteration_s(table, decodes=[8192] * 256) for table in (fitted.model, straight)]
    assert math.isclose(*corner, rel_tol=1e-3)


def test_a_log_of_decodes_takes_the_chunks_from_another_table():
    decoding = {name: values[LOG["prefill_tokens"] == 0] for name, values in LOG.items()}
    refused(decoding, "chunk: no iteration has a chunk", 'fixed={"chunk"')
    fitted = iq.timing.fit(decoding, "TimingTable", fixed={"chunk": TRUTH.chunk}, relative=True)
    assert fitted.model.chunk == TRUTH.chunk
    assert fitted.residuals["regime"].to_list() == ["decode small", "decode large", "all"]
    assert fitted.residuals["median_error"].max() < 0.005
    assert set(fitted.coefficients.filter(part="chunk")["how"]) == {"fixed"}
    mixed = iq.timing.fit(
        LOG,
        "TimingTable",
        grids={"tokens": GRIDS["tokens"]},
        fixed={"chunk": TRUTH.chunk, "decode": TRUTH.decode},
    )
    np.testing.assert_allclose(mixed.model.linear.seconds, TRUTH.linear.seconds, rtol=1e-6)


def test_what_is_open_between_the_parts_counts_as_linear_layers():
    shift_s = 2e-5  # a token in the linear part or in attention: whole iterations are alike
    linear, chunk, decode = TRUTH.linear, TRUTH.chunk, TRUTH.decode

    def more(rows, seconds):
        return [[one + shift_s * row for one in line] for row, line in zip(rows, seconds, strict=True)]

    less = [one - shift_s * at for at, one in zip(linear.tokens, linear.seconds, strict=True)]
    other = iq.TimingTable(
        linear=LinearPart(linear.tokens, less),
        chunk=ChunkPart(chunk.chunk, chunk.context, more(chunk.chunk, chunk.seconds)),
        decode=DecodePart(decode.sequences, CONTEXT, more(decode.sequences, decode.seconds)),
    )
    assert math.isclose(price(other, LOG, 0), LOG["duration_s"][0], rel_tol=1e-9)
    found = iq.timing.fit(LOG, "TimingTable", grids=GRIDS).model

    def attention(table):
        return np.sum(np.square(table.chunk.seconds)) + np.sum(np.square(table.decode.seconds))

    assert attention(found) <= attention(TRUTH) * (1 + 1e-6) < attention(other)
    assert np.all(np.greater(found.linear.seconds[1:], other.linear.seconds[1:]))


def test_what_a_fit_says_of_its_grid():
    fitted = iq.timing.fit(LOG, "TimingTable")
    points = fitted.coefficients
    assert points.columns == ["part", "row", "column", "seconds", "iterations", "how"]
    assert points["part"].unique(maintain_order=True).to_list() == ["linear", "chunk", "decode"]
    # Each iteration lies on the linear part once, in shares between its points.
    assert math.isclose(points.filter(part="linear")["iterations"].sum(), 1500)
    continued = points.filter(how="continued")
    assert (continued["iterations"] == 0).all()
    assert f"{continued.height} of {points.height} grid points" in fitted.explain()
    assert "chunk: 8 × 6 points" in str(fitted)
    assert fitted.model.provenance["source"] == "inferq.timing.fit"
    assert fitted.plot() is not None


# What the iterations cannot tell


def refused(log, *words, **options):
    with pytest.raises(iq.ConfigError) as error:
        iq.timing.fit(log, "TimingTable", **options)
    for word in words:
        assert word in str(error.value), str(error.value)


def test_one_batch_size_makes_no_table():
    alike = {name: values[LOG["prefill_tokens"] == 0] for name, values in LOG.items()} | {}
    alike["decodes"] = np.full_like(alike["decodes"], 8)
    refused(alike, "linear.tokens: every iteration has 8", fixed={"chunk": TRUTH.chunk})
    one = LOG | {"prefill_tokens": np.minimum(LOG["prefill_tokens"], 1)}
    one |= {"prefill_squares": one["prefill_tokens"], "prefill_products": LOG["prefill_context"]}
    refused(one, "chunk.chunk: every iteration has 1")


def test_a_grid_point_without_iterations_is_named_with_its_stretch():
    there = (LOG["decodes"] < 10) | (LOG["decodes"] > 200)
    hollow = {name: values[there] for name, values in LOG.items()}
    # Around 32, halfway to 8 and to 256.
    refused(hollow, "decode.sequences: no iteration has 20 to 144", grids=GRIDS)
    assert 32 not in iq.timing.fit(hollow, "TimingTable").model.decode.sequences


def test_grids_that_are_not_given_have_no_point_without_iterations():
    """Mean contexts of 279.7 and 312.25 alone: 279, 280 and 313 would not all lie beside one."""
    decodes = np.tile([20, 40, 80, 160], 50)
    log = {"decodes": decodes, "prefill_tokens": np.repeat([0, 64, 256, 512], 50)}
    log["context_tokens"] = np.where(np.arange(200) % 8 < 4, 279.7, 312.25) * decodes
    log["context_tokens"] = log["context_tokens"].round()
    log["duration_s"] = 0.01 + 1e-5 * (log["prefill_tokens"] + decodes) + 1e-8 * log["context_tokens"]
    table = iq.timing.fit(log, "TimingTable").model
    assert list(table.decode.mean_context) == [279, 313]


def test_values_below_the_unit_of_the_clock_are_nothing():
    """Where all last equally long, attention takes nothing but what rounding leaves."""
    fitted = iq.timing.fit(LOG | {"duration_s": np.full(LOG["decodes"].size, 1e-6)}, "TimingTable")
    seconds = fitted.coefficients["seconds"]
    assert ((seconds == 0) | (seconds >= 1e-18)).all()
    np.testing.assert_allclose(fitted.model.linear.seconds, 1e-6)


def test_too_few_iterations_are_refused():
    few = {name: values[:60] for name, values in LOG.items()}
    chunks = np.unique(few["prefill_tokens"])[
        1:
    ].tolist()  # at two contexts or more: 60 points are not enough
    refused(few, "60 iterations cannot identify", "reduce the points", grids={"chunk": chunks})
    refused({name: values[:5] for name, values in LOG.items()}, "5 iterations cannot identify")


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_one_absurd_iteration_does_not_move_a_robust_table(seed):
    """It has the fewest tokens, so that a table can foretell it alone; 1.35 % is the median of the noise."""
    chance = np.random.default_rng(seed)
    kind = chance.integers(0, 3, 400)
    decodes = np.where(kind == 1, 0, chance.integers(1, 200, 400))
    prefill = np.where(kind == 0, 0, chance.integers(1, 512, 400))
    context = (decodes * chance.uniform(1, 2000, 400)).astype(int)
    seconds = 0.0455 + 3e-4 * np.maximum(prefill + decodes - 64, 0) + 2e-7 * context
    seconds *= chance.normal(1, 0.02, 400)
    seconds[(prefill + decodes).argmin()] = 1e9
    log = {"duration_s": seconds, "prefill_tokens": prefill, "decodes": decodes, "context_tokens": context}
    fitted = iq.timing.fit(log, "TimingTable", robust=True, relative=True)
    assert fitted.residuals.filter(regime="all")["median_error"].item() < 0.02


def test_fixed_parts_that_are_longer_than_the_iterations_are_said_to():
    short = LOG | {"duration_s": LOG["duration_s"] * 0.01}
    fitted = iq.timing.fit(short, "TimingTable", fixed={"linear": TRUTH.linear})
    assert "of the iterations are shorter than the fixed parts" in fitted.explain()
    fitted = iq.timing.fit(LOG, "TimingTable", fixed={"linear": TRUTH.linear})
    assert "fixed parts alone" not in fitted.explain()


def test_other_bad_input_is_named():
    short = GRIDS | {"tokens": [1, 512]}
    refused(LOG, "grids.tokens: must cover the iterations, which have 1 to 2051", grids=short)
    uncut = {
        name: values for name, values in LOG.items() if name not in ("prefill_products", "prefill_context")
    }
    refused(uncut, "grids.context: must cover the iterations", "have 0 to 0", grids={"context": [5, 100]})
    refused(LOG, "grids: 'token' is not an axis", "tokens", grids={"token": [1, 2]})
    refused(LOG, "grids.tokens[1]: must ascend, got 5 after 9", grids={"tokens": [9, 5]})
    refused(LOG, "grids.tokens: must have at least two points", grids={"tokens": [9]})
    refused(LOG, "grids.tokens[0]", grids={"tokens": [0, 9]})
    refused(LOG, "grids.tokens: must be", grids={"tokens": 9})
    refused(LOG, "grids: must map", grids=[1, 2])
    refused(LOG, "grids.chunk: cannot be combined with fixed", grids={"chunk": [1, 9]}, fixed={"chunk": TRUTH.chunk})
    refused(LOG, "fixed: 'chunks' is not a part", "chunk", fixed={"chunks": TRUTH.chunk})
    refused(LOG, "fixed.chunk: must be a ChunkPart", fixed={"chunk": 0.1})
    refused(LOG, "fixed.chunk: must be a ChunkPart, got a DecodePart", fixed={"chunk": TRUTH.decode})
    whole = {"linear": TRUTH.linear, "chunk": TRUTH.chunk, "decode": TRUTH.decode}
    refused(LOG, "fixed: all parts", fixed=whole)
    refused(LOG | {"prefill_squares": LOG["prefill_squares"] * 2}, "prefill_squares must be Σ c²", "Σ c²")
    with pytest.raises(iq.ConfigError, match="grids: PiecewiseLinear has no grids"):
        iq.timing.fit(LOG, grids=GRIDS)


@given(seed=st.integers(0, 10**6), rows=st.sampled_from([2, 5, 20, 80]), robust=st.booleans())
def test_a_fit_says_what_its_table_says_in_a_run(seed, rows, robust):
    chance = np.random.default_rng(seed)
    picked = chance.integers(0, 1500, rows)
    log = {name: values[picked] for name, values in LOG.items()}
    log["duration_s"] = log["duration_s"] * chance.uniform(0.2, 2, rows)
    try:
        fitted = iq.timing.fit(log, "TimingTable", robust=robust)
    except iq.ConfigError:
        return
    for row in range(min(rows, 5)):
        said = fitted.predictions["predicted_s"][row]
        assert math.isclose(price(fitted.model, log, row), said, rel_tol=1e-9, abs_tol=1e-12)
    assert fitted.predictions["predicted_s"].is_finite().all()


def test_rows_that_are_polars_are_the_same():
    ours = iq.timing.fit(LOG, "TimingTable", grids=GRIDS).model
    assert iq.timing.fit(pl.DataFrame(LOG), "TimingTable", grids=GRIDS).model == ours
