"""Defaults of vLLM and SGLang on a GPU, compared with their sources."""

import dataclasses
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import inferq as iq
from inferq.cli import app
from inferq.systems.servers import Server
from inferq.timing.hardware.gpu import Gpu

# vLLM's sources, by release: GPU, token budget, sequence limit, memory utilization, whole-prompt reservation,
# async scheduling.
VLLM = [
    ("vllm-0.11", "h100-80gb", 8192, 1024, 0.9, False, False),
    ("vllm-0.14", "h100-80gb", 8192, 1024, 0.9, False, True),
    ("vllm-0.13", "h100-80gb", 8192, 1024, 0.9, False, False),
    ("vllm-0.14", "b200", 8192, 1024, 0.9, False, True),
    ("vllm-0.18", "h200", 8192, 1024, 0.9, False, True),
    ("vllm-0.19", "h200", 8192, 1024, 0.9, True, True),
    ("vllm-0.20", "h200", 8192, 1024, 0.92, True, True),
    ("vllm-0.27", "b200", 8192, 1024, 0.92, True, True),
    ("vllm-0.28", "b200", 16384, 1024, 0.92, True, True),
    ("vllm-0.32", "b200", 16384, 1024, 0.92, True, True),
    ("vllm-0.33", "h200", 8192, 1024, 0.92, True, True),
    ("vllm-0.33", "a100-80gb", 2048, 256, 0.92, True, True),
    ("VLLM-0.33.1", "l40s", 2048, 256, 0.92, True, True),
]


@pytest.mark.parametrize(("server", "gpu", "budget", "seqs", "share", "whole", "ahead"), VLLM)
def test_vllm_has_the_defaults_of_its_sources(
    server: str, gpu: str, budget: int, seqs: int, share: float, whole: bool, ahead: bool
) -> None:
    engine = iq.Engine.on("llama-3.1-8b", gpu, server=server, max_model_len=4096)
    assert engine.scheduler == iq.VllmV1(
        token_budget=budget,
        max_seqs=seqs,
        reserve_full_prompt=whole,
        async_scheduling=ahead,
        pause_s=0.001 if ahead else None,
    )
    assert (engine.kv.block, engine.kv.prefix_cache) == (16, "blocks")
    assert engine.on_card["gpu_memory_utilization"] == share
    assert (engine.max_model_len, engine.api_s) == (4096, 0.0075 if ahead else 0.0165)
    # Settings read from the release itself, and settings assumed from another release.
    assert sum(server.lower().partition("-")[2][:4] in line for line in engine.explain().splitlines()) >= 6
    # 32 layers, each 0.1 ms; overlapped with async scheduling.
    graph = 1024 if gpu == "b200" and budget == 16384 else 512
    assert engine.overhead == iq.Overhead(
        base_s=0.001,
        per_sequence_s=1e-5,
        overlapped=ahead,
        largest_graph_tokens=graph,
        beyond_graph_s=32e-4,
    )
    words = (
        "token_budget",
        "max_seqs",
        "gpu_memory_utilization",
        "block",
        "prefix_cache",
        "async_scheduling",
    )
    for word in (*words, "max_model_len", "overhead", "api_s"):
        assert any(line.startswith(f"  {word} ") for line in engine.explain().splitlines()), word
    assert iq.Engine.from_json(engine.to_json()) == engine


@pytest.mark.parametrize(
    ("server", "exposed_s"),
    [
        # 0.2 ms per doubling beyond two GPUs since 0.14.
        ("vllm-0.12", [0, 0, 0, 0]),
        ("vllm-0.14", [0, 0, 0.0002, 0.0004]),
        ("vllm-0.33", [0, 0, 0.0002, 0.0004]),
        ("sglang-0.5", [0, 0, 0, 0]),
    ],
)
def test_gpus_wait_for_each_other_from_vllm_0_14_on(server: str, exposed_s: list[float]) -> None:
    preset = Server.of(server, Gpu.of("h200"))
    assert [preset.host(32, gpus, 8192).exposed_s for gpus in (1, 2, 4, 8)] == exposed_s
    engine = iq.Engine.on("llama-3.1-8b", "h100-80gb", tensor_parallel=4, server=server)
    assert ("exposed_s" in engine.explain()) == bool(exposed_s[2])
    assert iq.Engine.from_json(engine.to_json()) == engine


def test_sglang_has_its_own_memory_fraction_and_page_size() -> None:
    engine = iq.Engine.on("llama-3.1-8b", "h100-80gb", server="sglang-0.5")
    assert isinstance(engine.scheduler, iq.Sglang) and engine.scheduler.chunk_tokens == 8192
    assert (engine.kv.block, engine.kv.prefix_cache) == (1, "radix")
    # 81,559 MiB minus 512 + 1.5 · 8,192 + 2 · 256 + 128 MiB.
    assert engine.on_card["gpu_memory_utilization"] == round((81_559 - 13_440) / 81_559, 3)
    earlier = iq.Engine.on("llama-3.1-8b", "h100-80gb", server="sglang-0.5.1")
    assert earlier.on_card["gpu_memory_utilization"] == round((81_559 - 10 * 1024) / 81_559, 3)


def test_given_settings_replace_the_servers() -> None:
    engine = iq.Engine.on(
        "llama-3.1-8b",
        "h100-80gb",
        server="vllm-0.33",
        scheduler={"max_seqs": 4, "async_scheduling": False},
        max_model_len=512,
        gpu_memory_utilization=0.5,
        prefix_cache="none",
        overhead=iq.Overhead(),
        api_s=0,
    )
    assert (engine.overhead, engine.api_s, engine.max_model_len) == (None, 0, 512)
    # The smaller of 8,192 and 4 · 512.
    assert engine.scheduler == iq.VllmV1(token_budget=2048, max_seqs=4, async_scheduling=False, pause_s=0.0)
    assert engine.kv.prefix_cache is None and engine.on_card["gpu_memory_utilization"] == 0.5
    assert (
        "max_seqs 4: as given" in engine.explain()
        and "gpu_memory_utilization 0.5: as given" in engine.explain()
    )
    assert "token_budget 2,048: vLLM's defaults" in engine.explain()
    whole = iq.VllmV1(policy="priority")
    assert iq.Engine.on("qwen3-8b", "h200", server="vllm-0.33", scheduler=whole).scheduler == whole
    # The same in a table.
    table = {"model": "qwen3-8b", "gpu": "h200", "server": "vllm-0.33", "scheduler": {"max_seqs": 8}}
    assert iq.Engine.from_json(table) == iq.Engine.on(
        "qwen3-8b", "h200", server="vllm-0.33", scheduler={"max_seqs": 8}
    )


def test_the_newest_server_is_the_default_in_python_tables_and_the_shell(tmp_path: Path) -> None:
    bare = iq.Engine.on("llama-3.1-8b", "h100-80gb")
    assert bare == iq.Engine.on("llama-3.1-8b", "h100-80gb", server="vllm-0.33")
    assert bare.on_card["server"] == "vllm-0.33"
    assert "server: vllm-0.33 on h100-80gb, the latest known" in bare.explain()
    assert iq.Engine.from_json({"model": "llama-3.1-8b", "gpu": "h100-80gb"}) == bare
    fewer = {"model": "llama-3.1-8b", "gpu": "h100-80gb", "scheduler": {"max_seqs": 9}}
    trace, out = tmp_path / "trace.csv", tmp_path / "out"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,10\n1,100,10\n")
    arguments = ["replay", str(trace), "--model", "llama-3.1-8b", "--gpu", "h100-80gb", "--max-seqs", "9"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(out)])
    assert done.exit_code == 0, done.output
    ran = iq.Scenario.read(out / "scenario.json").system
    assert ran == iq.Engine.from_json(fewer) != bare
    # Without a GPU, the command line also uses vLLM's scheduler.
    done = CliRunner().invoke(app, ["replay", str(trace), "--max-seqs", "9"])
    output = " ".join(done.output.split())
    assert done.exit_code == 0 and f"scheduler {iq.VllmV1(max_seqs=9)!r}" in output


def test_a_record_has_model_gpus_server_and_source_of_measurements() -> None:
    engine = iq.Engine.on("llama-3.1-70b", "h100-80gb", tensor_parallel=4)
    workload = {"arrival_s": [0.0], "prompt_tokens": [10], "output_tokens": [2]}
    result = iq.simulate(workload, iq.Cluster(engine, replicas=2))
    ran = json.loads(result.scenario)["cluster"]["engines"]["on"]
    names = {name: ran[name] for name in ("model", "gpu", "tensor_parallel", "server")}
    assert names == {
        "model": "llama-3.1-70b",
        "gpu": "h100-80gb",
        "tensor_parallel": 4,
        "server": "vllm-0.33",
    }
    assert "Apache-2.0; Copyright (c)" in ran["timing_source"] and "aiconfigurator" in ran["timing_source"]
    again = iq.Scenario.read(result.scenario)
    assert again.system == iq.Cluster(engine, replicas=2)
    assert again.system.engines.on_card == engine.on_card
    assert "timing_source" not in iq.Engine.on("llama-3.2-3b", "l4").on_card


def test_a_scheduler_changes_only_the_scheduler() -> None:
    bare, other = (
        iq.Engine.on("llama-3.1-8b", "h100-80gb", scheduler=scheduler)
        for scheduler in ({"token_budget": 2048, "max_seqs": 64}, iq.Sarathi(token_budget=2048, max_seqs=64))
    )
    assert dataclasses.replace(other, scheduler=bare.scheduler) == bare
    of_sglang = iq.Engine.on("llama-3.1-8b", "h100-80gb", scheduler=iq.Sglang(max_seqs=64))
    assert of_sglang.kv == iq.Engine.on("llama-3.1-8b", "h100-80gb", server="sglang-0.5").kv


def test_a_small_cache_limits_the_request_length_unless_a_server_is_named() -> None:
    tight = iq.Engine.on("llama-3.1-8b", "a10g")
    assert tight.on_card["max_model_len"] == tight.kv.tokens < 131_072
    assert f"max_model_len {tight.kv.tokens:,}: the size of the cache" in tight.explain()


@pytest.mark.parametrize(
    ("model", "gpu", "arguments", "message"),
    [
        (
            "qwen3-8b",
            "h200",
            {"server": "vllm-0.34"},
            "unknown server 'vllm-0.34'; the nearest is vllm-0.33 .known: vllm-0.11 to vllm-0.33, sgl",
        ),
        ("qwen3-8b", "h200", {"server": "vlm-0.33"}, "did you mean vllm-0.33"),
        (
            "qwen3-8b",
            "h200",
            {"server": "trtllm-1.0"},
            "'trtllm-1.0'; the scheduler of TensorRT-LLM is not simulated .known: vllm-0.11 to vllm-0.33",
        ),
        ("qwen3-8b", "h200", {"server": "TensorRT-LLM"}, "the scheduler of TensorRT-LLM is not simulated"),
        ("qwen3-8b", "h200", {"server": "sglang-0.4"}, "the nearest is sglang-0.5"),
        ("qwen3-8b", "h200", {"server": "vllm-1.0"}, "the nearest is vllm-0.33"),
        ("llama-3.1-8b", "a10g", {"server": "vllm-0.33"}, "max_model_len: vllm-0.33 does not start"),
        (
            "llama-3.1-70b",
            "l4",
            {"server": "vllm-0.33", "tensor_parallel": 1},
            "tensor_parallel: .*does not fit",
        ),
        (
            "qwen3-8b",
            "h200",
            {"server": "sglang-0.5", "prefix_cache": "blocks"},
            "prefix_cache: .*has 'radix'",
        ),
        (
            "qwen3-8b",
            "h200",
            {"server": "vllm-0.33", "prefix_cache": "radix"},
            "prefix_cache: .*has 'blocks'",
        ),
        ("qwen3-8b", "h200", {"server": "vllm-0.33", "scheduler": iq.Sglang()}, "scheduler: .*has VllmV1"),
        ("qwen3-8b", "h200", {"server": "vllm-0.33", "scheduler": {"max_seq": 4}}, "did you mean max_seqs"),
        ("qwen3-8b", "h200", {"server": "vllm-0.33", "max_model_len": 0}, "max_model_len"),
        ("qwen3-8b", "h200", {"server": "vllm-0.33", "scheduler": {"max_seqs": "a"}}, "scheduler.max_seqs: "),
        ("qwen3-8b", "h200", {"scheduler": {"max_seq": 4}}, "did you mean max_seqs"),
        # vLLM: "max_num_batched_tokens must be greater than or equal to max_num_seqs"; both servers refuse a
        # length above the model's.
        (
            "llama-3.1-8b",
            "h100-80gb",
            {"scheduler": {"token_budget": 100, "max_seqs": 1024}},
            r"scheduler.token_budget: vllm-0.33 requires at least max_seqs .1,024., got 100",
        ),
        (
            "llama-3.1-8b",
            "h100-80gb",
            {"server": "vllm-0.14", "scheduler": iq.VllmV1(token_budget=100, max_seqs=1024)},
            "scheduler.token_budget: vllm-0.14 requires",
        ),
        (
            "llama-3.1-8b",
            "h100-80gb",
            {"max_model_len": 400_000},
            "max_model_len: vllm-0.33 does not start with more than the 131,072 tokens .* got 400,000",
        ),
        (
            "llama-3.1-8b",
            "h100-80gb",
            {"server": "sglang-0.5", "max_model_len": 131_073},
            "max_model_len: sgl",
        ),
        ("llama-3.1-8b", "a10g", {"max_model_len": 131_072}, "max_model_len: vllm-0.33 does not start"),
    ],
)
def test_parts_that_a_server_lacks_are_errors(
    model: str, gpu: str, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(iq.ConfigError, match=message):
        iq.Engine.on(model, gpu, **arguments)


def test_an_unknown_version_is_the_one_before_it() -> None:
    servers = {(0, 9): "vllm-0.11", (0, 12): "vllm-0.12", (0, 15, 1): "vllm-0.15", (1, 0): "vllm-0.33"}
    assert {version: Server.until("vllm", version) for version in servers} == servers
    assert Server.of("vllm-0.33", Gpu.of("h200")).limits() == {"token_budget": 8192, "max_seqs": 1024}


def test_the_command_line_accepts_servers(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,10\n1,100,10\n")
    on = ["replay", str(trace), "--model", "qwen3-8b", "--gpu", "h200"]
    run = CliRunner()
    done = run.invoke(app, [*on, "--server", "vllm-0.33", "--max-seqs", "16"])
    assert done.exit_code == 0 and "max_seqs=16" in done.output and "async_scheduling=True" in done.output
    wrong = run.invoke(app, [*on, "--server", "vllm-0.3"])
    assert wrong.exit_code != 0 and "the nearest is vllm-0.11" in wrong.output.replace("\n", " ")
    wrong = run.invoke(app, ["replay", str(trace), "--server", "vllm-0.33"])
    assert wrong.exit_code != 0 and "requires --model and --gpu" in wrong.output.replace("\n", " ")


@pytest.mark.parametrize(
    ("server", "kv", "options", "block", "kind"),
    [
        # The size alone changes: block and prefix cache are the server's.
        ("vllm-0.33", iq.KvCache(tokens=4000), {}, 16, "blocks"),
        ("vllm-0.33", {"tokens": 4000}, {}, 16, "blocks"),
        ("sglang-0.5", iq.KvCache(tokens=4000), {}, 1, "radix"),
        ("sglang-0.5", {"tokens": 4000}, {}, 1, "radix"),
        # Fields that are set remain.
        ("vllm-0.33", iq.KvCache(tokens=4000, block=32), {}, 32, "blocks"),
        ("sglang-0.5", {"tokens": 4000, "block": 16}, {}, 16, "radix"),
        ("sglang-0.5", iq.KvCache(tokens=4000, prefix_cache="radix"), {}, 16, "radix"),
        # Prefix caching is disabled by name.
        ("vllm-0.33", iq.KvCache(tokens=4000), {"prefix_cache": "none"}, 16, None),
        ("sglang-0.5", {"tokens": 4000}, {"prefix_cache": "none"}, 1, None),
        ("vllm-0.33", {"tokens": 4000, "prefix_cache": None}, {}, 16, None),
    ],
)
def test_a_given_kv_size_changes_nothing_else(
    server: str, kv: object, options: dict[str, object], block: int, kind: str | None
):
    engine = iq.Engine.on("llama-3.1-8b", "h100-80gb", server=server, kv=kv, max_model_len=2000, **options)
    assert engine.kv == iq.KvCache(tokens=4000, block=block, prefix_cache=kind)


def test_the_kv_size_of_a_scenario_or_a_command_keeps_prefix_caching():
    table = {"model": "llama-3.1-8b", "gpu": "h100-80gb", "kv": {"tokens": 4000}}
    expected = iq.KvCache(tokens=4000, prefix_cache="blocks")
    assert iq.Engine.from_json(table).kv == expected
    assert "kv_tokens 4,000: as given" in iq.Engine.from_json(table).explain()
    assert "prefix_cache blocks: enable_prefix_caching" in iq.Engine.from_json(table).explain()
    assert iq.Engine.from_json({**table, "kv": "unlimited"}).kv == iq.KvCache(
        tokens=None, prefix_cache="blocks"
    )


def test_a_larger_kv_cache_never_lowers_the_hit_rate():
    # Ten sessions of four turns; all 64 blocks of a session's history are reused if the cache keeps them.
    turns = [(turn * 100.0 + session, f"s{session}", turn) for turn in range(4) for session in range(10)]
    workload = iq.Workload(
        {
            "arrival_s": [at for at, _, _ in turns],
            "prompt_tokens": [1024 * (turn + 1) for _, _, turn in turns],
            "output_tokens": [1] * len(turns),
            "session_id": [session for _, session, _ in turns],
            "turn": [turn for _, _, turn in turns],
        }
    )
    cached = [
        iq.simulate(workload, iq.Engine.on("llama-3.1-8b", "h100-80gb", kv=iq.KvCache(tokens=tokens)))
        .requests["cached_tokens"]
        .sum()
        for tokens in (8192, 80_000)
    ]
    assert cached == [0, 10 * (1024 + 2048 + 3072)]
