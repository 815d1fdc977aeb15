"""Shipped tables: accuracy, attribution, size, commands, and the database from which they are baked."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

import inferq as iq
from inferq.cli import app
from inferq.timing import ChunkPart, DecodePart, LinearPart, iteration_s
from inferq.timing.baking.checkpoints import Source
from inferq.timing.baking.kernels import KernelDatabase
from inferq.timing.baking.rebuild import orders
from inferq.timing.baking.sampling import bake
from inferq.timing.hardware.catalog import entries
from inferq.timing.hardware.layers import LatentAttention
from inferq.timing.tables.archive import Archive, Key, write
from inferq.timing.tables.parts import Grids
from inferq.timing.tables.shipped import ARCHIVE, PARTS, known_tables

from .arriving import arriving
from .refusals import refused

MODELS = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-4b", "qwen3-8b", "qwen3-32b", "mixtral-8x7b")
GPUS = ("a100-80gb", "h100-80gb", "h200", "l40s")
FOLDER = Path(iq.timing.__file__).parent / "tables" / "data"


FITS = {
    # Two GPUs of 80 GB have room for only a few requests next to 131 GiB of weights.
    ("llama-3.1-70b", "a100-80gb"): (4, 8),
    ("llama-3.1-70b", "h100-80gb"): (4, 8),
    ("llama-3.1-70b", "h200"): (2, 4, 8),
    ("llama-3.1-70b", "l40s"): (4, 8),
    ("mixtral-8x7b", "a100-80gb"): (2, 4, 8),
    ("mixtral-8x7b", "h100-80gb"): (2, 4, 8),
    ("mixtral-8x7b", "l40s"): (4, 8),
    ("qwen3-32b", "l40s"): (2, 4, 8),
    # Eight GPUs for a model that fits on the smallest are left out.
    ("qwen3-4b", "a100-80gb"): (1, 2, 4),
    ("qwen3-4b", "l40s"): (1, 2, 4),
}
"""Numbers of GPUs on which a model fits, if they are not 1, 2, 4 and 8."""


def test_every_model_is_shipped_for_every_gpu_within_the_documented_error():
    shipped = iq.timing.shipped_tables()
    plain = shipped.filter(backend="vllm", weights="bf16")
    for model in MODELS:
        for gpu in GPUS:
            there = plain.filter(model=model, gpu=gpu)["tensor_parallel"].sort().to_list()
            assert there == list(FITS.get((model, gpu), (1, 2, 4, 8))), (model, gpu)
    is_module = pl.col("model").is_in([*_latent_models()])
    for part in PARTS[:-1]:
        assert shipped[f"{part}_median"].max() <= 0.03, part
        assert shipped.filter(~is_module)[f"{part}_p95"].max() <= 0.10, part
        # Modules of latent attention were timed with the launches of their kernels, which vary.
        assert shipped.filter(is_module)[f"{part}_p95"].max() <= 0.20, part
    assert shipped["decode_iteration_p95"].max() <= 0.04
    prompts = shipped["prompts_iteration_median"]
    assert shipped.filter(~pl.col("gpu").str.contains("b200|b300") & ~is_module)[prompts.name].max() <= 0.06
    assert prompts.quantile(0.9) <= 0.15 and prompts.max() <= 0.40
    assert ARCHIVE.stat().st_size <= 2_000_000


def _latent_models() -> set[str]:
    """The models whose attention was timed as a module."""
    return {
        name
        for name in {key.model for key in known_tables()}
        if isinstance(iq.timing.ModelShape.of(name).attention, LatentAttention)
    }


def test_models_and_gpus_of_the_tables_have_catalog_names():
    keys = known_tables()
    assert {key.model for key in keys} <= {*entries("models")}
    assert {key.gpu for key in keys} <= {*entries("gpus")}
    assert len({key.model for key in keys}) >= 20


def test_the_archive_has_the_tables_of_the_list():
    wanted = {(o.model, o.gpu, o.backend, *o[4:7], o.kv_dtype) for o in orders()}
    shipped = {(k.model, k.gpu, k.backend, *k[2:5], k.kv_dtype) for k in known_tables()}
    assert shipped <= wanted and len(shipped) > 0.9 * len(wanted)


def test_more_work_takes_longer_in_every_table():
    for key in known_tables():
        table = iq.TimingTable.shipped(**key._asdict())
        alone, many = (iteration_s(table, decodes=[1000] * count) for count in (1, 64))
        assert 0.001 < alone < many < 64 * alone, key
        short, long = (iteration_s(table, chunks=[(count, 0)]) for count in (512, 8192))
        assert 2 * short < long, key


# The archive


def test_a_table_opens_in_20_ms_without_numpy_and_polars():
    code = """
import sys, time
import inferq.timing.tables.archive, inferq.timing.tables.shipped as shipped
best = 1.0
for _ in range(5):
    start = time.perf_counter()
    archive = shipped.Archive(shipped.ARCHIVE)
    archive.read(archive.keys()[-1])
    best = min(best, time.perf_counter() - start)
assert best < 0.020, best
assert not {"numpy", "polars"} & {*sys.modules}
"""
    subprocess.run([sys.executable, "-c", code], check=True)


KEY = Key("toy", "h200", 4, 2, 1, "vllm", "fp8", "bf16")


def test_an_archive_returns_exactly_what_was_written(tmp_path):
    table = small()
    grids = Grids(table.linear, dataclasses.replace(table.chunk, shared_s=1e-9), table.decode)
    other = dataclasses.replace(table.linear, seconds=[3.000000001, 123.456789012])
    tables = {
        KEY: (grids, {"source": "hand", "notes": ("é", "\n")}),
        KEY._replace(model="b"): (grids._replace(linear=other), {}),
    }
    write(tmp_path / "two.bin", tables)
    opened = Archive(tmp_path / "two.bin")
    assert opened.keys() == tuple(sorted(tables))
    assert opened.read(KEY._replace(model="b")) == (grids._replace(linear=other), {})
    read, provenance = opened.read(KEY)
    assert read == grids and provenance == {"source": "hand", "notes": ["é", "\n"]}


def test_an_archive_refuses_other_files_and_fractions_of_nanoseconds(tmp_path):
    with pytest.raises(iq.ConfigError, match=r"README\.md is not an archive of tables"):
        Archive(Path(__file__).parent.parent / "README.md")
    half = dataclasses.replace(small().linear, seconds=[0.0100000005, 0.012])
    grids = Grids(half, small().chunk, small().decode)
    with pytest.raises(
        iq.ConfigError, match=r"seconds: must be whole numbers of nanoseconds, got 0\.0100000005"
    ):
        write(tmp_path / "x.bin", {KEY: (grids, {})})
    assert not (tmp_path / "x.bin").exists()


def test_the_guide_has_the_errors_of_the_files():
    guide = (Path(__file__).parent.parent / "docs" / "reference" / "measured-tables.md").read_text(
        encoding="utf-8"
    )
    rows = guide_rows()
    assert len(rows) > 40
    for row in rows:
        assert row in guide


def guide_rows() -> list[str]:
    """A row for each model, format of weights and engine, with the largest errors of its tables."""
    rows = []
    engines = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
    keys = ("model", "weights", "backend")
    for names, tables in iq.timing.shipped_tables().group_by(*keys, maintain_order=True):
        errors = [
            f"{100 * tables[f'{part}_median'].max():.2f} / {100 * tables[f'{part}_p95'].max():.2f}"
            for part in PARTS
        ]
        gpus = ", ".join(tables["gpu"].unique().sort())
        model, weights, backend = names
        cells = [model, weights, engines[backend], gpus, str(tables.height), *errors]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def test_eight_bit_weights_have_tables():
    plain, small = (iq.TimingTable.shipped("llama-3.1-8b", "h100-80gb", weights=w) for w in ("bf16", "fp8"))
    assert iteration_s(small, decodes=[100]) < 0.75 * iteration_s(plain, decodes=[100])
    engine = iq.Engine.on("llama-3.1-8b", "h100-80gb", weights="fp8")
    assert engine.timing == small and "measured" in engine.explain()
    assert repr(iq.Engine.on("llama-3.1-8b", "a100-80gb", weights="fp8").timing).startswith("Roofline")


def test_a_gpu_without_measurements_has_scaled_tables_of_its_neighbor():
    small, large = (iq.TimingTable.shipped("llama-3.1-8b", f"a100-{size}gb") for size in (40, 80))
    # Memory-bound times grow by the ratio of bandwidths, 2,039 to 1,555 GB/s; compute-bound times stay.
    assert iteration_s(small, decodes=[4000] * 64) / iteration_s(large, decodes=[4000] * 64) == pytest.approx(
        2039 / 1555, rel=0.05
    )
    assert iteration_s(small, chunks=[(8192, 0)]) == pytest.approx(
        iteration_s(large, chunks=[(8192, 0)]), rel=0.01
    )
    assert small.provenance["derived_from"] == "a100-80gb" and small.provenance["gpu"] == "a100-40gb"
    engine = iq.Engine.on("llama-3.1-8b", "a100-40gb")
    assert engine.timing == small
    assert "measured on a100-80gb, scaled by the ratio of rooflines" in engine.explain()


def test_experts_on_two_h100s_have_monotonic_times():
    # Under vLLM 0.24, times rose from 17.9 ms at 32 tokens to 23.7 at 80 and fell to 20.4 at 128.
    linear = iq.TimingTable.shipped("mixtral-8x7b", "h100-80gb").linear
    times = dict(zip(linear.tokens, linear.seconds, strict=True))
    between = [seconds for tokens, seconds in times.items() if 32 <= tokens <= 128]
    assert max(between) <= 1.02 * between[-1]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("gpu", GPUS)
def test_a_shipped_table_is_small_and_attributed(model, gpu):
    shipped = iq.TimingTable.shipped(model, gpu)
    facts = shipped.provenance
    assert (facts["model"], facts["gpu"], facts["license"]) == (model, gpu, "Apache-2.0")
    for name in ("source", "url", "version", "date", "attribution", "changes", "backend_version"):
        assert facts[name]
    assert facts["held_out_error"]["points"] == 3000
    # More work takes longer, by at least its cost at peak compute and bandwidth.
    alone, many = (iteration_s(shipped, decodes=[1000] * count) for count in (1, 64))
    assert 0.001 < alone < many < 64 * alone
    short, long = (iteration_s(shipped, chunks=[(count, 0)]) for count in (512, 8192))
    assert 4 * short < long
    engine = iq.Engine(timing=shipped, scheduler=iq.VllmV1(), kv=iq.KvCache(tokens=100_000))
    workload = arriving(200, 1.0, iq.dist.Uniform(low=10, high=2000), iq.dist.Geometric(mean=50))
    run = iq.simulate(workload, engine, seed=1)
    assert run.summary()["completed"].item() == 200
    assert not any(text.kind == "beyond-table" for text in run.findings)
    stepped = iq.simulate(workload, engine, seed=1, stepping=True)
    assert stepped.requests.equals(run.requests)


def test_the_license_of_the_tables_is_shipped():
    assert "Apache License" in (FOLDER / "LICENSE-APACHE-2.0").read_text(encoding="utf-8")
    notice = (FOLDER / "NOTICE").read_text(encoding="utf-8")
    assert "NVIDIA CORPORATION & AFFILIATES" in notice and "Changed:" in notice


@refused(
    (
        {"model": "llama-3.1-8", "gpu": "h200"},
        "model: no shipped table has 'llama-3.1-8'; did you mean llama-3.1-8b",
    ),
    ({"model": "bloom", "gpu": "h200"}, "model: .*known names: codellama-34b, deepseek-r1"),
    (
        {"model": "qwen3-8b", "gpu": "a100"},
        "gpu: no shipped table of qwen3-8b has 'a100'; did you mean a100-80gb",
    ),
    (
        {"model": "qwen3-8b", "gpu": "h200", "backend": "sglang"},
        "backend: .*of qwen3-8b on h200 has 'sglang'",
    ),
    (
        {"model": "qwen3-8b", "gpu": "h200", "tensor_parallel": 3},
        "tensor_parallel: .*are for 1, 2, 4, 8 GPUs, not 3",
    ),
    ({"model": "qwen3-8b", "gpu": "h200", "weights": "int4"}, "weights: .*of qwen3-8b on h200 has 'int4'"),
    (
        {"model": "qwen3-8b", "gpu": "h200", "tensor_parallel": 0},
        "tensor_parallel: must be an integer of at least 1",
    ),
)
def test_a_missing_table_is_an_error_that_lists_the_known_ones(options):
    iq.TimingTable.shipped(**options)


# The command line


def small():
    """A table of a few short iterations, without provenance."""
    return iq.TimingTable(
        linear=LinearPart([1, 256], [0.010, 0.012]),
        chunk=ChunkPart([1, 256], [0, 1000], [[0, 1e-4], [0.001, 0.002]]),
        decode=DecodePart([1, 16], [0, 4000], [[0, 1e-4], [1e-4, 2e-3]]),
    )


def command(*arguments):
    return CliRunner().invoke(app, ["timing", *arguments], env={"COLUMNS": "100"})


def test_show_prints_source_iterations_and_errors_of_a_table(tmp_path):
    done = command("show", "llama-3.1-70b", "h100-80gb", "--tensor-parallel", "4")
    assert done.exit_code == 0
    shipped = iq.TimingTable.shipped("llama-3.1-70b", "h100-80gb", tensor_parallel=4)
    for text in ("aiconfigurator", "Apache-2.0", "4 × h100-80gb", "mixed iteration"):
        assert text in done.stdout
    assert f"{1000 * iteration_s(shipped, decodes=[1000] * 64):.1f} ms" in done.stdout
    assert f"{100 * shipped.provenance['held_out_error']['chunk']['p95']:.2f} %" in done.stdout
    small().write(tmp_path / "own.parquet")
    own = command("show", str(tmp_path / "own.parquet"))
    assert own.exit_code == 0 and "held-out" not in own.stdout and "512" not in own.stdout
    provenance = {"notes": "one", "held_out_error": {"chunk": {"p95": 0.5}, "seed": 7}}
    dataclasses.replace(small(), provenance=provenance).write(tmp_path / "free.parquet")
    free = command("show", str(tmp_path / "free.parquet"))
    assert free.exit_code == 0 and "note: one" in free.stdout and "50.00 %" in free.stdout


def test_list_has_a_row_for_each_model_gpu_backend_and_format():
    done = CliRunner().invoke(app, ["list", "tables"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["mixtral-8x7b", "l40s", "vllm", "bf16", "bf16", "4,", "8"] in rows
    assert ["qwen3-32b", "h200", "vllm", "fp8", "bf16", "1,", "2"] in rows


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "none.parquet"), "'none.parquet': no such file; a shipped table requires model and GPU"),
        (("show", "qwen3-8b"), "as in: inferq timing show qwen3-8b a100-80gb"),
        (("show", "qwen3-8b", "h100"), "did you mean h100-80gb?"),
        (("show", "a", "b", "c"), "'c': is unexpected"),
        (("show", "{own}", "--backend", "vllm"), "--backend: requires a shipped table"),
        (("show", "{readme}"), "cannot be read as Parquet"),
        (("show", "qwen3-8b", "h200", "--tensor-parallel", "3"), "are for 1, 2, 4, 8 GPUs, not 3"),
    ],
)
def test_a_wrong_command_prints_one_line_with_a_fix(tmp_path, arguments, said):
    small().write(tmp_path / "own.parquet")
    (tmp_path / "README.md").write_text("no table")
    places = {"own": tmp_path / "own.parquet", "readme": tmp_path / "README.md"}
    done = command(*(text.format(**places) for text in arguments))
    assert (done.exit_code, done.output.count("\n")) == (2, 1)
    assert said in done.output


# The database


@pytest.mark.parametrize(("model", "gpu"), [("llama-3.1-8b", "a100-80gb"), ("mixtral-8x7b", "l40s")])
def test_a_shipped_table_equals_a_newly_baked_one(model, gpu):
    pytest.importorskip("aiconfigurator_core")
    import numpy as np

    shipped = iq.TimingTable.shipped(model, gpu)
    shared = shipped.provenance["tensor_parallel"]
    again = bake(model, gpu, tensor_parallel=shared)
    assert again == shipped
    assert again.provenance["held_out_error"] == shipped.provenance["held_out_error"]
    # Points other than the held-out points of the file, computed by the core.
    database = KernelDatabase(Source.of(model), gpu, "vllm", tensor_parallel=shared)
    chance = np.random.default_rng(2026)
    off = []
    for _ in range(400):
        count, tokens = (round(float(np.exp(chance.uniform(0, np.log(most))))) for most in (256, 4096))
        mean, context = (int(chance.integers(1, most)) for most in (8000, 16_000))
        chunks = [(tokens, context)] if chance.random() < 0.7 else []
        parts = database.linear(count + sum(c for c, _ in chunks)) + database.decode(count, mean)
        parts += sum(database.chunk(c, x) for c, x in chunks)
        off.append(abs(iteration_s(shipped, chunks=chunks, decodes=[mean] * count) / parts - 1))
    assert np.median(off) <= 0.03 and np.quantile(off, 0.95) <= 0.10


@refused(
    (("qwen3-9b", "h200"), {}, "model: aiconfigurator has no 'qwen3-9b'.*did you mean qwen3.5-9b"),
    (("qwen3-8b", "h20"), {}, "gpu: aiconfigurator has no measurements on 'h20'; known names: a100-80gb"),
    (("qwen3-8b", "h200", "vlm"), {}, "backend: .*did you mean vllm"),
    (("qwen3-8b", "h200"), {"version": "0.1"}, "version: vllm '0.1' was not measured on h200_sxm; known: "),
    (("qwen3-8b", "h200"), {"tensor_parallel": 3}, "tensor_parallel: aiconfigurator cannot split"),
    (("qwen3-8b", "h200"), {"tensor_parallel": 0}, "tensor_parallel: must be an integer from 1 to 1024"),
    (("qwen3-8b", "a100-80gb"), {"weights": "fp8"}, "model: aiconfigurator cannot price .*fp8"),
    ((3, "h200"), {}, "model: must be a name"),
)
def test_what_the_database_lacks_is_an_error(arguments, options):
    pytest.importorskip("aiconfigurator_core")
    bake(*arguments, **options)


def test_a_folder_with_a_config_is_a_model(tmp_path):
    pytest.importorskip("aiconfigurator_core")
    import importlib.resources

    config = importlib.resources.files("aiconfigurator_core") / "model_configs" / "Qwen--Qwen3-8B_config.json"
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_bytes(config.read_bytes())
    out = tmp_path / "own.parquet"
    assert command("bake", str(folder), "h200", "--out", str(out)).exit_code == 0
    baked = iq.TimingTable.read(out)
    assert baked == iq.TimingTable.shipped("qwen3-8b", "h200")
    assert (baked.provenance["model"], baked.provenance["gpu"]) == ("my-model", "h200")
