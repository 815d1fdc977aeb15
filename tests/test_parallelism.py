"""Parallelism of a replica: tensor and expert parallelism, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import inferq as iq
from inferq.cli import app

from .refusals import refused

AZURE = str(Path(__file__).parent.parent / "traces" / "azure_2023.csv")
MIXTURE: dict[str, Any] = {"model": "qwen3-30b-a3b", "gpu": "h100-80gb"}


def test_experts_are_divided_among_groups_of_gpus() -> None:
    # 128 experts: four groups have 32 each; the bytes per GPU are those of tensor parallelism.
    cases: tuple[tuple[Any, int], ...] = ((1, 1), (2, 2), (4, 4), ("all", 4))
    for given, groups in cases:
        engine = iq.Engine.on(**MIXTURE, tensor_parallel=4, expert_parallel=given)
        assert engine.on_card.get("expert_parallel", 1) == groups
        assert engine.kv.tokens == iq.Engine.on(**MIXTURE, tensor_parallel=4).kv.tokens
    # Without a number of GPUs, there is at least one for each group.
    assert iq.Engine.on(**MIXTURE, expert_parallel=4).on_card["tensor_parallel"] == 4


def test_an_engine_with_divided_experts_is_read_back() -> None:
    table = {**MIXTURE, "tensor_parallel": 4, "expert_parallel": "all"}
    engine = iq.Engine.from_json(table)
    assert engine.on_card["expert_parallel"] == 4
    assert iq.Engine.from_json(engine.to_json()) == engine
    assert engine.on_card["tensor_parallel"] == 4  # the GPUs of a replica, for prices and power


@refused(
    (
        {"tensor_parallel": 3},
        r"tensor_parallel: 3 GPUs cannot share the 32 query heads and 4 key-value heads",
    ),
    ({"tensor_parallel": 2, "expert_parallel": 4}, r"expert_parallel: must divide the 2 GPUs of the replica"),
    ({"tensor_parallel": 2, "expert_parallel": 0}, r"expert_parallel: must be"),
    ({"expert_parallel": "some"}, r"expert_parallel: must be"),
    ({"data_parallel": 2}, r"data_parallel: must be 1, got 2: ranks .* Cluster\(engine, replicas=2\)"),
    ({"data_parallel": 0}, r"data_parallel: must be"),
    ({"pipeline_parallel": 2}, r"pipeline_parallel: must be 1, got 2: pipeline stages are not simulated"),
)
def test_impossible_parallelism_is_refused(given: dict[str, Any]) -> None:
    iq.Engine.on(**MIXTURE, **given)


@refused(
    ({"expert_parallel": 2}, r"expert_parallel: llama-3.1-8b has no experts"),
    ({"expert_parallel": "all"}, r"expert_parallel: llama-3.1-8b has no experts"),
)
def test_a_dense_model_has_no_experts_to_divide(given: dict[str, Any]) -> None:
    iq.Engine.on("llama-3.1-8b", "h100-80gb", tensor_parallel=2, **given)


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel=2"),
        ({"tp_size": 2}, "tensor_parallel=2"),
        ({"ep_size": 2}, "expert_parallel=2"),
        ({"enable_expert_parallel": True}, "expert_parallel='all'"),
        ({"data_parallel_size": 2}, "data_parallel=2"),
        ({"pp": 2}, "pipeline_parallel=2"),
        ({"enforce_eager": True}, "eager=True"),
        ({"disable_cuda_graph": True}, "eager=True"),
    ],
)
def test_names_of_vllm_and_sglang_are_answered_with_ours(given: dict[str, Any], ours: str) -> None:
    (name,) = given
    with pytest.raises(TypeError, match=f"^{name} is called .* here: Engine.on\\({ours}\\)$"):
        iq.Engine.on(**MIXTURE, **given)
    with pytest.raises(
        iq.ConfigError, match=f"unknown field '{name}'; it is called {ours.partition('=')[0]}"
    ):
        iq.Engine.from_json({**MIXTURE, **given})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--tp", "4", "--ep", "4"], None),
        (["--tp", "2", "--expert-parallel", "all"], None),
        (["--tp", "2", "--ep", "3"], "expert_parallel"),
        (["--dp", "2"], "--replicas 2"),
        (["--pp", "2"], "pipeline_parallel: must be 1"),
        (["--tp", "2", "--enable-expert-parallel"], None),
        (["--tp", "2", "--enable-expert-parallel", "--ep", "2"], "conflicts with --expert-parallel 2"),
        (["--enable-dp-attention"], "did you mean --data-parallel?"),
        (["--disable-cuda-graph"], "did you mean --eager?"),
        (["--eager"], None),
        (["--enforce-eager"], None),
    ],
)
def test_options_of_the_command_line(options: list[str], expected: str | None) -> None:
    command = ["replay", AZURE, "--model", "qwen3-30b-a3b", "--gpu", "h100_sxm", "--head", "2", *options]
    done = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    if expected is None:
        assert done.exit_code == 0, done.output
    else:
        assert done.exit_code != 0 and expected in " ".join(done.output.split())


@pytest.mark.parametrize("option", ["--enable-expert-parallel", "--eager", "--server=vllm-0.33"])
def test_options_of_a_gpu_require_one(option: str) -> None:
    done = CliRunner().invoke(app, ["replay", AZURE, "--head", "2", option], env={"COLUMNS": "200"})
    assert done.exit_code != 0 and "requires --model and --gpu" in done.output
