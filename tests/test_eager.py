"""Engines without CUDA graphs: the host launches every kernel, which is a floor of the iteration."""

import csv
from pathlib import Path
from typing import Any

import pytest

import inferq as iq
from inferq.timing.hardware.launches import launches
from inferq.timing.hardware.model_shape import ModelShape

GEMMA_3_4B = {
    "model_type": "gemma3_text",
    "hidden_size": 2560,
    "num_hidden_layers": 34,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "intermediate_size": 10240,
    "vocab_size": 262208,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
    "max_position_embeddings": 8192,
}
GEMMA_2_9B = {
    "model_type": "gemma2",
    "hidden_size": 3584,
    "num_hidden_layers": 42,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "intermediate_size": 14336,
    "vocab_size": 256000,
    "sliding_window": 4096,
    "max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("model", "gpus", "expected"),
    [
        # Two norms; QKV, rotation, cache write, attention, output; gate and up, activation, down.
        ("llama-3.1-8b", 1, 32 * (2 + 5 + 3)),
        ("llama-3.1-8b", 2, 32 * (2 + 5 + 3 + 2)),  # two all-reduces
        ("qwen3-8b", 1, 36 * (2 + 7 + 3)),  # norms of queries and keys
        ("qwen3-30b-a3b", 1, 48 * (2 + 7 + 7)),  # router, selection, sorting, two matrices, activation, sum
        (GEMMA_3_4B, 1, 34 * (4 + 7 + 3)),  # norms before and after both parts
        (GEMMA_2_9B, 1, 42 * (4 + 5 + 3)),
    ],
)
def test_the_operations_of_a_layer_are_counted(model: Any, gpus: int, expected: int) -> None:
    assert launches(ModelShape.of(model), gpus) == expected


def decode_s(**overhead: Any) -> float:
    """The gap between two tokens of one request, on a GPU that takes 10 ms."""
    engine = iq.Engine(
        timing=iq.Constant(0.01),
        scheduler=iq.VllmV1(),
        kv=iq.KvCache.unlimited(),
        overhead=iq.Overhead(**overhead),
    )
    result = iq.simulate({"arrival_s": [0.0], "prompt_tokens": [8], "output_tokens": [5]}, engine)
    return float(result.requests["tpot_s"][0])


def test_an_iteration_takes_at_least_the_launches_and_the_other_host_time() -> None:
    assert decode_s(launch_s=0.025) == 0.025
    assert decode_s(launch_s=0.006) == 0.010
    assert decode_s(launch_s=0.008, base_s=0.001) == 0.011  # after the GPU: 10 + 1; launches: 8 + 1
    assert decode_s(launch_s=0.025, base_s=0.001) == 0.026
    assert decode_s(launch_s=0.025, base_s=0.001, overlapped=True) == 0.026
    assert decode_s(launch_s=0.006, base_s=0.001, overlapped=True) == 0.010
    # The GPU's gaps between kernels belong to its time: 10 + 4 against 13.
    gaps = {"largest_graph_tokens": 0, "beyond_graph_s": 0.004}
    assert decode_s(launch_s=0.013, **gaps) == 0.014


def test_exposed_time_is_never_overlapped() -> None:
    assert decode_s(exposed_s=0.002) == 0.012
    assert decode_s(exposed_s=0.002, base_s=0.004, overlapped=True) == 0.012
    assert decode_s(exposed_s=0.002, base_s=0.014, overlapped=True) == 0.016
    assert decode_s(exposed_s=0.002, launch_s=0.025, overlapped=True) == 0.027


def test_theory_counts_exposed_time() -> None:
    work = iq.Workload.synthetic(
        requests=9, arrivals=iq.dist.Poisson(1.0), prompt=iq.dist.Fixed(100), output=iq.dist.Fixed(10)
    )

    def capacity(**host: Any) -> dict[str, list[float]]:
        engine = iq.Engine(
            timing=iq.Constant(0.05),
            scheduler=iq.Sarathi(),
            kv=iq.KvCache.unlimited(),
            overhead=iq.Overhead(**host),
        )
        bounds = iq.theory.stability(work, engine).bounds
        return {
            kind: [bound.capacity_per_s for bound in bounds if bound.kind == kind]
            for kind in ("upper_bound", "guarantee")
        }

    # Not overlapped, it is one more time per iteration. Overlapped, guarantees add it to all other time.
    assert capacity(base_s=0.01, exposed_s=0.02) == capacity(base_s=0.03)
    hidden = capacity(base_s=0.01, exposed_s=0.02, overlapped=True)
    assert hidden["guarantee"] == pytest.approx(capacity(base_s=0.03)["guarantee"])
    assert hidden["upper_bound"] == capacity()["upper_bound"]


def test_an_engine_without_graphs_launches_every_batch() -> None:
    graphs, eager = (
        iq.Engine.on("llama-3.1-8b", "a100_sxm", eager=eager).overhead for eager in (False, True)
    )
    assert graphs is not None and eager is not None
    assert (graphs.launch_s, graphs.largest_graph_tokens) == (0, 512)
    # 320 operations of 83 µs; every batch is larger than the largest graph.
    assert eager.launch_s == pytest.approx(320 * 83e-6)
    assert (eager.largest_graph_tokens, eager.beyond_graph_s) == (0, graphs.beyond_graph_s)
    later = iq.Engine.on("llama-3.1-8b", "h100_sxm", eager=True)
    assert later.overhead is not None and later.overhead.launch_s == pytest.approx(320 * 50e-6)
    assert "launches calibrated on gemma-3-4b" in later.explain()
    assert iq.Engine.from_json(later.to_json()) == later
    sglang = iq.Engine.on("llama-3.1-8b", "h100_sxm", server="sglang-0.5", eager=True).overhead
    assert sglang is not None and sglang.launch_s == later.overhead.launch_s
    own = iq.Overhead(base_s=0.002)
    assert iq.Engine.on("llama-3.1-8b", "h100_sxm", eager=True, overhead=own).overhead == own


def test_theory_bounds_the_launches_from_both_sides() -> None:
    work = iq.Workload.synthetic(
        requests=9, arrivals=iq.dist.Poisson(1.0), prompt=iq.dist.Fixed(100), output=iq.dist.Fixed(10)
    )
    capacity: dict[str, dict[str, list[float]]] = {}
    for name, host in (
        ("eager", iq.Overhead(base_s=0.01, launch_s=0.02)),
        ("none", iq.Overhead(base_s=0.01)),
        ("every", iq.Overhead(base_s=0.03)),
    ):
        engine = iq.Engine(
            timing=iq.Constant(0.05), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited(), overhead=host
        )
        bounds = iq.theory.stability(work, engine).bounds
        capacity[name] = {
            kind: [bound.capacity_per_s for bound in bounds if bound.kind == kind]
            for kind in ("upper_bound", "guarantee")
        }
        if host.launch_s:
            with pytest.raises(iq.ConfigError, match="no closed form"):
                iq.theory.token_capacity(work, engine)
    assert capacity["eager"]["upper_bound"] == capacity["none"]["upper_bound"]
    assert capacity["eager"]["guarantee"] == pytest.approx(capacity["every"]["guarantee"])


MEASURED = [
    # Publisher's run, model, users, whether it was held back, largest error.
    ("varad-gemma-3-4b-it-vllm-ramp-c1", GEMMA_3_4B, 1, False, 0.01),
    ("varad-gemma-3-4b-it-vllm-ramp-c16", GEMMA_3_4B, 16, True, 0.10),
    ("varad-gemma-3-4b-it-vllm-ramp-c64", GEMMA_3_4B, 64, True, 0.10),
    ("varad-gemma-2-9b-it-vllm-c64run-c64", GEMMA_2_9B, 64, True, 0.25),
]


@pytest.mark.parametrize(("row", "model", "users", "held_back", "largest"), MEASURED)
def test_published_runs_without_graphs(
    shared: Path, row: str, model: Any, users: int, held_back: bool, largest: float
) -> None:
    with (shared / "measured" / "varad.csv").open(encoding="utf-8", newline="") as file:
        published = next(float(r["tpot_mean_s"]) for r in csv.DictReader(file) if r["id"] == row)
    simulated: dict[bool, float] = {}
    for eager in (False, True):
        engine = iq.Engine.on(
            model, "a10g", server="vllm-0.18", eager=eager, kv={"tokens": 40_000}, max_model_len=8192
        )
        batch = {"arrival_s": [0.0] * users, "prompt_tokens": [20] * users, "output_tokens": [250] * users}
        requests = iq.simulate(batch, engine).requests
        simulated[eager] = float(requests["tpot_s"].mean())  # type: ignore[arg-type]
    assert abs(simulated[True] / published - 1) <= largest
    assert not held_back or abs(simulated[True] - published) < abs(simulated[False] - published)
