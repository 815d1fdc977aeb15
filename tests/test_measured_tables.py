"""What must the tables that come with inferq do, and what makes and shows them?"""

import dataclasses
import sys
from pathlib import Path

import pytest
from tools.baking.__main__ import main as baking
from tools.baking.kernels import KernelDatabase
from tools.baking.sampling import bake
from typer.testing import CliRunner

import inferq as iq
from inferq.cli import app
from inferq.timing import ChunkPart, DecodePart, LinearPart, iteration_s
from inferq.timing.tables.shipped import PARTS

from .arriving import arriving
from .refusals import refused

MODELS = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-4b", "qwen3-8b", "qwen3-32b", "mixtral-8x7b")
GPUS = ("a100-80gb", "h100-80gb", "h200", "l40s")
FOLDER = Path(iq.timing.__file__).parent / "tables" / "data"


FITS = {
    # Two cards of 80 GB have no room beside its 131 GiB for more than a few requests.
    ("llama-3.1-70b", "a100-80gb"): (4, 8),
    ("llama-3.1-70b", "h100-80gb"): (4, 8),
    ("llama-3.1-70b", "h200"): (2, 4, 8),
    ("llama-3.1-70b", "l40s"): (4, 8),
    ("mixtral-8x7b", "a100-80gb"): (2, 4, 8),
    ("mixtral-8x7b", "h100-80gb"): (2, 4, 8),
    ("mixtral-8x7b", "l40s"): (4, 8),
    ("qwen3-32b", "l40s"): (2, 4, 8),
    # Eight cards for a model that fits on the smallest are left out.
    ("qwen3-4b", "a100-80gb"): (1, 2, 4),
    ("qwen3-4b", "l40s"): (1, 2, 4),
}
"""Numbers of GPUs on which a model fits, where they are not 1, 2, 4 and 8."""


def test_every_model_is_shipped_for_every_gpu_within_the_promised_error():
    shipped = iq.timing.shipped_tables()
    plain = shipped.filter(backend="vllm", weights="bf16")
    for model in MODELS:
        for gpu in GPUS:
            there = plain.filter(model=model, gpu=gpu)["tensor_parallel"].sort().to_list()
            assert there == list(FITS.get((model, gpu), (1, 2, 4, 8))), (model, gpu)
    for name in shipped.columns:
        if name.endswith("_median"):
            assert shipped[name].max() <= (0.05 if name.startswith("prompts") else 0.03), name
        if name.endswith("_p95") and not name.startswith("prompts"):
            assert shipped[name].max() <= 0.10, name
    assert sum(file.stat().st_size for file in FOLDER.glob("*.parquet")) < 1_000_000


def test_every_file_is_a_table_that_prices_more_work_longer():
    for file in FOLDER.glob("*.parquet"):
        table = iq.TimingTable.read(file)
        alone, many = (iteration_s(table, decodes=[1000] * count) for count in (1, 64))
        assert 0.001 < alone < many < 64 * alone, file.name
        short, long = (iteration_s(table, chunks=[(count, 0)]) for count in (512, 8192))
        assert 3 * short < long, file.name


def test_the_guide_states_the_errors_that_the_files_state():
    guide = (Path(__file__).parent.parent / "docs" / "reference" / "measured-tables.md").read_text(
        encoding="utf-8"
    )
    rows = guide_rows()
    assert len(rows) > 40
    for row in rows:
        assert row in guide


def guide_rows() -> list[str]:
    """A row for each model, GPU, backend and kind of weights: over its numbers of GPUs the largest errors."""
    rows = []
    keys = ("model", "gpu", "backend", "weights", "backend_version")
    for names, tables in iq.timing.shipped_tables().group_by(*keys, maintain_order=True):
        errors = [
            f"{100 * tables[f'{part}_median'].max():.2f} / {100 * tables[f'{part}_p95'].max():.2f}"
            for part in PARTS
        ]
        gpus = ", ".join(map(str, tables["tensor_parallel"].sort()))
        model, gpu, backend, weights, version = names
        engine = (
            f"{'vLLM' if backend == 'vllm' else 'SGLang'} {version}{'' if weights == 'bf16' else ', fp8'}"
        )
        rows.append(f"| {' | '.join([model, gpu, gpus, engine, *errors])} |")
    return rows


def test_weights_of_eight_bits_have_tables_of_their_own():
    plain, small = (iq.TimingTable.shipped("llama-3.1-8b", "h100-80gb", weights=w) for w in ("bf16", "fp8"))
    assert iteration_s(small, decodes=[100]) < 0.75 * iteration_s(plain, decodes=[100])
    engine = iq.Engine.on("llama-3.1-8b", "h100-80gb", weights="fp8")
    assert engine.timing == small and "measured" in engine.explain()
    assert repr(iq.Engine.on("llama-3.1-8b", "a100-80gb", weights="fp8").timing).startswith("Roofline")


def test_a_card_without_measurements_has_those_of_its_neighbor_times_the_ratio_of_rooflines():
    small, large = (iq.TimingTable.shipped("llama-3.1-8b", f"a100-{size}gb") for size in (40, 80))
    # What memory binds takes as much longer as the memory is slower, 2,039 to 1,555 GB/s; computing stays.
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


def test_experts_on_two_h100s_have_no_bump():
    # Under vLLM 0.24 they rose from 17.9 ms at 32 tokens to 23.7 at 80 and fell to 20.4 at 128.
    linear = iq.TimingTable.shipped("mixtral-8x7b", "h100-80gb").linear
    times = dict(zip(linear.tokens, linear.seconds, strict=True))
    between = [seconds for tokens, seconds in times.items() if 32 <= tokens <= 128]
    assert max(between) <= 1.02 * between[-1]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("gpu", GPUS)
def test_a_shipped_table_is_small_attributed_and_priced(model, gpu):
    shipped = iq.TimingTable.shipped(model, gpu)
    said = shipped.provenance
    assert (said["model"], said["gpu"], said["license"]) == (model, gpu, "Apache-2.0")
    for name in ("source", "url", "version", "date", "attribution", "changes", "backend_version"):
        assert said[name]
    assert said["held_out_error"]["points"] == 3000
    (file,) = FOLDER.glob(f"{model}_{gpu}_tp{said['tensor_parallel']}_vllm.parquet")
    assert file.stat().st_size < 12_000
    # More work takes longer, by what both ways of computing it cost at least.
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


def test_the_license_of_the_tables_lies_beside_them():
    assert "Apache License" in (FOLDER / "LICENSE-APACHE-2.0").read_text(encoding="utf-8")
    notice = (FOLDER / "NOTICE").read_text(encoding="utf-8")
    assert "NVIDIA CORPORATION & AFFILIATES" in notice and "Changed:" in notice


@refused(
    (
        {"model": "llama-3.1-8", "gpu": "h200"},
        "model: no shipped table has 'llama-3.1-8'; did you mean llama-3.1-8b",
    ),
    ({"model": "gpt", "gpu": "h200"}, "model: .*known names: codellama-34b, llama-2-70b"),
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
def test_a_table_that_is_not_there_is_refused_with_what_is(asked):
    iq.TimingTable.shipped(**asked)


# The command line


def small():
    """A table of a few short iterations, without a source."""
    return iq.TimingTable(
        linear=LinearPart([1, 256], [0.010, 0.012]),
        chunk=ChunkPart([1, 256], [0, 1000], [[0, 1e-4], [0.001, 0.002]]),
        decode=DecodePart([1, 16], [0, 4000], [[0, 1e-4], [1e-4, 2e-3]]),
    )


def command(*arguments):
    return CliRunner().invoke(app, ["timing", *arguments], env={"COLUMNS": "100"})


def test_show_says_where_a_table_comes_from_what_it_says_and_how_far_it_is_off(tmp_path):
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
    said = {"notes": "one", "held_out_error": {"chunk": {"p95": 0.5}, "seed": 7}}
    dataclasses.replace(small(), provenance=said).write(tmp_path / "free.parquet")
    free = command("show", str(tmp_path / "free.parquet"))
    assert free.exit_code == 0 and "note: one" in free.stdout and "50.00 %" in free.stdout


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
def test_a_wrong_command_is_one_line_that_says_what_to_do(tmp_path, arguments, said):
    small().write(tmp_path / "own.parquet")
    (tmp_path / "README.md").write_text("no table")
    places = {"own": tmp_path / "own.parquet", "readme": tmp_path / "README.md"}
    done = command(*(text.format(**places) for text in arguments))
    assert (done.exit_code, done.output.count("\n")) == (2, 1)
    assert said in done.output


# The tool that bakes tables


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--quantization", "fp8"), "must have the form gemm_quant_mode=fp8"),
        (("--out", "none/x.parquet"), "--out: no such folder: 'none'"),
        ((), "pip install -r tools/baking/requirements.txt"),
    ],
)
def test_the_tool_reports_wrong_options_and_the_missing_package(monkeypatch, capsys, options, message):
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    monkeypatch.setitem(sys.modules, "aiconfigurator_core.sdk.engine", None)
    with pytest.raises(SystemExit):
        baking(["qwen3-8b", "h200", *options])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("model", "gpu"), [("llama-3.1-8b", "a100-80gb"), ("mixtral-8x7b", "l40s")])
def test_a_shipped_table_is_what_the_database_says_now(model, gpu):
    pytest.importorskip("aiconfigurator_core")
    import numpy as np

    shipped = iq.TimingTable.shipped(model, gpu)
    shared = shipped.provenance["tensor_parallel"]
    again = bake(model, gpu, tensor_parallel=shared)
    assert again == shipped
    assert again.provenance["held_out_error"] == shipped.provenance["held_out_error"]
    # Other points than those that the file was judged by, priced by the core.
    database = KernelDatabase(model, gpu, "vllm", version=None, tensor_parallel=shared, quantization={})
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
    (("qwen3-9b", "h200"), {}, "model: aiconfigurator has no 'qwen3-9b'.*did you mean qwen3-8b"),
    (("qwen3-8b", "h20"), {}, "system: aiconfigurator has no measurements on 'h20'; did you mean h200"),
    (("qwen3-8b", "h200", "vlm"), {}, "backend: .*did you mean vllm"),
    (("qwen3-8b", "h200"), {"version": "0.1"}, "version: vllm '0.1' was not measured on h200_sxm; known: "),
    (("qwen3-8b", "h200"), {"tensor_parallel": 3}, "tensor_parallel: 3: "),
    (("qwen3-8b", "h200"), {"tensor_parallel": 0}, "tensor_parallel: must be an integer from 1 to 1024"),
    (("qwen3-8b", "h200"), {"quantization": {"gem": "fp8"}}, "quantization: unknown mode 'gem'"),
    (
        ("qwen3-8b", "a100-80gb"),
        {"quantization": {"gemm_quant_mode": "fp8"}},
        "quantization: .*gemm_quant_mode",
    ),
    (("qwen3-8b", "h200"), {"quantization": {"gemm_quant_mode": "x"}}, "quantization: "),
    (("qwen3-8b", "h200"), {"most_context": 3}, "most_context: "),
    ((3, "h200"), {}, "model: must be a name"),
)
def test_what_aiconfigurator_cannot_answer_is_refused_by_its_argument(arguments, options):
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
    baking([str(folder), "h200", "--out", str(out)])
    baked = iq.TimingTable.read(out)
    assert baked == iq.TimingTable.shipped("qwen3-8b", "h200")
    assert (baked.provenance["model"], baked.provenance["gpu"]) == ("my-model", "h200")
