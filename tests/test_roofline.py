"""Rooflines from model shapes and datasheets, compared with the core."""

import importlib.util
import json
import pickle
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import inferq as iq
from inferq.timing import ExchangeRoof, ExpertsRoof, Gpu, ModelShape, StateRoof, WindowRoof
from inferq.timing.models.roofline import EFFICIENCIES, ROOFLINE_SECONDS
from inferq.timing.models.roofline_seconds import CONSTANTS, REACHED

from .reference import exact
from .timing_models import TIMINGS, each_time

PERFECT = {name: 0.0 if name.endswith("_s") else 1.0 for name in EFFICIENCIES}
LLAMA, H100 = ModelShape.of("llama-3.1-8b"), Gpu.of("h100-80gb")


FLAT = {
    **dict.fromkeys(ROOFLINE_SECONDS[:10], 1e-6),
    "chunk_compute_s_per_context_token": 1e-8,
    "experts": [ExpertsRoof(experts=64, active=6, ranks=4, s_per_token=1e-6, weight_s=0.01, base_s=0.001)],
    "windows": [
        WindowRoof(
            tokens=tokens,
            restarts=restarts,
            chunk_compute_s_per_pair=1e-9,
            chunk_memory_s_per_token=1e-7,
            decode_compute_s_per_token=1e-8,
            decode_memory_s_per_token=1e-8,
        )
        for tokens, restarts in ((128, False), (2048, True))
    ],
    "states": StateRoof(s_per_decode=1e-6, s_per_chunk=2e-6, s_per_chunk_token=1e-7),
    "exchange": ExchangeRoof(latency_s=1e-4, s_per_token=1e-6),
}
"""Every field of a roofline."""

CASES = [
    iq.Roofline("llama-3.1-8b", "a100-80gb"),
    iq.Roofline("llama-3.1-70b", "h100-80gb", 4, exchange_s=8e-6),
    iq.Roofline("mixtral-8x7b", "l40s", 4, weights="int4", kv_dtype="fp8"),
    iq.Roofline("qwen3-4b", "b200", weights="fp8"),
    iq.Roofline.of_seconds(**FLAT),
]


@pytest.mark.parametrize("model", CASES, ids=lambda model: model.call or "every field")
def test_the_core_computes_the_formula(model: iq.Roofline):
    draw, fields = random.Random(7), each_time(model.to_json(), exact)
    for _ in range(100):
        chunks = [(draw.randint(1, 4096), draw.randint(0, 20_000)) for _ in range(draw.randint(0, 3))]
        decodes = [draw.randint(1, 30_000) for _ in range(draw.randint(0 if chunks else 1, 200))]
        priced = iq.timing.iteration_s(model, chunks=chunks, decodes=decodes)
        assert priced == TIMINGS["Roofline"].price(fields, chunks, decodes) / 10**18


def test_one_decode_cannot_be_faster_than_reading_the_weights():
    model = iq.Roofline("llama-3.1-8b", "h100-80gb", **PERFECT)
    # All but the embedding is read: 8.03e9 − 128,256·4096 parameters, without norms and activations.
    read_bytes = 2 * (LLAMA.parameters - LLAMA.output_weights)
    alone = iq.timing.iteration_s(model, decodes=[0])
    assert alone == pytest.approx(read_bytes / 3.35e12, rel=2e-3)
    assert iq.timing.iteration_s(iq.Roofline("llama-3.1-8b", "h100-80gb"), decodes=[0]) > read_bytes / 3.35e12


def test_a_long_prompt_cannot_be_faster_than_computing_it():
    model = iq.Roofline("llama-3.1-8b", "h100-80gb", **PERFECT)
    # 2 operations per layer weight and token; 4·heads·head size per layer and pair of tokens.
    linear = 2 * 6_979_321_856 * 8192
    assert LLAMA.linear_weights == 6_979_321_856 == 32 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336)
    attention = 4 * 32 * 32 * 128 * 8192 * 8193 / 2
    assert iq.timing.iteration_s(model, chunks=[(8192, 0)]) == pytest.approx(
        (linear + attention) / 989e12, rel=1e-9
    )


def test_a_decode_reads_its_context():
    model = iq.Roofline("llama-3.1-8b", "h100-80gb", **PERFECT)
    few, many = (iq.timing.iteration_s(model, decodes=[context] * 10) for context in (1000, 2000))
    assert many - few == pytest.approx(10 * 1000 * 131_072 / 3.35e12, rel=1e-9)


def test_more_gpus_share_everything_except_communication():
    free = Gpu(memory_bytes=8e10, bandwidth_bytes_per_s=3.35e12, bf16_flops=989e12, link_bytes_per_s=1e15)
    single, four = (iq.Roofline("llama-3.1-8b", free, gpus, **PERFECT) for gpus in (1, 4))
    for name in (
        "linear_flops_s_per_token",
        "linear_weight_s",
        "chunk_compute_s_per_pair",
        "decode_memory_s_per_token",
    ):
        assert getattr(single, name) == pytest.approx(4 * getattr(four, name))
    # A ring of p sends 2·(p − 1)/p of 2·layers vectors of hidden 16-bit numbers, in 2·layers exchanges.
    tied = iq.Roofline("llama-3.1-8b", "h100-80gb", 4, **{**PERFECT, "exchange_s": 1e-5, "link_step_s": 1e-6})
    assert tied.all_reduce_latency_s == pytest.approx(64 * (1e-5 + 6 * 1e-6))
    assert tied.all_reduce_s_per_token == pytest.approx(2 * 3 / 4 * 64 * 4096 * 2 / 450e9)
    assert iq.Roofline("llama-3.1-8b", "h100-80gb", exchange_s=1e-5).all_reduce_latency_s == 0


def test_the_fixed_time_of_an_all_reduce_is_that_of_nccls_model():
    # A ring of short messages: 3.6 µs, and for each of 2·(p − 1) steps 0.47 µs over NVLink or 1 over PCIe.
    for gpu, step_us in (("h200", 0.47), ("l40s", 1.0)):
        for gpus in (2, 8):
            roofline = iq.Roofline("llama-3.1-70b", gpu, gpus)
            assert roofline.all_reduce_latency_s == pytest.approx(160e-6 * (3.6 + 2 * (gpus - 1) * step_us))


@given(
    name=st.sampled_from([name for name in EFFICIENCIES if not name.endswith("_s")]),
    low=st.floats(0.05, 0.9),
    more=st.floats(1.01, 1.1),
    chunk=st.integers(1, 8192),
    context=st.integers(0, 20_000),
    decodes=st.integers(0, 200),
)
def test_a_better_efficiency_is_never_slower(
    name: str, low: float, more: float, chunk: int, context: int, decodes: int
):
    slow, fast = (iq.Roofline("qwen3-8b", "l40s", 2, **{name: share}) for share in (low, low * more))
    batch = {"chunks": [(chunk, context)], "decodes": [context] * decodes}
    assert iq.timing.iteration_s(fast, **batch) <= iq.timing.iteration_s(slow, **batch)


@pytest.mark.parametrize(
    "name, gpu, fields",
    [
        ("flops_efficiency", "h200", {"linear_flops_s_per_token"}),
        ("attention_flops_efficiency", "h200", {"chunk_compute_s_per_pair", "decode_compute_s_per_token"}),
        ("bandwidth_efficiency", "h200", {"linear_weight_s", "linear_activation_s_per_token"}),
        ("kv_bandwidth_efficiency", "h200", {"chunk_memory_s_per_token", "decode_memory_s_per_token"}),
        ("link_efficiency", "h200", {"all_reduce_s_per_token"}),
        ("pcie_efficiency", "h200", set()),
        ("link_efficiency", "l40s", set()),
        ("pcie_efficiency", "l40s", {"all_reduce_s_per_token"}),
    ],
)
def test_half_an_efficiency_doubles_its_parts(name: str, gpu: str, fields: set[str]):
    whole, half = (iq.Roofline("llama-3.1-70b", gpu, 8, **{name: share}) for share in (0.1, 0.05))
    for field in ROOFLINE_SECONDS[:10]:
        factor = 2 if field in fields else 1
        assert getattr(half, field) == pytest.approx(factor * getattr(whole, field), rel=1e-12), field


def test_a_batch_reads_the_experts_that_it_uses():
    model = iq.Roofline("mixtral-8x7b", "h100-80gb", 2, **PERFECT)
    attention, router, expert = 4096 * (2 * 4096 + 2 * 1024), 4096 * 8, 3 * 4096 * 14336
    # Two GPUs share everything but the router, which both have.
    dense = 32 * (attention / 2 + router)
    assert model.linear_weight_s == pytest.approx(2 * (dense + 32000 * 4096 / 2) / 3.35e12)
    assert model.linear_flops_s_per_token == pytest.approx(2 * dense / 989e12)
    (experts,) = model.experts
    assert (experts.experts, experts.active, experts.ranks) == (8, 2, 1)
    read, computed, moved = (
        CONSTANTS[f"expert_{part}_efficiency"] for part in ("bandwidth", "flops", "activation")
    )
    assert experts.weight_s == pytest.approx(2 * 32 * 8 * expert / 2 / (read * 3.35e12))
    # A token computes two experts. Each reads and writes the width, and 6 times half its own width.
    each = 32 * 2 * (2 * 2 * 4096 + 2 * 6 * 7168)
    assert experts.s_per_token == pytest.approx(
        2 * 32 * 2 * expert / 2 / (computed * 989e12) + each / (moved * 3.35e12)
    )
    # One token reads 2 of 8, two tokens 1 − (3/4)² = 7/16.
    one, two = (iq.timing.iteration_s(model, decodes=[0] * count) for count in (1, 2))
    rest_s = experts.s_per_token + model.linear_activation_s_per_token + model.all_reduce_s_per_token
    cache_s = model.decode_memory_s_per_token
    assert two - one == pytest.approx((7 / 16 - 1 / 4) * experts.weight_s + rest_s + cache_s, rel=1e-6)


def test_experts_are_divided_among_all_gpus():
    tensor = iq.Roofline(DEEPSEEK, "h200", 8).experts[0]
    spread = iq.Roofline(DEEPSEEK, "h200", 8, expert_parallel=8).experts[0]
    ranks = iq.Roofline(DEEPSEEK, "h200", expert_parallel=8, data_parallel=8)
    # Whole experts or an eighth of each: the same weights and operations of a GPU.
    assert spread.weight_s == pytest.approx(tensor.weight_s) == pytest.approx(ranks.experts[0].weight_s)
    # Eight ranks with a token each use the experts of eight tokens, and compute eight times as much.
    assert (tensor.ranks, ranks.experts[0].ranks) == (1, 8)
    assert ranks.experts[0].s_per_token == pytest.approx(8 * spread.s_per_token)
    # Only ranks exchange tokens: with 7 others, there and back, 2 bytes a number, in each layer with experts.
    assert iq.Roofline(DEEPSEEK, "h200", 8, expert_parallel=8).exchange is None
    link = EFFICIENCIES["link_efficiency"] * 450e9
    assert ranks.exchange.s_per_token == pytest.approx(2 * 3 * 7 * 1024 * 2 / link)
    assert ranks.exchange.latency_s == pytest.approx(2 * 3 * (3.6e-6 + 7 * 0.47e-6))
    assert ranks.all_reduce_latency_s == 0 < iq.Roofline(DEEPSEEK, "h200", 8).all_reduce_latency_s


DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "first_k_dense_replace": 1,
    "intermediate_size": 2048,
    "moe_intermediate_size": 512,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": 256,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 32000,
}


def test_latent_attention_is_expanded_in_prompts_and_absorbed_in_decodes():
    model = iq.Roofline(DEEPSEEK, "h100-80gb", **PERFECT)
    # Per pair of tokens and head: 128 + 64 numbers of keys and 128 of values; absorbed 512 + 64, and 512.
    assert model.chunk_compute_s_per_pair == pytest.approx(4 * 2 * 16 * (128 + 64 + 128) / 989e12)
    assert model.decode_compute_s_per_token == pytest.approx(4 * 2 * 16 * (512 + 64 + 512) / 989e12)
    # A token of context expands into 128 + 128 numbers per head, from 512.
    assert model.chunk_compute_s_per_context_token == pytest.approx(4 * 2 * 512 * 16 * (128 + 128) / 989e12)
    # Heads are divided among GPUs, the latent cache is not.
    assert model.decode_memory_s_per_token == pytest.approx(4 * 2 * (512 + 64) / 3.35e12)
    eight = iq.Roofline(DEEPSEEK, "h100-80gb", 8, **PERFECT)
    assert eight.decode_memory_s_per_token == model.decode_memory_s_per_token
    assert eight.decode_compute_s_per_token == pytest.approx(model.decode_compute_s_per_token / 8)
    assert model.base_s == pytest.approx(4 * CONSTANTS["latent_layer_s"])


def test_attention_over_selected_tokens_has_a_limit_and_an_index():
    sparse = {**DEEPSEEK, "model_type": "deepseek_v32", "index_n_heads": 32, "index_head_dim": 128}
    model = iq.Roofline({**sparse, "index_topk": 2048}, "h100-80gb", **PERFECT)
    # The index multiplies 32 heads of 128 numbers with 8 bits, and reads 128 bytes and a 32-bit scale.
    assert model.decode_compute_s_per_token == pytest.approx(4 * 2 * 32 * 128 / 1979e12)
    assert model.chunk_compute_s_per_pair == model.decode_compute_s_per_token
    assert model.decode_memory_s_per_token == pytest.approx(4 * 132 / 3.35e12)
    (window,) = model.windows
    assert (window.tokens, window.restarts) == (2048, False)
    read = CONSTANTS["sparse_bandwidth_efficiency"] * 3.35e12
    assert window.decode_memory_s_per_token == pytest.approx(4 * 2 * (512 + 64) / read)
    # Prompts are padded from 16 to 64 heads.
    computed = CONSTANTS["sparse_flops_efficiency"] * 989e12
    assert window.chunk_compute_s_per_pair == pytest.approx(4 * 2 * 64 * (512 + 64 + 512) / computed)


def test_layers_with_a_window_stop_growing():
    config = {
        "model_type": "gpt_oss",
        "hidden_size": 1024,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 128,
        "intermediate_size": 512,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "vocab_size": 32000,
    }
    model = iq.Roofline(config, "h100-80gb", **PERFECT)
    (window,) = model.windows
    # Two layers of each kind: keys and values of 4 heads of 64 numbers.
    cached = 2 * 2 * 4 * 64 * 2 / 3.35e12
    assert (
        window.decode_memory_s_per_token
        == pytest.approx(cached)
        == pytest.approx(model.decode_memory_s_per_token)
    )
    seconds = [iq.timing.iteration_s(model, decodes=[context]) for context in (64, 127, 1127)]
    assert seconds[1] - seconds[0] == pytest.approx(2 * 63 * cached)
    assert seconds[2] - seconds[1] == pytest.approx(1000 * cached)


def test_recurrent_states_cost_a_time_per_sequence():
    config = {
        "model_type": "qwen3_next",
        "hidden_size": 1024,
        "num_hidden_layers": 4,
        "full_attention_interval": 4,
        "intermediate_size": 2048,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "vocab_size": 32000,
    }
    model = iq.Roofline(config, "h100-80gb", **PERFECT)
    shape = ModelShape.of(config)
    # Three of four layers have 8 heads of 128 × 128 numbers, read and written by every decode.
    state = 3 * 8 * 128 * 128
    assert model.states.s_per_decode == pytest.approx(2 * shape.state_bytes() / 3.35e12)
    assert shape.state_bytes() > 2 * state
    assert model.states.s_per_chunk == model.states.s_per_decode
    scan = CONSTANTS["scan_flops_efficiency"] * 989e12
    assert model.states.s_per_chunk_token == pytest.approx(6 * state / scan)


def test_weights_that_the_gpu_expands_are_slower_in_large_batches():
    """The order measured on an A100 at saturation: 16 bits, then AWQ, then 8 bits of weights only."""
    large = [
        iq.timing.iteration_s(iq.Roofline("qwen3-8b", "a100-80gb", weights=weights), chunks=[(4096, 0)])
        for weights in ("bf16", "awq", "fp8")
    ]
    assert large == sorted(large) and large[0] < large[1] < large[2]
    # One decode reads fewer bytes.
    small = [
        iq.timing.iteration_s(iq.Roofline("qwen3-8b", "a100-80gb", weights=weights), decodes=[100])
        for weights in ("awq", "fp8", "bf16")
    ]
    assert small == sorted(small)
    # A GPU that computes in FP8 is faster with it.
    prompts = [
        iq.timing.iteration_s(iq.Roofline("qwen3-8b", "h200", weights=weights), chunks=[(4096, 0)])
        for weights in ("fp8", "bf16", "awq")
    ]
    assert prompts == sorted(prompts)


@pytest.mark.parametrize(
    "gpus, message",
    [
        ({"expert_parallel": 8}, "expert_parallel: 8 does not divide the 1 GPUs; use 1"),
        ({"tensor_parallel": 8, "expert_parallel": 5}, "expert_parallel: 5 GPUs cannot share the 64 experts"),
        ({"data_parallel": 0}, "data_parallel: must be an integer from 1 to 1024, got 0"),
        ({"tensor_parallel": 3}, "tensor_parallel: 3 GPUs cannot share the 16 query heads"),
    ],
)
def test_gpus_that_cannot_share_the_model_are_rejected(gpus: dict[str, int], message: str):
    with pytest.raises(iq.ConfigError) as refused:
        iq.Roofline(DEEPSEEK, "h200", **gpus)
    assert str(refused.value).startswith(message)


def test_quantized_weights_are_read_faster_and_computed_with_eight_bits_where_the_gpu_can():
    kinds = ("bf16", "fp8", "int8", "int4")
    hopper = {kind: iq.Roofline("llama-3.1-8b", "h100-80gb", weights=kind) for kind in kinds}
    ampere = {kind: iq.Roofline("llama-3.1-8b", "a100-80gb", weights=kind) for kind in kinds}
    for of in (hopper, ampere):
        assert of["int4"].linear_weight_s < of["fp8"].linear_weight_s == of["int8"].linear_weight_s
        assert of["int8"].linear_weight_s < of["bf16"].linear_weight_s

    def slower(quantized: iq.Roofline, of: dict[str, iq.Roofline]) -> float:
        return quantized.linear_flops_s_per_token / of["bf16"].linear_flops_s_per_token

    assert slower(hopper["fp8"], hopper) == pytest.approx(989 / 1979 / REACHED["fp8"].dense)
    assert slower(ampere["int8"], ampere) == pytest.approx(1 / 2 / REACHED["int8"].dense)
    assert slower(ampere["fp8"], ampere) == pytest.approx(1 / REACHED["eight"].dense)
    assert slower(ampere["int4"], ampere) == pytest.approx(1 / REACHED["four"].dense)
    # Quantizing activations takes time in each of 32 layers.
    extra_s = hopper["fp8"].base_s - hopper["bf16"].base_s
    assert extra_s == pytest.approx(32 * CONSTANTS["quantize_s"])
    assert ampere["fp8"].base_s == ampere["bf16"].base_s


@pytest.mark.parametrize("model", CASES, ids=lambda model: model.call or "every field")
def test_a_description_restores_the_exact_numbers(model: iq.Roofline):
    engine = iq.Engine(timing=model, scheduler=iq.VllmV1(), kv=iq.KvCache(tokens=10**6))
    again = iq.Engine.from_json(json.loads(json.dumps(engine.to_json())))
    assert again == engine and hash(again) == hash(engine) and again.to_json() == engine.to_json()
    numbers = {name: getattr(model, name) for name in ROOFLINE_SECONDS}
    assert iq.Roofline.of_seconds(**numbers) == model == pickle.loads(pickle.dumps(model))
    names = {"Roofline": iq.Roofline, **vars(iq.timing.models.roofline_parts)}
    assert eval(repr(again.timing), names) == model
    assert eval(repr(model), names) == model


def test_a_table_names_model_and_gpu_and_so_does_the_command_line():
    from inferq.cli.options import timing

    described = {"kind": "Roofline", "model": "qwen3-8b", "gpu": "h100-80gb", "tensor_parallel": 2}
    engine = iq.Engine.from_json({"timing": described, "scheduler": {"kind": "VllmV1"}, "kv": "unlimited"})
    assert engine.timing == iq.Roofline("qwen3-8b", "h100-80gb", 2)
    assert timing("roofline:qwen3-8b,h100-80gb,tensor_parallel=2") == engine.timing


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"gpu": "h200"}, "engine.timing.model: missing"),
        ({"model": "qwen3-8b"}, "engine.timing.gpu: missing"),
        (
            {"model": "qwen3-8", "gpu": "h200"},
            "engine.timing.model: unknown name 'qwen3-8'; did you mean qwen3-8b?",
        ),
        (
            {"model": "qwen3-8b", "gpu": "h100"},
            "engine.timing.gpu: unknown name 'h100'; did you mean h100-80gb or h100-80gb-pcie?",
        ),
        ({"model": "qwen3-8b", "gpu": "h200", "flops": 1}, "engine.timing: unknown field 'flops'"),
        (
            {"model": "qwen3-8b", "gpu": "h200", "link_efficiency": 1.5},
            "engine.timing.link_efficiency: must be from",
        ),
        ({"model": "qwen3-8b", "gpu": "h200", "layer_s": -1}, "engine.timing.layer_s: must be non-negative"),
        ({"model": "qwen3-8b", "gpu": "h200", "layer_s": 34}, "engine.timing.layer_s: must be from 0 to 1"),
        ({"model": "qwen3-8b", "gpu": "h200", "weights": "int3"}, "engine.timing.weights: must be one of"),
        (
            {"model": "qwen3-8b", "gpu": {"memory_bytes": 1}},
            "engine.timing.gpu: missing bandwidth_bytes_per_s",
        ),
        ({"linear": {}, "base_s": 0}, "engine.timing.linear_flops_s_per_token: missing"),
        ({"linear": {"flops": 1}}, "engine.timing.linear: unknown field 'flops'"),
        ({"linear": 1}, "engine.timing.linear: must be a table of fields, got 1"),
        ({"linear": {}, "model": "qwen3-8b"}, "engine.timing: unknown field 'model'"),
        ({"linear": {}, "experts": 1}, "engine.timing.experts: must be a list of tables, got 1"),
        ({"linear": {}, "experts": [{"expert": 1}]}, "engine.timing.experts[0]: unknown field 'expert'"),
        ({"linear": {}, "windows": [{"chunk": {}}]}, "engine.timing.windows[0].tokens: missing"),
        (
            {"linear": {}, "windows": [{"chunk": {"s": 1}}]},
            "engine.timing.windows[0].chunk: unknown field 's'",
        ),
        ({"linear": {}, "states": {}}, "engine.timing.states.s_per_decode: missing"),
        (
            {"model": "qwen3-8b", "gpu": "h200", "expert_parallel": 2},
            "engine.timing.expert_parallel: qwen3-8b has",
        ),
    ],
)
def test_wrong_fields_are_errors_at_their_paths(fields, message: str):
    table = {"timing": {"kind": "Roofline", **fields}, "scheduler": {"kind": "VllmV1"}, "kv": "unlimited"}
    with pytest.raises(iq.ConfigError) as refused:
        iq.Engine.from_json(table)
    assert str(refused.value).startswith(message)


def test_host_time_is_added_or_overlapped():
    """Four requests of 2 decodes each after a prompt of 10, all at time 0: a prefill, then two decodes.

    Kernels take 10 ms; the host 2 ms and 1 ms a row, so 6 ms for the four rows: 16 ms, or 10 where it is
    hidden. With 3 ms a row it takes 14 ms: 24 ms, or 14 where it is hidden.
    """
    parts = {"timing": iq.Constant(0.010), "scheduler": iq.VllmV1(), "kv": iq.KvCache.unlimited()}
    workload = {"arrival_s": [0.0] * 4, "prompt_tokens": [10] * 4, "output_tokens": [3] * 4}
    for per_sequence_s, overlapped, iteration_s in (
        (0.001, False, 0.016),
        (0.001, True, 0.010),
        (0.003, False, 0.024),
        (0.003, True, 0.014),
    ):
        overhead = iq.Overhead(base_s=0.002, per_sequence_s=per_sequence_s, overlapped=overlapped)
        result = iq.simulate(workload, iq.Engine(**parts, overhead=overhead))
        assert result.requests["first_token_s"].to_list() == [iteration_s] * 4
        assert result.requests["finish_s"].to_list() == pytest.approx([3 * iteration_s] * 4, abs=1e-15)
        described = json.loads(result.scenario)["engine"]
        assert iq.Engine.from_json(described).overhead == overhead
    assert "overhead" not in iq.Engine(**parts).to_json()


@pytest.mark.parametrize(
    "fields",
    [
        {"base_s": -1},
        {"per_sequence_s": -1e-3},
        {"base_s": float("nan")},
        {"overlapped": 1},
        {"base_s": 5},  # milliseconds
        {"per_sequence_s": 0.1},
    ],
)
def test_an_invalid_overhead_is_rejected(fields):
    with pytest.raises(iq.ConfigError, match=next(iter(fields))):
        iq.Overhead(**fields)


def test_theory_counts_the_host_and_bounds_tables_and_rooflines():
    parts = {"timing": iq.Constant(0.01), "scheduler": iq.Sarathi(), "kv": iq.KvCache.unlimited()}
    lengths = {"prompt": iq.dist.Fixed(100), "output": iq.dist.Fixed(10)}
    workload = iq.Workload.synthetic(requests=100, arrivals=iq.dist.Poisson(100.0), **lengths)
    assert iq.theory.stability(workload, iq.Engine(**parts)).verdict == "stable"
    # 109 tokens per request, 512 in an iteration of 1.01 s.
    slow = iq.theory.stability(workload, iq.Engine(**parts, overhead=iq.Overhead(base_s=1.0)))
    assert slow.verdict == "unstable"
    assert slow.capacity_per_s <= 512 / 109 / 1.01
    for model, gpu, verdict in (("llama-3.1-8b", "h200", "stable"), ("qwen3-4b", "l4", "unstable")):
        engine = iq.Engine.on(model, gpu, scheduler={"async_scheduling": False})
        assert iq.theory.stability(workload, engine).verdict == verdict


@pytest.fixture(scope="module")
def fitting():
    """The script that fits the efficiencies."""
    file = Path(__file__).parent.parent / "benches" / "fit_roofline.py"
    spec = importlib.util.spec_from_file_location("fit_roofline", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_default_efficiencies_are_the_fitted_ones(fitting):
    parts = fitting.rows()
    best = fitting.loss(parts, fitting.fitted(parts))
    # Rounding to two digits adds less than 1 % to the residual.
    assert fitting.loss(parts, dict(EFFICIENCIES)) <= 1.01 * best


def test_the_residuals_are_of_the_two_models():
    frame = iq.timing.roofline_against_tables(models=["qwen3-8b"], gpus=["l40s"]).filter(tensor_parallel=1)
    table, roofline = iq.TimingTable.shipped("qwen3-8b", "l40s"), iq.Roofline("qwen3-8b", "l40s")
    row = frame.filter(frame["regime"] == "decode, 1 to 16").row(-1, named=True)
    decodes = [row["context_tokens"]] * row["decodes"]
    assert row["table_s"] == iq.timing.iteration_s(table, decodes=decodes)
    assert row["roofline_s"] == iq.timing.iteration_s(roofline, decodes=decodes)
    assert (frame["error"] - (frame["roofline_s"] / frame["table_s"] - 1)).abs().max() == 0
    assert frame["regime"].n_unique() == 4
    slower = iq.timing.roofline_against_tables(
        models=["qwen3-8b"], gpus=["l40s"], bandwidth_efficiency=0.3
    ).filter(tensor_parallel=1)
    assert (slower["roofline_s"] >= frame["roofline_s"]).all()
