"""What becomes of the files that Vidur's profiler writes: iterations, or a table."""

import math

import numpy as np
import polars as pl
import pytest

import inferq as iq

SHAPE = {"n_kv_head": 8, "n_embd": 4096, "num_tensor_parallel_workers": 1}
LINEAR_KERNELS = (
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "post_attention_layernorm",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
    "add",
)


def vidur_files(folder, shape=None):
    """A profile in the layout of Vidur's with kernels of made-up times: 0.001 ms a token and kernel."""
    shape = SHAPE | (shape or {})
    tokens = [1, 10, 100, 1000]
    linear = {f"time_stats.{name}.median": [0.001 * t for t in tokens] for name in LINEAR_KERNELS}
    linear |= {"time_stats.emb.median": [5.0] * 4, "num_tokens": tokens, "n_head": [32] * 4}
    linear |= {"n_expanded_embd": [14336] * 4} | {name: [value] * 4 for name, value in shape.items()}
    pl.DataFrame(linear).write_csv(folder / "mlp.csv")
    attention = {
        "time_stats.attn_prefill.median": [0.2, None, None],
        "time_stats.attn_decode.median": [None, 0.05, 0.3],
        "time_stats.attn_kv_cache_save.median": [0.01, 0.02, None],
        "batch_size": [1, 4, 50],
        "prefill_chunk_size": [64, 0, 0],
        "kv_cache_size": [128, 256, 512],
        "n_q_head": [32] * 3,
    } | {name: [value] * 3 for name, value in shape.items()}
    pl.DataFrame(attention).write_csv(folder / "attention.csv")
    return folder / "mlp.csv", folder / "attention.csv"


def test_a_profile_of_vidur_becomes_iterations(tmp_path):
    read = iq.timing.read_vidur_profile(*vidur_files(tmp_path), layers=32)
    # A layer of t tokens: nine kernels of 0.001·t ms; then attention and the writing of keys and values.
    per_layer_ms = [9 * 0.064 + 0.2 + 0.01, 9 * 0.004 + 0.05 + 0.02, 9 * 0.05 + 0.3]
    np.testing.assert_allclose(read["duration_s"], [32 * ms / 1000 for ms in per_layer_ms], rtol=1e-12)
    assert read.drop("duration_s").rows() == [
        (64, 0, 0, 4096, 8192, 128),
        (0, 4, 1024, 0, 0, 0),
        (0, 50, 25600, 0, 0, 0),
    ]


def test_a_profile_of_vidur_that_does_not_fit_is_named(tmp_path):
    linear, attention = vidur_files(tmp_path)
    read = iq.timing.read_vidur_profile
    with pytest.raises(iq.TraceError, match=r"mlp.csv: has no rows for tensor_parallel=2, only for 1"):
        read(linear, attention, layers=32, tensor_parallel=2)
    with pytest.raises(iq.TraceError, match=r"attention.csv: has no column .*it is not a profile of Vidur"):
        read(attention, linear, layers=32)
    with pytest.raises(iq.ConfigError, match="layers"):
        read(linear, attention, layers=0)
    two = pl.read_csv(linear)
    other = two.with_columns(n_embd=pl.lit(8192, pl.Int64))
    pl.concat([two, other]).write_csv(linear)
    with pytest.raises(iq.TraceError, match="contains 2 models"):
        read(linear, attention, layers=32)
    two.filter(pl.col("num_tokens") < 64).write_csv(linear)
    with pytest.raises(iq.TraceError, match=r"row 0 of this model: has 64 tokens, outside the range of .*, 1 to 10"):
        read(linear, attention, layers=32)


# A table

HIDDEN, LAYERS = 4096, 32
CHUNKS, BATCHES = [64, 128, 256, 512, 1024, 2048, 4096], [1, 2, 4, 8, 16, 32, 64, 128]
CONTEXTS = [0, 64, 256, 1024, 2048, 3072, 4096]


def linear_ms(tokens):
    """Nine kernels: a weight load, then each token."""
    return 9 * (0.02 + 0.0002 * tokens)


def chunk_ms(chunk, context):
    return 0.01 + 1e-7 * chunk * (context + chunk / 2)


def decode_ms(batch, context):
    return 0.005 + 3e-6 * batch * (context + 100)


def written(folder, name, columns, rows, texts=None):
    """A file in Vidur's layout: five statistics of each kernel, of which the median counts, and the shape."""
    frame = {}
    for column, values in columns.items():
        for statistic in ("min", "max", "mean", "median", "std"):
            frame[f"time_stats.{column}.{statistic}"] = values if statistic == "median" else [99.0] * rows
    pl.DataFrame(frame | (texts or {})).write_csv(folder / name)
    return folder / name


def profile(folder, workers=1, limit=4096, most=2**17):
    """Files as the profiler of a model of 4,096 tokens leaves them: corners are missing, ends come twice."""
    shape = {"n_kv_head": 8, "n_embd": HIDDEN, "num_tensor_parallel_workers": workers}
    tokens = [8192, 8192, *range(8064, 0, -128), 1]
    kernels = {name: [linear_ms(t) / 9 for t in tokens] for name in LINEAR_KERNELS}
    about = {"n_head": 32, "n_expanded_embd": 14336, "vocab_size": 128256, "use_gated_mlp": True} | shape
    texts = {name: [value] * len(tokens) for name, value in about.items()} | {"num_tokens": tokens}
    mlp = written(folder, "mlp.csv", kernels | {"emb": [7.0] * len(tokens)}, len(tokens), texts)
    rows = [(1, c, x) for c in CHUNKS for x in CONTEXTS if c + x <= limit]
    rows += [(n, 0, x) for n in BATCHES for x in CONTEXTS if n * x <= most]
    rows.append(rows[-1])
    times = {
        "attn_input_reshape": [0.0] * len(rows),
        "attn_kv_cache_save": [0.002] * len(rows),
        "attn_prefill": [chunk_ms(c, x) if c else 0.0 for _, c, x in rows],
        "attn_decode": [0.0 if c else decode_ms(n, x) for n, c, x in rows],
    }
    about = {"n_q_head": 32, "block_size": 16, "max_model_len": limit} | shape
    texts = {name: [value] * len(rows) for name, value in about.items()}
    for place, name in enumerate(("batch_size", "prefill_chunk_size", "kv_cache_size")):
        texts[name] = [row[place] for row in rows]
    texts["attention_backend"] = ["AttentionBackend.FLASHINFER"] * len(rows)
    return mlp, written(folder, "attention.csv", times, len(rows), texts)


def network(folder):
    """All-reduces of 2 and of 4 GPUs; those over nodes take ten times as long."""
    rows = [(w, d, s) for w in (2, 4) for d in (1, w) for s in (8192, 65536, 2**20, 2**26)]
    texts = {"rank": [0] * len(rows), "collective": ["all_reduce"] * len(rows)}
    for place, name in enumerate(("num_workers", "devices_per_node", "size")):
        texts[name] = [row[place] for row in rows]
    times = [(0.01 * w + 1e-8 * s) * (1 if d == w else 10) for w, d, s in rows]
    return written(folder, "all_reduce.csv", {"all_reduce": times}, len(rows), texts)


def test_a_table_of_a_profile_prices_what_was_measured_and_continues_it(tmp_path):
    table = iq.timing.read_vidur_table(*profile(tmp_path), layers=LAYERS)
    scale = LAYERS / 1e3
    for chunk in CHUNKS[:-1]:  # the longest was timed at one context only
        for context in CONTEXTS:  # long chunks at long contexts were not timed: they lie on the row's line
            expected = scale * (linear_ms(chunk) + chunk_ms(chunk, context) + 0.002)
            assert math.isclose(
                iq.timing.iteration_s(table, chunks=[(chunk, context)]), expected, rel_tol=1e-9
            )
    for batch in BATCHES:
        for context in CONTEXTS:
            expected = scale * (linear_ms(batch) + decode_ms(batch, context) + 0.002)
            assert math.isclose(
                iq.timing.iteration_s(table, decodes=[context] * batch), expected, rel_tol=1e-9
            )
    assert table.chunk.chunk == tuple(CHUNKS[:-1])
    about = table.provenance
    assert (about["source"], about["layers"], about["tensor_parallel"]) == ("Vidur profile", LAYERS, 1)
    assert about["attention_backend"] == "AttentionBackend.FLASHINFER"
    timed = [(n, x) for n in BATCHES for x in CONTEXTS if n * x <= 2**17]
    assert about["decode_points"]["measured"] == len(timed)
    assert about["decode_points"]["beyond_measured"] == len(BATCHES) * len(CONTEXTS) - len(timed)
    assert about["chunk_points"]["p95_error"] < 1e-9


def test_fewer_points_say_how_far_they_are_from_the_measurements(tmp_path):
    files = profile(tmp_path)
    few = iq.timing.read_vidur_table(*files, layers=LAYERS, most_points=4)
    assert [len(axis) for axis in (few.linear.tokens, few.chunk.chunk, few.decode.sequences)] == [4, 4, 4]
    assert few.linear.tokens[0] == 1
    assert few.linear.tokens[-1] == 8192
    assert few.provenance["chunk_points"]["p95_error"] > 0
    assert iq.Engine(timing=few, scheduler=iq.VllmV1(), kv=iq.KvCache.unlimited()).to_json()


def test_two_all_reduces_a_layer_are_added_of_two_bytes_a_number(tmp_path):
    files, reduced = profile(tmp_path, workers=4), network(tmp_path)
    table = iq.timing.read_vidur_table(*files, layers=LAYERS, tensor_parallel=4, all_reduce=reduced)
    for tokens, seconds in zip(table.linear.tokens, table.linear.seconds, strict=True):
        size = max(2 * HIDDEN * tokens, 8192)
        expected = LAYERS / 1e3 * (linear_ms(tokens) + 2 * (0.04 + 1e-8 * size))
        assert math.isclose(seconds, expected, rel_tol=1e-9), tokens
    read = iq.timing.read_vidur_table
    with pytest.raises(iq.ConfigError, match="all_reduce: missing for 4 GPUs"):
        read(*files, layers=LAYERS, tensor_parallel=4)
    with pytest.raises(iq.ConfigError, match="all_reduce: must be None for one GPU"):
        read(*files, layers=LAYERS, all_reduce=reduced)
    files = profile(tmp_path, workers=8)
    with pytest.raises(iq.TraceError, match=r"all_reduce.csv: has no all_reduce of 8 GPUs .* 2, 4"):
        read(*files, layers=LAYERS, tensor_parallel=8, all_reduce=reduced)
    with pytest.raises(iq.TraceError, match=r"mlp.csv: has no column size.* network"):
        read(*files, layers=LAYERS, tensor_parallel=8, all_reduce=files[0])


def test_a_profile_that_makes_no_table_is_named(tmp_path):
    linear, attention = profile(tmp_path)
    whole = pl.read_csv(attention)

    def refused(frame, *words):
        frame.write_csv(attention)
        for words_of in words:
            with pytest.raises(iq.TraceError, match=words_of):
                iq.timing.read_vidur_table(linear, attention, layers=LAYERS)

    two = whole.with_columns(attention_backend=pl.lit("AttentionBackend.NO_OP"))
    refused(pl.concat([whole, two]), r"attention.csv: has several values of attention_backend, .*FLASHINFER, .*NO_OP")
    refused(
        pl.concat([whole, whole.with_columns(block_size=pl.lit(32, pl.Int64))]), "has several values of block_size, 16, 32"
    )
    refused(whole.filter(pl.col("prefill_chunk_size") == 0), "prefill_chunk_size: 0 of its values")
    refused(whole.filter(pl.col("batch_size") == 1), "batch_size: 1 of its values")
    median = "time_stats.attn_decode.median"
    refused(whole.with_columns(pl.lit(None, pl.Float64).alias(median)), "row .* kernel time is missing")
    refused(whole.with_columns(pl.lit(-1.0).alias(median)), "row .* kernel time is -0.998 ms")
    # One published file has the shapes and no times.
    pl.read_csv(linear).select(pl.exclude(r"^time_stats.*$")).write_csv(linear)
    refused(whole, r"mlp.csv: has no column time_stats.* it is not a profile of Vidur")
    with pytest.raises(iq.ConfigError, match="most_points"):
        iq.timing.read_vidur_table(linear, attention, layers=LAYERS, most_points=1)
