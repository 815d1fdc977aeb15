"""Vidur over the cases that it reads from standard input; runs in Vidur's own environment.

Vidur fetches the profiles of its kernels from a hub when it runs. Here an iteration takes the linear time of
the case instead, which costs less than its random forests: the loop is run, not the model. What it would
write at its end is not written.
"""

import json
import multiprocessing
import sys
import tempfile
from typing import Any

from vidur.config import SimulationConfig
from vidur.entities import ExecutionTime, Request
from vidur.execution_time_predictor import BaseExecutionTimePredictor, ExecutionTimePredictorRegistry
from vidur.simulator import RequestArrivalEvent, Simulator
from vidur.types import ExecutionTimePredictorType

Case = dict[str, Any]
CASE: Case = {}


class Linear(BaseExecutionTimePredictor):
    """The price of the case that runs."""

    def get_execution_time(self, batch, pipeline_stage):
        """All of it as one part of each layer."""
        price = CASE["price_us"]
        tokens = sum(batch.num_q_tokens)
        pairs = zip(batch.num_q_tokens, batch.num_kv_tokens, batch.requests, strict=True)
        # Vidur counts the token that comes out as processed, though nothing is cached of it yet.
        contexts = sum(kv - q - 1 for q, kv, request in pairs if request.is_prefill_complete)
        whole_us = price["base"] + price["per_token"] * tokens + price["per_context_token"] * contexts
        layers = self._num_layers_per_pipeline_stage
        return ExecutionTime(layers, *[0.0] * 6, whole_us / 1e3 / layers, *[0.0] * 7)


Linear.__abstractmethods__ = frozenset()
ExecutionTimePredictorRegistry.unregister(ExecutionTimePredictorType.RANDOM_FORREST)
ExecutionTimePredictorRegistry.register(ExecutionTimePredictorType.RANDOM_FORREST, Linear)


class Rows(Simulator):
    """Requests that are given, and nothing written."""

    def _init_event_queue(self) -> None:
        self.requests = [
            Request(
                arrived_at=row["arrival_us"] / 1e6,
                num_prefill_tokens=row["prompt_tokens"],
                num_decode_tokens=row["output_tokens"],
            )
            for row in CASE["requests"]
        ]
        for request in self.requests:
            self._add_event(RequestArrivalEvent(request.arrived_at, request))

    def _write_output(self) -> None:
        pass


def options(case: Case, folder: str) -> list[str]:
    """The case as Vidur is told it."""
    longest = max(row["prompt_tokens"] + row["output_tokens"] for row in case["requests"])
    told = {
        "replica_config_model_name": "meta-llama/Llama-3-8B",
        "replica_config_device": "h100",
        "replica_config_network_device": "h100_dgx",
        "replica_config_num_pipeline_stages": 1,
        "cache_config_num_blocks": case["kv_tokens"] // case["block_tokens"],
        "cache_config_block_size": case["block_tokens"],
        "cache_config_watermark_blocks_fraction": 0.0,
        "replica_scheduler_config_type": "sarathi",
        "sarathi_scheduler_config_chunk_size": case["token_budget"],
        "sarathi_scheduler_config_batch_size_cap": case["max_seqs"],
        "synthetic_request_generator_config_max_tokens": longest,
        "metrics_config_output_dir": folder,
    }
    off = ("store_plots", "enable_chrome_trace", "write_json_trace")
    native = "random_forrest_execution_time_predictor_config_use_native_execution_time_predictor"
    given = [part for name, value in told.items() for part in (f"--{name}", str(value))]
    return [*given, *(f"--no-metrics_config_{name}" for name in off), f"--no-{native}"]


def run(case: Case, folder: str) -> dict[str, list[float]]:
    """What came out of a case."""
    if case["policy"] != "fcfs" or case["long_prefill_threshold"] or case["prefix"]:
        raise ValueError("it has no priorities, no threshold of long prompts and no prefix cache")
    CASE.clear()
    CASE.update(case)
    sys.argv = ["vidur", *options(case, folder)]
    simulator = Rows(SimulationConfig.create_from_cli_args())
    simulator.run()
    return {
        "first_token_us": [1e6 * request.prefill_completed_at for request in simulator.requests],
        "finish_us": [1e6 * request.completed_at for request in simulator.requests],
        "preemptions": [request.num_restarts for request in simulator.requests],
    }


def outcome(case: Case) -> dict[str, Any]:
    """The same, or why it cannot be run."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return {"Ok": run(case, folder)}
        except Exception as error:
            return {"Err": str(error) or type(error).__name__}


def main() -> None:
    """Outcomes to standard output; a process for each case, since Vidur counts replicas across runs."""
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        outcomes = pool.map(outcome, json.load(sys.stdin), chunksize=1)
    sys.stdout.write(json.dumps(outcomes) + "\n")


if __name__ == "__main__":
    main()
