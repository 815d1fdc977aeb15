"""Model shapes, GPU memory, and engines by model and GPU."""

import dataclasses
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import inferq as iq
from inferq.timing import KvMemory, ModelShape
from inferq.timing.hardware.catalog import entries

GIB = 2**30

# Parameter counts of the safetensors on the Hugging Face Hub.
PUBLISHED = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.3-70b": 70_553_706_496,
    "codellama-34b": 33_743_970_304,
    "mistral-7b": 7_241_732_096,
    "mistral-nemo": 12_247_782_400,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_has_the_parameters_of_its_model_card(name: str):
    assert ModelShape.of(name).parameters == PUBLISHED[name]


def test_keys_and_values_of_a_token():
    # 2 (key, value) · layers · key-value heads · head size · 2 bytes.
    assert ModelShape.of("llama-3.1-8b").kv_bytes_per_token() == 2 * 32 * 8 * 128 * 2 == 131_072
    assert ModelShape.of("llama-2-7b").kv_bytes_per_token() == 2 * 32 * 32 * 128 * 2
    assert ModelShape.of("llama-3.1-8b").kv_bytes_per_token("fp8") == 65_536
    # Eight heads on four GPUs are two each; on sixteen GPUs each is stored twice.
    assert ModelShape.of("llama-3.1-70b").kv_bytes_per_token("bf16", 4) == 2 * 80 * 2 * 128 * 2
    assert ModelShape.of("llama-3.1-70b").kv_bytes_per_token("bf16", 16) == 2 * 80 * 1 * 128 * 2


def test_a_token_uses_two_of_eight_experts():
    mixtral = ModelShape.of("mixtral-8x7b")
    others = 32 * (mixtral.experts - mixtral.active_experts) * 3 * 4096 * 14336
    assert mixtral.parameters - mixtral.active_parameters == others
    assert 12.8e9 < mixtral.active_parameters < 12.95e9  # "13B" in Mixtral's announcement


@pytest.mark.parametrize("weights, share", [("fp8", 0.5), ("int8", 0.5), ("int4", (0.5 + 2.5 / 128) / 2)])
def test_quantized_weights_shrink_the_linear_layers(weights: str, share: float):
    shape = ModelShape.of("llama-3.1-8b")
    other_bytes = 2 * (shape.parameters - shape.linear_weights)
    assert shape.weight_bytes(weights) - other_bytes == pytest.approx(
        share * (shape.weight_bytes() - other_bytes)
    )


@pytest.mark.parametrize(
    "model, gpu, tokens, rows, logged_gib, within",
    [
        # vLLM pull request 10511 (December 2024): 79.22 GiB × 0.9, weights 14.96; 8,192 tokens, 256 rows.
        ("llama-3-8b", "h100-80gb", 8192, 256, 53.29, 0.03),
        # vLLM pull request 2031 (December 2023): 7,351 blocks of 16 tokens of half a MiB.
        ("llama-2-7b", "a100-80gb", 4096, 256, 7351 * 16 * 2 * 32 * 4096 * 2 / GIB, 0.03),
        # AWS Data on EKS, DeepSeek-R1-Distill-Llama-8B on an A10G: 20.07 GiB, weights 14.99, peak 0.85.
        # The KV cache is a fifth of the used memory, so that 0.7 GiB of the reserve are 16 % of it.
        ("llama-3.1-8b", "a10g", 8192, 64, 4.17, 0.20),
    ],
)
def test_the_cache_size_is_close_to_logs_of_vllm(
    model: str, gpu: str, tokens: int, rows: int, logged_gib: float, within: float
):
    memory = KvMemory.of(model, gpu, batched_tokens=tokens, sampled_rows=rows)
    assert memory.kv_bytes / GIB == pytest.approx(logged_gib, rel=within)


@given(
    gpu_memory_utilization=st.floats(0.5, 1),
    reserved=st.floats(0, 8 * GIB),
    block=st.integers(1, 4096),
    tensor_parallel=st.sampled_from([1, 2, 4, 8]),
)
def test_capacity_is_what_is_left_in_whole_blocks(
    gpu_memory_utilization: float, reserved: float, block: int, tensor_parallel: int
):
    memory = KvMemory.of(
        "llama-3.1-8b",
        "a100-80gb",
        gpu_memory_utilization=gpu_memory_utilization,
        reserved_bytes=reserved,
        block=block,
        tensor_parallel=tensor_parallel,
    )
    shape = ModelShape.of("llama-3.1-8b")
    left = (
        80 * GIB * gpu_memory_utilization
        - shape.weight_bytes() / tensor_parallel
        - memory.activation_bytes
        - reserved
    )
    assert memory.kv_bytes == pytest.approx(left)
    assert memory.tokens % block == 0
    assert memory.tokens * memory.kv_bytes_per_token <= left * (1 + 1e-12)
    assert (memory.tokens + block) * memory.kv_bytes_per_token > left * (1 - 1e-12)


def test_the_peak_of_activations_by_hand():
    # 2·T·hidden·2 bytes and the larger of 3·T·intermediate·2 and 40 bytes a logit.
    few = KvMemory.of("llama-3.1-8b", "a100-80gb", batched_tokens=8192, sampled_rows=1)
    assert few.activation_bytes == 2 * 8192 * 4096 * 2 + 3 * 8192 * 14336 * 2
    many = KvMemory.of("llama-3.1-8b", "a100-80gb", batched_tokens=512, sampled_rows=256)
    assert many.activation_bytes == 2 * 512 * 4096 * 2 + 256 * 128256 * 40


def test_a_model_that_does_not_fit_is_an_error_with_a_size_that_fits():
    with pytest.raises(iq.ConfigError) as refused:
        iq.timing.KvMemory.of("llama-3.1-70b", "a100-80gb", tensor_parallel=1)
    message = str(refused.value)
    assert message.startswith("tensor_parallel: llama-3.1-70b does not fit on 1 × a100-80gb")
    assert (
        "131.42 GiB" in message
        and "72.00 of 80.00 GiB" in message
        and message.endswith("tensor_parallel=2 fits")
    )
    assert KvMemory.of("llama-3.1-70b", "a100-80gb").tensor_parallel == 2
    nowhere = iq.timing.Gpu(
        memory_bytes=2e9, bandwidth_bytes_per_s=1e12, bf16_flops=1e14, link_bytes_per_s=1e10
    )
    with pytest.raises(iq.ConfigError, match="no number of GPUs fits"):
        iq.timing.KvMemory.of("llama-3.1-405b", nowhere)


def test_every_model_on_every_gpu_is_an_engine_or_a_named_error():
    made = 0
    for model in entries("models"):
        for gpu in entries("gpus"):
            try:
                engine = iq.Engine.on(model, gpu)
            except iq.ConfigError as refused:
                assert "does not fit" in str(refused), (model, gpu)
                continue
            made += 1
            assert engine.kv.tokens is not None and engine.kv.tokens > 0
            assert iq.timing.iteration_s(engine.timing, decodes=[100]) > 0
    assert made > 200


def test_an_engine_on_a_gpu_uses_and_reports_the_table_of_its_shape():
    engine = iq.Engine.on("llama-3.1-8b", "a100-80gb")
    assert engine.timing == iq.TimingTable.shipped("llama-3.1-8b", "a100-80gb")
    assert "measured" in engine.explain() and f"{engine.kv.tokens:,} tokens" in engine.explain()
    same = iq.Engine.on("llama-3-8b", "a100-80gb")
    assert dataclasses.replace(same, max_model_len=131_072) == engine and same.max_model_len == 8192
    assert "llama-3-8b has the same shape" in same.explain()
    # The table has four GPUs, although two would suffice.
    assert iq.Engine.on("llama-3.1-70b", "a100-80gb").timing == iq.TimingTable.shipped(
        "llama-3.1-70b", "a100-80gb"
    )
    for other in (
        iq.Engine.on("llama-3.1-8b", "a100-80gb", tensor_parallel=16),
        iq.Engine.on("llama-3.1-8b", "a100-80gb", weights="fp8"),
        iq.Engine.on("llama-3.1-8b", "a100-80gb", kv_dtype="fp8"),
        iq.Engine.on("llama-3.1-8b", "a100-80gb", backend="sglang"),
        iq.Engine.on("llama-3.2-3b", "a100-80gb"),
    ):
        assert isinstance(other.timing, iq.Roofline)
        assert "no measured table" in other.explain() or "16-bit" in other.explain()


def test_an_engine_on_a_gpu_has_the_memory_of_its_settings():
    settings = {"weights": "int4", "kv_dtype": "fp8", "gpu_memory_utilization": 0.8, "tensor_parallel": 2}
    scheduler = iq.Sarathi(token_budget=4096, max_seqs=300)
    engine = iq.Engine.on("qwen3-32b", "l40s", scheduler=scheduler, **settings)
    room = KvMemory.of("qwen3-32b", "l40s", batched_tokens=4096, sampled_rows=300, **settings)
    shape = ModelShape.of("qwen3-32b")
    assert room.weight_bytes == shape.weight_bytes("int4") / 2
    assert room.kv_bytes_per_token == shape.kv_bytes_per_token("fp8", 2) == 2 * 64 * 4 * 128
    assert engine.kv == iq.KvCache(tokens=room.tokens, prefix_cache="blocks")
    assert engine.timing == iq.Roofline("qwen3-32b", "l40s", 2, weights="int4", kv_dtype="fp8")


def test_a_table_for_fewer_gpus_than_the_model_needs_is_not_used():
    # 61 GiB of weights do not fit in 0.7 · 80 GiB, so the table of two GPUs is used.
    assert iq.Engine.on("qwen3-32b", "a100-80gb").timing == iq.TimingTable.shipped("qwen3-32b", "a100-80gb")
    tight = iq.Engine.on("qwen3-32b", "a100-80gb", gpu_memory_utilization=0.7)
    assert tight.timing == iq.TimingTable.shipped("qwen3-32b", "a100-80gb", tensor_parallel=2)


def test_given_parts_replace_computed_ones():
    given = {
        "timing": iq.Constant(0.01),
        "kv": iq.KvCache(tokens=1600),
        "overhead": iq.Overhead(base_s=0.001),
        "api_s": 0.002,
        "max_model_len": 1000,
    }
    engine = iq.Engine.on("llama-3.1-8b", "a100-80gb", scheduler=iq.Sarathi(), first_token="decode", **given)
    # A size alone leaves the server's prefix cache on.
    given["kv"] = iq.KvCache(tokens=1600, prefix_cache="blocks")
    assert engine == iq.Engine(scheduler=iq.Sarathi(), first_token="decode", **given)
    assert engine.explain().count("as given") == 7
    # The GPU is then irrelevant: not even the fit of the model is checked.
    parts = {name: given[name] for name in ("timing", "kv", "overhead", "api_s", "max_model_len")}
    large = iq.Engine.on("llama-3.1-405b", "l4", scheduler=iq.VllmV1(), **parts)
    assert large == iq.Engine(scheduler=iq.VllmV1(), **parts)


def test_a_scenario_names_model_and_gpu(tmp_path):
    text = """
[workload]
requests = 10
arrivals = { kind = "Poisson", rate = 1.0 }
prompt = { kind = "Fixed", tokens = 100 }
output = { kind = "Fixed", tokens = 5 }
[engine]
model = "config.json"
gpu = "l40s"
gpu_memory_utilization = 0.8
overhead = { base_s = 0.001 }
[engine.scheduler]
kind = "Sarathi"
"""
    import json

    config = {**entries("models")["qwen3-8b"]["config"], "num_hidden_layers": 20}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    from typer.testing import CliRunner

    from inferq.cli import app
    from inferq.scenario import Scenario

    runner = CliRunner()
    scenario = Scenario.read(tmp_path / "run.toml")
    shown = runner.invoke(app, ["simulate", str(tmp_path / "run.toml")])
    assert "overhead Overhead(base_s=0.001" in shown.output and "Roofline(" in shown.output
    overhead = iq.Overhead(base_s=0.001)
    wanted = iq.Engine.on(
        config, "l40s", gpu_memory_utilization=0.8, scheduler=iq.Sarathi(), overhead=overhead
    )
    assert scenario.system == wanted
    result = scenario.run()
    # The scenario of a result contains the numbers and repeats the run without the file.
    (tmp_path / "config.json").unlink()
    again = iq.Engine.from_json(json.loads(result.scenario)["engine"])
    assert again == wanted


@pytest.mark.parametrize(
    "table, message",
    [
        ({"model": "llama-3.1-8b"}, "engine.gpu: missing"),
        ({"gpu": "h200"}, "engine.model: missing"),
        ({"model": "llama-3.1-8b", "gpu": "h30"}, "unknown name 'h30'; describe your own GPU"),
        ({"model": "llama-3.1-8b", "gpu": "gb100"}, "unknown name 'gb100'; describe"),
        ({"model": "llama-3.1-8b", "gpu": "a10"}, "unknown name 'a10'; describe"),
        ({"model": "llama-3.1-8b", "gpu": "l40"}, "unknown name 'l40'; describe"),
        ({"model": "llama-3.1-8b", "gpu": "h100-nvl"}, "unknown name 'h100-nvl'; describe"),
        ({"model": "llama-3.1-8b", "gpu": "h100"}, "did you mean h100-80gb or h100-80gb-pcie?"),
        ({"model": "llama-3.1-8b", "gpu": "h100-80gb-pci"}, "did you mean h100-80gb-pcie?"),
        ({"model": "llama-3.1-8b", "gpu": "rtx4090"}, "did you mean rtx-4090?"),
        ({"model": "llama-5-scout", "gpu": "h200"}, "unknown name 'llama-5-scout'; use the model's"),
        ({"model": "mistral-large-123b", "gpu": "h200"}, "unknown name 'mistral-large-123b'; use"),
        ({"model": "deepseek-v3.9", "gpu": "h200"}, "unknown name 'deepseek-v3.9'; use"),
        ({"model": "gpt-oss", "gpu": "h200"}, "did you mean gpt-oss-20b or gpt-oss-120b?"),
        ({"model": "deepseek-v3.2-exp2", "gpu": "h200"}, "unknown name 'deepseek-v3.2-exp2'"),
        ({"model": "llama-3.1-8b", "gpu": "h200", "server": f"vllm-{'9' * 5000}"}, "unknown server"),
        ({"model": "lama-3.1-8b", "gpu": "h200"}, "did you mean llama-3.1-8b?"),
        ({"model": "llama-3.1-8b", "gpu": "h200", "tensor": 2}, "engine: unknown field 'tensor'"),
        ({"model": "llama-3.1-8b", "gpu": "h200", "tensor_parallel": 3}, "cannot share the 32 query heads"),
        ({"model": "llama-3.1-8b", "gpu": "h200", "weights": "int3"}, "engine.weights: must be one of"),
        ({"model": "llama-3.1-8b", "gpu": "h200", "kv_dtype": "int3"}, "engine.kv_dtype: must be one of"),
        ({"model": "llama-3.1-8b", "gpu": "h200", "backend": "vlm"}, "engine.backend: must be one of"),
        (
            {"model": "llama-3.1-8b", "gpu": "h200", "gpu_memory_utilization": 90},
            "engine.gpu_memory_utilization: must be from",
        ),
        ({"model": "nowhere/config.json", "gpu": "h200"}, "no such file"),
    ],
)
def test_a_wrong_table_is_an_error_at_its_path(table, message: str):
    with pytest.raises(iq.ConfigError) as refused:
        iq.Engine.from_json(table)
    assert message in str(refused.value)


def test_a_config_without_the_needed_keys_names_them_and_the_file(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(
        '{"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "vocab_size": 32000}',
        encoding="utf-8",
    )
    for place in (file, tmp_path, str(file)):
        with pytest.raises(iq.ConfigError) as refused:
            ModelShape.of(place)
        missing = "missing num_hidden_layers, intermediate_size"
        assert str(refused.value) == f"{file}: {missing} (model_type 'llama' requires these keys)"
    numbers = '{"hidden_size": ' + "9" * 5000 + "}"
    for text, message in (
        ("{", "is not JSON"),
        ("", "is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        (numbers, "is not JSON"),
    ):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(iq.ConfigError, match=message):
            ModelShape.of(file)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"kv_lora_rank": 512}, "models of type 'llama' do not have multi-head latent attention"),
        ({"model_type": "rwkv"}, "'rwkv' is not supported, so these keys were not understood"),
        ({"model_type": None, "architectures": None}, "missing model_type"),
        ({"model_type": "qwen3_next"}, "missing head_dim (model_type 'qwen3_next' requires"),
        ({"model_type": "deepseek_v3"}, "missing kv_lora_rank, qk_nope_head_dim"),
        ({"n_shared_experts": 1}, "models of type 'llama' do not have shared experts"),
        ({"num_experts_per_tok": 8, "num_experts": 0}, "requires the number of experts"),
        ({"mamba_d_state": 16}, "do not have state-space layers"),
        ({"num_experts": 8}, "missing num_experts_per_tok"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "9 exceeds the 8 experts"),
        ({"num_key_value_heads": 5}, "5 does not divide 32 heads"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: must be an integer"),
        ({"hidden_size": "4096"}, "hidden_size: must be an integer"),
        ({"text_config": {}}, "missing hidden_size"),
        ({"text_config": []}, "text_config must be a table"),
        ({"num_experts_per_tok": 8, "moe_intermediate_size": 1408}, "requires the number of experts"),
        (
            {"layer_types": ["linear_attention"] * 32},
            "layer_types: must contain only 'full_attention', 'sliding_attention', 'attention', got 'linear",
        ),
        ({"layer_types": ["full_attention"]}, "layer_types: must have 32 values, one per layer"),
        ({"is_encoder_decoder": True}, "an encoder"),
        ({"quantization_config": {"quant_method": "bits"}}, "quant_method: must be one of fp8, fbgemm_fp8"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings: must be True or False"),
        ({"model_type": "gemma2"}, "missing head_dim"),
    ],
)
def test_an_unsupported_model_is_rejected(change, message: str):
    config = {**entries("models")["llama-3.1-8b"]["config"], **change}
    with pytest.raises(iq.ConfigError) as refused:
        ModelShape.of(config)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "name, known, weights",
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b", "bf16"),
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b", "fp8-block"),
        ("RedHatAI/Llama-3.1-70B-Instruct-FP8-dynamic", "llama-3.1-70b", "fp8"),
        ("nvidia/Qwen3-235B-A22B-NVFP4", "qwen3-235b-a22b", "nvfp4"),
        ("Qwen/Qwen2.5-72B-Instruct-AWQ", "qwen2.5-72b", "int4"),
        ("qwen2.5-7b-instruct-gptq-int4", "qwen2.5-7b", "int4"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", "nemotron-3-nano-30b-a3b", "nvfp4"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-r1", "fp8-block"),
        ("openai/gpt-oss-120b", "gpt-oss-120b", "mxfp4"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b", "bf16"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama-4-scout", "bf16"),
    ],
)
def test_a_name_of_the_hub_is_the_model_in_the_format_of_the_name(name: str, known: str, weights: str):
    shape = ModelShape.of(name)
    assert shape == ModelShape.of(known) and shape.checkpoint.weights == weights


def test_a_name_of_the_hub_has_the_sizes_of_its_release():
    old, new = ModelShape.of("mistral-7b"), ModelShape.of("mistralai/Mistral-7B-Instruct-v0.3")
    assert (
        old.window_bytes_per_token() > 0 == new.window_bytes_per_token() and new.parameters == 7_248_023_552
    )
    long = ModelShape.of("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8")
    assert (long.max_model_len, long.checkpoint.weights) == (262_144, "fp8-block")


@pytest.mark.parametrize("name", ["deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "me/llama-3.1-8b-tiny", "a/b"])
def test_a_name_of_the_hub_of_another_model_is_not_taken_for_a_known_one(name: str):
    with pytest.raises(iq.ConfigError, match="no such file"):
        ModelShape.of(name)


def test_embeddings_are_tied_where_the_type_of_model_ties_them():
    config = {**entries("models")["llama-3.1-8b"]["config"], "head_dim": 128, "sliding_window": 4096}
    del config["tie_word_embeddings"]
    assert not ModelShape.of(config).tied
    assert ModelShape.of({**config, "model_type": "gemma2"}).tied


def test_unused_keys_of_a_config_are_reported():
    config = {**entries("models")["llama-3.1-8b"]["config"], "vision_config": {"depth": 2}, "new_part": 7}
    shape = ModelShape.of(config)
    assert shape == ModelShape.of("llama-3.1-8b") and set(shape.unused) == {"vision_config", "new_part"}
    lines = iq.Engine.on(config, "h200").explain()
    assert "unused: vision_config of a model: images are not encoded" in lines
    assert "unused: new_part of a model: the key is not understood" in lines
    assert "unused" not in iq.Engine.on("llama-3.1-8b", "h200").explain()


def test_a_checkpoint_determines_the_formats():
    config = {
        **entries("models")["qwen3-8b"]["config"],
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    card = iq.Engine.on(config, "h200").on_card
    assert (card["weights"], card["kv_dtype"]) == ("fp8-block", "bf16")
    assert iq.Engine.on(config, "h200", weights="float16", kv_dtype="fp8_e4m3").on_card["weights"] == "bf16"
    assert iq.Engine.on(config, "h200", weights="fp8").on_card["weights"] == "fp8-block"
    assert iq.Engine.on("qwen3-8b", "h200", weights="awq").on_card["weights"] == "int4"


def test_a_window_is_of_the_layers_that_have_it():
    assert ModelShape.of("mistral-7b").window_bytes_per_token() == 131_072
    config = {**entries("models")["mistral-7b"]["config"], "use_sliding_window": False}
    assert ModelShape.of(config).window_bytes_per_token() == 0


def test_a_roofline_replaces_a_table_on_request():
    for gpus in (2, 4):
        engine = iq.Engine.on("mixtral-8x7b", "h100-80gb", tensor_parallel=gpus, timing="roofline")
        assert engine.timing == iq.Roofline("mixtral-8x7b", "h100-80gb", gpus)
        assert "as requested" in engine.explain()
    table = {"model": "qwen3-8b", "gpu": "h200", "timing": "roofline"}
    assert iq.Engine.from_json(table) == iq.Engine.on("qwen3-8b", "h200", timing="roofline")
    with pytest.raises(iq.ConfigError, match="timing: must be a timing model or 'roofline'"):
        iq.Engine.on("qwen3-8b", "h200", timing="table")


def test_replacing_a_part_removes_the_explanation():
    engine = iq.Engine.on("qwen3-8b", "h200")
    other = dataclasses.replace(engine, timing=iq.Constant(0.02))
    assert other.explain().startswith("timing: Constant(seconds=0.02)\nmemory: KvCache(")
    assert pickle.loads(pickle.dumps(engine)).explain() == engine.explain()


def test_a_given_table_determines_the_number_of_gpus():
    table = iq.TimingTable.shipped("llama-3.1-70b", "h100-80gb")
    engine = iq.Engine.on("llama-3.1-70b", "h100-80gb", timing=table)
    assert engine == iq.Engine.on("llama-3.1-70b", "h100-80gb")
    room = {"gpu_memory_utilization": 0.92, "batched_tokens": 8192, "sampled_rows": 1024}
    assert (
        engine.kv.tokens
        == iq.timing.KvMemory.of("llama-3.1-70b", "h100-80gb", tensor_parallel=4, **room).tokens
    )
    with pytest.raises(iq.ConfigError, match=r"^tensor_parallel: is 2, but the timing was measured with 4"):
        iq.Engine.on("llama-3.1-70b", "h100-80gb", timing=table, tensor_parallel=2)


@pytest.mark.parametrize("scheduler", [iq.VllmV1, "vllm-v1", 512])
def test_a_wrong_scheduler_is_rejected(scheduler):
    with pytest.raises(iq.ConfigError, match=r"^scheduler: must be a scheduler"):
        iq.Engine.on("qwen3-8b", "h200", scheduler=scheduler)


@pytest.mark.parametrize("field", ["memory_bytes", "bandwidth_bytes_per_s", "bf16_flops", "link_bytes_per_s"])
def test_gigabytes_and_teraflops_are_rejected(field: str):
    card = {name: value for name, value in entries("gpus")["h200"].items() if name != "source"}
    with pytest.raises(iq.ConfigError, match=f"gpu.{field}: 989 looks like GB"):
        iq.timing.Gpu.of({**card, field: 989})


def test_all_sources_of_a_shape_agree(tmp_path):
    config = entries("models")["mixtral-8x7b"]["config"]
    qwen = {**config, "num_experts": config["num_local_experts"], "moe_intermediate_size": 14336}
    del qwen["num_local_experts"]
    assert ModelShape.of(config) == ModelShape.of(qwen) == ModelShape.of("Mixtral-8x7B")
    # Default of num_key_value_heads: all heads; of head_dim: width / heads.
    old = {name: value for name, value in entries("models")["llama-2-7b"]["config"].items()}
    del old["num_key_value_heads"]
    assert ModelShape.of(old) == ModelShape.of("llama-2-7b")


def test_every_entry_of_the_catalog_has_a_source():
    for kind in ("models", "gpus"):
        assert all(entry["source"] for entry in entries(kind).values())
    assert iq.timing.known_models().height == len(entries("models"))
    gpus = iq.timing.known_gpus()
    assert gpus.height == len(entries("gpus")) and gpus["fp8_flops"].null_count() > 0
    for gpu in gpus.rows(named=True):
        assert math.log2(gpu["memory_bytes"] / 1e9) < 9 and 1e13 < gpu["bf16_flops"] < 1e16
        watts = {"busy": gpu["busy_watts"], "idle": gpu["idle_watts"]}
        assert all(value is None or f"{value:,g} W" in gpu["source"] for value in watts.values())
        assert watts["idle"] is None or watts["idle"] < watts["busy"]
