"""What must the tables that come with inferq do, and what makes and shows them?"""

import sys
from pathlib import Path

import pytest
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


def test_every_model_is_shipped_for_every_gpu_within_the_promised_error():
    shipped = iq.timing.shipped_tables()
    assert {(row["model"], row["gpu"]) for row in shipped.iter_rows(named=True)} == {
        (model, gpu) for model in MODELS for gpu in GPUS
    }
    assert set(shipped.filter(model="llama-3.1-70b")["tensor_parallel"]) == {4}
    for name in shipped.columns:
        if name.endswith("_median"):
            assert shipped[name].max() <= 0.03, name
        if name.endswith("_p95") and not name.startswith("prompts"):
            assert shipped[name].max() <= 0.10, name


def test_the_guide_states_the_errors_that_the_files_state():
    guide = (Path(__file__).parent.parent / "docs" / "measured-tables.md").read_text(encoding="utf-8")
    rows = [
        line.strip("| ").split(" | ")
        for line in guide.splitlines()
        if line.startswith(tuple(f"| {m} |" for m in MODELS))
    ]
    stated = {(row[0], row[1]): row[2:] for row in rows}
    assert len(rows) == len(stated) == 24
    for (model, gpu), (shared, version, *errors) in stated.items():
        said = iq.TimingTable.shipped(model, gpu).provenance
        assert (int(shared), version) == (said["tensor_parallel"], said["backend_version"])
        found = [said["held_out_error"][part] for part in PARTS]
        assert errors == [f"{100 * one['median']:.2f} / {100 * one['p95']:.2f}" for one in found]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("gpu", GPUS)
def test_a_shipped_table_is_small_attributed_and_priced(model, gpu):
    shipped = iq.TimingTable.shipped(model, gpu)
    said = shipped.provenance
    assert (said["model"], said["gpu"], said["licence"]) == (model, gpu, "Apache-2.0")
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
    workload = arriving(200, 1.0, iq.Uniform(low=10, high=2000), iq.Geometric(mean=50))
    run = iq.simulate(workload, engine, seed=1)
    assert run.summary()["completed"].item() == 200
    assert not any("beyond the table" in text for text in run.findings)
    stepped = iq.simulate(workload, engine, seed=1, stepping=True)
    assert stepped.requests.equals(run.requests)


def test_the_licence_of_the_tables_lies_beside_them():
    assert "Apache License" in (FOLDER / "LICENSE-APACHE-2.0").read_text(encoding="utf-8")
    notice = (FOLDER / "NOTICE").read_text(encoding="utf-8")
    assert "NVIDIA CORPORATION & AFFILIATES" in notice and "Changed:" in notice


@refused(
    (
        {"model": "llama-3.1-8", "gpu": "h200"},
        "model: no shipped table has 'llama-3.1-8'; did you mean llama-3.1-8b",
    ),
    ({"model": "gpt", "gpu": "h200"}, "model: .*known are llama-3.1-70b, llama-3.1-8b"),
    (
        {"model": "qwen3-8b", "gpu": "a100"},
        "gpu: no shipped table of qwen3-8b has 'a100'; did you mean a100-80gb",
    ),
    (
        {"model": "qwen3-8b", "gpu": "h200", "backend": "sglang"},
        "backend: .*of qwen3-8b on h200 has 'sglang'",
    ),
    ({"model": "qwen3-8b", "gpu": "h200", "tensor_parallel": 2}, "tensor_parallel: .*is for 1, not 2"),
    (
        {"model": "qwen3-8b", "gpu": "h200", "tensor_parallel": 0},
        "tensor_parallel: must be a whole number from 1",
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
    done = command("show", "llama-3.1-70b", "h100-80gb")
    assert done.exit_code == 0
    shipped = iq.TimingTable.shipped("llama-3.1-70b", "h100-80gb")
    for text in ("aiconfigurator", "Apache-2.0", "4 × h100-80gb", "mixed iteration"):
        assert text in done.stdout
    assert f"{1000 * iteration_s(shipped, decodes=[1000] * 64):.1f} ms" in done.stdout
    assert f"{100 * shipped.provenance['held_out_error']['chunk']['p95']:.2f} %" in done.stdout
    small().write(tmp_path / "own.parquet")
    own = command("show", str(tmp_path / "own.parquet"))
    assert own.exit_code == 0 and "held-out" not in own.stdout and "512" not in own.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "none.parquet"), "'none.parquet': no such file; a shipped table is named by model and GPU"),
        (("show", "qwen3-8b"), "as in: inferq timing show qwen3-8b a100-80gb"),
        (("show", "qwen3-8b", "h100"), "did you mean h100-80gb?"),
        (("show", "a", "b", "c"), "'c': one name too many"),
        (("show", "{own}", "--backend", "vllm"), "--backend: is for shipped tables"),
        (("show", "{readme}"), "cannot be read as Parquet"),
        (("show", "qwen3-8b", "h200", "--tensor-parallel", "8"), "is for 1, not 8"),
        (("bake", "qwen3-8b", "h200", "--quantisation", "fp8"), "is not of the form gemm_quant_mode=fp8"),
        (("bake", "qwen3-8b", "h200", "--out", "none/x.parquet"), "--out: there is no folder 'none'"),
    ],
)
def test_a_wrong_command_is_one_line_that_says_what_to_do(tmp_path, arguments, said):
    small().write(tmp_path / "own.parquet")
    (tmp_path / "README.md").write_text("no table")
    places = {"own": tmp_path / "own.parquet", "readme": tmp_path / "README.md"}
    done = command(*(text.format(**places) for text in arguments))
    assert (done.exit_code, done.output.count("\n")) == (2, 1)
    assert said in done.output


# Against aiconfigurator itself


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    monkeypatch.setitem(sys.modules, "aiconfigurator_core.sdk.engine", None)
    with pytest.raises(iq.ConfigError, match=r"pip install 'inferq\[aiconfigurator\]'"):
        iq.TimingTable.from_aiconfigurator("qwen3-8b", "h200")


@pytest.mark.parametrize(("model", "gpu"), [("llama-3.1-8b", "a100-80gb"), ("mixtral-8x7b", "l40s")])
def test_a_shipped_table_is_what_the_database_says_now(model, gpu):
    pytest.importorskip("aiconfigurator_core")
    import numpy as np

    from inferq.timing.tables.baking.kernels import KernelDatabase

    shipped = iq.TimingTable.shipped(model, gpu)
    shared = shipped.provenance["tensor_parallel"]
    again = iq.TimingTable.from_aiconfigurator(model, gpu, tensor_parallel=shared)
    assert again == shipped
    assert again.provenance["held_out_error"] == shipped.provenance["held_out_error"]
    # Other points than those that the file was judged by, priced by the core.
    database = KernelDatabase(model, gpu, "vllm", version=None, tensor_parallel=shared, quantisation={})
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
    (("qwen3-9b", "h200"), {}, "model: aiconfigurator carries no 'qwen3-9b'.*did you mean qwen3-8b"),
    (("qwen3-8b", "h20"), {}, "system: aiconfigurator has measured nothing on 'h20'; did you mean h200"),
    (("qwen3-8b", "h200", "vlm"), {}, "backend: .*did you mean vllm"),
    (("qwen3-8b", "h200"), {"version": "0.1"}, "version: vllm '0.1' was not measured on h200_sxm; known are"),
    (("qwen3-8b", "h200"), {"tensor_parallel": 3}, "tensor_parallel: 3: "),
    (("qwen3-8b", "h200"), {"tensor_parallel": 0}, "tensor_parallel: must be a whole number"),
    (("qwen3-8b", "h200"), {"quantisation": {"gem": "fp8"}}, "quantisation: unknown mode 'gem'"),
    (
        ("qwen3-8b", "a100-80gb"),
        {"quantisation": {"gemm_quant_mode": "fp8"}},
        "quantisation: .*gemm_quant_mode",
    ),
    (("qwen3-8b", "h200"), {"quantisation": {"gemm_quant_mode": "x"}}, "quantisation: "),
    (("qwen3-8b", "h200"), {"most_context": 3}, "most_context: "),
    ((3, "h200"), {}, "model: must be a name"),
)
def test_what_aiconfigurator_cannot_answer_is_refused_by_its_argument(arguments, options):
    pytest.importorskip("aiconfigurator_core")
    iq.TimingTable.from_aiconfigurator(*arguments, **options)


def test_a_folder_with_a_config_is_a_model(tmp_path):
    pytest.importorskip("aiconfigurator_core")
    import importlib.resources

    config = importlib.resources.files("aiconfigurator_core") / "model_configs" / "Qwen--Qwen3-8B_config.json"
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_bytes(config.read_bytes())
    out = tmp_path / "own.parquet"
    done = command("bake", str(folder), "h200", "--out", str(out))
    assert done.exit_code == 0, done.output
    baked = iq.TimingTable.read(out)
    assert baked == iq.TimingTable.shipped("qwen3-8b", "h200")
    assert (baked.provenance["model"], baked.provenance["gpu"]) == ("my-model", "h200")
