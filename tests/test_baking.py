"""Tables baked from a small kernel database, the extra with the real one, and tables kept for the user."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import inferq as iq
from inferq.cli import app
from inferq.timing import iteration_s
from inferq.timing.baking import checkpoints, kernels, on_demand, sampling
from inferq.timing.baking.checkpoints import Source
from inferq.timing.baking.kernels import KernelDatabase
from inferq.timing.baking.rebuild import Order, baked, orders
from inferq.timing.baking.sampling import bake
from inferq.timing.tables.archive import Archive, write

from .refusals import refused

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
TOY = Source("toy", CONFIG)
TOY_OF_EXPERTS = Source(
    "toy-of-experts",
    {
        **CONFIG,
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
)


class Handle:
    """A compiled model whose operations are functions of tokens, sequences and context, in milliseconds."""

    def __init__(self, prefill, decode):
        self.prefill, self.decode = prefill, decode

    def evaluate_context_ops(self, operations, *, batch_size, s, prefix=0):
        return [self._of(self.prefill, at, (s * batch_size, batch_size, prefix)) for at in operations]

    def evaluate_generation_ops(self, operations, *, batch_size, s):
        return [self._of(self.decode, at, (batch_size, batch_size, s)) for at in operations]

    @staticmethod
    def _of(operations, at, arguments):
        if at >= len(operations):
            raise ValueError(f"operation {at} out of range")
        name, milliseconds = operations[at]
        return name, milliseconds(*arguments), 0.0, "silicon"


def operations(*, gemm=lambda tokens: 1 + tokens / 1000, experts=None, attention=("attention",)):
    """Prefill and decode of a model: a product, logits, optional experts, and operations of attention."""

    def chunk(tokens, count, context):
        return 0.1 + tokens * (context + tokens / 2) / 1e6

    def decode(sequences, _, context):
        return 0.2 + sequences * context / 1e6

    phases = {}
    for phase, attend in (("context", chunk), ("generation", decode)):
        phases[phase] = [
            (f"{phase}_proj_gemm", lambda tokens, rows, context: gemm(tokens)),
            *([(f"{phase}_moe", lambda tokens, rows, context: experts(tokens))] if experts else []),
            *((f"{phase}_{name}", attend) for name in attention),
            (f"{phase}_logits_gemm", lambda tokens, rows, context: 0.01 * rows),
        ]
    return Handle(phases["context"], phases["generation"])


@pytest.fixture
def compiles(monkeypatch):
    """A database of the handles that are set for each backend; returns the options of each compilation."""
    handles, asked = {}, []

    def compiled(folder, system, backend, *, backend_version, **options):
        config = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
        asked.append({"backend": backend, "system": system, "config": config, **options})
        if backend not in handles:
            raise LookupError(f"{backend} was not measured")
        return handles[backend]

    monkeypatch.setattr(kernels, "_compiler", lambda: compiled)
    monkeypatch.setattr(kernels, "_version", lambda system, backend, version: version or "1.0")
    monkeypatch.setattr(sampling.metadata, "version", lambda name: "0.0")

    def use(**given):
        handles.update(given)
        return asked

    return use


def test_attention_is_every_operation_whose_time_depends_on_the_context(compiles):
    compiles(vllm=operations(attention=("attention", "window_attention", "indexer")))
    database = KernelDatabase(TOY, "h200", "vllm")
    # One product of 1 + 0.1 ms, one row of logits.
    assert database.linear(100) == pytest.approx(1.11e-3)
    # Three kernels of 0.1 ms + 100 · 50 pairs at 1 ns each, and of 0.2 ms + 4 · 1,001 tokens at 1 ns.
    assert database.chunk(100, 0) == pytest.approx(3 * 0.105e-3)
    # The logits of three more rows belong to the decodes.
    assert database.decode(4, 1000) == pytest.approx(3 * 0.204004e-3 + 0.03e-3)


def test_parallelism_and_formats_reach_the_database(compiles):
    asked = compiles(vllm=operations())
    KernelDatabase(
        TOY,
        "b200",
        "vllm",
        version="1.0",
        tensor_parallel=4,
        expert_parallel=2,
        data_parallel=2,
        weights="nvfp4",
        kv_dtype="fp8",
    )
    (options,) = asked
    assert (options["system"], options["config"]) == ("b200_sxm", CONFIG)
    sizes = ("tp_size", "attention_dp_size", "moe_ep_size", "moe_tp_size")
    assert [options[name] for name in sizes] == [4, 2, 2, 4]
    modes = ("gemm_quant_mode", "moe_quant_mode", "kvcache_quant_mode")
    assert [options[name] for name in modes] == ["nvfp4", "nvfp4", "fp8"]


def test_untuned_products_and_slow_experts_come_from_another_backend(compiles):
    compiles(
        vllm=operations(gemm=lambda tokens: 50.0, experts=lambda tokens: 9.0 if tokens == 64 else 2.0),
        sglang=operations(experts=lambda tokens: 3.0),
    )
    database = KernelDatabase(TOY, "b200", "vllm")
    assert database.linear(100) == pytest.approx((1.1 + 2 + 0.01) * 1e-3)
    assert database.linear(64) == pytest.approx((1.064 + 3 + 0.01) * 1e-3)
    assert database.corrections == [
        "experts: the shorter of the times measured here and under SGLang 1.0",
        "products (proj): untuned here, measured under SGLang 1.0",
    ]
    # A product that is only somewhat slower stays.
    compiles(vllm=operations(gemm=lambda tokens: 2 * (1 + tokens / 1000)))
    assert KernelDatabase(TOY, "b200", "vllm").linear(100) == pytest.approx(2.21e-3)


@pytest.mark.parametrize(
    ("backend", "options", "added_ms"),
    [
        ("vllm", {"weights": "bf16"}, 0.24),  # 16 layers of 15 µs
        ("vllm", {"weights": "mxfp4"}, 0),  # timed with the choice of experts
        ("sglang", {"weights": "bf16"}, 0),
        ("sglang", {"weights": "nvfp4"}, 0.24),
        ("sglang", {"weights": "bf16", "tensor_parallel": 2, "expert_parallel": 2}, 0.24),
        ("trtllm", {"weights": "nvfp4"}, 0),
    ],
)
def test_experts_that_were_chosen_before_the_timing_take_longer(compiles, backend, options, added_ms):
    compiles(**{backend: operations(experts=lambda tokens: 2.0)})
    database = KernelDatabase(TOY_OF_EXPERTS, "b200", backend, **options)
    assert database.linear(100) == pytest.approx((1.1 + 2 + 0.01 + added_ms) * 1e-3)
    assert ("added to times without their choice" in " ".join(database.corrections)) == (added_ms > 0)


def test_the_choice_of_experts_is_added_to_the_times_that_lack_it(compiles):
    compiles(vllm=operations(experts=lambda tokens: 2.0), sglang=operations(experts=lambda tokens: 2.1))
    # vLLM's 2 ms lack 0.24 ms. SGLang's 2.1 ms lack it only in NVFP4.
    for weights, experts_ms in (("bf16", 2.1), ("nvfp4", 2.24)):
        database = KernelDatabase(TOY_OF_EXPERTS, "b200", "vllm", weights=weights)
        assert database.linear(100) == pytest.approx((1.1 + experts_ms + 0.01) * 1e-3)
    # Untuned experts of SGLang are replaced by vLLM's.
    compiles(sglang=operations(experts=lambda tokens: 50.0))
    database = KernelDatabase(TOY_OF_EXPERTS, "b200", "sglang", weights="bf16")
    assert database.linear(100) == pytest.approx((1.1 + 2 + 0.24 + 0.01) * 1e-3)
    # A dense model has no such layers.
    assert KernelDatabase(TOY, "b200", "vllm").linear(100) == pytest.approx((1.1 + 2 + 0.01) * 1e-3)


def test_an_outlier_takes_no_longer_than_a_larger_batch(compiles):
    compiles(vllm=operations(gemm=lambda tokens: 20.0 if tokens == 1 else 5.0))
    table = bake(TOY, "b200", held_out=0)
    assert table.linear.seconds[0] == pytest.approx(5.01e-3)
    assert any("outliers" in note for note in table.provenance["notes"])


def test_a_table_whose_decodes_become_faster_is_refused(compiles):
    compiles(vllm=operations(gemm=lambda tokens: 79.0 if tokens < 512 else 55.0))
    with pytest.raises(
        iq.ConfigError, match=r"backend: the kernels of vllm are not tuned.*79\.\d ms with 32"
    ):
        bake(TOY, "b200", held_out=0)


def test_all_reduces_of_a_layer_are_counted_once(compiles):
    handle = operations()
    for phase, of_phase in (("context", handle.prefill), ("generation", handle.decode)):
        of_phase += [
            (f"{phase}_moe_pre_dispatch", lambda *_: 0.5),
            (f"{phase}_tp_allreduce", lambda *_: 1.0),
        ]
    compiles(vllm=handle)
    database = KernelDatabase(TOY, "h200", "vllm")
    assert database.linear(100) == pytest.approx((1.1 + 0.01 + 0.5) * 1e-3)
    assert database.corrections == ["all-reduces: counted once, not twice as in the source"]


def test_a_module_with_projections_is_read_once_per_iteration(compiles):
    handle = operations(attention=("mla_block",))
    del handle.prefill[0], handle.decode[0]  # no projection besides the module
    compiles(vllm=handle)
    database = KernelDatabase(TOY, "h200", "vllm")
    chunk_s, decode_s = 0.1e-3 + 100 * 50e-9, 0.2e-3 + 4 * 1001e-9
    both = database.linear(104) + database.chunk(100, 0) + database.decode(4, 1000)
    fixed = 0.9 * 0.1e-3  # nine tenths of the shortest time of the module
    assert both == pytest.approx(0.01e-3 + chunk_s + decode_s + 0.03e-3 - fixed, rel=1e-4)
    alone = database.linear(4) + database.decode(4, 1000)
    assert alone == pytest.approx(0.01e-3 + decode_s + 0.03e-3)


def test_the_fixed_cost_of_chunks_counts_once_per_batch(compiles):
    handle = operations()
    name = (
        "generation_moe_overlap"  # in decodes, shared experts run next to routed experts: 1.5 ms, not 2 + 1
    )
    handle.prefill += [("context_moe", lambda *_: 2.0), ("context_shared_gemm", lambda *_: 1.0)]
    handle.decode += [(name, lambda *_: 1.5)]
    compiles(vllm=handle)
    database = KernelDatabase(TOY, "h200", "vllm")
    assert database.linear(100) == pytest.approx((1.1 + 0.01 + 1.5) * 1e-3)
    # A prompt takes as long as prefill does, also beyond the batches in which experts overlap.
    for tokens in (100, 5000):
        attention = 0.1e-3 + tokens * tokens / 2 * 1e-9
        expected = (1 + tokens / 1000 + 0.01 + 3) * 1e-3 + attention
        assert database.linear(tokens) + database.chunk(tokens, 0) == pytest.approx(expected)
        # So do two prompts of half the length: the kernels of this model depend on the tokens of both.
        assert database.linear(tokens) + database.chunks(tokens // 2, 2) == pytest.approx(expected)
    table = bake(TOY, "h200", held_out=0)
    assert table.chunk.shared_s >= 1.5e-3


def test_a_baked_table_has_the_times_of_the_database_and_its_key(compiles):
    compiles(sglang=operations())
    done = []
    table = bake(TOY, "h200", "sglang", held_out=200, progress=lambda now, total: done.append((now, total)))
    database = KernelDatabase(TOY, "h200", "sglang")
    expected = database.linear(140) + database.chunk(100, 0) + database.decode(40, 2000)
    assert iteration_s(table, chunks=[(100, 0)], decodes=[2000] * 40) == pytest.approx(expected, rel=0.02)
    assert done[-1][0] == done[-1][1] == len(done)
    facts = table.provenance
    assert facts["held_out_error"]["decode_iteration"]["p95"] < 0.02
    key = ("model", "gpu", "tensor_parallel", "expert_parallel", "data_parallel", "weights", "kv_dtype")
    assert [facts[name] for name in key] == ["toy", "h200", 1, 1, 1, "bf16", "bf16"]


@refused(
    ({"weights": "fp5"}, "weights: must be one of bf16, fp8, fp8-block, nvfp4, mxfp4, int8, int4, got 'fp5'"),
    ({"kv_dtype": "int4"}, "kv_dtype: must be one of bf16, fp8, int8, got 'int4'"),
    ({"expert_parallel": 3}, "expert_parallel: must divide the 1 GPUs, got 3"),
    ({"data_parallel": 0}, "data_parallel: must be an integer from 1 to 1024"),
    ({"tensor_parallel": True}, "tensor_parallel: "),
)
def test_wrong_arguments_are_errors(options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "_compiler", lambda: None)
        patch.setattr(kernels, "_version", lambda system, backend, version: "1.0")
        bake(TOY, "h200", **options)


def test_an_operation_that_was_not_measured_is_an_error_with_the_model(compiles):
    compiles()
    with pytest.raises(
        iq.ConfigError, match=r"model: aiconfigurator cannot price toy on h200_sxm: .*not measured"
    ):
        bake(TOY, "h200")


# The extra


@pytest.fixture
def without_extra(monkeypatch):
    for name in ("aiconfigurator_core", "aiconfigurator_core.sdk.engine"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(on_demand, "is_installed", lambda: False)


def test_without_the_extra_the_command_names_it(without_extra, tmp_path):
    out = tmp_path / "x.parquet"
    done = CliRunner().invoke(app, ["timing", "bake", "qwen3-8b", "h200", "--out", str(out)])
    assert done.exit_code == 2 and "pip install 'inferq[tables]'" in done.output and not out.exists()
    wrong = CliRunner().invoke(app, ["timing", "bake", "qwen3-8b", "h200", "--out", "x.csv"])
    assert wrong.exit_code == 2 and "--out: must be a .parquet file, got 'x.csv'" in wrong.output


def test_without_the_extra_an_engine_has_a_roofline_and_a_finding_that_names_it(without_extra):
    engine = iq.Engine.on("llama-3.2-1b", "h100-80gb")
    assert repr(engine.timing).startswith("Roofline") and "inferq[tables]" in engine.explain()
    work = iq.Workload({"arrival_s": [0.0], "prompt_tokens": [100], "output_tokens": [10]})
    findings = [finding for finding in iq.simulate(work, engine).findings if finding.kind == "unmeasured"]
    (finding,) = findings
    assert "llama-3.2-1b on 1 × h100-80gb" in str(finding) and "pip install 'inferq[tables]'" in str(finding)
    chosen = iq.Engine.on("llama-3.2-1b", "h100-80gb", timing="roofline")
    assert not any(finding.kind == "unmeasured" for finding in iq.simulate(work, chosen).findings)
    shipped = iq.Engine.on("llama-3.1-8b", "h100-80gb")
    assert not any(finding.kind == "unmeasured" for finding in iq.simulate(work, shipped).findings)


def test_a_roofline_of_a_known_gpu_without_measurements_is_a_finding():
    work = iq.Workload({"arrival_s": [0.0], "prompt_tokens": [100], "output_tokens": [10]})
    result = iq.simulate(work, iq.Engine.on("llama-3.1-8b", "mi300x"))
    (finding,) = [finding for finding in result.findings if finding.kind == "unmeasured"]
    assert "the database has no kernels of mi300x; measure them with inferq calibrate" in str(finding)
    own = dataclasses.replace(iq.timing.Gpu.of("mi300x"), name="own")
    assert not iq.simulate(work, iq.Engine.on("llama-3.1-8b", own)).findings


# Tables kept for the user


@pytest.fixture
def kept(monkeypatch, tmp_path, compiles):
    """A folder of kept tables and a database that has the toy model."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(on_demand, "is_installed", lambda: True)
    monkeypatch.setattr(checkpoints, "_shapes", lambda: [(TOY, TOY.shape)])
    on_demand.table.cache_clear()
    yield tmp_path / "inferq" / "tables"
    on_demand.table.cache_clear()


def test_a_missing_table_is_baked_once_and_kept(kept, compiles):
    asked = compiles(vllm=operations())
    engine = iq.Engine.on(CONFIG, "h200", tensor_parallel=2, kv_dtype="fp8")
    assert isinstance(engine.timing, iq.TimingTable)
    assert f"baked from aiconfigurator-core 0.0, kept in {kept}" in engine.explain()
    (file,) = kept.iterdir()
    assert file.name.startswith("toy_h200_tp2_vllm_bf16_fp8_") and file.suffix == ".parquet"
    compilations = len(asked)
    on_demand.table.cache_clear()
    assert iq.Engine.on(CONFIG, "h200", tensor_parallel=2, kv_dtype="fp8").timing == engine.timing
    assert len(asked) == compilations and list(kept.iterdir()) == [file]
    # Another format is another table.
    iq.Engine.on(CONFIG, "h200", tensor_parallel=2)
    assert len(list(kept.iterdir())) == 2


def test_a_model_that_the_database_lacks_has_a_roofline_with_the_reason(kept, compiles):
    compiles()
    engine = iq.Engine.on(CONFIG, "h200")
    assert repr(engine.timing).startswith("Roofline")
    assert "none can be baked: model: aiconfigurator cannot price toy on h200_sxm" in engine.explain()
    assert not kept.exists()


def test_a_read_only_folder_is_no_error(kept, compiles, monkeypatch):
    compiles(vllm=operations())
    kept.parent.write_text("a file in place of the folder", encoding="utf-8")
    engine = iq.Engine.on(CONFIG, "h200")
    assert isinstance(engine.timing, iq.TimingTable) and "kept in" not in engine.explain()


@pytest.mark.parametrize("content", [b"", b"no table", b"PAR1" + bytes(100)])
def test_a_damaged_kept_table_is_baked_again(kept, compiles, content):
    compiles(vllm=operations())
    timing = iq.Engine.on(CONFIG, "h200").timing
    (file,) = kept.iterdir()
    file.write_bytes(content)
    on_demand.table.cache_clear()
    assert iq.Engine.on(CONFIG, "h200").timing == timing == iq.TimingTable.read(file)


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/x"}, Path("/x/inferq/tables")),
        ("linux", {}, Path.home() / ".cache/inferq/tables"),
        ("darwin", {}, Path.home() / "Library/Caches/inferq/tables"),
        ("win32", {"LOCALAPPDATA": "/local"}, Path("/local/inferq/tables")),
    ],
)
def test_the_folder_follows_the_rules_of_the_system(monkeypatch, platform, environment, expected):
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert on_demand.folder() == expected


def test_the_source_is_a_checkpoint_in_the_same_format(kept, monkeypatch):
    small = Source("toy-fp8", {**CONFIG, "quantization_config": {"quant_method": "fp8"}})
    monkeypatch.setattr(checkpoints, "_shapes", lambda: [(small, small.shape), (TOY, TOY.shape)])
    for weights, name in (("fp8", "toy-fp8"), ("bf16", "toy"), ("int4", "toy")):
        found = Source.like(TOY.shape, weights)
        assert found is not None and found.name == name
    assert Source.like(iq.timing.ModelShape.of("llama-3.1-8b"), "bf16") is None


# The shipped tables


def test_an_ordered_table_has_the_name_of_the_catalog_and_its_key(compiles, tmp_path):
    compiles(sglang=operations())
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    order = Order("llama-3.2-1b", str(tmp_path / "toy"), "h200", "sglang", 4, 2, 2, "fp8", "bf16")
    made = baked(order)
    assert not isinstance(made, str)
    key, grids, provenance = made
    assert key == ("llama-3.2-1b", "h200", 4, 2, 2, "sglang", "fp8", "bf16")
    assert provenance["model"] == "llama-3.2-1b" and provenance["model_at_source"] == "toy"
    write(tmp_path / "x.bin", {key: (grids, provenance)})
    assert Archive(tmp_path / "x.bin").read(key)[0] == grids
    assert "vllm was not measured" in str(baked(order._replace(backend="vllm")))


def test_the_list_of_shipped_tables_expands_parallelism_and_formats(tmp_path):
    (tmp_path / "list.toml").write_text(
        '[[tables]]\nmodel = "m"\ngpus = ["h200"]\nparallel = ["8", "4/2", "1/8/8"]\nkv = ["bf16", "fp8"]\n',
        encoding="utf-8",
    )
    expanded = [(*order[4:7], order.kv_dtype) for order in orders(tmp_path / "list.toml")]
    assert expanded == [(*sizes, kv) for sizes in ((8, 1, 1), (4, 2, 1), (1, 8, 8)) for kv in ("bf16", "fp8")]
