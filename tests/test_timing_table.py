"""Timing tables: interpolation, provenance, files, and errors."""

import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import inferq as iq
from inferq.cli import app
from inferq.timing import ChunkPart, DecodePart, LinearPart, iteration_s
from inferq.timing.tables.shipped import known_tables
from inferq.timing.tables.table_file import KEY
from inferq.timing.tables.timing_table import LONGEST_TOKEN_S

from .agreement import seconds
from .reference import exact
from .refusals import refused
from .timing_models import TIMINGS, drawn_timing, each_time, read


def table(**parts):
    """A small table: 10 µs per token; contexts cost more with more rows."""
    plain = {
        "linear": LinearPart([1, 101, 1001], [0.010, 0.011, 0.020]),
        "chunk": ChunkPart(
            [1, 101, 501], [0, 1000, 5000], [[0, 1e-4, 2e-4], [0.001, 0.002, 0.003], [0.005] * 3]
        ),
        "decode": DecodePart([1, 17], [0, 1000, 4000], [[0, 1e-4, 5e-4], [1e-4, 2e-3, 1e-2]]),
    }
    return iq.TimingTable(**(plain | parts))


def test_grid_points_have_their_times():
    timing = table()
    linear, chunk, decode = timing.linear, timing.chunk, timing.decode

    def beside(tokens, own_s):
        return pytest.approx(np.interp(tokens, linear.tokens, linear.seconds) + own_s, rel=1e-12)

    assert iteration_s(timing, decodes=[0]) == pytest.approx(0.010, rel=1e-15)
    for count, row in zip(decode.sequences, decode.seconds, strict=True):
        for mean, own_s in zip(decode.mean_context, row, strict=True):
            assert iteration_s(timing, decodes=[mean] * count) == beside(count, own_s)
    for tokens, row in zip(chunk.chunk, chunk.seconds, strict=True):
        for context, own_s in zip(chunk.context, row, strict=True):
            assert iteration_s(timing, chunks=[(tokens, context)]) == beside(tokens, own_s)


@given(
    st.builds(drawn_timing, st.randoms(), st.just("TimingTable")),
    st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 30_000)), max_size=3),
    st.lists(st.integers(0, 30_000), max_size=50),
)
def test_times_between_and_beyond_points_are_linear(described, chunks, decodes):
    if chunks or decodes:
        priced = TIMINGS["TimingTable"].price(each_time(described, exact), chunks, decodes)
        assert iteration_s(read(described), chunks=chunks, decodes=decodes) == seconds(priced)


@given(st.integers(1, 60), st.integers(0, 6000), st.integers(1, 60), st.integers(0, 6000))
def test_a_monotonic_table_is_monotonic_between_points(count, context, more, later):
    timing = table()
    small = iteration_s(timing, decodes=[context] * count)
    assert iteration_s(timing, decodes=[context + later] * count) >= small
    assert iteration_s(timing, decodes=[context] * (count + more)) >= small * (1 - 1e-12)


def run_of(timing, **workload):
    engine = iq.Engine(timing=timing, scheduler=iq.VllmV1(token_budget=4096), kv=iq.KvCache.unlimited())
    return iq.simulate({"arrival_s": [0.0], **workload}, engine)


@pytest.mark.parametrize(
    ("workload", "named"),
    [
        ({"prompt_tokens": [1200], "output_tokens": [1]}, ("tokens of a batch", "tokens of a chunk")),
        ({"prompt_tokens": [100], "output_tokens": [4200]}, ("mean context",)),
        ({"prompt_tokens": [100], "output_tokens": [10]}, ()),
    ],
)
def test_a_run_beyond_the_table_has_a_finding_that_names_the_axis(workload, named):
    found = [text for text in run_of(table(), **workload).findings if text.kind == "beyond-table"]
    assert len(found) == bool(named)
    for axis in named:
        assert axis in found[0]


def test_the_last_line_is_extended():
    timing = table()
    # Slopes of the last cells: 9 ms for 900 tokens of the linear part, 4 ms for 400 tokens of a chunk at
    # context 0, 0.4 ms for 3,000 tokens of context of one decode.
    linear_s, chunk_s = 0.020 + 499 * 0.009 / 900, 0.005 + 999 * 0.004 / 400
    assert iteration_s(timing, chunks=[(1500, 0)]) == pytest.approx(linear_s + chunk_s, rel=1e-12)
    assert iteration_s(timing, decodes=[10_000]) == pytest.approx(
        0.010 + 5e-4 + 6000 * (4e-4 / 3000), rel=1e-9
    )


def test_a_file_keeps_numbers_and_provenance(tmp_path):
    provenance = {
        "source": "here",
        "model": "toy",
        "gpu": "none",
        "notes": ["one", 2, None, {"deep": 0.1}],
        "ä": "µs",
    }
    written = table(provenance=provenance)
    file = tmp_path / "table.parquet"
    written.write(file)
    again = iq.TimingTable.read(file)
    assert again == written and hash(again) == hash(written)
    assert again.to_json() == written.to_json()
    assert again.provenance["notes"] == ("one", 2, None, {"deep": 0.1}) and again.provenance["ä"] == "µs"
    assert repr(again) == "TimingTable(toy on none: linear 3, chunk 3 × 3, decode 2 × 3)"
    points = pl.read_parquet(file)
    assert points.schema == {"part": pl.String, "row": pl.Int64, "column": pl.Int64, "seconds": pl.Float64}
    assert points.height == 3 + 9 + 6
    assert points.filter(part="decode", row=17, column=4000)["seconds"].to_list() == [0.01]
    assert json.loads(pl.read_parquet_metadata(file)[KEY])["model"] == "toy"
    # The order of the rows is irrelevant.
    points.reverse().write_parquet(file, metadata={KEY: "{}"})
    assert iq.TimingTable.read(file) == written


def test_columns_of_frames_and_arrays_are_grids():
    frame = pl.DataFrame({"tokens": [1, 1024], "seconds": [0.01, 0.05]})
    plain = LinearPart([1, 1024], [0.01, 0.05])
    assert LinearPart(frame["tokens"], frame["seconds"]) == plain
    assert LinearPart(frame["tokens"].to_numpy(), frame["seconds"].to_numpy()) == plain


def test_provenance_does_not_affect_equality():
    assert table(provenance={"model": "a"}) == table(provenance={"model": "b"})
    assert "provenance" not in table(provenance={"model": "a"}).to_json()
    assert set(table().to_json()) == {"kind", "linear", "chunk", "decode"}
    assert table() != table(linear=LinearPart([1, 2], [0.010, 0.011]))


def test_a_description_may_name_a_file_or_a_shipped_table(tmp_path):
    def read(**fields):
        parts = {"scheduler": {"kind": "Sarathi"}, "kv": "unlimited"}
        return iq.Engine.from_json({"timing": {"kind": "TimingTable", **fields}, **parts}).timing

    table().write(tmp_path / "own.parquet")
    assert read(file=str(tmp_path / "own.parquet")) == table()
    slow = _written(tmp_path, 100)
    assert read(file=str(slow), check_units=False).linear.seconds == (10.0, 20.0)
    shipped = iq.TimingTable.shipped("qwen3-32b", "l40s")
    assert read(model="qwen3-32b", gpu="l40s") == shipped
    assert read(model="qwen3-32b", gpu="l40s", tensor_parallel=2, backend="vllm") == shipped


def test_the_command_line_accepts_a_table(tmp_path):
    table().write(tmp_path / "own.parquet")
    trace = str(Path(__file__).parent.parent / "traces" / "azure_2023.csv")
    for spec in (f"TimingTable:{tmp_path / 'own.parquet'}", "timing-table:model=qwen3-8b,gpu=h200"):
        done = CliRunner().invoke(app, ["replay", trace, "--head", "20", "--timing", spec])
        assert done.exit_code == 0, done.output
        assert "TimingTable(" in done.stdout and "linear" in done.stdout
    wrong = CliRunner().invoke(app, ["replay", trace, "--timing", "TimingTable:none.parquet"])
    assert wrong.exit_code == 2 and "--timing.file: no such file: 'none.parquet'" in wrong.output


def test_a_description_is_read_back_and_repeats_the_run():
    engine = iq.Engine(timing=table(), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
    again = iq.Engine.from_json(json.loads(json.dumps(engine.to_json())))
    assert again == engine
    toy = table(linear=LinearPart([1, 2], [5.0, 6.0]), check_units=False)
    engine = iq.Engine(timing=toy, scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
    assert iq.Engine.from_json(engine.to_json()) == engine


SCENARIO = """
[workload]
requests = 20
arrivals = { kind = "Poisson", rate = 2 }
prompt = 100
output = 10
[engine]
timing = { kind = "TimingTable", file = "tables/own.parquet" }
scheduler = { kind = "VllmV1" }
kv = "unlimited"
"""


def test_a_scenario_names_a_file_from_its_own_directory(tmp_path):
    (tmp_path / "tables").mkdir()
    table().write(tmp_path / "tables" / "own.parquet")
    text = SCENARIO.replace("prompt = 100", "prompt = { kind = 'Fixed', tokens = 100 }")
    text = text.replace("output = 10", "output = { kind = 'Fixed', tokens = 10 }")
    (tmp_path / "own.toml").write_text(text)
    done = CliRunner().invoke(app, ["simulate", str(tmp_path / "own.toml"), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    described = json.loads(next((tmp_path / "out").glob("*.json")).read_text())
    assert table().to_json() in list(_tables_in(described)), "the numbers, and no name of a file"
    fleet = text + "[cluster]\nreplicas = 2\n"
    (tmp_path / "own.toml").write_text(fleet)
    assert CliRunner().invoke(app, ["simulate", str(tmp_path / "own.toml")]).exit_code == 0
    (tmp_path / "tables" / "own.parquet").unlink()
    gone = CliRunner().invoke(app, ["simulate", str(tmp_path / "own.toml")])
    assert gone.exit_code == 2 and "timing.file: no such file" in gone.output


def _tables_in(described):
    if isinstance(described, dict):
        if described.get("kind") == "TimingTable":
            yield described
        for part in described.values():
            yield from _tables_in(part)
    elif isinstance(described, list):
        for part in described:
            yield from _tables_in(part)


# Errors

GRID = [[0.1, 0.2], [0.3, 0.4]]


@refused(
    (lambda: LinearPart([1, 2], [0.1, None]), r"seconds\[1\]: a hole in the grid"),
    (lambda: ChunkPart([1, 2], [0, 9], [[0.1, 0.2], [math.nan, 0.4]]), r"seconds\[1\]\[0\]: a hole"),
    (lambda: DecodePart([1, 2], [0, 9], [[0.1, 0.2], [0.3, math.inf]]), r"seconds\[1\]\[1\]: must be a fin"),
    (lambda: LinearPart([1, 1.5], [0.1, 0.2]), r"tokens\[1\]: must be a non-negative integer"),
    (lambda: LinearPart([1, True], [0.1, 0.2]), r"tokens\[1\]: must be a non-negative integer"),
    (lambda: LinearPart("ab", [0.1, 0.2]), "tokens: must be a list of non-negative integers"),
    (lambda: ChunkPart([1, 2], [0, 9], [0.1, 0.2]), r"seconds\[0\]: must be a list of finite numbers"),
    (lambda: table(linear=LinearPart([1, 2], [0.1, -0.2])), r"linear.seconds\[1\]: .* got -0.2"),
    (lambda: table(linear=LinearPart([2, 1], [0.1, 0.2])), r"linear.tokens\[1\]: must ascend, got 1 after 2"),
    (lambda: table(linear=LinearPart([1], [0.1])), "linear.tokens: .*at least two"),
    (lambda: table(linear=LinearPart([0, 1], [0.1, 0.2])), r"linear.tokens\[0\]: must be from 1"),
    (
        lambda: table(linear=LinearPart([1, 2], [0.1])),
        r"linear.seconds: must have one time per point \(2\), got 1",
    ),
    (lambda: table(chunk=ChunkPart([1, 2], [5, 5], GRID)), r"chunk.context\[1\]: must ascend, got 5 after 5"),
    (lambda: table(chunk=ChunkPart([1, 2, 3], [0, 5], GRID)), "chunk.seconds: must have 3 rows, got 2"),
    (
        lambda: table(decode=DecodePart([1, 2], [0, 5], [[0.1], [0.2, 0.3]])),
        r"decode.seconds\[0\]: must have one time",
    ),
    (lambda: table(decode=ChunkPart([1, 2], [0, 5], GRID)), "decode: must be DecodePart"),
    (lambda: table(linear=LinearPart([1, 2], [11.2, 11.3])), "looks like milliseconds: divide"),
    (lambda: table(check_units=1), "check_units: must be True or False"),
    (lambda: table(provenance=3), "provenance: must be a table"),
    (
        lambda: table(provenance={"tensor_parallel": "two"}),
        r"provenance\.tensor_parallel: must be an integer",
    ),
    (lambda: table(provenance={"a": [math.nan]}), r"provenance.a\[0\]: JSON cannot represent nan"),
    (lambda: table(provenance={1: 2}), "provenance: keys must be text, got 1"),
)
def test_a_wrong_table_is_an_error_at_its_path(made):
    made()


def test_milliseconds_are_rejected_and_shipped_tables_are_not():
    smallest = {(key.model, key.gpu): key for key in reversed(known_tables())}
    for key in smallest.values():
        shipped = iq.TimingTable.shipped(**key._asdict())
        if shipped.linear.seconds[0] + shipped.decode.seconds[0][0] <= LONGEST_TOKEN_S / 1000:
            assert "b200" in key.gpu or "b300" in key.gpu  # a few billion active weights on a fast GPU
            continue
        seconds = shipped.to_json()
        thousand = {"linear": LinearPart(shipped.linear.tokens, [1000 * s for s in shipped.linear.seconds])}
        thousand |= {
            name: type(getattr(shipped, name))(
                *list(seconds[name].values())[:2],
                [[1000 * s for s in line] for line in seconds[name]["seconds"]],
            )
            for name in ("chunk", "decode")
        }
        with pytest.raises(iq.ConfigError, match="looks like milliseconds"):
            iq.TimingTable(**thousand)
        assert iq.TimingTable(**thousand, check_units=False).linear.tokens == shipped.linear.tokens
    # Slow and fast machines are valid: a second or a microsecond per token.
    for token_s in (1.0, 1e-6):
        assert table(linear=LinearPart([1, 512], [token_s, 100 * token_s]))


def points(**columns):
    return table_points().with_columns(**columns)


def table_points():
    rows = [("linear", 1, 0, 0.1), ("linear", 2, 0, 0.2)]
    rows += [(part, row, column, 0.1) for part in ("chunk", "decode") for row in (1, 2) for column in (0, 9)]
    return pl.DataFrame(rows, schema=["part", "row", "column", "seconds"], orient="row")


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (
            lambda p: p.filter(~((p["part"] == "chunk") & (p["row"] == 2) & (p["column"] == 9))),
            "a hole in the grid: chunk at chunk 2, context 9 has no time",
        ),
        (
            lambda p: p.with_columns(
                seconds=pl.when(pl.int_range(pl.len()) == 9).then(None).otherwise("seconds")
            ),
            "row 9: a hole in the grid: decode at sequences 2, mean_context 9 has no time",
        ),
        (
            lambda p: p.with_columns(
                seconds=pl.when(pl.int_range(pl.len()) == 1).then(math.nan).otherwise("seconds")
            ),
            "row 1: a hole in the grid: linear at tokens 2 has no time",
        ),
        (lambda p: p.with_columns(seconds=-p["seconds"]), r"linear.seconds\[0\]: .* got -0.1"),
        (lambda p: p.with_columns(seconds=100 * p["seconds"]), "looks like milliseconds"),
        (
            lambda p: pl.concat([p, p.tail(1)]),
            "row 10: a second time for decode at sequences 2, mean_context 9",
        ),
        (
            lambda p: p.with_columns(column=pl.lit(3)),
            "row 0: the linear part has one axis, but column is 3",
        ),
        (
            lambda p: p.with_columns(part=p["part"].str.replace("chunk", "prefill")),
            "row 2: unknown part 'prefill'",
        ),
        (lambda p: p.filter(p["part"] != "decode"), "part decode: 0 points of sequences"),
        (lambda p: p.drop("column"), "column column is missing"),
        (
            lambda p: p.with_columns(row=p["row"].cast(float)),
            "column row must have whole numbers, got Float64",
        ),
        (lambda p: p.with_columns(part=p["row"]), "column part must have text, got Int64"),
        (lambda p: p.with_columns(row=pl.lit(None, dtype=pl.Int64)), "row 0: row is null"),
    ],
)
def test_a_wrong_file_is_an_error_with_file_and_row(tmp_path, frame, message):
    file = tmp_path / "wrong.parquet"
    frame(table_points()).write_parquet(file, metadata={KEY: "{}"})
    with pytest.raises(iq.ConfigError, match=message) as error:
        iq.TimingTable.read(file)
    assert str(error.value).startswith(f"file: {file}: ")


def test_other_files_are_rejected(tmp_path):
    bare = tmp_path / "bare.parquet"
    table_points().write_parquet(bare)
    with pytest.raises(iq.ConfigError, match=f"lack {KEY}, the provenance"):
        iq.TimingTable.read(bare)
    table_points().write_parquet(bare, metadata={KEY: "[1]"})
    with pytest.raises(iq.ConfigError, match="provenance in the metadata must be a table"):
        iq.TimingTable.read(bare)
    table_points().write_parquet(bare, metadata={KEY: "{"})
    with pytest.raises(iq.ConfigError, match="provenance in the metadata is not JSON"):
        iq.TimingTable.read(bare)
    text = tmp_path / "table.csv"
    text.write_text("part,row,column,seconds\n")
    with pytest.raises(iq.ConfigError, match="cannot be read as Parquet"):
        iq.TimingTable.read(text)
    for wrong in (tmp_path / "none.parquet", tmp_path, 3, ""):
        with pytest.raises(iq.ConfigError, match="file: "):
            iq.TimingTable.read(wrong)
    with pytest.raises(iq.ConfigError, match=r"file: directory .* does not exist"):
        table().write(tmp_path / "none" / "table.parquet")
    assert iq.TimingTable.read(_written(tmp_path, 100), check_units=False).linear.seconds == (10.0, 20.0)


def _written(folder, factor):
    file = folder / "scaled.parquet"
    frame = table_points()
    frame.with_columns(seconds=factor * frame["seconds"]).write_parquet(file, metadata={KEY: "{}"})
    return file


@refused(
    ({"file": "none.parquet"}, "timing.file: no such file: 'none.parquet'"),
    ({"file": 3}, "timing.file: must be the path of a file"),
    ({"file": "x.parquet", "linear": {}}, "timing.linear: cannot be combined with file"),
    ({"file": "x.parquet", "provenance": {}}, "timing.provenance: cannot be combined with file"),
    ({"model": "qwen3-8b"}, "timing.gpu: missing"),
    ({"model": "qwen3-8b", "gpu": "h100"}, "timing.gpu: no shipped table of qwen3-8b has 'h100'"),
    (
        {"model": "qwen3-8b", "gpu": "h200", "decode": {}},
        "timing.decode: cannot be combined with model and gpu",
    ),
    ({"provenance": {}}, "timing: unknown field 'provenance'"),
    ({}, "timing: no table: set file, or model and gpu"),
    ({"chunk": {}, "decode": {}}, "timing.linear: missing"),
    ({"linear": {"tokens": [1, 2]}, "chunk": {}, "decode": {}}, "timing.linear.seconds: missing"),
    ({"linear": [], "chunk": {}, "decode": {}}, "timing.linear: must be a table of fields, got \\[\\]"),
    pattern="engine.{}",
)
def test_a_wrong_description_of_a_table_is_an_error_at_its_path(fields):
    described = {
        "timing": {"kind": "TimingTable", **fields},
        "scheduler": {"kind": "Sarathi"},
        "kv": "unlimited",
    }
    iq.Engine.from_json(described)
