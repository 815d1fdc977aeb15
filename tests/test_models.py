"""Models of today: sizes from their config.json, against published counts; formats, memory and refusals."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import inferq as iq
from inferq.timing import KvMemory, ModelShape
from inferq.timing.hardware.catalog import entries
from inferq.timing.hardware.formats import KV_BYTES, WEIGHT_BYTES, Checkpoint, kv_type_of, weights_of
from inferq.timing.hardware.layers import (
    Attention,
    Dense,
    Experts,
    LatentAttention,
    LayerGroup,
    Recurrent,
    SparseIndex,
)

GIB = 2**30
FOLDER = Path(__file__).parent / "models"
with (FOLDER / "expected.csv").open(encoding="utf-8") as file:
    EXPECTED = list(csv.DictReader(file))

REASONS = {
    "bert-base-uncased": "'bert' is an encoder that generates no tokens and has no KV cache",
    "google--flan-t5-xl": "'t5' is an encoder-decoder model",
    "google--vit-base-patch16-224": "'vit' is a vision model that generates no tokens",
    "made-up--Quasar2-8B": "'quasar2' is not supported, so these keys were not understood: architectures",
    "made-up--deepseek-v3-without-rope-dim": "missing qk_rope_head_dim",
    "made-up--llama-without-layers": "missing num_hidden_layers",
    "openai--whisper-tiny": "'whisper' is an encoder-decoder model",
}

# Parameter counts of the safetensors on the Hugging Face Hub, for families without a file above.
PUBLISHED = [
    (124_439_808, {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
                   "vocab_size": 50257}),
    (6_857_302_016, {"model_type": "gpt_neox", "hidden_size": 4096, "num_hidden_layers": 32,
                     "num_attention_heads": 32, "intermediate_size": 16384, "vocab_size": 50432}),
    (6_658_473_984, {"model_type": "opt", "hidden_size": 4096, "num_hidden_layers": 32,
                     "num_attention_heads": 32, "ffn_dim": 16384, "vocab_size": 50272,
                     "max_position_embeddings": 2048, "word_embed_proj_dim": 4096}),
    (7_069_016_064, {"model_type": "bloom", "n_embed": 4096, "n_layer": 30, "num_attention_heads": 32,
                     "vocab_size": 250880}),
    (2_779_683_840, {"model_type": "phi", "hidden_size": 2560, "num_hidden_layers": 32,
                     "num_attention_heads": 32, "intermediate_size": 10240, "vocab_size": 51200}),
    (6_921_720_704, {"model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32,
                     "num_attention_heads": 71, "vocab_size": 65024, "multi_query": True}),
    (41_303_293_952, {"model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60,
                      "num_attention_heads": 128, "num_kv_heads": 8, "vocab_size": 65024,
                      "new_decoder_architecture": True}),
    (9_241_705_984, {"model_type": "gemma2", "hidden_size": 3584, "num_hidden_layers": 42,
                     "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
                     "intermediate_size": 14336, "vocab_size": 256000, "sliding_window": 4096}),
    (6_919_161_856, {"model_type": "olmoe", "hidden_size": 2048, "num_hidden_layers": 16,
                     "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 1024,
                     "num_experts": 64, "num_experts_per_tok": 8, "vocab_size": 50304}),
    (15_706_484_224, {"model_type": "deepseek_v2", "hidden_size": 2048, "num_hidden_layers": 27,
                      "num_attention_heads": 16, "intermediate_size": 10944, "moe_intermediate_size": 1408,
                      "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
                      "first_k_dense_replace": 1, "kv_lora_rank": 512, "q_lora_rank": None,
                      "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
                      "vocab_size": 102400, "topk_method": "greedy"}),
    (21_825_437_888, {"model_type": "ernie4_5_moe", "hidden_size": 2560, "num_hidden_layers": 28,
                      "num_attention_heads": 20, "num_key_value_heads": 4, "head_dim": 128,
                      "intermediate_size": 12288, "moe_intermediate_size": 1536, "moe_num_experts": 64,
                      "moe_k": 6, "moe_num_shared_experts": 2, "moe_layer_start_index": 1,
                      "vocab_size": 103424, "tie_word_embeddings": True, "moe_use_aux_free": True}),
    (51_570_323_328, {"model_type": "jamba", "hidden_size": 4096, "num_hidden_layers": 32,
                      "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
                      "num_experts": 16, "num_experts_per_tok": 2, "mamba_d_state": 16, "mamba_dt_rank": 256,
                      "vocab_size": 65536, "tie_word_embeddings": False}),
    (49_122_681_728, {"model_type": "kimi_linear", "hidden_size": 2304, "num_hidden_layers": 27,
                      "num_attention_heads": 32, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
                      "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 9216,
                      "moe_intermediate_size": 1024, "num_experts": 256, "num_experts_per_token": 8,
                      "num_shared_experts": 1, "first_k_dense_replace": 1, "vocab_size": 163840,
                      "linear_attn_config": {
                          "num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4,
                          "kda_layers": [n for n in range(1, 28) if n not in (4, 8, 12, 16, 20, 24, 27)]}}),
]  # fmt: skip


def place(name: str, folder: Path) -> Path:
    """The folder of a model with its reduced files."""
    config = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    quantization = config.pop("hf_quant_config", None)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if quantization is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps(quantization), encoding="utf-8")
    return folder


def check(shape: ModelShape, row: dict[str, str]) -> None:
    assert shape.parameters == int(row["total_params"])
    assert shape.active_parameters == int(row["active_params"])
    assert shape.kv_bytes_per_token("bf16") == int(row["kv_bytes_per_token_bf16"])
    assert shape.window_bytes_per_token("bf16") == int(row["window_bytes_per_token_bf16"])
    limits = {int(row[key]) for key in ("window", "chunk")} - {0}
    assert {group.limit for group in shape.groups} - {None} == limits
    assert shape.index_bytes_per_token == int(row["indexer_bytes_per_token"])
    assert shape.state_bytes() == int(row["state_bytes_per_sequence"])
    assert shape.max_model_len == int(row["max_context"])
    experts = (int(row["experts"]) or 1, int(row["active_experts"]) or 1)
    assert (shape.experts, shape.active_experts) == experts
    formats = {"awq4-g128": "int4", "gptq4-g128": "int4", "int4-g32": "int4", "fp8-block128": "fp8-block"}
    formats |= {"fp8-channel": "fp8", "fp8-tensor": "fp8"}
    assert shape.checkpoint.weights == formats.get(row["weight_format"], row["weight_format"])
    assert shape.checkpoint.kv_dtype == ("fp8" if row["kv_cache_format"] == "FP8" else None)
    if row["weight_bytes"]:
        assert shape.weight_bytes() == pytest.approx(int(row["weight_bytes"]), rel=0.002)


@pytest.mark.parametrize("row", EXPECTED, ids=lambda row: row["name"])
def test_a_config_has_the_published_size(row: dict[str, str], tmp_path: Path):
    shape = ModelShape.of(place(row["name"], tmp_path))
    check(shape, row)
    assert not shape.unused


def test_full_configs_have_the_published_size(shared: Path):
    for row in EXPECTED:
        shape = ModelShape.of(shared / "models" / "models" / row["name"])
        check(shape, row)
        assert set(shape.unused) <= {"vision_config", "audio_config"}


@pytest.mark.parametrize("parameters, config", PUBLISHED, ids=lambda value: str(value)[:40])
def test_a_family_has_the_published_parameters(parameters: int, config: dict[str, Any]):
    shape = ModelShape.of(config)
    assert shape.parameters == parameters and not shape.unused


@pytest.mark.parametrize("used, window_bytes", [(None, 0), (False, 0), (True, 8 * 4096)])
def test_qwen_has_windows_only_if_they_are_used(used: bool | None, window_bytes: int):
    config = entries("models")["qwen3-8b"]["config"] | {"sliding_window": 4096, "max_window_layers": 28}
    shape = ModelShape.of({**config, "use_sliding_window": used})
    assert shape.window_bytes_per_token() == window_bytes


@pytest.mark.parametrize("name", REASONS)
def test_a_file_that_is_no_decoder_is_refused_with_the_reason(name: str):
    with pytest.raises(iq.ConfigError) as refused:
        ModelShape.of(FOLDER / "refused" / f"{name}.json")
    assert REASONS[name] in str(refused.value)


def test_full_files_of_no_decoder_are_refused(shared: Path):
    for name, reason in REASONS.items():
        with pytest.raises(iq.ConfigError) as refused:
            ModelShape.of(shared / "models" / "refused" / name)
        assert reason in str(refused.value)


def test_the_refused_files_of_the_collection_are_all_tested():
    assert {file.stem for file in (FOLDER / "refused").iterdir()} == set(REASONS)
    assert len(EXPECTED) == len(list(FOLDER.glob("*.json"))) == 60


@pytest.mark.parametrize(
    "name, changes, message",
    [
        (
            "llama-3.1-8b",
            {"intermediate_size": "14336"},
            "intermediate_size: must be an integer, got '14336'",
        ),
        (
            "llama-3.1-8b",
            {"num_hidden_layers": 10**9},
            "num_hidden_layers: must be an integer from 1 to 10000",
        ),
        ("llama-3.1-8b", {"num_attention_heads": 33}, "4096 is not a multiple of 33 heads"),
        ("qwen3-30b-a3b", {"mlp_only_layers": 7}, "mlp_only_layers: must be a list, got 7"),
        ("qwen3-30b-a3b", {"mlp_only_layers": ["x"]}, "mlp_only_layers[0]: must be an integer, got 'x'"),
        ("kimi-linear-48b-a3b", {"linear_attn_config": 7}, "linear_attn_config: must be a table, got 7"),
        ("gemma-3-27b", {"layer_types": ["x"] * 62}, "layer_types: must contain only 'full_attention'"),
        (
            "gemma-3-27b",
            {"sliding_window_pattern": "LLX"},
            "must be an integer or a word of L and G, got 'LLX'",
        ),
        ("gpt-oss-20b", {"num_local_experts": 0}, "num_local_experts: must be an integer from 1"),
        ("qwen3-8b", {"max_window_layers": "28"}, "max_window_layers: must be an integer, got '28'"),
        ("llama-3.1-8b", {"model_type": None, "architectures": 5}, "architectures: must be a list, got 5"),
    ],
)
def test_a_wrong_value_names_the_key_and_the_value(name: str, changes: dict[str, Any], message: str):
    with pytest.raises(iq.ConfigError) as refused:
        ModelShape.of({**entries("models")[name]["config"], **changes})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "name, key",
    [
        ("deepseek-v3", "moe_intermediate_size"),
        ("deepseek-v3", "first_k_dense_replace"),
        ("glm-4.5", "first_k_dense_replace"),
        ("qwen3-30b-a3b", "moe_intermediate_size"),
        ("qwen3-30b-a3b", "head_dim"),
        ("qwen3-next-80b-a3b", "num_key_value_heads"),
        ("qwen2.5-7b", "num_key_value_heads"),
        ("mistral-7b", "num_key_value_heads"),
        ("mixtral-8x7b", "num_key_value_heads"),
        ("gpt-oss-20b", "head_dim"),
        ("seed-oss-36b", "head_dim"),
        ("minimax-m2.5", "head_dim"),
        ("command-r7b", "sliding_window"),
        ("granite-4.0-h-small", "num_local_experts"),
    ],
)
def test_a_key_without_a_default_of_the_type_is_required(name: str, key: str):
    config = {other: value for other, value in entries("models")[name]["config"].items() if other != key}
    with pytest.raises(iq.ConfigError, match=f"missing {key} .model_type .* requires these keys"):
        ModelShape.of(config)


@pytest.mark.parametrize(
    "block, message",
    [
        ({}, "block_configs[1]: missing attention, ffn"),
        (7, "block_configs[1]: must be a table, got 7"),
        (
            {"attention": {"n_heads_in_group": 3}, "ffn": {"ffn_mult": 1.0}},
            "block_configs[1]: attention: n_heads_in_group: must divide the 8 query heads, got 3",
        ),
        (
            {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": "x"}},
            "block_configs[1]: ffn: ffn_mult: must be a number, got 'x'",
        ),
    ],
)
def test_a_wrong_block_of_a_searched_model_is_named(block: Any, message: str):
    right = {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 1.0}}
    config = {"model_type": "nemotron-nas", "hidden_size": 512, "num_hidden_layers": 2, "vocab_size": 1000}
    with pytest.raises(iq.ConfigError) as refused:
        ModelShape.of({**config, "num_attention_heads": 8, "block_configs": [right, block]})
    assert message in str(refused.value)


@pytest.mark.parametrize("name", ["llama-" + 5000 * "9", "a/" + 5000 * "9", "llama\0-8b"])
def test_a_name_that_no_file_can_have_is_unknown(name: str):
    with pytest.raises(iq.ConfigError, match=r"unknown name|no such file"):
        ModelShape.of(name)


def test_an_unknown_name_of_the_hub_names_the_list_of_models():
    with pytest.raises(iq.ConfigError, match=r"no such file: Qwen/Qwen9-32B; .* inferq list models$"):
        ModelShape.of("Qwen/Qwen9-32B")


@pytest.mark.parametrize("key", ["text_config", "language_config", "llm_config"])
def test_a_decoder_inside_a_file_of_several_parts_is_read(key: str):
    config = entries("models")["qwen3-8b"]["config"]
    shape = ModelShape.of({"model_type": "two_towers", key: config, "vision_config": {"depth": 24}})
    assert shape == ModelShape.of("qwen3-8b") and set(shape.unused) == {"vision_config"}


def test_which_parts_stay_at_16_bits(tmp_path: Path):
    oss = ModelShape.of("gpt-oss-20b")
    assert set(oss.checkpoint.sixteen_bit) == {"attention", "router", "output"}
    quantized, unquantized = oss.stored_weights()["experts"]
    assert (quantized, unquantized) == (24 * 32 * 3 * 2880 * 2880, 0)
    assert oss.stored_weights("fp8")["attention"][1] == 0 and oss.stored_weights("bf16")["experts"][0] == 0
    kimi = ModelShape.of(place("moonshotai--Kimi-K2.5", tmp_path)).checkpoint
    assert set(kimi.sixteen_bit) == {"attention", "dense", "shared_experts", "router", "output"}


def test_a_checkpoint_of_several_formats_has_their_mean_size():
    def module(layer: int, name: str, algorithm: str) -> dict[str, Any]:
        return {f"model.layers.{layer}.{name}": {"quant_algo": algorithm}}

    layers: dict[str, Any] = {}
    for layer in range(36):
        for name in ("gate", "up", "down"):
            layers |= module(layer, f"mlp.{name}_proj", "NVFP4")
        layers |= module(layer, "self_attn.q_proj", "FP8")
    quantization = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    shape = ModelShape.of({**entries("models")["qwen3-8b"]["config"], "quantization_config": quantization})
    mlp, query, key_value, out = 36 * 3 * 4096 * 12288, 36 * 4096**2, 36 * 2 * 4096 * 1024, 36 * 4096**2
    others = shape.parameters - shape.linear_weights
    assert shape.checkpoint.weights == "nvfp4"
    assert shape.unused == {"quantized_layers": "weights of several formats are computed as nvfp4"}
    assert shape.weight_bytes() == pytest.approx(mlp * 0.5625 + query + 2 * (key_value + out + others))


@pytest.mark.parametrize(
    "quantization, message",
    [
        ({"quant_method": "bitsandbytes"}, "quant_method: must be one of fp8, fbgemm_fp8, awq, gptq"),
        ({"quant_method": "awq", "bits": 3}, "bits: must be one of 4, 8, got 3"),
        ({"quant_algo": "FP6"}, "quant_algo: must be one of FP8"),
        ({"quant_algo": "MIXED_PRECISION"}, "MIXED_PRECISION requires quantized_layers"),
        (
            {"quant_algo": "FP8", "kv_cache_quant_algo": "FP5"},
            "kv_cache_quant_algo: must be one of FP8, INT8",
        ),
        ({"bits": 4, "group_size": 128}, "quant_method: must be one of fp8, fbgemm_fp8, awq, gptq"),
        ("fp8", "quantization_config: must be a table, got 'fp8'"),
        ({"quant_method": "fp8", "weight_block_size": 128}, "weight_block_size: must be a list, got 128"),
        ({"quant_method": "fp8", "weight_block_size": [128, 0]}, "must have 2 positive sizes, got [128, 0]"),
        ({"quant_method": "fp8", "ignored_layers": "lm_head"}, "ignored_layers: must be a list, got 'lm_h"),
        ({"quant_method": "fp8", "ignore": ["re:("]}, "ignore: 're:(' is not a regular expression"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": 8}},
            "config_groups: a: must be a table, got 8",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "a": {"weights": {"num_bits": 8, "type": "float"}},
                    "b": {"weights": {"num_bits": 4, "type": "int"}},
                },
            },
            "config_groups: has 2 weight formats",
        ),
    ],
)
def test_an_unknown_quantization_names_field_value_and_what_fits(quantization: Any, message: str):
    config = {**entries("models")["qwen3-8b"]["config"], "quantization_config": quantization}
    with pytest.raises(iq.ConfigError) as refused:
        ModelShape.of(config)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "name, weights",
    [
        *((name, name) for name in WEIGHT_BYTES if name != "fp8"),
        ("awq", "int4"),
        ("gptq_marlin", "int4"),
        ("modelopt", "fp8-block"),
        ("compressed-tensors", "fp8-block"),
        ("AUTO", "fp8-block"),
        (None, "fp8-block"),
        ("fp8", "fp8-block"),
        ("float16", "bf16"),
        ("modelopt_fp4", "nvfp4"),
    ],
)
def test_names_of_formats_that_people_write(name: str | None, weights: str):
    assert weights_of(name, Checkpoint(weights="fp8-block")) == weights


def test_names_of_kv_formats_that_people_write():
    stated, unstated = Checkpoint(kv_dtype="fp8"), Checkpoint()
    assert [kv_type_of(name, stated) for name in (None, "auto", "fp8_e5m2", "bfloat16")] == [
        "fp8",
        "fp8",
        "fp8",
        "bf16",
    ]
    assert kv_type_of(None, unstated) == "bf16" and {kv_type_of(name, unstated) for name in KV_BYTES} == {
        *KV_BYTES
    }
    with pytest.raises(
        iq.ConfigError, match=r"^kv_dtype: must be one of 'bf16', 'fp8', 'nvfp4', 'int8' or a"
    ):
        kv_type_of("fp3", unstated)


def test_latent_attention_is_cached_once_and_not_split():
    shape = ModelShape.of("deepseek-v3")
    # 61 layers of 512 + 64 numbers of 2 bytes, on every GPU.
    assert shape.kv_bytes_per_token("bf16", 8) == shape.kv_bytes_per_token("bf16") == 61 * 576 * 2
    latent = shape.groups[0].mixers[0]
    # Per pair of prefill 2·128·(192 + 128), per token of context of a decode 2·128·(2·512 + 64).
    assert (latent.pair_flops, latent.decode_flops) == (81_920, 278_528)
    # Every GPU stores the projections to the ranks: 61 · 7168 · (1536 + 576) weights of about 1 byte.
    extra = 8 * shape.weight_bytes(None, 8) - shape.weight_bytes()
    size = shape.checkpoint.weight_bytes("fp8-block")
    assert extra == pytest.approx(7 * 61 * 7168 * (1536 + 576) * size)


def test_vllm_log_of_gemma_4_31b():
    # vLLM's log: 626,949 tokens in 64.68 GiB at 262,144 tokens a request and 8,192 a step.
    shape = ModelShape.of("gemma-4-31b")
    memory = KvMemory.of(
        shape, "b200" if "b200" in entries("gpus") else "h200", batched_tokens=8192, tensor_parallel=1
    )
    log = KvMemory(
        memory_bytes=64.68 * GIB,
        gpu_memory_utilization=1.0,
        weight_bytes=0,
        activation_bytes=0,
        reserved_bytes=0,
        kv_bytes_per_token=memory.kv_bytes_per_token,
        windows=memory.windows,
        max_model_len=memory.max_model_len,
    )
    # 10 layers of 4 heads of 512, and 50 of 16 heads of 256; 1,024 − 1 + 8,192 tokens in blocks, and one
    # block more.
    assert memory.kv_bytes_per_token == 10 * 2 * 4 * 512 * 2
    assert memory.windows == ((50 * 2 * 16 * 256 * 2, 577 * 16),)
    assert log.tokens == pytest.approx(626_949, rel=0.005 / 64.68)


def test_a_state_is_reserved_per_request():
    shape = ModelShape.of("qwen3-next-80b-a3b")
    memory = KvMemory.of(shape, "h200", tensor_parallel=2, max_model_len=32_768)
    token = 12 * 2 * 256 * 2 * 2 // 2
    assert memory.kv_bytes_per_token == token and memory.state_bytes == 39_518_208 // 2
    requests = memory.kv_bytes / (32_768 * token + 39_518_208 // 2)
    assert memory.tokens == pytest.approx(requests * 32_768, abs=16)
    assert "a request of 32,768 tokens" in memory.explain()


def test_a_window_without_a_maximum_length_names_the_argument():
    config = {key: value for key, value in PUBLISHED[7][1].items()}
    with pytest.raises(iq.ConfigError, match=r"^max_model_len: missing; the capacity with windows or states"):
        KvMemory.of(config, "h200")
    assert KvMemory.of(config, "h200", max_model_len=8192).tokens > 0


def test_experts_are_shared_by_expert_parallelism():
    shape = ModelShape.of("deepseek-v3")
    experts = sum(shape.stored_weights()["experts"]) * shape.checkpoint.weight_bytes("fp8-block")
    # Each of 8 GPUs has 32 of 256 experts, or an eighth of every expert.
    assert shape.weight_bytes(None, 8, 8) == shape.weight_bytes(None, 8, 1)
    # With attention on each GPU, 16 GPUs have 16 experts each.
    alone = shape.weight_bytes() - experts
    assert shape.weight_bytes(None, 1, 16) == pytest.approx(alone + experts / 16)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((None, 1, 3), "expert_parallel: 3 GPUs cannot share the 256 experts of deepseek-v3; use 1, 2, 4, 8"),
        ((None, 3, 1), "tensor_parallel: 3 GPUs cannot share the 128 query heads"),
        ((None, 1, 0), "expert_parallel: must be an integer from 1"),
        (("int3",), "weights: must be one of 'bf16', 'fp8', 'fp8-block'"),
    ],
)
def test_impossible_memory_is_an_error_with_what_fits(arguments: tuple[Any, ...], message: str):
    with pytest.raises(iq.ConfigError) as refused:
        ModelShape.of("deepseek-v3").weight_bytes(*arguments)
    assert str(refused.value).startswith(message)
    with pytest.raises(iq.ConfigError, match=r"llama-3\.1-8b has no experts; set expert_parallel=1, got 2"):
        ModelShape.of("llama-3.1-8b").weight_bytes(None, 1, 2)


def test_explain_has_a_line_for_each_layer_group():
    lines = iq.Engine.on("gpt-oss-20b", "h200").explain()
    assert "model: gpt-oss-20b, 20.91 B parameters, 4.19 B active, stored as mxfp4" in lines
    assert "12 × attention over 128 tokens, 64 heads, 8 of keys and values; 4 of 32 experts" in lines
    assert "24,576 bytes of bf16 cache a token, at most 128 tokens" in lines
    deepseek = iq.Engine.on("deepseek-v3.2", "h200", tensor_parallel=8).explain()
    assert "7,656 bytes of index a token" in deepseek
    assert "bytes of state a sequence" in iq.Engine.on("qwen3.5-9b", "h200").explain()


def test_known_models_have_the_columns_of_their_caches():
    known = iq.timing.known_models()
    row = known.filter(known["model"] == "qwen3.5-397b-a17b").row(0, named=True)
    assert (row["parameters"], row["active_parameters"]) == (396_346_350_336, 17_349_040_896)
    assert (row["kv_bytes_per_token"], row["state_bytes"]) == (30_720, 192_061_440)
    assert (row["experts"], row["active_experts"], row["weights"]) == (512, 10, "bf16")
    assert len(row["layer_groups"]) == 2


sizes = st.sampled_from([1, 2, 4, 8])
attentions = st.builds(
    lambda kv_heads, groups, size, value, window, gate, bias: Attention(
        heads=kv_heads * groups * 8,
        kv_heads=kv_heads,
        head_size=16 * size,
        value_size=value,
        window=window,
        gate_size=gate,
        qkv_bias=bias,
    ),
    sizes,
    sizes,
    sizes,
    st.none() | st.integers(1, 64),
    st.none() | st.integers(1, 5000),
    st.integers(0, 3),
    st.booleans(),
)
latents = st.builds(
    lambda heads, rank, kv_rank, index: LatentAttention(
        heads=8 * heads, q_rank=rank, kv_rank=kv_rank, nope_size=32, rope_size=16, value_size=24, index=index
    ),
    sizes,
    st.none() | st.integers(1, 99),
    st.integers(1, 99),
    st.none() | st.just(SparseIndex(heads=4, head_size=32, topk=64)),
)
states = st.builds(
    lambda heads, inputs, inner: Recurrent(
        kind="mamba2",
        heads=8 * heads,
        inputs=inputs,
        inner=inner,
        conv_values=8 * inner,
        state_values=64 * heads,
    ),
    sizes,
    st.integers(1, 99),
    st.integers(1, 99),
)
feed_forwards = (
    st.none()
    | st.builds(Dense, intermediate=st.integers(1, 999), gated=st.booleans(), bias=st.booleans())
    | st.builds(
        lambda experts, active, width, shared, bias: Experts(
            experts=8 * experts,
            active=min(active, 8 * experts),
            intermediate=width,
            shared_intermediate=shared,
            bias=bias,
        ),
        sizes,
        st.integers(1, 9),
        st.integers(1, 99),
        st.integers(0, 99),
        st.booleans(),
    )
)
groups = st.builds(
    LayerGroup,
    st.integers(1, 9),
    st.lists(attentions | latents | states, max_size=2).map(tuple),
    feed_forwards,
)
shapes = st.builds(
    ModelShape,
    hidden=st.integers(1, 99),
    vocab=st.integers(1, 999),
    groups=st.lists(groups, min_size=1, max_size=4).map(tuple),
    tied=st.booleans(),
)


@given(shape=shapes, tokens=st.integers(0, 20_000))
def test_groups_add_up(shape: ModelShape, tokens: int):
    parts = [ModelShape(hidden=shape.hidden, vocab=shape.vocab, groups=(group,)) for group in shape.groups]
    for total, single in (
        (shape.linear_weights, [part.linear_weights for part in parts]),
        (shape.kv_bytes_per_token(), [part.kv_bytes_per_token() for part in parts]),
        (shape.window_bytes_per_token(), [part.window_bytes_per_token() for part in parts]),
        (shape.state_bytes(), [part.state_bytes() for part in parts]),
        (shape.sequence_kv_bytes(tokens), [part.sequence_kv_bytes(tokens) for part in parts]),
    ):
        assert total == sum(single)
    assert shape.active_parameters <= shape.parameters
    assert shape.active_linear_weights <= shape.linear_weights
    most = (shape.kv_bytes_per_token() + shape.window_bytes_per_token()) * tokens
    assert shape.kv_bytes_per_token() * tokens <= shape.sequence_kv_bytes(tokens) <= most
    stored = shape.stored_weights("bf16")
    assert sum(count for pair in stored.values() for count in pair) == shape.linear_weights


@given(
    shape=shapes, gpus=sizes, weights=st.sampled_from([*WEIGHT_BYTES]), kv_dtype=st.sampled_from([*KV_BYTES])
)
def test_gpus_together_never_store_less(shape: ModelShape, gpus: int, weights: str, kv_dtype: str):
    if not shape.splits(gpus):
        with pytest.raises(iq.ConfigError, match="GPUs cannot share"):
            shape.kv_bytes_per_token(kv_dtype, gpus)
        return
    mixers = [mixer for group in shape.groups for mixer in group.mixers]
    is_split = all(isinstance(mixer, Recurrent) or mixer.kv_splits >= gpus for mixer in mixers)
    total, shared = shape.weight_bytes(weights), shape.weight_bytes(weights, gpus)
    assert gpus * shared >= total * (1 - 1e-12)
    cache, part = shape.kv_bytes_per_token(kv_dtype), shape.kv_bytes_per_token(kv_dtype, gpus)
    assert gpus * part >= cache and gpus * shape.state_bytes(gpus) >= shape.state_bytes()
    if is_split:
        assert shared == total / gpus
        assert gpus * part - cache < gpus * len(shape.groups)  # each group is rounded up to a byte
