"""Recordings of real engines, and runs of the core in the same form. See conformance/README.md."""

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl

import inferq as iq
from inferq.workload.prefixes import OWN, Chains, Contents

Scenario = dict[str, Any]


@cache
def recorded(name: str) -> list[Scenario]:
    """The cases of a recording: scenarios, and what must come out."""
    path = Path(__file__).parent / "conformance" / f"{name}.json.gz"
    cases: list[Scenario] = json.loads(gzip.decompress(path.read_bytes()))["cases"]
    return cases


def workload(requests: list[Scenario], ends: str = "stop") -> iq.Workload:
    """The requests of a recorded scenario, whose ends are foreseen, or are stop tokens."""
    names = ["prompt_tokens", "output_tokens", "priority", "prefix_parts", "continues", "max_output_tokens"]
    names += ["accepted", "proposal_rate"]
    columns: dict[str, list[Any]] = {"arrival_s": [request["arrival_us"] / 1e6 for request in requests]}
    if ends == "length":
        columns["max_output_tokens"] = [request["output_tokens"] for request in requests]
    elif "max_tokens" in requests[0]:
        columns["max_output_tokens"] = [request["max_tokens"] for request in requests]
    for name in names:
        if any(name in request for request in requests):
            columns[name] = [request.get(name) for request in requests]
    if "continues" in columns:  # a row says in one way with what its prompt begins
        parts = [None if "continues" in request else request.get("prefix_parts") for request in requests]
        columns["prefix_parts"] = parts
    types: dict[str, Any] = {"prefix_parts": pl.List(pl.List(pl.Int64)), "continues": pl.Int64}
    overrides = {name: types[name] for name in types if name in columns}
    return iq.Workload(pl.DataFrame(columns, schema_overrides=overrides))


@contextmanager
def cut_prompts(requests: list[Scenario], ends: str) -> Iterator[iq.Workload]:
    """A workload in which a prompt may end within the tokens of the row that it continues.

    The column `continues` requires the whole row, so the content of the prompts is replaced.
    """
    whole: list[list[tuple[int, int]]] = []
    chains: list[list[tuple[int, int]]] = []
    for row, request in enumerate(requests):
        prompt = request["prompt_tokens"]
        parts = [(text, tokens) for text, tokens in request.get("prefix_parts", [])]
        chain = _cut(whole[request["continues"]] if "continues" in request else parts, prompt)
        chains.append(chain)
        own = prompt + request["output_tokens"] - sum(tokens for _, tokens in chain)
        whole.append([*chain, (OWN | row, own)])
    segments = [segment for chain in chains for segment in chain]
    content = Chains(
        np.concatenate([[0], np.cumsum([len(chain) for chain in chains])]),
        np.array([text for text, _ in segments], dtype=np.uint64),
        np.array([tokens for _, tokens in segments], dtype=np.int64),
    )
    names = ("prefix_parts", "continues")
    rows = [{k: v for k, v in request.items() if k not in names} for request in requests]
    with mock.patch.object(Contents, "linked", lambda self, frame: content):
        yield workload(rows, ends)


def _cut(chain: list[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """The first tokens of a chain of contents."""
    cut: list[tuple[int, int]] = []
    for text, tokens in chain:
        kept = min(tokens, most - sum(tokens for _, tokens in cut))
        if kept > 0:
            cut.append((text, kept))
    return cut


def _microseconds(column: pl.Series) -> list[int]:
    return [round(seconds * 1e6) for seconds in column]


def every_iteration(result: iq.Result) -> list[list[Any]]:
    """Every iteration as recordings have it, and its kind: a stretch is `count` of them."""
    rows: dict[int, list[list[int]]] = {}
    emitted = "emitted_tokens" if "emitted_tokens" in result.batches.columns else "emits"
    for iteration, *row in result.batches.select("iteration", "request", "tokens", emitted).iter_rows():
        rows.setdefault(iteration, []).append([int(number) for number in row])
    listed = []
    columns = result.iterations.select("start_s", "count", "first_s", "growth_s", "prefill_tokens", "decodes")
    for place, (start, count, first, growth, prefill_tokens, decodes) in enumerate(columns.iter_rows()):
        kind = "extend" if decodes == 0 else "mixed" if prefill_tokens > 0 else "decode"
        for j in range(count):
            since = j * first + growth * j * (j - 1) / 2
            listed.append([round((start + since) * 1e6), kind, rows[place]])
    return listed


def _outcome(result: iq.Result) -> Scenario:
    """What every recording has of each request."""
    return {
        "first_token_us": _microseconds(result.requests["first_token_s"]),
        "finish_us": _microseconds(result.requests["finish_s"]),
        "cached_tokens_at_admission": result.requests["cached_tokens"].to_list(),
    }


def vllm_engine(scenario: Scenario) -> iq.Engine:
    price = {name: microseconds / 1e6 for name, microseconds in scenario["price_us"].items()}
    names = ["token_budget", "max_seqs", "long_prefill_threshold", "policy", "reserve_full_prompt"]
    drafts = scenario.get("speculation")
    return iq.Engine(
        timing=iq.PiecewiseLinear(**price),
        scheduler=iq.VllmV1(
            **{name: scenario[name] for name in names},
            async_scheduling=scenario.get("async_scheduling", False),
            pause_s=scenario.get("pause_us", 0) / 1e6,
            speculation=iq.Speculation(**drafts) if drafts else None,
        ),
        kv=iq.KvCache(
            tokens=scenario["kv_tokens"],
            block=scenario["block_tokens"],
            prefix_cache="blocks" if scenario["prefix"] else None,
        ),
        # So the recordings with drafts have it.
        max_model_len=scenario.get("max_model_len", scenario["kv_tokens"]) if drafts else None,
    )


def _layer_groups(scenario: Scenario) -> iq.KvGroups:
    """Layers of equal kind, in order of the first layer of each kind."""
    kinds: dict[Any, int] = {}
    for layer in scenario["layers"]:
        kind = ("full" if layer == "full" else "mamba", 1, 0) if isinstance(layer, str) else tuple(layer)
        kinds[kind] = kinds.get(kind, 0) + 1
    return iq.KvGroups(
        kinds=[
            iq.CachedLayers(layers=count, window=window or None, state=kind == "mamba", token_bytes=heads)
            for (kind, heads, window), count in kinds.items()
        ],
        retention_interval=scenario["retention_interval"],
        saves_states_in_rows=scenario.get("checkpoint_alignment") is not None,
    )


def vllm_engine_with_groups(scenario: Scenario) -> iq.Engine:
    engine = vllm_engine({**scenario, "kv_tokens": scenario["kv_blocks"] * scenario["block_tokens"]})
    kv = replace(engine.kv, groups=_layer_groups(scenario))
    return replace(engine, kv=kv, max_model_len=scenario["max_model_len"])


def vllm_outcome(result: iq.Result) -> Scenario:
    """A run as the recordings of vLLM have it."""
    iterations = [[start, rows] for start, _, rows in every_iteration(result)]
    preemptions = result.requests["preemptions"].to_list()
    return {**_outcome(result), "preemptions": preemptions, "iterations": iterations}


def sglang_engine(scenario: Scenario) -> iq.Engine:
    price = {name: value / 1e6 for name, value in scenario["price_us"].items()}
    names = ["policy", "max_prefill_tokens", "max_seqs", "mixed", "conservativeness", "ignore_eos"]
    return iq.Engine(
        timing=iq.PiecewiseLinear(**price),
        scheduler=iq.Sglang(
            chunk_tokens=scenario["chunk_tokens"] or None,
            overlap=scenario.get("overlap", False),
            **{name: scenario[name] for name in names},
        ),
        kv=iq.KvCache(
            tokens=scenario["kv_tokens"],
            block=scenario["page_tokens"],
            prefix_cache="radix" if scenario["prefix"] else None,
        ),
    )


def sglang_outcome(result: iq.Result) -> Scenario:
    """A run as the recordings of SGLang have it."""
    retractions = result.requests["preemptions"].to_list()
    return {**_outcome(result), "retractions": retractions, "iterations": every_iteration(result)}
